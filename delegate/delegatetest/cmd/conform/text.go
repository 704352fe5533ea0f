package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/metacni/metacni/delegate/delegatetest"
)

// A screen shows the results as they come, for people or as JSON.
type screen struct {
	w        io.Writer
	err      error // the first of w
	json     bool
	colour   bool
	progress bool     // the running check is shown
	names    []string // of the checks to come
	width    int      // of the longest name
}

func newScreen(p process, o *options) *screen {
	s := &screen{w: p.stdout, json: o.json}
	if !o.json && isTerminal(p.stdout) && p.getenv("TERM") != "dumb" {
		s.progress, s.colour = true, p.getenv("NO_COLOR") == ""
	}
	return s
}

// isTerminal reports whether w is a terminal, or another device.
func isTerminal(w io.Writer) bool {
	f, ok := w.(interface{ Stat() (os.FileInfo, error) })
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func (s *screen) printf(format string, args ...any) {
	if _, err := fmt.Fprintf(s.w, format, args...); err != nil {
		s.err = cmp.Or(s.err, err)
	}
}

// begin says what the plugin is taken for, before the checks.
func (s *screen) begin(r *report, checks []delegatetest.Check) {
	if s.json {
		return
	}
	s.printf("%s is %s\n\n", r.Plugin, r.taken())
	for _, c := range checks {
		s.names = append(s.names, c.Name)
		s.width = max(s.width, len(c.Name))
	}
	s.running(s.names[0])
}

// running shows what is found out now.
func (s *screen) running(what string) {
	if s.progress {
		s.printf("         %s ...", what)
	}
}

// erase removes what running has shown.
func (s *screen) erase() {
	if s.progress {
		s.printf("\r\x1b[K")
	}
}

// checked shows a check that has ended.
func (s *screen) checked(c check) {
	if s.json {
		return
	}
	s.erase()
	s.printf("%s  %-*s  %s\n", s.paint(c.Result, fmt.Sprintf("%-7s", c.Result)), s.width, c.Name, c.Duty)
	if i := slices.Index(s.names, c.Name); i >= 0 {
		s.names = s.names[i+1:]
	}
	if len(s.names) > 0 {
		s.running(s.names[0])
	}
}

// end prints what there is to say after the last check.
func (s *screen) end(r *report) error {
	if s.json {
		return encode(s.w, r)
	}
	for _, c := range r.with(isFailed) {
		s.printf("\n%s: %s\n%s\n%s\n", s.paint(isFailed, c.Name), c.Duty, indent("what: ", c.Detail), c.reason())
	}
	for i, m := range r.missing() {
		if i == 0 {
			s.printf("\n%s\n", s.paint(isNotRun, "not run:"))
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

// paint colours the word for a result.
func (s *screen) paint(result, word string) string {
	if !s.colour {
		return word
	}
	colours := map[string]int{isPassed: 32, isFailed: 31, isKnown: 33, isNotRun: 36}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", colours[result], word)
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
