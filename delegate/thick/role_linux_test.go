package thick

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
)

// roleVar tells this test's executable, run once more, to play a part.
const roleVar = "METACNI_THICK_ROLE"

// socketDir returns a directory for sockets, whose paths must be short.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "x") //nolint:usetesting // T.TempDir's is too long
	nodetest.OK(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// An actor is a process that plays a part.
type actor struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// start starts an actor. change, which may be nil, changes the command first.
func start(t *testing.T, role, arg string, change func(*exec.Cmd)) *actor {
	t.Helper()
	// Not its path: another user may not reach that.
	a := &actor{Cmd: exec.CommandContext(context.WithoutCancel(t.Context()), "/proc/self/exe", "-test.run=^TestRole$")}
	a.Env = append(os.Environ(), roleVar+"="+role+" "+arg)
	a.Dir = "/"
	a.Stderr = os.Stderr
	if change != nil {
		change(a.Cmd)
	}
	in, err := a.StdinPipe()
	nodetest.OK(t, err)
	out, err := a.StdoutPipe()
	nodetest.OK(t, err)
	a.in, a.out = in, bufio.NewReader(out)
	nodetest.OK(t, a.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = a.Process.Kill()
		_ = a.Wait()
	})
	return a
}

// says waits for the actor's next line.
func (a *actor) says(t *testing.T) string {
	t.Helper()
	text, err := a.out.ReadString('\n')
	if err != nil {
		t.Fatalf("the other process says %q, %v", text, err)
	}
	return strings.TrimSuffix(text, "\n")
}

// TestRole is not a test: it plays the parts.
func TestRole(t *testing.T) {
	role, arg, found := strings.Cut(os.Getenv(roleVar), " ")
	if !found {
		t.Skip("plays a part in other tests")
	}
	play, found := map[string]func(t *testing.T, arg string){
		"activated": playActivated, "listen": playListen,
	}[role]
	if !found {
		t.Fatal(role)
	}
	play(t, arg)
}
