package main

import (
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// An event is a line of `go test -json`; see `go doc test2json`.
type event struct {
	Action, Package, Test, Output string
}

// A report summarizes all events.
type report struct {
	out     io.Writer
	verbose bool
	live    bool // print the result of each package
	ok      bool

	running  map[string]*run     // unfinished packages
	results  map[string][]string // by test name: "pass", "fail", "skip"
	count    map[string]int      // by result
	skipped  map[string][]string // tests by reason
	coverage map[string]float64  // by package
}

// A run is one package under test.
type run struct {
	tests  []string            // unfinished tests in the order of their start
	output map[string][]string // by test; "" is the package itself
	failed int
}

func newReport(out io.Writer) *report {
	return &report{
		out: out, ok: true, running: map[string]*run{}, results: map[string][]string{},
		count: map[string]int{}, skipped: map[string][]string{}, coverage: map[string]float64{},
	}
}

// fail prints a failure and makes the report fail.
func (r *report) fail(format string, args ...any) {
	r.ok = false
	fmt.Fprintf(r.out, "FAILED: "+format+"\n", args...)
}

var covered = regexp.MustCompile(`coverage: ([0-9.]+)% of statements`)

// add adds an event of the go test run called name.
func (r *report) add(name string, e event) {
	if e.Action == "build-output" {
		fmt.Fprintf(r.out, "%s", e.Output)
		return
	}
	if e.Package == "" {
		return
	}
	p := r.running[e.Package]
	if p == nil {
		p = &run{output: map[string][]string{}}
		r.running[e.Package] = p
	}
	switch e.Action {
	case "run":
		p.tests = append(p.tests, e.Test)
	case "output":
		p.output[e.Test] = append(p.output[e.Test], e.Output)
		if r.verbose {
			fmt.Fprintf(r.out, "%s", e.Output)
		}
		if m := covered.FindStringSubmatch(e.Output); m != nil && e.Test == "" {
			r.coverage[e.Package], _ = strconv.ParseFloat(m[1], 64)
		}
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.endPackage(name, e, p)
			return
		}
		r.endTest(name, e, p)
	}
}

// endTest adds the result of a test.
func (r *report) endTest(name string, e event, p *run) {
	r.count[e.Action]++
	// What becomes of a part becomes of the whole, here.
	top, _, _ := strings.Cut(e.Test, "/")
	r.results[top] = append(r.results[top], e.Action)
	output := own(p.output[e.Test])
	switch e.Action {
	case "fail":
		p.failed++
		r.fail("%s%s %s%s", name, e.Package, e.Test, show(output))
	case "skip":
		r.skipped[reason(output)] = append(r.skipped[reason(output)], e.Test)
	}
	delete(p.output, e.Test)
	if i := slices.Index(p.tests, e.Test); i >= 0 {
		p.tests = slices.Delete(p.tests, i, i+1)
	}
}

// endPackage adds the result of a package. After a panic, such as a timeout,
// some of its tests are unfinished.
func (r *report) endPackage(name string, e event, p *run) {
	delete(r.running, e.Package)
	if e.Action != "fail" {
		if last := p.output[""]; r.live && !r.verbose && len(last) > 0 {
			fmt.Fprintf(r.out, "%s", last[len(last)-1])
		}
		return
	}
	for _, test := range p.tests {
		if output := own(p.output[test]); len(output) > 0 { // the others were paused
			p.failed++
			r.count["fail"]++
			r.fail("%s%s %s did not end%s", name, e.Package, test, show(output))
		}
	}
	if p.failed == 0 {
		r.count["fail"]++
	}
	output := slices.DeleteFunc(own(p.output[""]), func(line string) bool { return line == "FAIL\n" })
	r.fail("%s%s%s", name, e.Package, show(output))
}

// close prints the totals. Unless cover is 0, each package of the SDK must have
// that much coverage, in percent.
func (r *report) close(cover float64) {
	for _, why := range slices.Sorted(maps.Keys(r.skipped)) {
		fmt.Fprintf(r.out, "skipped %d: %s: %s\n", len(r.skipped[why]), why, some(r.skipped[why]))
	}
	if cover > 0 {
		r.covers(cover)
	}
	if r.count["pass"] == 0 {
		r.fail("no test ran")
	}
	fmt.Fprintf(r.out, "%d passed, %d failed, %d skipped\n", r.count["pass"], r.count["fail"], r.count["skip"])
}

// some lists the names of tests, each once. A long list is cut, and leaves out
// subtests.
func some(tests []string) string {
	const most = 5
	names := slices.Compact(slices.Sorted(slices.Values(tests)))
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	for i, name := range names {
		names[i], _, _ = strings.Cut(name, "/")
	}
	names = slices.Compact(names)
	text := strings.Join(names[:min(most, len(names))], ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// covers lists the coverage of each package.
func (r *report) covers(least float64) {
	for _, pkg := range slices.Sorted(maps.Keys(r.coverage)) {
		fmt.Fprintf(r.out, "coverage: %5.1f%% %s\n", r.coverage[pkg], pkg)
		if core.MatchString(pkg) && r.coverage[pkg] < least {
			r.fail("coverage of %s is below %.0f%%", pkg, least)
		}
	}
}

// own returns output without the lines that go test adds.
func own(output []string) (lines []string) {
	for line := range strings.Lines(strings.Join(output, "")) {
		if !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(strings.TrimSpace(line), "--- ") {
			lines = append(lines, line)
		}
	}
	return lines
}

var place = regexp.MustCompile(`^\S+\.go:\d+: `)

// reason returns why a test with this output was skipped.
func reason(output []string) string {
	if len(output) == 0 {
		return "no reason given"
	}
	return place.ReplaceAllString(strings.TrimSpace(output[0]), "")
}

// show returns a colon and the end of lines, each on its own line. For a panic
// it shows the lines before it and the beginning of the dump, which may list
// thousands of goroutines.
func show(lines []string) string {
	const most, before = 200, 50
	from := max(0, len(lines)-most)
	if i := slices.IndexFunc(lines, func(s string) bool { return strings.HasPrefix(s, "panic: ") }); i >= 0 {
		from = min(from, max(0, i-before))
	}
	to := min(len(lines), from+most)
	text := strings.TrimSuffix(strings.Join(lines[from:to], ""), "\n")
	if from > 0 {
		text = fmt.Sprintf("... %d lines left out\n", from) + text
	}
	if to < len(lines) {
		text += fmt.Sprintf("\n... %d lines left out", len(lines)-to)
	}
	if text == "" {
		return ""
	}
	return ":\n" + text
}
