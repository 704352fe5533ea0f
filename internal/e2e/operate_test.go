package e2e

import (
	"context"
	"os/exec"
	"strings"
	"time"
)

// A report is the output and exit status of one of multinet's operator
// commands.
type report struct {
	code           int
	stdout, stderr string
}

// operate runs one of multinet's operator commands on the world's state
// directory. Its status must be 0 or 1.
func (w *world) operate(words ...string) report {
	w.t.Helper()
	r := w.operator(append(words, "--dir", w.file("state"))...)
	if r.code != 0 && r.code != 1 || strings.Contains(r.stderr, "panic: ") {
		w.t.Fatalf("multinet %s: exit status %d: %s", strings.Join(words, " "), r.code, r.stderr)
	}
	return r
}

// operator runs one of multinet's operator commands without a terminal.
func (w *world) operator(words ...string) report {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	var stdout, stderr strings.Builder
	cmd := exec.CommandContext(ctx, built("multinet"), words...)
	cmd.Env, cmd.Stdout, cmd.Stderr = []string{"PATH=" + w.path}, &stdout, &stderr
	_ = cmd.Run()
	return report{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}
