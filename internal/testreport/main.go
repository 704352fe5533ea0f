// Testreport reads the output of `go test -json` from files, or else from stdin,
// and prints:
//
//   - at once, the end of the output of each failed test; from stdin also the
//     result of each package
//   - at the end, the number of skipped tests for each reason, and on request the
//     coverage of each package
//   - as the last line, the numbers of passed, failed and skipped tests
//
// It exits with status 1 if a test failed or a required test did not run.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// core matches the packages of the SDK, for which -cover demands coverage.
var core = regexp.MustCompile(`^github\.com/metacni/metacni/(netconf|status|scratch|ifname|delegate)(/|$)`)

func main() {
	r := newReport(os.Stdout)
	flag.BoolVar(&r.verbose, "v", false, "print the output of passed tests too")
	required := flag.String("required", "", "`file` with the names of tests that must not be skipped, one per line")
	readme := flag.String("readme", "", "`file` whose tests must not be skipped: every name that begins with Test")
	cover := flag.Float64("cover", 0, "list the coverage of packages, and fail if a package of the SDK has less than `percent`")
	flag.Parse()
	err := r.readAll(flag.Args(), os.Stdin)
	if err == nil {
		err = r.mustRun(*required, *readme)
	}
	if err != nil {
		r.fail("%v", err)
	}
	r.close(*cover)
	if !r.ok {
		os.Exit(1)
	}
}

// readAll reads the files, or else stdin.
func (r *report) readAll(files []string, stdin io.Reader) error {
	if len(files) == 0 {
		r.live = true
		return r.read("", stdin)
	}
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		err = r.read(strings.TrimSuffix(filepath.Base(file), ".json")+": ", f)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// read reads the output of one go test run. Its name is printed before its
// tests.
func (r *report) read(name string, from io.Reader) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Fprintln(r.out, lines.Text()) // output of make or the compiler
			continue
		}
		r.add(name, e)
	}
	for _, pkg := range slices.Sorted(maps.Keys(r.running)) {
		r.add(name, event{Action: "fail", Package: pkg}) // go test itself was killed
	}
	return lines.Err()
}

// mustRun fails for each test named in one of the files that was skipped or
// does not exist. A missing file names no tests.
func (r *report) mustRun(required, readme string) error {
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
			return err
		}
		must = append(must, regexp.MustCompile(source.pattern).FindAllString(string(text), -1)...)
	}
	slices.Sort(must)
	for _, name := range slices.Compact(must) {
		switch results := r.results[name]; {
		case slices.Contains(results, "skip"):
			r.fail("%s must run, but was skipped", name)
		case len(results) == 0:
			r.fail("%s must run, but there is no such test", name)
		}
	}
	return nil
}
