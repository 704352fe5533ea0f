// Testreport reads what `go test -json` printed, from files or else from stdin,
// and says how it went:
//
//   - at once, the end of the output of each test that failed; from stdin also
//     how each package went
//   - at the end, how many tests were skipped for each reason, and the coverage
//     of each package if asked for
//   - as the last line, how many tests passed, failed and were skipped
//
// It exits with status 1 when a test failed, or one that must run did not.
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

// core are the packages whose tests must cover them: those of the SDK.
var core = regexp.MustCompile(`^github\.com/metacni/metacni/(netconf|status|scratch|ifname|delegate)(/|$)`)

func main() {
	r := newReport(os.Stdout)
	flag.BoolVar(&r.verbose, "v", false, "print the output of tests that pass, too")
	required := flag.String("required", "", "file with a test on each line that must not be skipped")
	readme := flag.String("readme", "", "text whose tests, by name, must not be skipped")
	cover := flag.Float64("cover", 0, "list the coverage of packages; fail when a core package has less, in percent")
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

// readAll reads files, or else stdin.
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

// read reads one run of go test. Its tests are shown with its name in front.
func (r *report) read(name string, from io.Reader) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Fprintln(r.out, lines.Text()) // of make, or the compiler
			continue
		}
		r.add(name, e)
	}
	for _, pkg := range slices.Sorted(maps.Keys(r.running)) {
		r.add(name, event{Action: "fail", Package: pkg}) // go test itself was ended
	}
	return lines.Err()
}

// mustRun fails for each test that one of the files names, and that was skipped
// or is not there. A file that is not there names none.
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
			r.fail("%s must run, and was skipped", name)
		case len(results) == 0:
			r.fail("%s must run, and there is no such test", name)
		}
	}
	return nil
}
