package thick

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/thick/shim"
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

// wantNone wants Listen to have failed with these words.
func wantNone(t *testing.T, l net.Listener, err error, words ...string) {
	t.Helper()
	if l != nil {
		t.Errorf("it listens at %v", l.Addr())
	}
	nodetest.Says(t, err, words...)
}

// locked checks that a daemon has the lock of the socket.
func locked(t *testing.T, socket string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l, err := Listen(ctx, nil, socket)
	wantNone(t, l, err, "another daemon has it")
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
	n := &nodetest.Node{TB: t, Dir: nodetest.ShortDir(t)}
	socket := n.Path("a/b/s")
	nodetest.OK(t, listenOn(t, socket).Close())
	for _, dir := range []string{"", "a", "a/b"} {
		nodetest.Equal(t, dir, mode(t, n.Path(dir)), fs.ModeDir|0o700)
	}
	n.Write("a/b/dir/file", "x")
	nodetest.OK(t, os.Chmod(n.Path("a/b/dir"), 0o755))
	nodetest.OK(t, listenOn(t, socket).Close())
	nodetest.Equal(t, "file", n.Read("a/b/dir/file"), "x")
	nodetest.Equal(t, "directory", mode(t, n.Path("a/b/dir")), fs.ModeDir|0o755)
}

// A directory that others can enter, or that is not what it seems, is an error
// that says so, and stays as it is.
func TestDirectoryOfTheSocketIsChecked(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(dir string) error{
		"mode is 0720":                 func(dir string) error { return os.Chmod(dir, 0o720) },
		"mode is 0701":                 func(dir string) error { return os.Chmod(dir, 0o701) },
		"mode is 01777":                func(dir string) error { return os.Chmod(dir, 0o777|fs.ModeSticky) },
		"real is a symbolic link":      func(dir string) error { return errors.Join(os.Rename(dir, dir+"_"), os.Symlink(dir+"_", dir)) },
		"dangling is a symbolic link":  func(dir string) error { return errors.Join(os.Remove(dir), os.Symlink(dir+"none", dir)) },
		"directory is not a directory": func(dir string) error { return errors.Join(os.Remove(dir), os.WriteFile(dir, nil, 0o600)) },
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			name, want, _ := strings.Cut(want, " ")
			dir := filepath.Join(nodetest.ShortDir(t), name)
			nodetest.OK(t, os.Mkdir(dir, 0o700))
			nodetest.OK(t, change(dir))
			before := mode(t, dir)
			l, err := Listen(t.Context(), nil, dir+"/s")
			wantNone(t, l, err, want, dir)
			nodetest.Equal(t, "changed to", mode(t, dir), before)
			list, _ := os.ReadDir(dir)
			nodetest.Equal(t, "made", len(list), 0)
		})
	}
	others := "/" // root's, unless a user namespace shows both root and this user as the overflow user
	if os.Geteuid() == 0 {
		others = nodetest.ShortDir(t)
		nodetest.OK(t, os.Chown(others, 12345, -1))
	}
	var st unix.Stat_t
	if nodetest.OK(t, unix.Stat(others, &st)); st.Uid == uint32(os.Geteuid()) {
		return
	}
	l, err := Listen(t.Context(), nil, filepath.Join(others, "s"))
	wantNone(t, l, err, "belongs to user ")
}

// Nobody else can connect, and the socket that a daemon leaves behind is replaced by the next.
func TestSocketIsPrivate(t *testing.T) {
	t.Parallel()
	socket := nodetest.ShortDir(t) + "/s"
	for range 2 {
		l := listenOn(t, socket)
		nodetest.Equal(t, "mode", mode(t, socket), fs.ModeSocket|0o600)
		nodetest.Equal(t, "address", l.Addr().Network()+l.Addr().String(), "unix"+socket)
		go func() { _ = serveEcho(l) }()
		nodetest.OK(t, echo(socket))
		nodetest.OK(t, l.Close())
		_, err := l.Accept()
		nodetest.Is(t, err, net.ErrClosed)
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
		for what, put := range map[string]func(path string) error{
			"file":      func(p string) error { return os.WriteFile(p, []byte("x"), 0o600) },
			"directory": func(p string) error { return os.Mkdir(p, 0o700) },
			"link":      func(p string) error { return os.Symlink("/dev/null", p) },
		} {
			if strings.HasPrefix(name, ".") && what == "file" {
				continue
			}
			socket := nodetest.ShortDir(t) + "/s"
			nodetest.OK(t, put(socket+name))
			before := mode(t, socket+name)
			l, err := Listen(t.Context(), nil, socket)
			wantNone(t, l, err, socket+want)
			nodetest.Equal(t, what, mode(t, socket+name), before)
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
		fits + "x": "has 107 bytes, but at most 106 are", "": "not an absolute path", "s": "not an absolute path", "@abstract": "not an absolute path",
	} {
		l, err := Listen(t.Context(), nil, path)
		wantNone(t, l, err, want)
	}
}

// activate starts an actor that has the files from descriptor 3 on, and is told
// of them by env, in which PID stands for its own.
func activate(t *testing.T, env string, files ...*os.File) *actor {
	t.Helper()
	return start(t, "activated", env, func(c *exec.Cmd) { c.ExtraFiles = files })
}

// listening returns a copy of the descriptor of a listener, as a service manager has it.
func listening(t *testing.T, network, address string) *os.File {
	t.Helper()
	l, err := net.Listen(network, address)
	nodetest.OK(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return file(t, l)
}

// connect makes a connection, which ends with the test.
func connect(t *testing.T, socket string) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", socket)
	nodetest.OK(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
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

// playListens serves a socket, and says for each line of its input what a child would inherit.
func playListens(t *testing.T, socket string) {
	t.Helper()
	from := inheritable(t, nil) // who runs the tests
	l, err := listen(t.Context(), socket)
	nodetest.OK(t, err)
	fmt.Println("listens", inheritable(t, from))
	go func() { _ = serveEcho(l) }()
	for _, err := fmt.Scanln(); err == nil; _, err = fmt.Scanln() {
		fmt.Println("has", inheritable(t, from))
	}
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

// file returns a copy of the descriptor of c.
func file(t *testing.T, c any) *os.File {
	t.Helper()
	f, err := c.(interface{ File() (*os.File, error) }).File()
	nodetest.OK(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// The socket of the service manager is served, stays when the daemon goes, and
// is served by the next one, with what came in between.
func TestActivated(t *testing.T) {
	t.Parallel()
	socket := nodetest.ShortDir(t) + "/s"
	f := listening(t, "unix", socket)
	for range 2 {
		connect(t, socket) // before there is a daemon
		a := activate(t, "X=1 LISTEN_PID=PID! LISTEN_FDS=1 LISTEN_FDNAMES=cni", f)
		a.says(t, "serves "+socket+" []", fmt.Sprint("peer ", os.Geteuid(), " true"), "closed")
		nodetest.Equal(t, "what stays", mode(t, socket).Type(), fs.ModeSocket)
	}
}

// A daemon with an activated socket and one that makes the socket itself exclude each
// other, and neither takes the socket from the service manager.
func TestActivatedSocketIsLockedAndNotReplaced(t *testing.T) {
	t.Parallel()
	socket := nodetest.ShortDir(t) + "/s"
	a := activate(t, "LISTEN_PID=PID! LISTEN_FDS=1", listening(t, "unix", socket))
	a.says(t, "serves "+socket+" []")
	locked(t, socket)
	byHand := listenLater(t.Context(), socket)
	connect(t, socket) // ends the daemon
	l, err := byHand()
	wantNone(t, l, err, "another process listens on it")
	connect(t, socket)

	// The other way round: a daemon that has made the socket, and whose socket has been
	// replaced, still has the lock.
	other := nodetest.ShortDir(t) + "/s"
	own := listenOn(t, other)
	nodetest.OK(t, os.Remove(other))
	second := listening(t, "unix", other)
	locked(t, other)
	next := activate(t, "LISTEN_PID=PID! LISTEN_FDS=1", second)
	nodetest.OK(t, own.Close())
	next.says(t, "serves "+other+" []")
	nodetest.Equal(t, "removed", mode(t, other).Type(), fs.ModeSocket)
}

// What is not for this process is none, and what it cannot use is an error.
func TestActivatedNot(t *testing.T) {
	t.Parallel()
	dir := nodetest.ShortDir(t)
	good := listening(t, "unix", dir+"/l")
	null, err := os.Open(os.DevNull)
	nodetest.OK(t, err)
	defer null.Close()
	const mine = "LISTEN_PID=PID! LISTEN_FDS=1"
	for _, tt := range []struct {
		env  string
		file *os.File
		want string
	}{
		{"LISTEN_FDS=1", good, ""},
		{"LISTEN_PID=1 LISTEN_FDS=x", good, ""},
		{"LISTEN_PID=PID!", good, ""},
		{"LISTEN_PID=PID! LISTEN_FDS=2", good, "LISTEN_FDS passes 2 sockets, want 1"},
		{"LISTEN_PID=x LISTEN_FDS=1", good, `LISTEN_PID is not a number: "x"`},
		{"LISTEN_PID=PID! LISTEN_FDS=-1", good, `LISTEN_FDS is not a number: "-1"`},
		{mine, null, "file descriptor 3: getsockopt: socket operation on non-socket"},
		{mine, listening(t, "tcp", "127.0.0.1:0"), "file descriptor 3: not a unix stream socket"},
		{mine, listening(t, "unixpacket", dir+"/p"), "file descriptor 3: not a unix stream socket"},
		{mine, file(t, connect(t, dir+"/l")), "file descriptor 3: not listening"},
	} {
		t.Run(tt.env+" "+tt.want, func(t *testing.T) {
			t.Parallel()
			want := "none socket activation: " + tt.want
			if tt.want == "" {
				want = "none <nil>"
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

// serveUnix starts s on a unix socket, on which it looks for the socket often.
func serveUnix(t *testing.T, s *Server, socket string) *rig {
	t.Helper()
	r := &rig{t: t, Server: s, Client: unixClient(socket), done: make(chan struct{})}
	l := listenOn(t, socket)
	l.every = 50 * time.Millisecond
	r.run(l)
	return r
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
	socket := nodetest.ShortDir(t) + "/s"
	serveUnix(t, &Server{Plugin: f.plugin()}, socket)
	c := connect(t, socket)
	send(t, c, request("ADD", "c1"))
	<-began
	nodetest.OK(t, c.(*net.UnixConn).CloseWrite())
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
	s := &Server{Plugin: (&fake{}).plugin(), AllowUIDs: []uint32{uint32(os.Geteuid()) + 1}} //nolint:gosec // no ID is negative
	serveUnix(t, s, nodetest.ShortDir(t)+"/s").do(request("ADD", "c1")).want(t, 403, 999, fmt.Sprintf("user %d may not connect", os.Geteuid()))
	serveUnix(t, bare(), nodetest.ShortDir(t)+"/s").do(request("ADD", "c1")).wantOK(t)
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

// says waits for the actor's next lines, which must be want.
func (a *actor) says(t *testing.T, want ...string) {
	t.Helper()
	for _, line := range want {
		text, err := a.out.ReadString('\n')
		nodetest.OK(t, err)
		nodetest.Equal(t, "what the other process says", text, line+"\n")
	}
}

// TestRole is not a test: it plays the parts.
func TestRole(t *testing.T) {
	role, arg, found := strings.Cut(os.Getenv(roleVar), " ")
	if !found {
		return // no other test has asked for a part
	}
	map[string]func(t *testing.T, arg string){
		"activated": playActivated, "listen": playListens, "daemon": playDaemon, "shim": playShim,
	}[role](t, arg)
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

// ask makes one request.
func ask(c net.Conn) error {
	b := []byte("?")
	_, err := c.Write(b)
	if err == nil {
		_, err = io.ReadFull(c, b)
	}
	return err
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
	nodetest.OK(t, ask(connect(t, socket)))
	_, err := fmt.Fprintln(a.in)
	nodetest.OK(t, err)
	a.says(t, "has []")
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
	nodetest.Until(t, "somebody waits for the socket", (&listener{socket: socket}).awaited)
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
			early = append(early, connect(t, socket))
		}
		nodetest.OK(t, l.handOver(t.Context()))
		if awaited {
			l2, err := next()
			nodetest.OK(t, err)
			defer l2.Close()
			go func() { _ = serveEcho(l2) }()
			nodetest.OK(t, echo(socket))
		} else {
			nodetest.Is(t, echo(socket), unix.ECONNREFUSED)
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
				elsewhere(t, socket)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			nodetest.Equal(t, "in vain", errors.Is(l.handOver(ctx), context.Canceled), tt.waits && !tt.replaced)
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
			r := serveUnix(t, bare(), socket)
			r.get(wire.PathReady).wantOK(t)
			early := connect(t, socket)
			nodetest.OK(t, tt.do(socket))
			if tt.why == "" {
				nodetest.Until(t, "it listens again", func() bool { return r.get(wire.PathReady).status == http.StatusOK })
				r.do(request("ADD", "c1")).wantOK(t)
				nodetest.OK(t, r.CheckReady(t.Context()))
			} else {
				nodetest.Until(t, "it says why not", func() bool {
					err := r.CheckReady(t.Context())
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
		l, err := next()
		wantNone(t, l, err, "another daemon has it")
		nodetest.Is(t, err, context.Canceled)
		nodetest.Is(t, err, cause)
	}
	go func() { _ = serveEcho(l) }()
	nodetest.OK(t, echo(socket))
	nodetest.OK(t, l.Close())
	nodetest.OK(t, listenOn(t, socket).Close())
}

// playDaemon is the whole program of a daemon.
func playDaemon(_ *testing.T, socket string) {
	Main(plugin.Plugin{
		Add: func(_ context.Context, c *plugin.Call) error {
			_, err := fmt.Fprintf(c.System.Stdout, `{"cniVersion":"1.0.0","interfaces":[{"name":%q}]}`, c.IfName)
			return err
		},
		Del:   func(context.Context, *plugin.Call) error { return nil },
		Steps: map[string]plugin.Step{"rule": {Check: func(context.Context, *plugin.Call) error { return errors.New("the rule is gone") }}},
	}, socket)
	os.Exit(0)
}

// playShim is the whole program of a shim.
func playShim(_ *testing.T, socket string) {
	shim.Main(socket)
	os.Exit(0)
}

// runShim runs the shim, without CNI_COMMAND if command is empty.
// keys are more keys of the configuration.
func runShim(t *testing.T, command, socket, keys string) (stdout, stderr string, status int) {
	t.Helper()
	var errs bytes.Buffer
	s := start(t, "shim", socket, func(c *exec.Cmd) {
		c.Stderr = &errs
		if command != "" {
			c.Env = append(c.Env, "CNI_COMMAND="+command, "CNI_CONTAINERID=c1", "CNI_NETNS=/run/netns/c1", "CNI_IFNAME=eth0", "CNI_PATH=/opt/cni/bin")
		}
	})
	_, _ = io.WriteString(s.in, `{"cniVersion":"1.1.0","name":"pods","type":"x"`+keys+"}") // it may not be read
	_ = s.in.Close()
	out, err := io.ReadAll(s.out)
	nodetest.OK(t, err)
	_ = s.Wait() // its status is what counts
	return string(out), errs.String(), s.ProcessState.ExitCode()
}

// startDaemon returns a daemon that listens, and its log.
func startDaemon(t *testing.T, socket string) (*actor, *nodetest.Log) {
	t.Helper()
	log := new(nodetest.Log)
	d := start(t, "daemon", socket, func(c *exec.Cmd) { c.Stderr = log })
	nodetest.Until(t, "listening", func() bool {
		c, err := net.Dial("unix", socket)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	}, log)
	return d, log
}

// Two programs of one line each are a daemon and its shim.
func TestMainOfDaemonAndShim(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(nodetest.ShortDir(t), "run", "d.sock")
	shim := func(want int, command, keys, says string) {
		t.Helper()
		out, stderr, status := runShim(t, command, socket, keys)
		if status != want || !strings.Contains(out, says) {
			t.Errorf("%s: status %d, %s, %s", command, status, out, stderr)
		}
	}
	d, log := startDaemon(t, socket)
	shim(0, "ADD", "", `"name": "eth0"`)
	shim(1, "CHECK", "", "the plugin has no CHECK")
	shim(1, "CHECK", `,"step":"rule"`, "the rule is gone")
	nodetest.OK(t, d.Process.Signal(syscall.SIGTERM))
	nodetest.OK(t, d.Wait())
	nodetest.Equal(t, "logged", []int{log.Count("msg=request command=ADD"), log.Count("level=WARN msg=request command=CHECK")}, []int{1, 2})
	shim(1, "DEL", "", `"code":11`) // without the daemon
	startDaemon(t, socket)
	shim(0, "DEL", "", "")
}

// Without the absolute path of a socket neither program does anything. Somebody who runs the
// shim by hand learns what it is.
func TestMainSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	for _, socket := range []string{"", "run/d.sock"} {
		log := new(nodetest.Log)
		d := start(t, "daemon", socket, func(c *exec.Cmd) { c.Stderr = log })
		if err := d.Wait(); d.ProcessState.ExitCode() != 1 || log.Count("not an absolute path") != 1 {
			t.Errorf("daemon at %q: %v, %s", socket, err, log)
		}
		if out, _, status := runShim(t, "DEL", socket, ""); status != 1 || !strings.Contains(out, `"code":7`) || !strings.Contains(out, "not absolute") {
			t.Errorf("shim of %q: status %d, %s", socket, status, out)
		}
	}
	if out, stderr, status := runShim(t, "", "/run/d.sock", ""); status != 0 || out != "" || !strings.HasPrefix(stderr, "CNI shim of the daemon at /run/d.sock "+plugin.Version()) {
		t.Errorf("by hand: status %d, %s, %s", status, out, stderr)
	}
}

// Requests that are refused or have no attachment have a line too. The line of a slow ADD says
// where its time went.
func TestRequestsAreLogged(t *testing.T) {
	t.Parallel()
	timing := lifecycle.Timing{Whole: 2 * time.Second, Lock: time.Second, Record: 2 * time.Millisecond, Plugins: []lifecycle.PluginTime{
		{Command: "ADD", Plugin: "bridge", Network: "pods", IfName: "eth0", Took: 998 * time.Millisecond},
	}}
	for want, e := range map[string]Event{
		"level=WARN msg=request duration=0s queued=0s status=403 pod=p code=999 error=no uid=1000\n": {UID: 1000, Status: 403, Err: errors.New("no")},
		"level=WARN msg=request command=STATUS duration=0s queued=0s status=503 pod=p code=50 error=draining uid=0\n": {
			Command: "STATUS", Status: 503, Err: types.NewError(50, "draining", ""),
		},
		"": {Command: "STATUS", Status: 200},
		"level=INFO msg=request command=ADD duration=2s queued=0s status=200 pod=p\n": {Command: "ADD", Status: 200, Duration: 2 * time.Second, Timing: timing},
		"level=WARN msg=request command=ADD duration=3s queued=0s status=500 pod=p" +
			` timing.lock=1s timing.record=2ms timing.plugins="ADD bridge pods eth0 998ms" code=999 error=no uid=0` + "\n": {
			Command: "ADD", Status: 500, Duration: 3 * time.Second, Err: errors.New("no"), Slow: true, Timing: timing,
		},
	} {
		var log nodetest.Log
		e.Log(t.Context(), logTo(&log), slog.String("pod", "p"), slog.String("empty", ""))
		if got := log.String(); !strings.HasSuffix(got, want) || (got == "") != (want == "") {
			t.Errorf("log: %s, want %s", got, want)
		}
	}
}
