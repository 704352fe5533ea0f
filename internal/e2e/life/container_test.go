package life

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/conform/host"
)

// A container has a network namespace, which one thing keeps: a process, a thread, a descriptor,
// a mount, or a socket. The names of the namespace come and go.
type container struct {
	id     string
	name   string // its name in /run/netns
	lives  bool
	holder *keeper
	guest  *keeper // keeps another namespace of the container's, to which it moves interfaces
	agent  *keeper // has the namespace open, as runtimes have
	has    map[string]*attachment

	touched   bool // its interfaces were changed
	plain     bool // something was attached without multinet
	clashed   bool // eth0 was asked for twice
	blind     bool // its rules may be left
	forgotten bool // an operator has removed its records
}

// A keeper is a process that keeps something alive until it is killed.
type keeper struct {
	cmd  *exec.Cmd
	in   io.Closer
	path string // of the namespace; empty for a socket, which is descriptor 3
}

// keep starts this program in another role.
func (n *node) keep(role string, flags uintptr, files ...*os.File) (*keeper, error) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{roleEnv + "=" + role}
	cmd.ExtraFiles, cmd.Stderr = files, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &keeper{cmd: cmd, in: in}
	n.keepers[cmd.Process.Pid] = true
	line, err := bufio.NewReader(out).ReadString('\n')
	p.path = strings.TrimSpace(line)
	return p, err
}

// end kills p and waits until it is gone.
func (n *node) end(p *keeper) {
	if p != nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		_ = p.in.Close()
		delete(n.keepers, p.cmd.Process.Pid)
	}
}

// keepOpen keeps the namespace in descriptor 3.
func keepOpen([]string) error {
	fmt.Printf("/proc/%d/fd/3\n", os.Getpid())
	_, err := os.Stdin.Read(make([]byte, 1))
	return err
}

// keepNamespace makes a network namespace, keeps it in one way, and prints its path.
func keepNamespace(args []string) error {
	if args[0] == "process" { // the whole process is in the namespace
		fmt.Printf("/proc/%d/ns/net\n", os.Getpid())
		_, err := os.Stdin.Read(make([]byte, 1))
		return err
	}
	if args[0] == "mount" { // only of this namespace, and none of others
		names, err := filepath.Glob("/run/netns/*")
		err = errors.Join(err, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		for _, name := range names {
			_ = unix.Unmount(name, unix.MNT_DETACH)
		}
		if err != nil {
			return err
		}
	}
	made := make(chan error)
	var path string
	go func() {
		runtime.LockOSThread() // and the thread ends with this goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			path, err = keepAs(args[0])
		}
		made <- err
		if args[0] == "thread" {
			select {}
		}
	}()
	if err := <-made; err != nil {
		return err
	}
	fmt.Println(path)
	_, err := os.Stdin.Read(make([]byte, 1))
	return err
}

// keepAs keeps the namespace of the thread.
func keepAs(kind string) (path string, err error) {
	switch kind {
	case "thread":
		return fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid()), nil
	case "descriptor":
		fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), err
	case "mount":
		err := os.WriteFile(held, nil, 0o600)
		if err == nil {
			err = unix.Mount("/proc/thread-self/ns/net", held, "", unix.MS_BIND, "")
		}
		return fmt.Sprintf("/proc/%d/root%s", os.Getpid(), held), err
	default:
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
		return fmt.Sprintf("socket %d", fd), err
	}
}

// held is where a process mounts a namespace that nobody else sees.
const held = "/run/node/held"

// start starts a container. Its namespace has the name name.
func (n *node) start(id, kind, name string) (*container, error) {
	c := &container{id: id, name: name, lives: true, has: make(map[string]*attachment)}
	flags := map[string]uintptr{"process": syscall.CLONE_NEWNET, "mount": syscall.CLONE_NEWNS}[kind]
	var err error
	if c.holder, err = n.keep("hold "+kind, flags); err != nil {
		return nil, err
	}
	err = c.open(c.holder, func(path string) error {
		if err := os.WriteFile(c.named(), nil, 0o600); err != nil {
			return err
		}
		if err := unix.Mount(path, c.named(), "", unix.MS_BIND, ""); err != nil {
			return err
		}
		return host.Do(path, func() error { return up("lo") })
	})
	return c, err
}

// named is the path of the container's name. Nothing may be there.
func (c *container) named() string { return filepath.Join("/run/netns", c.name) }

// open opens the namespace that p keeps for as long as f runs, and hands f a path.
func (c *container) open(p *keeper, f func(path string) error) error {
	fd, err := unix.Open(p.path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if number, ok := strings.CutPrefix(p.path, "socket "); ok {
		fd, err = ofSocket(p.cmd.Process.Pid, number)
	}
	if err != nil {
		return fmt.Errorf("open the namespace of %s at %s: %w", c.id, p.path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	return f(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd))
}

// ofSocket opens the namespace of a process's socket.
func ofSocket(pid int, number string) (int, error) {
	var target int
	if _, err := fmt.Sscan(number, &target); err != nil {
		return 0, err
	}
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(process) }()
	socket, err := unix.PidfdGetfd(process, target, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(socket) }()
	return unix.IoctlRetInt(socket, unix.SIOCGSKNS)
}

// inside runs f in the container's namespace.
func (c *container) inside(f func() error) error {
	return c.open(c.holder, func(path string) error { return host.Do(path, f) })
}

// die ends everything that keeps the container's namespaces, and its name.
func (n *node) die(c *container) {
	if c.lives {
		n.unname(c)
		n.end(c.guest)
		n.end(c.agent)
		number, err := c.number()
		n.end(c.holder)
		for start := time.Now(); err == nil && lives(number) && time.Since(start) < time.Second; {
			runtime.Gosched() // the kernel frees a closed socket, and with it the namespace, some time later
		}
		c.lives, c.guest, c.agent = false, nil, nil
	}
}

// number returns the number by which the node knows the container's namespace. It gives one if there
// is none.
func (c *container) number() (number int, err error) {
	err = c.open(c.holder, func(path string) error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		const none = -1
		if number, err = netlink.GetNetNsIdByFd(int(f.Fd())); err == nil && number == none {
			if err = netlink.SetNetNsIdByFd(int(f.Fd()), none); err == nil { // the kernel chooses
				number, err = netlink.GetNetNsIdByFd(int(f.Fd()))
			}
		}
		return err
	})
	return number, err
}

// lives reports whether the namespace that the node knows by this number has users.
func lives(number int) bool {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = 1 // lo
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_TARGET_NETNSID, nl.Uint32Attr(uint32(number))))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err == nil
}

// unname removes the name of a namespace. The namespace stays.
func (n *node) unname(c *container) {
	if unix.Unmount(c.named(), unix.MNT_DETACH) == nil {
		_ = os.Remove(c.named())
	}
}

// handOver leaves the namespace to the agent alone.
func (n *node) handOver(c *container) error {
	if err := n.newAgent(c); err != nil {
		return err
	}
	n.end(c.holder)
	c.holder, c.agent = c.agent, nil
	return nil
}

// at reports whether the container lives and path leads to its namespace.
func (c *container) at(path string) (is bool) {
	if !c.lives {
		return false
	}
	_ = c.open(c.holder, func(own string) error {
		one, err := os.Stat(own)
		two, e := os.Stat(path)
		is = errors.Join(err, e) == nil && os.SameFile(one, two)
		return nil
	})
	return is
}

// newAgent replaces the process whose descriptor is a name of the namespace.
func (n *node) newAgent(c *container) error {
	n.end(c.agent)
	return c.open(c.holder, func(path string) error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		c.agent, err = n.keep("agent", 0, f)
		return err
	})
}

func up(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

// errNothing says that an action is impossible and has done nothing.
var errNothing = errors.New("nothing to do")

// link returns an interface of the namespace that the thread is in.
func link(name string) (netlink.Link, error) {
	l, err := netlink.LinkByName(name)
	if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
		return nil, errNothing
	}
	return l, err
}

func rename(from, to string) error {
	l, err := link(from)
	if err != nil {
		return err
	}
	if _, err := link(to); err == nil {
		return errNothing
	}
	return errors.Join(netlink.LinkSetDown(l), netlink.LinkSetName(l, to), netlink.LinkSetUp(l))
}

// change does with an interface what a guest may do.
func (n *node) change(c *container, how, name string) error {
	switch how {
	case "move":
		return n.move(c, name)
	case "rename":
		return c.inside(func() error { return rename(name, "own-"+name) })
	}
	return c.inside(func() error {
		l, err := link(name)
		if err != nil {
			return err
		}
		if how == "altname" {
			err := netlink.LinkAddAltName(l, "also-"+name)
			if errors.Is(err, unix.EEXIST) {
				return errNothing
			}
			return err
		}
		if err := netlink.LinkDel(l); err != nil || how == "delete" {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}) // which the plugin bridge needs anyway
	})
}

// swap swaps the names of two interfaces.
func (c *container) swap(a, b string) error {
	return c.inside(func() error {
		for _, name := range []string{a, b} {
			if _, err := link(name); err != nil {
				return err
			}
		}
		return errors.Join(rename(a, "swapped"), rename(b, a), rename("swapped", b))
	})
}

// move moves an interface to the container's other namespace, with its addresses, as a guest
// does that hands it to a nested one.
func (n *node) move(c *container, name string) (err error) {
	if c.guest == nil {
		if c.guest, err = n.keep("hold process", syscall.CLONE_NEWNET); err != nil {
			return err
		}
	}
	var addresses []*net.IPNet
	err = c.open(c.guest, func(to string) error {
		f, err := os.Open(to)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		err = host.Do(to, func() error { _, err := link(name); return err })
		if err == nil {
			return errNothing // the other namespace has one of that name
		}
		return c.inside(func() error {
			l, err := link(name)
			if err != nil {
				return err
			}
			all, err := netlink.AddrList(l, netlink.FAMILY_V4)
			for _, a := range all {
				addresses = append(addresses, a.IPNet)
			}
			if l.Type() == "bridge" {
				return errNothing // it cannot be moved
			}
			return errors.Join(err, netlink.LinkSetNsFd(l, int(f.Fd())))
		})
	})
	if err != nil {
		return err
	}
	return c.open(c.guest, func(to string) error {
		return host.Do(to, func() error {
			l, err := link(name)
			if err != nil {
				return err
			}
			for _, a := range addresses {
				err = errors.Join(err, netlink.AddrAdd(l, &netlink.Addr{IPNet: a}))
			}
			return errors.Join(err, netlink.LinkSetUp(l))
		})
	})
}

// addresses returns the addresses in the container's namespaces.
func (c *container) addresses() (ips []string, err error) {
	for _, p := range []*keeper{c.holder, c.guest} {
		if p == nil {
			continue
		}
		err = errors.Join(err, c.open(p, func(path string) error {
			ifs, err := host.Interfaces(path)
			for _, i := range ifs {
				for _, a := range i.Addresses {
					ips = append(ips, a.Addr().String())
				}
			}
			return err
		}))
	}
	return ips, err
}
