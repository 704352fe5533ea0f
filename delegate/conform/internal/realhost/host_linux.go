// Package realhost makes private hosts with real containers, on Linux, for the checks of package
// conform. A program can have many of them at once, and sees what a plugin leaves on each. Package
// host makes a private host of a whole process.
package realhost

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/thread"
)

const nsDir = "/run/netns"

var errClosed = errors.New("the host is closed")

// A Host is a machine that plugins can run on. Goroutines may share it.
type Host struct {
	calls  chan func()   // run on the host's thread; nil for Here
	done   chan struct{} // closed by Close
	tid    int           // of the thread
	keep   []string
	dirs   []string   // with state of plugins
	spaces []*os.File // the namespaces: while they are open, nobody else gets their numbers

	mu         sync.Mutex
	closed     bool
	links      *netlink.Handle // after its Close it would work on the program's own host
	containers []*Container
	attached   int // how many addresses were tried
}

// New makes a host: a network namespace and a mount namespace, in which /run and
// /var/lib/cni are empty. The caller must call Close.
//
// The paths in keep stay visible though they are in one of these directories. The host has
// the interfaces lo and [Uplink], and those in links, without addresses. Each but lo has a
// peer on the same host.
//
// The error is an [errors.ErrUnsupported] if rights or the system are missing.
func New(keep, links []string) (*Host, error) {
	h := &Host{calls: make(chan func()), done: make(chan struct{}), dirs: []string{"/run", "/var/lib/cni"}}
	for _, path := range keep {
		path, err := filepath.EvalSymlinks(path)
		if err == nil {
			path, err = filepath.Abs(path)
		}
		if err != nil {
			return nil, fmt.Errorf("make a host: %w", err)
		}
		if path == "/run" || path == nsDir || path == "/var/lib/cni" {
			return nil, fmt.Errorf("make a host: %s cannot stay visible", path)
		}
		h.keep = append(h.keep, path)
	}
	ready := make(chan error)
	go thread.Alone(func() {
		err := h.setUp(links)
		ready <- err
		for err == nil {
			select {
			case f := <-h.calls:
				f()
			case <-h.done:
				return
			}
		}
	})
	if err := <-ready; err != nil {
		h.release()
		return nil, fmt.Errorf("%w: make a host: %w", errors.ErrUnsupported, err)
	}
	return h, nil
}

// Here returns the host that the program runs on, for plugins whose daemon works there. Its
// mounts and interfaces are not changed, Start starts the command in the usual way, and
// Close removes only the containers.
//
// The error is an [errors.ErrUnsupported] if rights or the system are missing.
func Here() (*Host, error) {
	h := &Host{done: make(chan struct{}), dirs: []string{"/run/cni", "/var/lib/cni"}}
	err := procIsOurs()
	if err == nil {
		h.links, err = netlink.NewHandle(unix.NETLINK_ROUTE)
	}
	if err == nil {
		probe := &Container{host: h}
		err = probe.make()
		probe.release()
	}
	if err != nil {
		h.release()
		return nil, fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return h, nil
}

// setUp makes the namespaces. It runs on the host's thread.
func (h *Host) setUp(links []string) error {
	h.tid = unix.Gettid()
	if err := procIsOurs(); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("new namespaces (needs root, or root of a user namespace): %w", err)
	}
	for _, kind := range []string{"net", "mnt"} {
		space, err := os.Open("/proc/thread-self/ns/" + kind)
		if err != nil {
			return err
		}
		h.spaces = append(h.spaces, space)
	}
	if err := mounts(h.keep); err != nil {
		return err
	}
	var err error
	if h.links, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	if err := Up(h.links, "lo"); err != nil {
		return err
	}
	names := []string{Uplink}
	for _, name := range links {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for i, name := range names {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		card := netlink.NewVeth(attrs)
		card.PeerName = fmt.Sprintf("far%d", i)
		if err := h.links.LinkAdd(card); err != nil {
			return fmt.Errorf("make interface %q: %w", name, err)
		}
		if err := errors.Join(Up(h.links, name), Up(h.links, card.PeerName)); err != nil {
			return err
		}
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(198, 18, 0, 2), Mask: net.CIDRMask(15, 32)}}
	route := &netlink.Route{Dst: anywhere(), Gw: net.IPv4(198, 18, 0, 1)}
	if err := errors.Join(h.links.AddrAdd(named(Uplink), address), h.links.RouteAdd(route)); err != nil {
		return fmt.Errorf("set up %s: %w", Uplink, err)
	}
	return nil
}

// procIsOurs returns an error if numbers of processes below /proc mean others here.
func procIsOurs() error {
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return errors.New("/proc belongs to another PID namespace")
	}
	return nil
}

// do runs f on the host's thread.
func (h *Host) do(f func() error) error {
	select {
	case <-h.done:
		return errClosed
	default:
	}
	if h.calls == nil {
		return f()
	}
	result := make(chan error, 1)
	select {
	case h.calls <- func() { result <- f() }:
		return <-result
	case <-h.done:
		return errClosed
	}
}

// Start starts the command on the host. The caller must call its Wait. Many commands can
// run at once.
//
// Close kills the command and its descendants. If the program dies before, the command is
// killed on a host that New has made.
func (h *Host) Start(cmd *exec.Cmd) error {
	if h.calls == nil {
		return h.do(cmd.Start)
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL // at the end of the host's thread
	dir, err := os.Getwd()
	return h.do(func() error {
		if err == nil {
			// The program may have gone elsewhere; the thread has a directory of its own.
			// If the host does not have this one, the command starts where New was called.
			_ = unix.Chdir(dir)
		}
		return cmd.Start()
	})
}

// Close kills the processes on the host and in its containers, and removes them. Later
// calls do nothing.
func (h *Host) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil
	}
	h.closed = true
	close(h.done)
	var all []error
	if h.calls != nil && !wait(func() bool { return errors.Is(unix.Tgkill(os.Getpid(), h.tid, 0), unix.ESRCH) }) {
		all = append(all, errors.New("its thread does not end"))
	}
	all = append(all, kill(h.ids()))
	for _, c := range h.containers {
		if h.calls == nil {
			all = append(all, c.detach())
		}
		c.release()
	}
	h.release()
	if err := errors.Join(all...); err != nil {
		return fmt.Errorf("close the host: %w", err)
	}
	return nil
}

// release closes what the program has open of the host's namespaces.
func (h *Host) release() {
	if h.links != nil {
		h.links.Close()
		h.links = nil
	}
	for _, space := range h.spaces {
		_ = space.Close()
	}
}

// wait waits until something is true, ten seconds at most.
func wait(done func() bool) bool {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range 10_000 {
		if done() {
			return true
		}
		<-tick.C
	}
	return false
}

// named returns a link for functions that look for it by name.
func named(name string) *netlink.GenericLink {
	return &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: name}}
}

// Up sets an interface up.
func Up(links *netlink.Handle, name string) error {
	if err := links.LinkSetUp(named(name)); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}

// anywhere returns the destination of a default route.
func anywhere() *net.IPNet {
	return &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
}
