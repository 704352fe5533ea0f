package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/metacni/metacni/delegate/delegatetest"
)

// A report is the output of -o json.
type report struct {
	Plugin  string  `json:"plugin,omitempty"` // path
	Passed  int     `json:"passed"`
	Failed  int     `json:"failed"`
	Skipped int     `json:"skipped"`
	Checks  []check `json:"checks"`
}

type check struct {
	Name   string `json:"name"`
	Duty   string `json:"duty"`
	Result string `json:"result,omitempty"` // "pass", "fail" or "skip"
	Detail string `json:"detail,omitempty"` // what happened, or why it was skipped
	Why    string `json:"why"`
	Where  string `json:"where"`
}

func (r *report) add(f delegatetest.Finding) {
	c := check{Name: f.Name, Duty: f.Duty, Why: f.Why, Where: f.Where}
	switch {
	case f.Skipped != "":
		r.Skipped++
		c.Result, c.Detail = "skip", f.Skipped
	case f.Err != nil:
		r.Failed++
		c.Result, c.Detail = "fail", f.Err.Error()
	default:
		r.Passed++
		c.Result = "pass"
	}
	r.Checks = append(r.Checks, c)
}

// failed reports whether the check of that name failed.
func (r *report) failed(name string) bool {
	return slices.ContainsFunc(r.Checks, func(c check) bool { return c.Name == name && c.Result == "fail" })
}

// print prints the report, or for a list only the checks, and returns the exit
// status.
func (r *report) print(w io.Writer, format string, list bool) int {
	if list {
		for i := range r.Checks {
			r.Checks[i].Result = ""
		}
	}
	var err error
	switch {
	case format == "json" && list:
		err = encode(w, r.Checks)
	case format == "json":
		err = encode(w, r)
	case list:
		for _, c := range r.Checks {
			if _, err = fmt.Fprintf(w, "%s: %s\n%s\n", c.Name, c.Duty, c.reason()); err != nil {
				break
			}
		}
	default:
		err = r.table(w)
	}
	switch {
	case err != nil:
		return cannot
	case !list && r.Failed > 0:
		return failed
	}
	return passed
}

func encode(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// table prints a line for each check, then what there is to say of those that
// failed.
func (r *report) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range r.Checks {
		text := c.Duty
		if c.Result == "skip" {
			text += ": " + c.Detail
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", c.Result, c.Name, text)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, c := range r.Checks {
		if c.Result == "fail" {
			fmt.Fprintf(w, "\n%s: %s\n%s\n%s\n", c.Name, c.Duty, indent("what: ", c.Detail), c.reason())
		}
	}
	_, err := fmt.Fprintf(w, "\n%d passed, %d failed, %d skipped\n", r.Passed, r.Failed, r.Skipped)
	return err
}

func (c check) reason() string { return indent("why:  ", c.Why) + "\n" + indent("see:  ", c.Where) }

// indent returns text below a label.
func indent(label, text string) string {
	return "  " + label + strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", 2+len(label)))
}
