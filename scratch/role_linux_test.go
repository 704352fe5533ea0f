package scratch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// roleVar makes this test binary play a part of the tests below instead:
// "ROLE DIR ARGUMENT".
const roleVar = "METACNI_SCRATCH_ROLE"

// A process is a part being played, in a process of its own.
type actor struct {
	*exec.Cmd
	in  io.WriteCloser // its end ends the part
	out *bufio.Reader
}

// start starts a part. It has its own process group and the files from 3 on.
func start(t *testing.T, role, dir, arg string, files ...*os.File) *actor {
	t.Helper()
	return startWith(t, &syscall.SysProcAttr{Setpgid: true}, role, dir, arg, files...)
}

// startIn starts a part in another's process group.
func startIn(t *testing.T, pgid int, role, dir, arg string) *actor {
	t.Helper()
	return startWith(t, &syscall.SysProcAttr{Setpgid: true, Pgid: pgid}, role, dir, arg)
}

func startWith(t *testing.T, attr *syscall.SysProcAttr, role, dir, arg string, files ...*os.File) *actor {
	t.Helper()
	a := &actor{Cmd: exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0], "-test.run=^TestRole$")}
	a.Env = append(os.Environ(), roleVar+"="+role+" "+dir+" "+arg)
	a.SysProcAttr = attr
	a.ExtraFiles = files
	a.Stderr = os.Stderr
	in, err := a.StdinPipe()
	ok(t, err)
	out, err := a.StdoutPipe()
	ok(t, err)
	a.in, a.out = in, bufio.NewReader(out)
	ok(t, a.Start())
	t.Cleanup(func() {
		in.Close()
		_ = unix.Kill(-a.Process.Pid, unix.SIGKILL)
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

// kill kills the process alone, not its children, and waits for it.
func (a *actor) kill(t *testing.T) {
	t.Helper()
	ok(t, a.Process.Kill())
	_, err := a.Process.Wait()
	ok(t, err)
}

// gone waits until nobody has the actor's standard output open any more: it
// and all its descendants have died.
func (a *actor) gone(t *testing.T) {
	t.Helper()
	if _, err := io.Copy(io.Discard, a.out); err != nil {
		t.Fatal(err)
	}
}

// TestRole is not a test: it plays the parts.
func TestRole(t *testing.T) {
	role := strings.SplitN(os.Getenv(roleVar), " ", 3)
	if len(role) != 3 {
		t.Skip("plays a part in other tests")
	}
	s := Store[value]{Dir: role[1]}
	play, found := map[string]func(t *testing.T, s Store[value], arg string){
		"hold": hold, "count": count, "parent": parent, "child": child, "killer": killer, "namespace": namespace, "nested": nested,
	}[role[0]]
	if !found {
		t.Fatal(role)
	}
	play(t, s, role[2])
}

func untilEOF() { _, _ = io.Copy(io.Discard, os.Stdin) }

// hold holds the lock until its input ends.
func hold(t *testing.T, s Store[value], _ string) {
	t.Helper()
	l := lock(t, s)
	fmt.Println("locked")
	untilEOF()
	ok(t, l.Unlock())
	fmt.Println("unlocked")
}

// count adds one to a number in a file, in a way that only works alone.
func count(t *testing.T, s Store[value], arg string) {
	t.Helper()
	n, err := strconv.Atoi(arg)
	ok(t, err)
	for range n {
		l := lock(t, s)
		data, err := os.ReadFile(filepath.Join(s.Dir, "count"))
		ok(t, err)
		i, err := strconv.Atoi(string(data))
		ok(t, err)
		ok(t, os.WriteFile(filepath.Join(s.Dir, "count"), []byte(strconv.Itoa(i+1)), 0o600))
		ok(t, l.Unlock())
	}
}

// file is l's file for a child, until the test ends.
func file(t *testing.T, l *Lock) *os.File {
	t.Helper()
	f := l.File()
	t.Cleanup(func() { f.Close() })
	return f
}

// parent takes the lock and starts a child that has its file, as a plugin does
// with a delegate, or several. Its argument is theirs.
func parent(t *testing.T, s Store[value], arg string) {
	t.Helper()
	l := lock(t, s)
	fmt.Println("locked")
	for a := range strings.SplitSeq(arg, ",") {
		c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRole$")
		role := "child"
		if a == "killer" {
			role = a
		}
		c.Env = append(os.Environ(), roleVar+"="+role+" "+s.Dir+" "+a)
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: a != "setsid", Setsid: a == "setsid"}
		switch a {
		case "without", "wait":
		case "anew":
			f, err := os.Open(l.root.Path(l.name))
			ok(t, err)
			c.ExtraFiles = []*os.File{f}
		default:
			c.ExtraFiles = []*os.File{l.File()}
		}
		c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
		ok(t, c.Start())
		if a == "leave" {
			// The child is gone, and not a zombie, before we go on.
			_ = c.Wait()
		}
	}
	fmt.Println("started")
	untilEOF()
}

// child lives until its input ends. "leave" starts another child in its
// process group and goes, "wait" waits for the lock, and "cloexec" does not
// hand the lock's file on.
func child(t *testing.T, s Store[value], arg string) {
	t.Helper()
	switch arg {
	case "leave":
		c := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0], "-test.run=^TestRole$")
		c.Env = append(os.Environ(), roleVar+"=child "+s.Dir+" stay")
		c.Stdin, c.Stdout, c.ExtraFiles = os.Stdin, os.Stdout, []*os.File{os.NewFile(3, "lock")}
		ok(t, c.Start())
		os.Exit(0) // without the words that a test ends with
	case "wait":
		go func() {
			if l, err := s.Lock(t.Context(), "c1"); err == nil {
				_ = l.Unlock()
			}
		}()
	case "cloexec":
		unix.CloseOnExec(3)
	}
	fmt.Println("child", os.Getpid(), arg)
	untilEOF()
}

// killer kills orphans when it gets a signal.
func killer(_ *testing.T, s Store[value], arg string) {
	told := make(chan os.Signal, 1)
	signal.Notify(told, unix.SIGUSR1)
	fmt.Println("child", os.Getpid(), arg)
	<-told
	n, err := killOrphans(s)
	fmt.Println(n, err)
}

// namespace is process 1 of a PID namespace and kills orphans in it.
func namespace(t *testing.T, s Store[value], _ string) {
	t.Helper()
	ok(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	ok(t, unix.Mount("proc", "/proc", "proc", 0, ""))
	p, _ := orphan(t, s, "stay")
	before, err := killOrphans(s)
	ok(t, err)
	p.kill(t)
	n, err := killOrphans(s)
	fmt.Println(before, n, err)
}

// nested asks for the lock inside an operation that holds it, or waits for it only
// briefly.
func nested(t *testing.T, s Store[value], arg string) {
	t.Helper()
	ctx := t.Context()
	if arg == "brief" {
		brief, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		ctx = brief
	}
	l, err := s.Lock(ctx, "c1")
	fmt.Println(l == nil, errors.Is(err, ErrNested), code(err))
	l, err = s.Lock(t.Context(), "c2")
	fmt.Println(l != nil, err)
	ok(t, l.Unlock())
}
