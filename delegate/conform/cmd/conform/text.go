package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/metacni/metacni/delegate/conform"
)

// A screen shows the results as they come, for people or as JSON.
type screen struct {
	w     io.Writer
	err   error // the first of w
	json  bool
	width int // of the longest name of a check
}

func (s *screen) printf(format string, args ...any) {
	if _, err := fmt.Fprintf(s.w, format, args...); err != nil {
		s.err = cmp.Or(s.err, err)
	}
}

// begin says what the plugin is taken for, before the checks.
func (s *screen) begin(r *report) {
	if s.json {
		return
	}
	s.printf("%s is %s\n\n", r.Plugin, r.taken())
	for _, c := range conform.Checks() {
		s.width = max(s.width, len(c.Name))
	}
}

// checked shows a check that has ended.
func (s *screen) checked(c check) {
	if !s.json {
		s.printf("%-7s  %-*s  %s\n", c.Result, s.width, c.Name, c.Duty)
	}
}

// end prints what there is to say after the last check.
func (s *screen) end(r *report) error {
	if s.json {
		return encode(s.w, r)
	}
	for _, c := range r.with(isFailed) {
		s.printf("\n%s: %s\n%s\n%s\n", c.Name, c.Duty, indent("what: ", c.Detail), c.reason())
	}
	for i, m := range r.missing() {
		if i == 0 {
			s.printf("\nnot run:\n")
		}
		s.printf("%s\n%s\n", indent("", m.what), indent("  ", wrap(m.checks)))
	}
	for i, name := range r.Gone {
		if i == 0 {
			s.printf("\n")
		}
		s.printf("%s\n", r.gone(name))
	}
	s.printf("\n%s\n", r.counts())
	return s.err
}

// explain prints the checks without results.
func (r *report) explain(w io.Writer) (err error) {
	for _, c := range r.Checks {
		kinds := "every kind"
		if c.Kinds != nil {
			kinds = strings.Join(c.Kinds, ", ")
		}
		if c.Delegates {
			kinds += ", with delegates"
		}
		if c.Strict {
			kinds += "; with -strict only"
		}
		if _, err = fmt.Fprintf(w, "%s: %s\n%s\n%s\n", c.Name, c.Duty, indent("kind: ", kinds), c.reason()); err != nil {
			break
		}
	}
	return err
}

func (c check) reason() string { return indent("why:  ", c.Why) + "\n" + indent("see:  ", c.Where) }

// indent returns text below a label.
func indent(label, text string) string {
	return "  " + label + strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", 2+len(label)))
}

// wrap returns names in lines of up to 76 characters.
func wrap(names []string) string {
	var b strings.Builder
	column := 0
	for i, name := range names {
		switch {
		case i == 0:
		case column+len(name) > 73:
			b.WriteString(",\n")
			column = 0
		default:
			b.WriteString(", ")
			column += 2
		}
		b.WriteString(name)
		column += len(name)
	}
	return b.String()
}
