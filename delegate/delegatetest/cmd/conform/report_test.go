//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/metacni/metacni/delegate/delegatetest"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

func TestAnADDThatWasNotRunMeansThatTheChecksCouldNotBeMade(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		version error
		add     string
		skip    string
		lacks   bool
		detail  string
	}{
		"not run":         {nil, "ADD fails with (Links) Kind: a configuration (Stdin)", "", true, "ADD fails with (-link) Kind: a configuration (-conf, -files)"},
		"passed":          {nil, "", "", false, ""},
		"not asked for":   {nil, "a (Kind) that is not mine", "a (Kind) that is not mine", false, "a (Kind) that is not mine"},
		"without version": {errors.New("no JSON"), "the check version has failed", "", false, "the check version has failed"},
	} {
		r := &report{skip: map[string]string{"add": tt.skip}}
		r.add(delegatetest.Finding{Check: delegatetest.Check{Name: "version"}, Err: tt.version}, 0)
		r.add(delegatetest.Finding{Check: delegatetest.Check{Name: "add"}, NotRun: tt.add}, 0)
		nodetest.Equal(t, name, r.lacksADD(), tt.lacks)
		nodetest.Equal(t, name+": detail", r.check("add").Detail, tt.detail)
	}
}

func TestReports(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	junit, markdown := filepath.Join(dir, "junit.xml"), filepath.Join(dir, "report.md")
	args := append(slices.Clone(plain), "-junit", junit, "-markdown", markdown, "-skip", "code=the code is ours", "testdata/bad")
	status, text, stderr := conform(t, args...)
	nodetest.Equal(t, "status", status, failed)
	nodetest.Equal(t, "stderr", stderr, "")
	status, js, _ := conform(t, append([]string{"-json"}, args...)...)
	nodetest.Equal(t, "status with -json", status, failed)
	plugin, err := filepath.Abs("testdata/bad")
	nodetest.OK(t, err)
	same := func(text string) string {
		return regexp.MustCompile(`time="[0-9.]+"`).ReplaceAllString(strings.ReplaceAll(text, plugin, "/opt/cni/bin/bad"), `time="0.001"`)
	}
	checkREADME(t, same(text))
	golden(t, "testdata/bad.golden.txt", same(text))
	golden(t, "testdata/bad.golden.json", same(js))
	golden(t, "testdata/bad.golden.xml", same(read(t, junit)))
	golden(t, "testdata/bad.golden.md", same(read(t, markdown)))
	if failures := strings.Count(read(t, junit), "<failure "); !strings.Contains(text, fmt.Sprintf(" %d failed, ", failures)) {
		t.Errorf("the JUnit file has %d failures, and the text differs:\n%s", failures, text)
	}
}

func TestListAsJSON(t *testing.T) {
	t.Parallel()
	_, stdout, _ := conform(t, "-list", "-json")
	var list []check
	if err := json.Unmarshal([]byte(stdout), &list); err != nil || len(list) != len(delegatetest.Checks()) || list[0].Result != "" {
		t.Errorf("list %v: %v", list, err)
	}
	nodetest.Equal(t, "checks of chained plugins", len(checksOf("chained", true, true)), len(slices.DeleteFunc(delegatetest.Checks(), func(c delegatetest.Check) bool {
		return c.Kinds != nil && !slices.Contains(c.Kinds, "chained")
	})))
}

func TestBaseline(t *testing.T) {
	t.Parallel()
	_, js, _ := conform(t, append([]string{"-json"}, append(only("version", "add", "undo", "error"), "testdata/bad")...)...)
	var all report
	nodetest.OK(t, json.Unmarshal([]byte(js), &all))
	known := all.with(isFailed)
	if len(known) < 2 {
		t.Fatalf("want two findings to know: %s", js)
	}
	baseline := file(t, js)

	status, text, _ := conform(t, append(only("version", "add", "undo", "error"), "-baseline", baseline, "testdata/bad")...)
	nodetest.Equal(t, "status with known findings", status, passed)
	if want := fmt.Sprintf(" 0 failed, %d known, ", len(known)); !strings.Contains(text, want) || !strings.Contains(text, "known    undo") {
		t.Errorf("want %q in:\n%s", want, text)
	}

	// A report made with a baseline is a baseline as well.
	status, js, _ = conform(t, append([]string{"-json"}, append(only("version", "add", "undo", "error"), "-baseline", baseline, "testdata/bad")...)...)
	nodetest.Equal(t, "status with -json", status, passed)
	again, err := readBaseline(file(t, js))
	nodetest.OK(t, err)
	nodetest.Equal(t, "known findings of a report with known findings", len(again), len(known))

	all.Checks = slices.DeleteFunc(all.Checks, func(c check) bool { return c.Name == "undo" })
	less, err := json.Marshal(all)
	nodetest.OK(t, err)
	status, text, _ = conform(t, append(only("version", "add", "undo", "error"), "-baseline", file(t, string(less)), "testdata/bad")...)
	if nodetest.Equal(t, "status with a new finding", status, failed); !strings.Contains(text, "failed   undo") {
		t.Errorf("undo is not new:\n%s", text)
	}

	status, text, _ = conform(t, append(only("version", "add", "undo", "error"), "-baseline", baseline, "testdata/good")...)
	if nodetest.Equal(t, "status without findings", status, passed); !strings.Contains(text, `The finding "undo" of the baseline is gone: remove it from `+baseline) {
		t.Errorf("nothing is gone:\n%s", text)
	}
	_, text, _ = conform(t, append(only("version"), "-baseline", baseline, "testdata/good")...)
	if strings.Contains(text, "of the baseline is gone") {
		t.Errorf("a check that was not run is not gone:\n%s", text)
	}
}

type terminal struct{ bytes.Buffer }

func (*terminal) Stat() (os.FileInfo, error) { return os.Stat(os.DevNull) }

func TestTerminal(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		environ          []string
		json             bool
		colour, progress bool
	}{
		"a terminal":   {nil, false, true, true},
		"without more": {[]string{"TERM=dumb"}, false, false, false},
		"NO_COLOR":     {[]string{"NO_COLOR=1", "TERM=xterm"}, false, false, true},
		"JSON":         {nil, true, false, false},
	} {
		var out terminal
		args := append(only("version", "add"), "testdata/good")
		if tt.json {
			args = append([]string{"-json"}, args...)
		}
		nodetest.Equal(t, name+": status", process{args, append(tt.environ, "PATH="+os.Getenv("PATH")), nil, &out, &out}.run(t.Context()), passed)
		nodetest.Equal(t, name+": colour", strings.Contains(out.String(), "\x1b[32mpassed \x1b[0m  add"), tt.colour)
		nodetest.Equal(t, name+": progress", strings.Contains(out.String(), " version ...\r\x1b[K"), tt.progress)
		if tt.progress {
			shown, erased := strings.Count(out.String(), " ..."), strings.Count(out.String(), "\r\x1b[K")
			if shown == 0 || erased < shown {
				t.Errorf("%s: of %d names %d are erased", name, shown, erased)
			}
		} else if strings.Contains(out.String(), "\x1b") {
			t.Errorf("%s: escape codes in %q", name, out.String())
		}
	}
}

func TestHostilePlugin(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	junit, markdown := filepath.Join(dir, "junit.xml"), filepath.Join(dir, "report.md")
	args := append(slices.Clone(plain), "-env", "TOKEN=correct horse \"battery\"", "-junit", junit, "-markdown", markdown, "testdata/hostile")
	outputs := make(map[string]string)
	for name, args := range map[string][]string{"text": args, "json": append([]string{"-json"}, args...)} {
		var stdout, stderr bytes.Buffer
		status := process{args, append(os.Environ(), "SECRET=of this process"), nil, &stdout, &stderr}.run(t.Context())
		nodetest.Equal(t, name+": status", status, failed)
		outputs[name], outputs[name+": stderr"] = stdout.String(), stderr.String()
	}
	outputs["junit"], outputs["markdown"] = read(t, junit), read(t, markdown)
	for name, text := range outputs {
		if !utf8.ValidString(text) {
			t.Errorf("%s is no UTF-8", name)
		}
		if i := strings.IndexFunc(text, func(c rune) bool { return c != '\n' && c != '\t' && clean(string(c)) != string(c) }); i >= 0 {
			t.Errorf("%s has control characters: %q", name, text[i:min(len(text), i+80)])
		}
		for _, secret := range []string{"horse", "of this process"} {
			if i := strings.Index(text, secret); i >= 0 {
				t.Errorf("%s has a secret: %q", name, text[max(0, i-80):i+10])
			}
		}
		if len(text) > 200_000 {
			t.Errorf("%s has %d bytes", name, len(text))
		}
	}
	if !strings.Contains(outputs["text"], "[value of TOKEN]") || !strings.Contains(outputs["text"], `\x1b[2J`) {
		t.Errorf("the finding is not shown:\n%s", outputs["text"])
	}
	if strings.Contains(outputs["markdown"], "<img") || strings.Contains(outputs["markdown"], "@all") {
		t.Errorf("markup reaches the reader:\n%s", outputs["markdown"])
	}
	for line := range strings.Lines(outputs["markdown"]) {
		if cells := strings.Count(strings.ReplaceAll(line, `\|`, ""), "|"); strings.HasPrefix(line, "|") && cells != 5 && cells != 4 {
			t.Errorf("a line of the table has %d bars: %s", cells, line)
		}
	}
	nodetest.OK(t, xml.Unmarshal([]byte(outputs["junit"]), new(struct{})))
}

func checkREADME(t *testing.T, stdout string) {
	t.Helper()
	readme := read(t, "README.md")
	put := func(name, text string) {
		begin, end := "<!-- begin "+name+" -->\n", "<!-- end "+name+" -->"
		before, rest, found := strings.Cut(readme, begin)
		_, after, ended := strings.Cut(rest, end)
		if !found || !ended {
			t.Fatalf("README.md lacks %q or %q", begin, end)
		}
		readme = before + begin + text + end + after
	}

	text := strings.Split(stdout, "\n\n") // kind, checks, findings, ..., counts
	var checks []string
	for _, result := range []string{isPassed, isFailed} {
		lines := slices.DeleteFunc(strings.Split(text[1], "\n"), func(line string) bool { return !strings.HasPrefix(line, result) })
		checks = append(append(checks, lines[:min(2, len(lines))]...), "...")
	}
	shown := strings.Join([]string{"$ conform -conf plugin.json /opt/cni/bin/bad\n" + text[0], strings.Join(checks, "\n"), text[2], "...", strings.TrimSpace(text[len(text)-1])}, "\n\n")
	put("output", "\n    "+strings.ReplaceAll(shown, "\n", "\n    ")+"\n\n")

	var table, kindTable strings.Builder
	table.WriteString("\n| check | a plugin passes when | where it is written | why it matters on a node |\n|---|---|---|---|\n")
	for _, c := range delegatetest.Checks() {
		fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", c.Name, c.Duty, c.Where, c.Why)
	}
	put("checks", table.String()+"\n")
	kindTable.WriteString("\n| kind | checks |\n|---|---|\n")
	row := func(kind string, in func(delegatetest.Check) bool) {
		var names []string
		for _, c := range delegatetest.Checks() {
			if in(c) {
				names = append(names, c.Name)
			}
		}
		fmt.Fprintf(&kindTable, "| %s | %s |\n", kind, strings.Join(names, ", "))
	}
	row("every", func(c delegatetest.Check) bool { return c.Kinds == nil && !c.Delegates && !c.Strict })
	row("every, with delegates", func(c delegatetest.Check) bool { return c.Kinds == nil && c.Delegates && !c.Strict })
	for _, kind := range kinds() {
		row(kind, func(c delegatetest.Check) bool { return slices.Contains(c.Kinds, kind) && !c.Strict })
	}
	row("with -strict", func(c delegatetest.Check) bool { return c.Strict })
	put("kinds", kindTable.String()+"\n")
	readme = regexp.MustCompile(`(?m)[ \t]+$`).ReplaceAllString(readme, "")
	golden(t, "README.md", readme)
}
