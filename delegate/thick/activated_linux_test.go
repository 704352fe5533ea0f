package thick

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/internal/peer"
)

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
	l, err := Activated(t.Context(), env)
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
	socket := socketDir(t) + "/s"
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
			if said := a.says(t); said != want {
				t.Errorf("%q, want %q", said, want)
			}
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
	socket := socketDir(t) + "/s"
	manager, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	nodetest.OK(t, err)
	defer manager.Close()
	a := activate(t, "LISTEN_PID=PID! LISTEN_FDS=1", file(t, manager))
	if said := a.says(t); said != "serves "+socket+" []" {
		t.Fatal(said)
	}
	if lock, err := tryLockFile(socket + ".lock"); lock != nil || err != nil {
		t.Fatalf("the lock is free: %v", err)
	}
	byHand := listenLater(t.Context(), socket)
	announced(t, socket)
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
	other := socketDir(t) + "/s"
	l := listenOn(t, other)
	nodetest.OK(t, os.Remove(other))
	second, err := net.ListenUnix("unix", &net.UnixAddr{Name: other, Net: "unix"})
	nodetest.OK(t, err)
	defer second.Close()
	next := activate(t, "LISTEN_PID=PID! LISTEN_FDS=1", file(t, second))
	nodetest.OK(t, l.Close())
	if said := next.says(t); said != "serves "+other+" []" {
		t.Error(said)
	}
	if m := mode(t, other); m.Type() != fs.ModeSocket {
		t.Errorf("removed: %v", m)
	}
}

// What is not for this process is none, and what it cannot use is an error.
func TestActivatedNot(t *testing.T) {
	t.Parallel()
	dir := socketDir(t)
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
			if said := activate(t, tt.env, tt.file).says(t); said != want {
				t.Errorf("%q, want %q", said, want)
			}
		})
	}
}
