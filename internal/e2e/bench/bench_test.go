//go:build linux

package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/examples/lab/host"
)

func TestMain(m *testing.M) {
	switch stage := os.Getenv(stageEnv); stage {
	case "":
		runtime.LockOSThread() // see host.Command
		os.Exit(m.Run())
	case "probe":
		if host.Setup() != nil {
			os.Exit(1)
		}
	default:
		main() // the second process, on the private host
	}
}

// TestBench measures everything once, as `make bench` does, and leaves nothing.
func TestBench(t *testing.T) {
	runtime.LockOSThread() // see host.Command
	defer runtime.UnlockOSThread()
	probe := host.Command(t.Context(), "/proc/self/exe")
	probe.Env = append(os.Environ(), stageEnv+"=probe")
	if err := probe.Run(); err != nil {
		if os.Getenv("METACNI_E2E") == "require" {
			t.Fatal(err)
		}
		t.Skip("needs root, or a kernel that gives user namespaces to ordinary users")
	}
	dir, logs := t.TempDir(), t.TempDir()
	t.Setenv("TMPDIR", dir)
	out, err := os.Create(filepath.Join(logs, "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	err = run(t.Context(), "", []string{"-quick"}, out, out)
	text, _ := os.ReadFile(out.Name())
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	const cell, ratio = ` [0-9.]+ +\|`, ` [0-9.]+ \([0-9.]+\) +\|`
	for _, want := range []string{
		`Linux .*go1.*medians of 1 rounds\.`,
		`\| none +\| +\| VERSION +\|` + cell + ratio + ratio + ratio,
		`\| noop +\| 8 +\| ADD +\|` + cell + ratio + ratio + ratio,
		`\| bridge +\| 1 +\| DEL +\|` + cell + ratio + ratio + ratio,
		`\| resident +\| 8 +\| DEL +\|` + cell + ratio + ratio + ratio,
		`\| none +\|` + strings.Repeat(cell, 4),
		`\| wait +\|` + strings.Repeat(cell, 4),
		`\| 10 +\|` + strings.Repeat(cell, 4),
	} {
		if !regexp.MustCompile("(?m)" + want + "$").Match(text) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestFlagsThatCannotBe(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-rounds", "1"}, {"-peer", "multus"}, {"-peer", "../multus=/m"}, {"more"}} {
		if o, err := parse(args, io.Discard); err == nil {
			t.Errorf("%q: %+v", args, o)
		}
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	tab := table{text: 1, head: []string{"program", "ms", "of floor"}}
	tab.row(append([]string{"a"}, compared([][]float64{{1, 10, 2}, {2, 20, 400}})...)...)
	tab.row("longer µ", figure(0), figure(123.4))
	var got strings.Builder
	if err := tab.print(&got, "## Title"); err != nil {
		t.Fatal(err)
	}
	want := `
## Title

| program  | ms   | of floor    |
| ---      | --:  | --:         |
| a        | 2.00 | 20.0 (2.00) |
| longer µ | 0.00 | 123         |
`
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestFailureIsSaid: what a program prints when it fails reaches the user.
func TestFailureIsSaid(t *testing.T) {
	t.Parallel()
	work := t.TempDir()
	r := &rig{work: work, stderr: os.Stderr}
	if err := os.Mkdir(r.file("bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.file("bin", "broken"), []byte("#!/bin/sh\necho no free device\nexit 1\n"), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	for program, want := range map[string]string{"broken": "no free device", "missing": "no such file"} {
		if _, err := r.run(t.Context(), call{program: program, command: "ADD", stdin: os.DevNull}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", program, err)
		}
	}
}
