// Report reads what `go test -json` printed and says how it went: the output
// of tests that failed, what was skipped and why, the coverage of each package,
// and, as the last line, how many tests passed, failed and were skipped. It
// fails when a test failed, or one that must run did not.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// event is a line of `go test -json`: see `go doc test2json`.
type event struct {
	Action, Package, Test, Output string
}

// report is what all events say together.
type report struct {
	output   map[string]string   // by run, package and test
	results  map[string][]string // of a test's name: "pass", "fail", "skip"
	count    map[string]int      // by result
	failed   []string            // runs, packages and tests, in order
	skipped  []string
	coverage map[string]float64
}

// core are the packages whose tests must cover them: those of the SDK.
var core = regexp.MustCompile(`^github\.com/metacni/metacni/(netconf|status|scratch|ifname|delegate)(/|$)`)

var covered = regexp.MustCompile(`coverage: ([0-9.]+)% of statements`)

func main() {
	required := flag.String("required", "", "file with a test on each line that must not be skipped")
	readme := flag.String("readme", "", "text whose tests, by name, must not be skipped")
	cover := flag.Float64("cover", 0, "least coverage of a core package, in percent")
	flag.Parse()
	ok, err := run(*required, *readme, *cover, flag.Args())
	if err != nil {
		fmt.Println("report:", err)
	}
	if !ok || err != nil {
		os.Exit(1)
	}
}

func run(required, readme string, cover float64, files []string) (bool, error) {
	r := report{output: map[string]string{}, results: map[string][]string{}, count: map[string]int{}, coverage: map[string]float64{}}
	for _, file := range files {
		if err := r.read(file); err != nil {
			return false, err
		}
	}
	ok := len(r.failed) == 0
	for _, id := range r.failed {
		fmt.Printf("FAILED: %s\n%s", id, said(r.output[id]))
	}
	for _, id := range r.skipped {
		fmt.Printf("skipped: %s: %s\n", id, strings.TrimSpace(first(said(r.output[id]))))
	}
	var must []string
	for _, source := range []struct{ file, pattern string }{
		{required, `(?m)^Test\w+`},
		{readme, `\bTest[A-Z]\w+`},
	} {
		text, err := os.ReadFile(source.file)
		if source.file == "" || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return false, err
		}
		must = append(must, regexp.MustCompile(source.pattern).FindAllString(string(text), -1)...)
	}
	slices.Sort(must)
	for _, name := range slices.Compact(must) {
		switch results := r.results[name]; {
		case slices.Contains(results, "skip"):
			ok = false
			fmt.Printf("FAILED: %s must run, and was skipped\n", name)
		case len(results) == 0:
			ok = false
			fmt.Printf("FAILED: %s must run, and there is no such test\n", name)
		}
	}
	for _, pkg := range sorted(r.coverage) {
		fmt.Printf("coverage: %5.1f%% %s\n", r.coverage[pkg], pkg)
		if core.MatchString(pkg) && r.coverage[pkg] < cover {
			ok = false
			fmt.Printf("FAILED: coverage of %s is below %.0f%%\n", pkg, cover)
		}
	}
	if r.count["pass"] == 0 {
		ok = false
		fmt.Println("FAILED: no test ran")
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", r.count["pass"], r.count["fail"], r.count["skip"])
	return ok, nil
}

func (r *report) read(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Println(lines.Text()) // of make, or the compiler
			continue
		}
		r.add(strings.TrimSuffix(filepath.Base(file), ".json"), e)
	}
	return lines.Err()
}

func (r *report) add(in string, e event) {
	id := strings.TrimSpace(in + ": " + e.Package + " " + e.Test)
	switch e.Action {
	case "build-output":
		fmt.Print(e.Output)
	case "output":
		r.output[id] += e.Output
		if m := covered.FindStringSubmatch(e.Output); m != nil && e.Test == "" {
			r.coverage[e.Package], _ = strconv.ParseFloat(m[1], 64)
		}
	case "fail":
		r.failed = append(r.failed, id)
	case "skip":
		if e.Test != "" { // a package that is skipped has no tests
			r.skipped = append(r.skipped, id)
		}
	}
	if e.Test == "" {
		return
	}
	if e.Action == "pass" || e.Action == "fail" || e.Action == "skip" {
		r.count[e.Action]++
		// What becomes of a part becomes of the whole, here.
		top, _, _ := strings.Cut(e.Test, "/")
		r.results[top] = append(r.results[top], e.Action)
	}
}

// said is output without the lines that go test adds.
func said(output string) string {
	var own strings.Builder
	for line := range strings.Lines(output) {
		if !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(strings.TrimSpace(line), "--- ") {
			own.WriteString(line)
		}
	}
	return own.String()
}

// first is the first line of text.
func first(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

func sorted(m map[string]float64) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
