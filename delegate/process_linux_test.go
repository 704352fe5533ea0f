package delegate_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/status"
)

// forever is longer than any test: what waits for it would not end.
const forever = time.Hour

// script writes a shell script that is a plugin, and returns its path.
func script(tb testing.TB, body string) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "plugin")
	nodetest.OK(tb, os.WriteFile(path, []byte("#!/bin/sh\n"+body), 0o755))
	return path
}

// pipe returns a pipe, to be handed down with WithFiles.
func pipe(tb testing.TB) (r, w *os.File) {
	tb.Helper()
	r, w, err := os.Pipe()
	nodetest.OK(tb, err)
	tb.Cleanup(func() { r.Close(); w.Close() })
	if err := r.SetReadDeadline(time.Now().Add(time.Minute)); err != nil { // to fail and not to hang
		tb.Fatal(err)
	}
	return r, w
}

// rest reads until the last process that has inherited the other end is gone.
func rest(tb testing.TB, r *os.File) string {
	tb.Helper()
	text, err := io.ReadAll(r)
	if err != nil {
		tb.Errorf("a process is left: %v", err)
	}
	return string(text)
}

// run runs a script whose descriptor 3 is the writing end of a pipe, cancels
// the context when "ready" was written to it, and returns what else was written
// until the last holder had ended.
func run(t *testing.T, p *delegate.Process, body string) (out []byte, said string, err error) {
	t.Helper()
	r, w := pipe(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		defer w.Close()
		out, err = p.ExecPlugin(delegate.WithFiles(ctx, w), script(t, body), []byte("{}"), []string{"PATH=" + os.Getenv("PATH")})
	})
	ready := make([]byte, len("ready\n"))
	if _, err := io.ReadFull(r, ready); err != nil {
		t.Error(err)
	}
	cancel()
	wg.Wait()
	return out, rest(t, r), err
}

// The end of the context kills the plugin and what it started, also when they
// do not heed SIGTERM.
func TestDeadlineKillsTheProcessGroup(t *testing.T) {
	t.Parallel()
	_, _, err := run(t, &delegate.Process{Grace: time.Millisecond, WaitDelay: forever}, `trap '' TERM
		sleep 3600 & # inherits stdout and descriptor 3, and ignores SIGTERM as well
		echo ready >&3
		wait`)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "killed") {
		t.Errorf("err = %v", err)
	}
}

// SIGTERM comes first, and a plugin that uses its grace period may say why.
func TestPluginIsAskedToEndBeforeItIsKilled(t *testing.T) {
	t.Parallel()
	_, said, err := run(t, &delegate.Process{Grace: forever, WaitDelay: forever}, `trap 'echo term >&3; echo "{\"code\":105,\"msg\":\"undone\"}"; exit 1' TERM
		sleep 3600 &
		echo ready >&3
		wait`)
	if said != "term\n" {
		t.Errorf("the plugin wrote %q", said)
	}
	var own *types.Error
	if !errors.Is(err, context.Canceled) || !errors.As(err, &own) || own.Msg != "undone" {
		t.Errorf("err = %v", err)
	}
	if got := (&delegate.Error{Err: err}).CNICode(); got != types.ErrTryAgainLater {
		t.Errorf("code %d, want 11", got)
	}
}

// A plugin that exits well in its grace period has succeeded.
func TestSuccessInTheGracePeriodCounts(t *testing.T) {
	t.Parallel()
	out, _, err := run(t, &delegate.Process{Grace: forever, WaitDelay: forever}, `trap 'echo "{}"; exit 0' TERM
		echo ready >&3
		while :; do sleep 1; done`)
	if err != nil || string(out) != "{}\n" {
		t.Errorf("printed %q: %v", out, err)
	}
}

// While an Add is undone a plugin's grace is a part of its turn.
func TestGraceIsPartOfTheTurn(t *testing.T) {
	t.Parallel()
	r, w := pipe(t)
	path := script(t, `if [ "$CNI_COMMAND" = DEL ]; then trap '' TERM; echo hanging >&3; while :; do sleep 1; done; fi`)
	iv := &delegate.Invoker{Exec: &delegate.Process{Grace: forever}, Path: []string{filepath.Dir(path)}, Env: []string{"PATH=" + os.Getenv("PATH")}, UndoTimeout: time.Millisecond}
	ctx, cancel := context.WithCancel(delegate.WithFiles(t.Context(), w))
	defer cancel()
	as := []delegate.Attached{added(attach(network(t, "1.0.0", "blue", "plugin")), "")}
	err := iv.Undo(ctx, as, types.NewError(105, "no device", ""))
	w.Close()
	rest(t, r)
	var undo *delegate.UndoError
	if status.Code(err) != 105 || !errors.As(err, &undo) || !errors.Is(undo.Undo, context.DeadlineExceeded) {
		t.Errorf("err = %v", err)
	}
}

// A plugin that has exited well is not failed by a child that holds its pipes.
func TestGrandchildDoesNotHoldSuccess(t *testing.T) {
	t.Parallel()
	hold, release := pipe(t)
	ctx := delegate.WithFiles(t.Context(), hold)
	// However short the delay, what was printed before the exit is read.
	out, err := (&delegate.Process{WaitDelay: 1}).ExecPlugin(ctx, script(t, `
		(read line <&3) & # it ends when the test closes its end
		echo '{"cniVersion":"1.0.0","x":"`+strings.Repeat("x", 30000)+`"}'`), nil, nil)
	if err != nil || len(out) != 30000+len(`{"cniVersion":"1.0.0","x":""}`+"\n") || !json.Valid(out) {
		t.Errorf("printed %q: %v", out, err)
	}
	release.Close()
}

// Nor by one that holds its stdin and does not read it.
func TestUnreadStdinDoesNotHoldSuccess(t *testing.T) {
	t.Parallel()
	hold, release := pipe(t)
	ctx := delegate.WithFiles(t.Context(), hold)
	out, err := (&delegate.Process{WaitDelay: 1}).ExecPlugin(ctx, script(t, `
		exec 4<&0
		(read line <&3) <&4 & # it ends when the test closes its end
		echo '{}'`), make([]byte, 1<<20), nil)
	if err != nil || string(out) != "{}\n" {
		t.Errorf("printed %q: %v", out, err)
	}
	release.Close()
}

// Nor by one that goes on printing; that one ends when nobody listens any more.
func TestNoisyGrandchildIsLeft(t *testing.T) {
	t.Parallel()
	r, w := pipe(t)
	var stderr bytes.Buffer
	out, err := (&delegate.Process{WaitDelay: 1, Stderr: &stderr}).ExecPlugin(delegate.WithFiles(t.Context(), w), script(t, `
		echo first >&2
		(while echo noise >&2; do :; done) &
		echo '{}'`), nil, nil)
	w.Close()
	rest(t, r)
	if err != nil || string(out) != "{}\n" || !strings.HasPrefix(stderr.String(), "first\n") {
		t.Errorf("printed %q: %v", out, err)
	}
}

// doneContext counts how often it is waited on, and calls back then.
type doneContext struct {
	context.Context
	waited func()
}

func (c doneContext) Done() <-chan struct{} {
	c.waited()
	return c.Context.Done()
}

// busy returns a plugin that is open for writing, or skips the test.
func busy(t *testing.T) (path string, file *os.File) {
	t.Helper()
	path = script(t, "echo '{}'")
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	nodetest.OK(t, err)
	t.Cleanup(func() { file.Close() })
	if err := exec.CommandContext(t.Context(), path).Run(); !errors.Is(err, syscall.ETXTBSY) {
		t.Skipf("needs a kernel that refuses to run a file that is being written (ETXTBSY); here: %v", err)
	}
	return path, file
}

// A busy executable is tried again until it is
// free.
func TestBusyExecutableIsRetried(t *testing.T) {
	t.Parallel()
	path, file := busy(t)
	waits := 0
	ctx := doneContext{t.Context(), func() {
		if waits++; waits == 3 {
			file.Close()
		}
	}}
	out, err := new(delegate.Process).ExecPlugin(ctx, path, nil, nil)
	if err != nil || string(out) != "{}\n" {
		t.Errorf("printed %q: %v", out, err)
	}
	if waits < 3 {
		t.Errorf("waited %d times", waits)
	}
}

func TestBusyExecutableIsRetriedUntilTheContextEnds(t *testing.T) {
	t.Parallel()
	path, _ := busy(t)
	ctx, cancel := context.WithCancel(t.Context())
	waits := 0
	_, err := new(delegate.Process).ExecPlugin(doneContext{ctx, func() {
		if waits++; waits == 2 {
			cancel()
		}
	}}, path, nil, nil)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
}

func TestProcessDoesNotRunAfterTheContextHasEnded(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := new(delegate.Process).ExecPlugin(ctx, "/bin/true", nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
}

// A container whose network namespace does not exist is not attached to anything. Where
// not even the directory is there, the namespace may be one that this process does not
// see; the other commands must work without it.
func TestAddNeedsItsNetworkNamespace(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	nodetest.OK(t, os.WriteFile(filepath.Join(root, "ns"), nil, 0o600))
	for _, tt := range []struct {
		command, netns string
		runs           bool
	}{
		{"ADD", root + "/gone", false},
		{"ADD", root + "/ns", true},
		{"ADD", root + "/elsewhere/gone", true},
		{"ADD", "/proc/4194305/ns/net", false}, // above the highest number of a process
		{"DEL", "/proc/4194305/ns/net", true},
		{"ADD", "", true},
		{"DEL", root + "/gone", true},
		{"CHECK", root + "/gone", true},
	} {
		t.Run(tt.command+" "+strings.TrimPrefix(tt.netns, root), func(t *testing.T) {
			t.Parallel()
			out, err := new(delegate.Process).ExecPlugin(t.Context(), script(t, "echo ran"), nil, []string{"CNI_COMMAND=" + tt.command, "CNI_NETNS=" + tt.netns})
			if tt.runs {
				if err != nil || string(out) != "ran\n" {
					t.Errorf("printed %q: %v", out, err)
				}
				return
			}
			if !errors.Is(err, delegate.ErrNotRun) || status.Code(err) != types.ErrInvalidNetNS || !strings.Contains(err.Error(), tt.netns) {
				t.Errorf("printed %q: %v", out, err)
			}
		})
	}
}

// Files are handed down from descriptor 3 on, in order, and none other is.
func TestFilesAreInherited(t *testing.T) {
	t.Parallel()
	r3, w3 := pipe(t)
	r4, w4 := pipe(t)
	pipe(t) // not handed down
	ctx := delegate.WithFiles(delegate.WithFiles(t.Context(), w3), w4)
	out, err := new(delegate.Process).ExecPlugin(ctx, script(t, `echo three >&3; echo four >&4; if (: >&5) 2>/dev/null; then echo five; fi`), nil, nil)
	w3.Close()
	w4.Close()
	if three, four := rest(t, r3), rest(t, r4); err != nil || len(out) > 0 || three != "three\n" || four != "four\n" {
		t.Errorf("3: %q, 4: %q, stdout %q: %v", three, four, out, err)
	}
}

// An empty environment is empty; this process's own is never passed on.
func TestEmptyEnvironmentIsEmpty(t *testing.T) {
	t.Parallel()
	env, err := exec.LookPath("env")
	if err != nil {
		t.Skipf("needs env(1): %v", err)
	}
	for _, environ := range [][]string{nil, {}} {
		out, err := new(delegate.Process).ExecPlugin(t.Context(), env, nil, environ)
		if err != nil || len(out) > 0 {
			t.Errorf("environment %q: %v", out, err)
		}
	}
	out, err := new(delegate.Process).ExecPlugin(t.Context(), env, nil, []string{"A=1", "B=2"})
	if err != nil || string(out) != "A=1\nB=2\n" {
		t.Errorf("environment %q: %v", out, err)
	}
}

// A binary that cannot be started has done nothing: nothing is undone, and
// nothing is left for a DEL that could not work either.
func TestBinaryThatCannotBeStartedIsNotUndone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	nodetest.OK(t, os.WriteFile(dir+"/broken", []byte("\x7fELF half a file"), 0o755))
	good := `[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion":"1.0.0"}'; echo $CNI_COMMAND >&3`
	nodetest.OK(t, os.WriteFile(dir+"/good", []byte("#!/bin/sh\n"+good), 0o755))
	r, w := pipe(t)
	iv := &delegate.Invoker{Path: []string{dir}} // a nil Exec is a Process
	_, err := iv.Add(delegate.WithFiles(t.Context(), w), attach(network(t, "1.0.0", "blue", "good", "broken")))
	w.Close()
	if trace := rest(t, r); trace != "ADD\nDEL\n" {
		t.Errorf("good ran %q", trace)
	}
	var undo *delegate.UndoError
	if !errors.Is(err, syscall.ENOEXEC) || errors.As(err, &undo) {
		t.Errorf("err = %v", err)
	}
}
