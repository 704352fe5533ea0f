//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestMain(m *testing.M) {
	if os.Getenv(stageEnv) != "" {
		main() // the second process, on the private host
		return
	}
	runtime.LockOSThread() // see host.Command
	os.Exit(m.Run())
}

func TestMedian(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		values []float64
		want   float64
	}{
		{nil, 0},
		{[]float64{3}, 3},
		{[]float64{9, 1}, 5},
		{[]float64{9, 1, 2}, 2},
		{[]float64{4, 1, 100, 2}, 3},
	} {
		given := slices.Clone(tt.values)
		if got := median(tt.values); got != tt.want {
			t.Errorf("median of %v: %v, want %v", tt.values, got, tt.want)
		}
		if !slices.Equal(given, tt.values) {
			t.Errorf("%v has become %v", given, tt.values)
		}
	}
}

// A slow round is slow for all programs, so it must not show as a difference.
func TestRatioIsPaired(t *testing.T) {
	t.Parallel()
	if got := ratio([]float64{2, 20, 4}, []float64{1, 10, 2}); got != 2 {
		t.Errorf("%v, want 2", got)
	}
	if got := ratio(nil, nil); got != 0 {
		t.Errorf("%v of nothing", got)
	}
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	o, err := parse([]string{"-n", "1,3", "-growth", ""}, io.Discard)
	if err != nil || !slices.Equal(o.ns, []int{1, 3}) || len(o.growth) != 0 || o.rounds != 31 || o.crowd != 110 || o.row != 200 {
		t.Errorf("%+v, %v", o, err)
	}
	for _, args := range [][]string{{"-n", "0"}, {"-n", ""}, {"-n", "2,1"}, {"-n", "x"}, {"-growth", "-1"}, {"-rounds", "0"}, {"-pods", "-1"}, {"-row", "0"}, {"more"}} {
		if _, err := parse(args, io.Discard); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	tab := table{text: 1, head: []string{"program", "ms", "µs, CPU"}}
	tab.row("a", figure(1.234), times(12.34, 1.005))
	tab.row("longer µ", figure(0), figure(123.4))
	var got strings.Builder
	if err := tab.print(&got, "### Title"); err != nil {
		t.Fatal(err)
	}
	want := `
### Title

| program  |   ms |     µs, CPU |
|----------|-----:|------------:|
| a        | 1.23 | 12.3 (1.00) |
| longer µ | 0.00 |         123 |
`
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTicks(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ most, step, end float64 }{
		{0, 0.0002, 0.001},
		{1, 0.2, 1},
		{13.6, 2, 14},
		{63, 10, 70},
		{200, 50, 200},
		{399, 50, 400},
	} {
		step, end := ticks(tt.most)
		if fmt.Sprintf("%.4g %.4g", step, end) != fmt.Sprintf("%.4g %.4g", tt.step, tt.end) {
			t.Errorf("%v: %v up to %v, want %v up to %v", tt.most, step, end, tt.step, tt.end)
		}
	}
}

func TestDraw(t *testing.T) {
	t.Parallel()
	one := func(ms float64) []sample { return []sample{{wall: time.Duration(ms * 1e6)}} }
	each := [][]sample{one(1), one(2), one(3), one(4)}
	var tasks []*task
	for _, kind := range []string{noop, bridge} {
		for _, n := range []int{1, 8} {
			tasks = append(tasks, &task{kind: kind, n: n, add: each, del: each})
		}
	}
	for _, tt := range []struct {
		name  string
		tasks []*task
		want  int // panels
	}{{"all", tasks, 4}, {"without a private host", tasks[:2], 2}, {"one number", tasks[:1], 2}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			picture := draw(ours, panels(ours, tt.tasks))
			groups, texts := elements(t, picture)
			if groups != tt.want {
				t.Errorf("%d panels, want %d", groups, tt.want)
			}
			for _, want := range []string{"N, delegates", "ms, median", "ADD, no-op", "DEL, no-op", "floor", "skel+libcni", "multinet", "multinet, parallel", "4"} {
				if !slices.Contains(texts, want) {
					t.Errorf("no %q in %q", want, texts)
				}
			}
			if bytes.Contains(picture, []byte("%!")) || bytes.Contains(picture, []byte("NaN")) {
				t.Errorf("not a picture:\n%s", picture)
			}
		})
	}
}

// elements parses a picture as XML, and returns the number of groups and all
// texts.
func elements(t *testing.T, picture []byte) (groups int, texts []string) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(picture))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return groups, texts
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, picture)
		}
		switch token := token.(type) {
		case xml.StartElement:
			if token.Name.Local == "g" {
				groups++
			}
		case xml.CharData:
			texts = append(texts, string(token))
		}
	}
}

// The ru_maxrss of a child includes the memory of the process that forked it.
func TestPeakIsThePluginsOwn(t *testing.T) {
	r := newRig(t)
	ballast := make([]byte, 64<<20)
	for i := range ballast {
		ballast[i] = 1
	}
	for _, program := range []string{"noop", "multinet"} {
		got, err := r.peak(t.Context(), call{program: program, command: "VERSION", stdin: os.DevNull})
		if err != nil || got.bytes < 1<<20 || got.bytes > 16<<20 {
			t.Errorf("%s: %v, %v", program, got, err)
		}
		if program == "multinet" && got.atMost {
			t.Errorf("%s: %v is that of launch", program, got)
		}
	}
	runtime.KeepAlive(ballast)
}

func TestFailures(t *testing.T) {
	r := newRig(t)
	if _, err := r.run(t.Context(), call{program: "floor", command: "ADD", stdin: os.DevNull}); err == nil || !strings.Contains(err.Error(), "floor ADD") {
		t.Errorf("a plugin that fails: %v", err)
	}
	if _, err := r.run(t.Context(), call{program: "floor", command: "ADD", stdin: r.write(t, "none.json", "{}")}); err == nil || !strings.Contains(err.Error(), "printed") {
		t.Errorf("an ADD without a result: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.run(ctx, call{program: "noop", command: "VERSION", stdin: os.DevNull}); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the context: %v", err)
	}
}

// TestBench measures everything once, as `make bench` does.
func TestBench(t *testing.T) {
	runtime.LockOSThread() // see host.Command
	defer runtime.UnlockOSThread()
	dir := t.TempDir()
	out := capture(t, func(out, stderr *os.File) error {
		return run(t.Context(), process{
			args: []string{"-rounds", "1", "-n", "1", "-growth", "0,10", "-pods", "3", "-row", "2", "-dir", dir, "-plot", filepath.Join(dir, "cost.svg")},
			env:  os.Environ(), out: out, stderr: stderr,
		})
	})
	if strings.Contains(out, "no private host") {
		if os.Getenv("METACNI_E2E") == "require" {
			t.Fatal(out)
		}
		t.Skip("needs root, or a kernel that gives user namespaces to ordinary users")
	}
	wantOutput(t, out, dir, `(?m)^\| bridge\+host-local +\| 1 +\| DEL +\|( +[0-9.]+( \([0-9.]+\))? \|){4}$`)
}

// Without namespaces only the plugins that do nothing run.
func TestBenchWithoutHost(t *testing.T) {
	r := newRig(t)
	r.plot = filepath.Join(t.TempDir(), "cost.svg")
	out := capture(t, func(out, _ *os.File) error { return measure(t.Context(), r, out) })
	wantOutput(t, out, filepath.Dir(r.plot), `(?m)^\| no-op +\| 2 +\| DEL +\|`)
	if strings.Contains(out, bridge) {
		t.Errorf("bridges without a private host:\n%s", out)
	}
}

// An interrupted run leaves nothing.
func TestInterrupted(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // see host.Command
		defer runtime.UnlockOSThread()
		p := process{args: []string{"-rounds", "10000", "-dir", dir, "-plot", ""}, env: os.Environ(), out: write, stderr: write}
		err := run(ctx, p)
		_ = write.Close()
		done <- err
	}()
	for text := ""; !strings.Contains(text, "medians of"); {
		some := make([]byte, 1024)
		n, err := read.Read(some)
		if err != nil {
			t.Fatalf("%v, after %s", err, text)
		}
		text += string(some[:n])
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("success")
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// newRig returns a rig without namespaces, with all programs.
func newRig(t *testing.T) *rig {
	t.Helper()
	work := t.TempDir()
	if err := build(t.Context(), work); err != nil {
		t.Fatal(err)
	}
	stderr, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stderr.Close() })
	return &rig{options: options{rounds: 1, ns: []int{1, 2}, growth: []int{0, 3}, crowd: 3, row: 2}, work: work, stderr: stderr}
}

func (r *rig) write(t *testing.T, name, text string) string {
	t.Helper()
	if err := os.WriteFile(r.file(name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return r.file(name)
}

// capture returns the output of f, which must not fail.
func capture(t *testing.T, f func(out, stderr *os.File) error) string {
	t.Helper()
	dir := t.TempDir()
	var files [2]*os.File
	for i, name := range []string{"out", "stderr"} {
		file, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		files[i] = file
	}
	err := f(files[0], files[1])
	text, _ := os.ReadFile(files[0].Name())
	if err != nil {
		said, _ := os.ReadFile(files[1].Name())
		t.Fatalf("%v\n%s%s", err, text, said)
	}
	return string(text)
}

// wantOutput fails the test unless out has all tables and patterns, and dir has
// a picture and nothing else.
func wantOutput(t *testing.T, out, dir string, patterns ...string) {
	t.Helper()
	for _, p := range append(patterns, `Linux .*go1.*medians of 1 rounds`, `(?m)^\| floor .*\(1\.00\)`, `(?m)^### Time`, `(?m)^### CPU`,
		`(?m)^\| multinet-shim +\|`, `(?m)^\| multinetd +\|`, `(?m)^\| async +\| ADD +\| patch pods/status +\| +[0-9.]+ \|`,
		`(?m)^\| wait +\| ADD +\| create events +\| +[0-9.]+ \|`, `(?m)^\| async, pods watched +\|`,
		`(?m)^\| resident +\| [12] +\| DEL +\|( +[0-9.]+( \([0-9.]+\))? \|){3}`, `(?m)^\| resident +\| 1 +\| the same in Kubernetes \|( +[0-9.]+ \|){8}`,
		`(?m)^\| no-op +\| 1 +\| multinet +\| +[0-9.]+ \| +– \|`, `(?m)^\| +(3|10) \|`) {
		if !regexp.MustCompile(p).MatchString(out) {
			t.Errorf("no %s in\n%s", p, out)
		}
	}
	picture, err := os.ReadFile(filepath.Join(dir, "cost.svg"))
	if err != nil {
		t.Fatal(err)
	}
	elements(t, picture)
	err = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if path != dir && filepath.Base(path) != "cost.svg" {
			t.Errorf("left: %s", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
