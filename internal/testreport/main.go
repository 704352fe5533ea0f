// Testreport reads files with the output of `go test -json`. Its last line says how many
// tests passed, failed and were skipped. It exits with status 1 if a test failed, if none ran,
// or if a test that must run was skipped or does not exist.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

func main() {
	var must []string
	flag.Func("must", "`file` that names tests that must run; may be repeated", func(file string) error {
		text, err := os.ReadFile(file)
		must = append(must, regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(string(text), -1)...)
		return err
	})
	flag.Parse()
	if !report(os.Stdout, must, flag.Args()) {
		os.Exit(1)
	}
}

// report prints the report and reports whether all is well.
func report(out io.Writer, must, files []string) bool {
	count, skipped := map[string]int{}, map[string]bool{} // skipped has each test, by name
	for _, file := range files {
		if err := read(file, count, skipped); err != nil {
			fmt.Fprintln(out, "FAILED:", err)
			count["fail"]++
		}
	}
	missing := 0
	for _, name := range must {
		if skips, ran := skipped[name]; skips || !ran {
			fmt.Fprintf(out, "FAILED: %s must run, but was skipped or does not exist\n", name)
			missing++
		}
	}
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", count["pass"], count["fail"], count["skip"])
	return count["pass"] > 0 && count["fail"] == 0 && missing == 0
}

// read adds the results of a file. A package that fails without a failed test counts as one.
func read(file string, count map[string]int, skipped map[string]bool) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	failed := map[string]bool{} // packages
	for d := json.NewDecoder(f); ; {
		var e struct{ Action, Package, Test string }
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if e.Action != "pass" && e.Action != "fail" && e.Action != "skip" {
			continue
		}
		if e.Test == "" && (e.Action != "fail" || failed[e.Package]) {
			continue
		}
		count[e.Action]++
		failed[e.Package] = failed[e.Package] || e.Action == "fail"
		name, _, _ := strings.Cut(e.Test, "/")
		skipped[name] = skipped[name] || e.Action == "skip"
	}
}
