package thick

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/nodetest"
)

// roleVar tells this test's executable, run once more, to play a part.
const roleVar = "METACNI_THICK_ROLE"

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

// says waits for the actor's next line, which must be want.
func (a *actor) says(t *testing.T, want string) {
	t.Helper()
	text, err := a.out.ReadString('\n')
	nodetest.OK(t, err)
	nodetest.Equal(t, "what the other process says", text, want+"\n")
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

// serveEcho answers each connection with what it says, until there are no more.
// It returns why.
func serveEcho(l net.Listener) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		wg.Go(func() {
			defer c.Close()
			_, _ = io.Copy(c, c)
		})
	}
}

// echo makes a connection and one request.
func echo(socket string) error {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer c.Close()
	return ask(c)
}

func ask(c net.Conn) error {
	if _, err := c.Write([]byte("?")); err != nil {
		return err
	}
	b := make([]byte, 1)
	if _, err := io.ReadFull(c, b); err != nil || b[0] != '?' {
		return fmt.Errorf("no answer: %q, %w", b, err)
	}
	return nil
}

// listenLater starts a Listen, which has to wait.
func listenLater(ctx context.Context, socket string) (result func() (net.Listener, error)) {
	var l net.Listener
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		l, err = listen(ctx, socket)
	}()
	return func() (net.Listener, error) { <-done; return l, err }
}

// Nothing that a daemon has open gets to the plugins it runs: not the socket,
// which would go on accepting, nor a connection, nor the locks.
func TestNothingIsInherited(t *testing.T) {
	t.Parallel()
	socket := nodetest.ShortDir(t) + "/s"
	a := start(t, "listen", socket, nil)
	a.says(t, "listens []")
	c, err := net.Dial("unix", socket)
	nodetest.OK(t, err)
	defer c.Close()
	nodetest.OK(t, ask(c))
	_, err = fmt.Fprintln(a.in)
	nodetest.OK(t, err)
	a.says(t, "has []")
}

// playListen serves a socket, and says for each line of its input what a child would inherit.
func playListen(t *testing.T, socket string) {
	t.Helper()
	from := inheritable(t, nil) // who runs the tests
	l, err := listen(t.Context(), socket)
	nodetest.OK(t, err)
	fmt.Println("listens", inheritable(t, from))
	go func() { _ = serveEcho(l) }()
	for {
		if _, err := fmt.Scanln(); err != nil {
			return
		}
		fmt.Println("has", inheritable(t, from))
	}
}

// A daemon that is killed is in nobody's way: neither the one that has the
// socket, nor the one that waits for it.
func TestKilledDaemonBlocksNobody(t *testing.T) {
	t.Parallel()
	socket := nodetest.ShortDir(t) + "/s"
	first := start(t, "listen", socket, nil)
	first.says(t, "listens []")
	second := start(t, "listen", socket, nil)
	announced(t, socket)
	nodetest.OK(t, second.Process.Kill())
	_ = second.Wait()
	nodetest.OK(t, echo(socket))
	last := listenLater(t.Context(), socket)
	announced(t, socket)
	nodetest.OK(t, first.Process.Kill())
	l, err := last()
	nodetest.OK(t, err)
	go func() { _ = serveEcho(l) }()
	nodetest.OK(t, echo(socket))
	nodetest.OK(t, l.Close())
}

// announced waits until somebody waits for the socket.
func announced(t *testing.T, socket string) {
	t.Helper()
	l := &listener{socket: socket}
	for !l.awaited() {
		runtime.Gosched()
	}
}

// All that connected before the next one took over is served by the old one,
// although nobody called Accept until then; what connects later is not.
func TestHandOverServesTheBacklog(t *testing.T) {
	t.Parallel()
	for _, awaited := range []bool{true, false} {
		socket := nodetest.ShortDir(t) + "/s"
		l := listenOn(t, socket)
		var next func() (net.Listener, error)
		if awaited {
			next = listenLater(t.Context(), socket)
			announced(t, socket)
		}
		var early []net.Conn
		for range 100 {
			c, err := net.Dial("unix", socket)
			nodetest.OK(t, err)
			defer c.Close()
			early = append(early, c)
		}
		nodetest.OK(t, l.handOver(t.Context()))
		if awaited {
			l2, err := next()
			nodetest.OK(t, err)
			defer l2.Close()
			go func() { _ = serveEcho(l2) }()
			nodetest.OK(t, echo(socket))
		} else if err := echo(socket); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("after the end: %v", err)
		}
		served := make(chan error, 1)
		go func() { served <- serveEcho(l) }()
		for _, c := range early {
			nodetest.OK(t, ask(c))
			nodetest.OK(t, c.Close())
		}
		nodetest.Is(t, <-served, unix.EINVAL)
		nodetest.OK(t, l.Close())
		if awaited {
			nodetest.OK(t, echo(socket))
		}
	}
}

// A hand-over wakes an Accept that waits. A newcomer that does not come to take over does not
// keep the old one for ever, nor does one that waits for the successor.
func TestHandOverEndsAccept(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ waits, replaced bool }{
		"nobody waits": {false, false}, "who waits does not come": {true, false}, "replaced already": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			socket := nodetest.ShortDir(t) + "/s"
			l := listenOn(t, socket)
			served := make(chan error, 1)
			go func() { served <- serveEcho(l) }()
			nodetest.OK(t, echo(socket))
			if tt.waits {
				next, err := takeLock(t.Context(), socket+".next")
				nodetest.OK(t, err)
				defer next.release()
			}
			if tt.replaced {
				successor, err := net.Listen("unix", socket+"2")
				nodetest.OK(t, err)
				defer successor.Close()
				nodetest.OK(t, os.Rename(socket+"2", socket))
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := l.handOver(ctx); errors.Is(err, context.Canceled) != (tt.waits && !tt.replaced) {
				t.Error(err)
			}
			nodetest.Is(t, <-served, unix.EINVAL)
		})
	}
}

// Whoever waits does so until its context ends, and is not in the way then.
func TestListenEndsWithItsContext(t *testing.T) {
	t.Parallel()
	socket := nodetest.ShortDir(t) + "/s"
	l := listenOn(t, socket)
	cause := errors.New("told to stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	first := listenLater(ctx, socket)
	announced(t, socket)
	second := listenLater(ctx, socket) // in the line behind it
	cancel(cause)
	for _, next := range []func() (net.Listener, error){first, second} {
		if l, err := next(); l != nil || !errors.Is(err, context.Canceled) || !errors.Is(err, cause) || !strings.Contains(err.Error(), "another daemon has it") {
			t.Errorf("%v, %v", l, err)
		}
	}
	go func() { _ = serveEcho(l) }()
	nodetest.OK(t, echo(socket))
	nodetest.OK(t, l.Close())
	nodetest.OK(t, listenOn(t, socket).Close())
}
