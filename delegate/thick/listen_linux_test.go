package thick

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/flock"
	"github.com/metacni/metacni/internal/peer"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

func listenOn(t *testing.T, socket string) *listener {
	t.Helper()
	l, err := Listen(t.Context(), nil, socket)
	nodetest.OK(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l.(*listener)
}

// locked checks that a daemon has the lock of the socket.
func locked(t *testing.T, socket string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if l, err := Listen(ctx, nil, socket); l != nil || err == nil || !strings.Contains(err.Error(), "another daemon has it") {
		t.Errorf("%v, %v", l, err)
	}
}

// mode returns the kind and the permissions of what is at path.
func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Lstat(path)
	nodetest.OK(t, err)
	return info.Mode()
}

// The directory is made when it is missing, for this user alone, and what is in
// it is not touched when it is there.
func TestDirectoryOfTheSocketIsMadeAndNotEmptied(t *testing.T) {
	t.Parallel()
	base := nodetest.ShortDir(t)
	socket := base + "/a/b/s"
	nodetest.OK(t, listenOn(t, socket).Close())
	for _, dir := range []string{base + "/a", base + "/a/b"} {
		nodetest.Equal(t, dir, mode(t, dir), fs.ModeDir|0o700)
	}
	other := base + "/a/b/other"
	nodetest.OK(t, os.WriteFile(other, []byte("x"), 0o644))
	nodetest.OK(t, os.Mkdir(base+"/a/b/dir", 0o755))
	nodetest.OK(t, listenOn(t, socket).Close())
	if data, err := os.ReadFile(other); string(data) != "x" || err != nil || mode(t, base+"/a/b/dir") != fs.ModeDir|0o755 {
		t.Errorf("%q, %v", data, err)
	}
	nodetest.Equal(t, "the directory above", mode(t, base).Perm(), 0o700)
}

// A directory that others can enter, or that is not what it seems, is an error
// that says so, and stays as it is.
func TestDirectoryOfTheSocketIsChecked(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, want string
		make       func(t *testing.T, dir string) error
	}{
		{"group may write", "mode is 0720", func(_ *testing.T, dir string) error { return os.Chmod(dir, 0o720) }},
		{"all may enter", "mode is 0701", func(_ *testing.T, dir string) error { return os.Chmod(dir, 0o701) }},
		{"sticky and open", "mode is 01777", func(_ *testing.T, dir string) error { return os.Chmod(dir, 0o777|fs.ModeSticky) }},
		{"another user's", "belongs to user 12345", func(t *testing.T, dir string) error {
			t.Helper()
			if os.Geteuid() != 0 {
				t.Skip("needs root")
			}
			return os.Chown(dir, 12345, -1)
		}},
		{"symbolic link", "is a symbolic link", func(_ *testing.T, dir string) error {
			return errors.Join(os.Rename(dir, dir+"real"), os.Symlink(dir+"real", dir))
		}},
		{"dangling link", "is a symbolic link", func(_ *testing.T, dir string) error {
			return errors.Join(os.Remove(dir), os.Symlink(dir+"none", dir))
		}},
		{"file", "is not a directory", func(_ *testing.T, dir string) error {
			return errors.Join(os.Remove(dir), os.WriteFile(dir, nil, 0o600))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(nodetest.ShortDir(t), "dir")
			nodetest.OK(t, os.Mkdir(dir, 0o700))
			nodetest.OK(t, tt.make(t, dir))
			before := mode(t, dir)
			l, err := Listen(t.Context(), nil, dir+"/s")
			if l != nil || err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), dir) {
				t.Errorf("%v, %v; want %s", l, err, tt.want)
			}
			nodetest.Equal(t, "changed to", mode(t, dir), before)
			if list, _ := os.ReadDir(dir); len(list) != 0 {
				t.Errorf("made %v", list)
			}
		})
	}
}

// Nobody else can connect, and the socket that a daemon leaves behind is replaced by the next.
func TestSocketIsPrivate(t *testing.T) {
	t.Parallel()
	socket := nodetest.ShortDir(t) + "/s"
	for range 2 {
		l := listenOn(t, socket)
		nodetest.Equal(t, "mode", mode(t, socket), fs.ModeSocket|0o600)
		if a := l.Addr(); a.Network() != "unix" || a.String() != socket {
			t.Errorf("address %v", a)
		}
		go func() { _ = serveEcho(l) }()
		nodetest.OK(t, echo(socket))
		nodetest.OK(t, l.Close())
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("accept after close: %v", err)
		}
		nodetest.Is(t, echo(socket), unix.ECONNREFUSED)
	}
}

// What is no socket is not ours to remove, and a lock that is no file is an error, not
// something to wait for.
func TestListenReplacesOnlySockets(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"": " exists and is not a socket", "~": "~ exists and is not a socket", ".lock": ".lock", ".next": ".next",
	} {
		for what, make := range map[string]func(path string) error{
			"file":      func(p string) error { return os.WriteFile(p, []byte("x"), 0o600) },
			"directory": func(p string) error { return os.Mkdir(p, 0o700) },
			"link":      func(p string) error { return os.Symlink("/dev/null", p) },
			"pipe":      func(p string) error { return unix.Mkfifo(p, 0o600) },
		} {
			if strings.HasPrefix(name, ".") && (what == "file" || what == "pipe") {
				continue
			}
			socket := nodetest.ShortDir(t) + "/s"
			nodetest.OK(t, make(socket+name))
			before := mode(t, socket+name)
			l, err := Listen(t.Context(), nil, socket)
			if l != nil || err == nil || !strings.Contains(err.Error(), socket+want) {
				t.Errorf("%s: %v, %v", what, l, err)
			}
			nodetest.Equal(t, fmt.Sprintf("%s: now", what), mode(t, socket+name), before)
			nodetest.OK(t, os.Remove(socket+name))
			nodetest.OK(t, listenOn(t, socket).Close()) // the locks have been let go
		}
	}
}

func TestListenRefusesPathsThatCannotBeSockets(t *testing.T) {
	t.Parallel()
	dir := nodetest.ShortDir(t)
	fits := dir + "/" + strings.Repeat("x", 106-len(dir)-1)
	nodetest.OK(t, listenOn(t, fits).Close())
	for path, want := range map[string]string{
		fits + "x":                           "has 107 bytes, but at most 106 are",
		dir + "/" + strings.Repeat("x", 300): "bytes, but at most 106 are",
		"":                                   "not an absolute path",
		"s":                                  "not an absolute path",
		"@abstract":                          "not an absolute path",
	} {
		if l, err := Listen(t.Context(), nil, path); l != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", path, l, err)
		}
	}
}

// activate starts an actor that has the files from descriptor 3 on, and is told
// of them by env, in which PID stands for its own.
func activate(t *testing.T, env string, files ...*os.File) *actor {
	t.Helper()
	return start(t, "activated", env, func(c *exec.Cmd) { c.ExtraFiles = files })
}

// playActivated serves one connection on the socket it was given.
func playActivated(t *testing.T, arg string) {
	t.Helper()
	env := strings.Fields(strings.ReplaceAll(arg, "PID!", strconv.Itoa(os.Getpid())))
	from := inheritable(t, []int{firstFD}) // who runs the tests
	l, err := activated(t.Context(), env)
	if l == nil {
		fmt.Println("none", err)
		return
	}
	fmt.Println("serves", l.Addr(), inheritable(t, from))
	c, err := l.Accept()
	nodetest.OK(t, err)
	uid, known := peer.UID(c)
	fmt.Println("peer", uid, known)
	nodetest.OK(t, c.Close())
	nodetest.OK(t, l.Close())
	fmt.Println("closed")
}

// inheritable lists the descriptors that a child would inherit, but for the
// standard ones and those of but.
func inheritable(t *testing.T, but []int) []int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	nodetest.OK(t, err)
	var fds []int
	for _, e := range list {
		fd, err := strconv.Atoi(e.Name())
		nodetest.OK(t, err)
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 && fd >= firstFD && !slices.Contains(but, fd) {
			fds = append(fds, fd)
		}
	}
	return fds
}

// file returns a copy of the descriptor of l, as a service manager has it.
func file(t *testing.T, l interface{ File() (*os.File, error) }) *os.File {
	t.Helper()
	f, err := l.File()
	nodetest.OK(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// The socket of the service manager is served, stays when the daemon goes, and
// is served by the next one, with what came in between.
func TestActivated(t *testing.T) {
	t.Parallel()
	socket := nodetest.ShortDir(t) + "/s"
	manager, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	nodetest.OK(t, err)
	defer manager.Close()
	f := file(t, manager)
	for range 2 {
		early, err := net.Dial("unix", socket) // before there is a daemon
		nodetest.OK(t, err)
		a := activate(t, "X=1 LISTEN_PID=PID! LISTEN_FDS=1 LISTEN_FDNAMES=cni", f)
		for _, want := range []string{
			"serves " + socket + " []",
			fmt.Sprint("peer ", os.Geteuid(), " true"),
			"closed",
		} {
			a.says(t, want)
		}
		nodetest.OK(t, early.Close())
		if _, err := os.Lstat(socket); err != nil {
			t.Error(err)
		}
	}
}

// A daemon with an activated socket and one that makes the socket itself exclude each
// other, and neither takes the socket from the service manager.
func TestActivatedSocketIsLockedAndNotReplaced(t *testing.T) {
	t.Parallel()
	socket := nodetest.ShortDir(t) + "/s"
	manager, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	nodetest.OK(t, err)
	defer manager.Close()
	a := activate(t, "LISTEN_PID=PID! LISTEN_FDS=1", file(t, manager))
	a.says(t, "serves "+socket+" []")
	locked(t, socket)
	byHand := listenLater(t.Context(), socket)
	c, err := net.Dial("unix", socket) // ends the daemon
	nodetest.OK(t, err)
	defer c.Close()
	if l, err := byHand(); l != nil || err == nil || !strings.Contains(err.Error(), "another process listens on it") {
		t.Errorf("%v, %v", l, err)
	}
	c, err = net.Dial("unix", socket)
	nodetest.OK(t, err)
	nodetest.OK(t, c.Close())

	// The other way round: a daemon that has made the socket, and whose socket has been
	// replaced, still has the lock.
	other := nodetest.ShortDir(t) + "/s"
	l := listenOn(t, other)
	nodetest.OK(t, os.Remove(other))
	second, err := net.ListenUnix("unix", &net.UnixAddr{Name: other, Net: "unix"})
	nodetest.OK(t, err)
	defer second.Close()
	locked(t, other)
	next := activate(t, "LISTEN_PID=PID! LISTEN_FDS=1", file(t, second))
	nodetest.OK(t, l.Close())
	next.says(t, "serves "+other+" []")
	nodetest.Equal(t, "removed", mode(t, other).Type(), fs.ModeSocket)
}

// What is not for this process is none, and what it cannot use is an error.
func TestActivatedNot(t *testing.T) {
	t.Parallel()
	dir := nodetest.ShortDir(t)
	listening, err := net.ListenUnix("unix", &net.UnixAddr{Name: dir + "/l", Net: "unix"})
	nodetest.OK(t, err)
	defer listening.Close()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: dir + "/l", Net: "unix"})
	nodetest.OK(t, err)
	defer conn.Close()
	datagram, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: dir + "/d", Net: "unixgram"})
	nodetest.OK(t, err)
	defer datagram.Close()
	packet, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: dir + "/p", Net: "unixpacket"})
	nodetest.OK(t, err)
	defer packet.Close()
	tcp, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	nodetest.OK(t, err)
	defer tcp.Close()
	null, err := os.Open(os.DevNull)
	nodetest.OK(t, err)
	defer null.Close()
	good := file(t, listening)
	const mine = "LISTEN_PID=PID! LISTEN_FDS=1"
	for _, tt := range []struct {
		name, env string
		file      *os.File
		want      string
	}{
		{"nothing said", "HOME=/", good, "<nil>"},
		{"no pid", "LISTEN_FDS=1", good, "<nil>"},
		{"another's", "LISTEN_PID=1 LISTEN_FDS=1", good, "<nil>"},
		{"another's, and odd", "LISTEN_PID=1 LISTEN_FDS=x", good, "<nil>"},
		{"no count", "LISTEN_PID=PID!", good, "<nil>"},
		{"none", "LISTEN_PID=PID! LISTEN_FDS=0", good, "<nil>"},
		{"two", "LISTEN_PID=PID! LISTEN_FDS=2", good, "LISTEN_FDS passes 2 sockets, want 1"},
		{"odd pid", "LISTEN_PID=x LISTEN_FDS=1", good, `LISTEN_PID is not a number: "x"`},
		{"odd count", "LISTEN_PID=PID! LISTEN_FDS=-1", good, `LISTEN_FDS is not a number: "-1"`},
		{"empty count", "LISTEN_PID=PID! LISTEN_FDS=", good, `LISTEN_FDS is not a number: ""`},
		{"file", mine, null, "file descriptor 3: getsockopt: socket operation on non-socket"},
		{"tcp", mine, file(t, tcp), "file descriptor 3: not a unix stream socket"},
		{"datagram", mine, file(t, datagram), "file descriptor 3: not listening"},
		{"packet", mine, file(t, packet), "file descriptor 3: not a unix stream socket"},
		{"connection", mine, file(t, conn), "file descriptor 3: not listening"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			want := "none " + tt.want
			if tt.want != "<nil>" {
				want = "none socket activation: " + tt.want
			}
			activate(t, tt.env, tt.file).says(t, want)
		})
	}
}

// unixClient is a client of the server at socket. Nobody having listened at the
// moment it came is no answer, and it asks again, as a shim does.
func unixClient(socket string) *http.Client {
	return clientOf(func(ctx context.Context) (net.Conn, error) {
		for {
			c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
			if !errors.Is(err, syscall.ECONNREFUSED) || ctx.Err() != nil {
				return c, err
			}
		}
	})
}

// serveUnix starts s on a unix socket of its own.
func serveUnix(t *testing.T, s *Server) (*rig, string) {
	t.Helper()
	socket := nodetest.ShortDir(t) + "/s"
	r := &rig{t: t, Server: s, Client: unixClient(socket), done: make(chan struct{})}
	l := listenOn(t, socket)
	r.run(l)
	return r, socket
}

// What stops to write and still reads has gone, too. It is told no success.
func TestHalfClosedConnectionEndsTheOperation(t *testing.T) {
	t.Parallel()
	began := make(chan struct{})
	f := &fake{add: func(ctx context.Context, _ *skel.CmdArgs) error {
		close(began)
		<-ctx.Done()
		return nil
	}}
	_, socket := serveUnix(t, &Server{Plugin: f.plugin()})
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	nodetest.OK(t, err)
	defer c.Close()
	send(t, c, request("ADD", "c1"))
	<-began
	nodetest.OK(t, c.CloseWrite())
	data, err := io.ReadAll(c)
	nodetest.OK(t, err)
	if !strings.HasPrefix(string(data), "HTTP/1.1 500 ") || !strings.Contains(string(data), "the client disconnected") {
		t.Errorf("answer %s", data)
	}
	f.want(t, "ADD c1", "end ADD c1", "DEL c1")
}

// The kernel says who connects.
func TestStrangersOnASocket(t *testing.T) {
	t.Parallel()
	r, _ := serveUnix(t, &Server{Plugin: (&fake{}).plugin(), AllowUIDs: []uint32{uint32(os.Geteuid()) + 1}}) //nolint:gosec // no ID is negative
	r.do(request("ADD", "c1")).want(t, 403, 999, fmt.Sprintf("user %d may not connect", os.Geteuid()))
	r, _ = serveUnix(t, bare())
	r.do(request("ADD", "c1")).wantOK(t)
}

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
		"activated": playActivated, "listen": playListen, "daemon": playDaemon, "shim": playShim,
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
				defer flock.Release(next)
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

// A daemon whose socket somebody removes is not ready, and listens again. It has lost none of those
// who had connected.
func TestRemovedSocketIsMadeAgain(t *testing.T) {
	t.Parallel()
	remove := func(paths ...string) func(string) error {
		return func(socket string) (err error) {
			for _, path := range paths {
				err = errors.Join(err, os.RemoveAll(filepath.Join(filepath.Dir(socket), path)))
			}
			return err
		}
	}
	for name, tt := range map[string]struct {
		do  func(socket string) error
		why string // it is not made again
	}{
		"the socket":          {remove("s"), ""},
		"the directory":       {remove("."), ""},
		"the lock as well":    {remove("s.lock", "s"), ""},
		"a socket of nobody":  {func(s string) error { return elsewhere(t, s).Close() }, ""},
		"a socket of another": {func(s string) error { elsewhere(t, s); return nil }, "another process listens on it"},
		"another daemon's": {func(s string) error {
			d := filepath.Dir(s)
			listenOn(t, d+"2/s")
			return unix.Renameat2(unix.AT_FDCWD, d, unix.AT_FDCWD, d+"2", unix.RENAME_EXCHANGE)
		}, "another daemon has it"},
		"a file": {func(s string) error { return errors.Join(remove("s")(s), os.WriteFile(s, nil, 0o600)) }, "is not a socket"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			socket := nodetest.ShortDir(t) + "/d/s"
			s := bare()
			r := &rig{t: t, Server: s, Client: unixClient(socket), done: make(chan struct{})}
			l := listenOn(t, socket)
			l.every = 50 * time.Millisecond
			r.run(l)
			r.get(wire.PathReady).wantOK(t)
			early, err := net.Dial("unix", socket)
			nodetest.OK(t, err)
			defer early.Close()
			nodetest.OK(t, tt.do(socket))
			if tt.why == "" {
				nodetest.Until(t, "it listens again", func() bool { return r.get(wire.PathReady).status == http.StatusOK })
				r.do(request("ADD", "c1")).wantOK(t)
				nodetest.OK(t, s.CheckReady(t.Context()))
			} else {
				nodetest.Until(t, "it says why not", func() bool {
					err := s.CheckReady(t.Context())
					return err != nil && strings.Contains(err.Error(), tt.why) && strings.Contains(err.Error(), "somebody has removed the socket")
				})
			}
			send(t, early, request("ADD", "c2"))
			a, err := http.ReadResponse(bufio.NewReader(early), nil)
			nodetest.OK(t, err)
			nodetest.Equal(t, "answer to who had connected", a.StatusCode, http.StatusOK)
			nodetest.OK(t, a.Body.Close())
		})
	}
}

// elsewhere puts a socket in place of another.
func elsewhere(t *testing.T, socket string) *net.UnixListener {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket + "2", Net: "unix"})
	nodetest.OK(t, err)
	l.SetUnlinkOnClose(false)
	t.Cleanup(func() { _ = l.Close() })
	nodetest.OK(t, os.Rename(socket+"2", socket))
	return l
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
