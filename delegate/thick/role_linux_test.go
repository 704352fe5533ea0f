package thick

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// roleVar tells this test's executable, run once more, to play a part.
const roleVar = "METACNI_THICK_ROLE"

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// socketDir returns a directory for sockets, whose paths must be short.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "x") //nolint:usetesting // T.TempDir's is too long
	ok(t, err)
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
	ok(t, err)
	out, err := a.StdoutPipe()
	ok(t, err)
	a.in, a.out = in, bufio.NewReader(out)
	ok(t, a.Start())
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
		"dial": playDial, "activated": playActivated, "listen": playListen,
	}[role]
	if !found {
		t.Fatal(role)
	}
	play(t, arg)
}

func untilEOF() { _, _ = io.Copy(io.Discard, os.Stdin) }

// playDial connects to a socket and holds the connection until its input ends.
func playDial(t *testing.T, arg string) {
	t.Helper()
	c, err := net.Dial("unix", arg)
	ok(t, err)
	fmt.Println("connected")
	untilEOF()
	ok(t, c.Close())
}

// asUser lets a command run as another user.
func asUser(t *testing.T, uid uint32) func(*exec.Cmd) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	return func(c *exec.Cmd) {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
}

// openTo lets other users reach and use what is at path.
func openTo(t *testing.T, path string) {
	t.Helper()
	ok(t, os.Chmod(filepath.Dir(path), 0o755))
	ok(t, os.Chmod(path, 0o777))
}
