package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// stream returns output of go test -json. Each line is an action, a package, a
// test and its output; "-" is empty.
func stream(t *testing.T, lines ...string) string {
	t.Helper()
	var all strings.Builder
	for _, line := range lines {
		words := strings.SplitN(line, " ", 4)
		if len(words) < 3 { // output of make
			all.WriteString(line + "\n")
			continue
		}
		e := event{Action: words[0], Package: strings.Trim(words[1], "-"), Test: strings.Trim(words[2], "-")}
		if len(words) > 3 {
			e.Output = words[3] + "\n"
		}
		data, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(append(data, '\n'))
	}
	return all.String()
}

func TestReport(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		events []string
		want   []string
		ok     bool
	}{
		"passes": {
			events: []string{
				"run p TestA", "output p TestA === RUN   TestA", "output p TestA a word", "pass p TestA",
				"output p - PASS", "output p - coverage: 81.5% of statements", "output p - ok  \tp\t1s\tcoverage: 81.5% of statements", "pass p -",
				"output q - ?   \tq\t[no test files]", "skip q -",
			},
			want: []string{"ok  \tp\t1s\tcoverage: 81.5% of statements", "?   \tq\t[no test files]", "1 passed, 0 failed, 0 skipped"},
			ok:   true,
		},
		"skips are counted by reason": {
			events: []string{
				"pass p TestA",
				"output p TestD     a_test.go:7: needs root", "output p TestD --- SKIP: TestD (0.00s)", "skip p TestD",
				"output p TestB     b_linux_test.go:12: needs root", "skip p TestB",
				"output p TestC     a_test.go:9: needs iptables, which a plugin runs", "skip p TestC",
				"skip p TestE", "pass p -",
			},
			want: []string{
				"skipped 1: needs iptables, which a plugin runs: TestC", "skipped 2: needs root: TestB, TestD", "skipped 1: no reason given: TestE",
				"1 passed, 0 failed, 4 skipped",
			},
			ok: true,
		},
		"many skips are not all named": {
			events: []string{
				"pass p TestA", "skip p T1", "skip p T2", "skip p T3", "skip p T4", "skip p T5", "skip p T6/a", "skip p T6/b", "skip p T7", "pass p -",
			},
			want: []string{"skipped 8: no reason given: T1, T2, T3, T4, T5 and 2 more", "1 passed, 0 failed, 8 skipped"},
			ok:   true,
		},
		"a failure is shown with its output": {
			events: []string{
				"run p TestA", "output p TestA === RUN   TestA", "output p TestA     a_test.go:3: wrong", "output p TestA --- FAIL: TestA (0.00s)", "fail p TestA",
				"run p TestB", "output p TestB a word", "pass p TestB", "output p - FAIL", "output p - FAIL\tp\t1s", "fail p -",
			},
			want: []string{"FAILED: p TestA:", "    a_test.go:3: wrong", "FAILED: p:", "FAIL\tp\t1s", "1 passed, 1 failed, 0 skipped"},
		},
		"a test that a panic ended is shown": {
			events: []string{
				"run p TestA", "output p TestA === PAUSE TestA", "run p TestB", "output p TestB panic: test timed out after 1s",
				"output p - FAIL\tp\t1s", "fail p -",
			},
			want: []string{
				"FAILED: p TestB did not end:", "panic: test timed out after 1s", "FAILED: p:", "FAIL\tp\t1s", "FAILED: no test ran",
				"0 passed, 1 failed, 0 skipped",
			},
		},
		"a package that cannot be built": {
			events: []string{"build-output - - ./b.go:1:1: undefined: x", "output p - FAIL\tp [build failed]", "fail p -", "pass q TestA", "pass q -"},
			want:   []string{"./b.go:1:1: undefined: x", "FAILED: p:", "FAIL\tp [build failed]", "1 passed, 1 failed, 0 skipped"},
		},
		"a run that breaks off": {
			events: []string{"pass p TestA", "run p TestB", "output p TestB a word"},
			want:   []string{"FAILED: p TestB did not end:", "a word", "FAILED: p", "1 passed, 1 failed, 0 skipped"},
		},
		"nothing": {
			events: []string{"make: oops"},
			want:   []string{"make: oops", "FAILED: no test ran", "0 passed, 0 failed, 0 skipped"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			r := newReport(&out)
			if err := r.readAll(nil, strings.NewReader(stream(t, tt.events...))); err != nil {
				t.Fatal(err)
			}
			r.close(0)
			if d := cmp.Diff(strings.Join(tt.want, "\n")+"\n", out.String()); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if r.ok != tt.ok {
				t.Errorf("ok is %v", r.ok)
			}
		})
	}
}

// Long output of a test is cut at the beginning, a panic at the end.
func TestReportCapsOutput(t *testing.T) {
	t.Parallel()
	lines := func(n int, panics int) (all []string) {
		for i := range n {
			text := fmt.Sprintln("line", i)
			if i == panics {
				text = "panic: oh\n"
			}
			all = append(all, text)
		}
		return all
	}
	for _, tt := range []struct {
		lines        []string
		first, last  string
		shown, notes int
	}{
		{lines(200, -1), "line 0", "line 199", 200, 0},
		{lines(1000, -1), "... 800 lines left out", "line 999", 200, 1},
		{lines(1000, 100), "... 50 lines left out", "... 750 lines left out", 200, 2},
		{lines(1000, 0), "panic: oh", "... 800 lines left out", 200, 1},
		{lines(1000, 999), "... 800 lines left out", "panic: oh", 200, 1},
	} {
		got := strings.Split(show(tt.lines), "\n")[1:]
		if got[0] != tt.first || got[len(got)-1] != tt.last || len(got) != tt.shown+tt.notes {
			t.Errorf("%d lines from %q to %q, want %d from %q to %q", len(got), got[0], got[len(got)-1], tt.shown+tt.notes, tt.first, tt.last)
		}
	}
}

// A required test fails the report if it or a part of it was skipped, or if it
// does not exist; so does a package of the SDK with too little coverage.
func TestReportOfTestsThatMustRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const netconf = "github.com/metacni/metacni/netconf"
	files := []string{
		write("test.json", stream(t, "pass p TestA", "pass p TestB", "skip p TestC/part", "pass p TestC", "pass p -",
			"pass "+netconf+" TestD", "output "+netconf+" - coverage: 80.0% of statements", "pass "+netconf+" -")),
		write("race.json", stream(t, "pass p TestA", "fail p TestB", "fail p -")),
	}
	var out strings.Builder
	r := newReport(&out)
	if err := r.readAll(files, nil); err != nil {
		t.Fatal(err)
	}
	if err := r.mustRun(write("required.txt", "# all of\nTestA\nTestC\nTestX\n"), write("README.md", "`TestYes` says so, as `TestB`")); err != nil {
		t.Fatal(err)
	}
	r.close(90)
	want := `FAILED: race: p TestB
FAILED: race: p
FAILED: TestC must run, but was skipped
FAILED: TestX must run, but there is no such test
FAILED: TestYes must run, but there is no such test
skipped 1: no reason given: TestC/part
coverage:  80.0% ` + netconf + `
FAILED: coverage of ` + netconf + ` is below 90%
5 passed, 1 failed, 1 skipped
`
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if err := r.readAll([]string{filepath.Join(dir, "absent")}, nil); err == nil {
		t.Error("no error for a file that is not there")
	}
	if err := r.mustRun(filepath.Join(dir, "absent"), ""); err != nil {
		t.Error(err)
	}
}
