// Package realhost makes private hosts with real containers, on Linux, for the checks of package
// conform. A program can have many of them at once, and sees what a plugin leaves on each. Package
// host makes a private host of a whole process.
package realhost

import (
	"errors"
	"fmt"
	"maps"
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

// A Host is a machine that plugins can run on, and has containers. A container is the path of its
// network namespace, for CNI_NETNS of plugins on the host. Goroutines may share a Host.
type Host struct {
	calls chan func()   // run on the host's thread; nil for Here
	done  chan struct{} // closed by Close
	tid   int           // of the thread

	mu         sync.Mutex
	closed     bool
	spaces     []*os.File          // open, so that nobody else gets their numbers
	containers map[string]*os.File // network namespaces by path
	made       int                 // containers
	attached   int                 // how many addresses were tried
	ends       map[int]bool        // indexes of the host's ends of what was attached
	skip       map[string]bool     // files and directories that are not a plugin's
}

// New makes a host: a network namespace and a mount namespace, in which /run and
// /var/lib/cni are empty. The caller must call Close.
//
// The paths in keep stay visible though they are in one of these directories. The host has
// the interfaces lo, eth0 with the default route, and those in links, without addresses. Each but lo
// has a peer on the same host.
//
// The error is an [errors.ErrUnsupported] if rights or the system are missing.
func New(keep, links []string) (*Host, error) {
	h := newHost()
	h.calls = make(chan func())
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
		h.skip[path] = true
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
	err := procIsOurs()
	if err == nil {
		var probe *os.File
		probe, err = NewNS()
		_ = probe.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return newHost(), nil
}

func newHost() *Host {
	return &Host{done: make(chan struct{}), containers: map[string]*os.File{}, ends: map[int]bool{}, skip: map[string]bool{}}
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
	if err := Mounts(slices.Sorted(maps.Keys(h.skip))); err != nil {
		return err
	}
	// With the interfaces of the host's namespace. Few plugins look for them here, and some
	// systems do not allow it.
	_ = unix.Mount("sysfs", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	if err := Up("lo"); err != nil {
		return err
	}
	const uplink = "eth0"
	index, err := AddCard(uplink, "far0")
	if err != nil {
		return err
	}
	for i, name := range slices.Compact(slices.Sorted(slices.Values(links))) {
		if name != uplink {
			if _, err := AddCard(name, fmt.Sprintf("far%d", i+1)); err != nil {
				return err
			}
		}
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(198, 18, 0, 2), Mask: net.CIDRMask(15, 32)}}
	card := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}
	route := &netlink.Route{Dst: &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, Gw: net.IPv4(198, 18, 0, 1)}
	if err := errors.Join(netlink.AddrAdd(card, address), netlink.RouteAdd(route)); err != nil {
		return fmt.Errorf("set up %s: %w", uplink, err)
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

// do runs f in the network namespace at path, which is a path on the host. The empty path means the
// namespace of the host; f then sees the host's files, too.
func (h *Host) do(path string, f func() error) error {
	select {
	case <-h.done:
		return errClosed
	default:
	}
	if h.calls == nil {
		return in(path, f)
	}
	result := make(chan error, 1)
	select {
	case h.calls <- func() { result <- in(path, f) }:
		return <-result
	case <-h.done:
		return errClosed
	}
}

// in runs f in the network namespace at path.
func in(path string, f func() error) error {
	if path == "" {
		return f()
	}
	space, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = space.Close() }()
	thread.Alone(func() {
		if err = unix.Setns(int(space.Fd()), unix.CLONE_NEWNET); err == nil {
			err = f()
		}
	})
	return err
}

// Start starts the command on the host. The caller must call its Wait. Many commands can
// run at once.
//
// Close kills the command and its descendants. If the program dies before, the command is
// killed on a host that New has made.
func (h *Host) Start(cmd *exec.Cmd) error {
	if h.calls == nil {
		return h.do("", cmd.Start)
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL // at the end of the host's thread
	dir, err := os.Getwd()
	return h.do("", func() error {
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
	var all []error
	if h.calls == nil {
		for path := range h.containers {
			all = append(all, h.remove(path))
		}
	}
	close(h.done)
	if h.calls != nil && !wait(func() bool { return errors.Is(unix.Tgkill(os.Getpid(), h.tid, 0), unix.ESRCH) }) {
		all = append(all, errors.New("its thread does not end"))
	}
	all = append(all, kill(h.ids()))
	h.release()
	if err := errors.Join(all...); err != nil {
		return fmt.Errorf("close the host: %w", err)
	}
	return nil
}

// release closes the namespaces.
func (h *Host) release() {
	for _, space := range slices.AppendSeq(h.spaces, maps.Values(h.containers)) {
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

// AddCard makes a pair of interfaces of the thread's namespace, sets it up, and returns the index of
// the one with that name.
func AddCard(name, far string) (index int, err error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	card := netlink.NewVeth(attrs)
	card.PeerName = far
	if err := netlink.LinkAdd(card); err != nil {
		return 0, fmt.Errorf("make interface %q: %w", name, err)
	}
	return card.Attrs().Index, errors.Join(Up(name), Up(far)) // LinkAdd has set the index
}

// Up sets an interface of the thread's namespace up.
func Up(name string) error {
	err := netlink.LinkSetUp(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: name}})
	if err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}
