package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/metacni/metacni/delegate/conform"
)

// A report is the output of -json.
type report struct {
	Plugin string `json:"plugin"` // path
	Kind   struct {
		Name string `json:"name"`
		Why  string `json:"why"`
	} `json:"kind"`
	Passed   int      `json:"passed"`
	Failed   int      `json:"failed"` // without those of the baseline
	NotRun   int      `json:"notRun"`
	Accepted int      `json:"accepted,omitempty"` // findings of the baseline
	Gone     []string `json:"gone,omitempty"`     // checks of the baseline that do not fail any more
	Checks   []check  `json:"checks"`

	skip     map[string]string
	known    map[string]bool // findings of the baseline
	baseline string          // its file
}

type check struct {
	Name   string `json:"name"`
	Duty   string `json:"duty"`
	Result string `json:"result,omitempty"`
	Detail string `json:"detail,omitempty"` // what happened, or what is missing
	Why    string `json:"why"`
	Where  string `json:"where"`

	// In the list of checks.
	Kinds     []string `json:"kinds,omitempty"`
	Delegates bool     `json:"delegates,omitempty"`
	Strict    bool     `json:"strict,omitempty"`

	took time.Duration
}

// Results of a check.
const (
	isPassed = "passed"
	isFailed = "failed"
	isKnown  = "known" // a finding of the baseline
	isNotRun = "not run"
)

// add adds the outcome of a check that took some time.
func (r *report) add(f conform.Finding, took time.Duration) check {
	c := check{Name: f.Name, Duty: f.Duty, Why: f.Why, Where: f.Where, took: took}
	switch {
	case f.NotRun != "":
		r.NotRun++
		c.Result, c.Detail = isNotRun, clean(f.NotRun)
		if r.skip[f.Name] == "" {
			c.Detail = regexp.MustCompile(`\(\w+\)`).ReplaceAllStringFunc(c.Detail, flags)
		}
	case f.Err != nil && r.known[f.Name]:
		r.Accepted++
		c.Result, c.Detail = isKnown, clean(f.Err.Error())
	case f.Err != nil:
		r.Failed++
		c.Result, c.Detail = isFailed, clean(f.Err.Error())
	default:
		r.Passed++
		c.Result = isPassed
	}
	r.Checks = append(r.Checks, c)
	return c
}

// end notes the findings of the baseline that are gone.
func (r *report) end() {
	for _, name := range slices.Sorted(maps.Keys(r.known)) {
		if c := r.check(name); c.Result == "" || c.Result == isPassed {
			r.Gone = append(r.Gone, name)
		}
	}
}

// check returns the check of that name, or an empty one.
func (r *report) check(name string) check {
	if i := slices.IndexFunc(r.Checks, func(c check) bool { return c.Name == name }); i >= 0 {
		return r.Checks[i]
	}
	return check{}
}

// lacksADD reports whether no ADD could be run, unless that was asked for or follows from
// a finding.
func (r *report) lacksADD() bool {
	return r.check("add").Result == isNotRun && r.skip["add"] == "" && r.check("version").Result != isFailed
}

// counts is the last line of a report.
func (r *report) counts() string {
	known := ""
	if r.known != nil {
		known = fmt.Sprintf("%d known, ", r.Accepted)
	}
	return fmt.Sprintf("%d passed, %d failed, %s%d not run", r.Passed, r.Failed, known, r.NotRun)
}

// taken says what the plugin is taken for.
func (r *report) taken() string {
	names := map[string]string{"meta": "a meta-plugin", "main": "a main plugin", "chained": "a chained plugin", "ipam": "an IPAM plugin", "shim": "the shim of a daemon"}
	return fmt.Sprintf("taken for %s: %s", cmp.Or(names[r.Kind.Name], "a plugin of an unknown kind"), cmp.Or(r.Kind.Why, "it names no version of CNI"))
}

// gone says that a finding of the baseline is gone.
func (r *report) gone(name string) string {
	return fmt.Sprintf("The finding %q of the baseline is gone: remove it from %s", name, clean(r.baseline))
}

// with returns the checks with a result.
func (r *report) with(results ...string) (all []check) {
	for _, c := range r.Checks {
		if slices.Contains(results, c.Result) {
			all = append(all, c)
		}
	}
	return all
}

// A missing is a thing that some checks lack.
type missing struct {
	what   string
	checks []string
}

// missing returns the reasons why checks were not run, each once.
func (r *report) missing() (all []missing) {
	for _, c := range r.with(isNotRun) {
		i := slices.IndexFunc(all, func(m missing) bool { return m.what == c.Detail })
		if i < 0 {
			i = len(all)
			all = append(all, missing{what: c.Detail})
		}
		all[i].checks = append(all[i].checks, c.Name)
	}
	return all
}

// readBaseline returns the checks that fail in a report, or nil without a file.
func readBaseline(file string) (map[string]bool, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var r report
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("%s is not a report of conform -json: %w", file, err)
	}
	if r.Plugin == "" || len(r.Checks) == 0 {
		return nil, fmt.Errorf("%s is not a report of conform -json: it has no plugin or no checks", file)
	}
	known := make(map[string]bool)
	for _, c := range r.with(isFailed, isKnown) {
		known[c.Name] = true
	}
	return known, nil
}

// clean returns valid UTF-8 in which only newlines and tabs control a terminal.
func clean(s string) string {
	var b strings.Builder
	for _, c := range strings.ToValidUTF8(s, "\uFFFD") {
		if c == '\n' || c == '\t' || c == '\uFFFD' || unicode.IsPrint(c) {
			b.WriteRune(c)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(c), "'"))
		}
	}
	return b.String()
}

func encode(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// writeFile writes a report to a file, unless that is "".
func writeFile(file string, write func(io.Writer) error) error {
	if file == "" {
		return nil
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if err = write(f); err == nil {
		return f.Close()
	}
	_ = f.Close() // the first error is the cause
	return fmt.Errorf("write %s: %w", file, err)
}
