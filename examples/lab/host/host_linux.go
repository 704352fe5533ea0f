package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Command returns a command that runs in a network and a mount namespace of
// its own, and, unless the caller is root, in a user namespace in which the
// caller is root. What runs there calls [Setup] before anything else.
//
// The command is killed when the thread that starts it ends: start it from a
// goroutine that has called [runtime.LockOSThread].
func Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		Pdeathsig:  syscall.SIGKILL,
	}
	if uid, gid := os.Getuid(), os.Getgid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}}
	}
	return cmd
}

// Setup makes the new namespaces of this process a host: empty file systems
// over the directories in which plugins keep what they know (/run and
// /var/lib/cni), and the loopback interface up.
//
// It must not be called outside the namespaces that [Command] makes: it would
// hide the real /run.
func Setup() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("host: make mounts private: %w", err)
	}
	state := "/var/lib/cni"
	if _, err := os.Stat(state); errors.Is(err, fs.ErrNotExist) {
		state = "/var/lib" // a machine without plugins; do not create it for real
	}
	for _, dir := range []string{"/run", state} {
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
			return fmt.Errorf("host: mount an empty %s: %w", dir, err)
		}
	}
	for _, dir := range []string{nsDir, "/run/lock", "/var/lib/cni"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("host: %w", err)
		}
	}
	return up("lo")
}

// Offers returns nil when the kernel can make a link of the kind of l. It
// makes l and deletes it again. A kind that needs a parent takes the index of
// one in l's attributes.
func Offers(l netlink.Link) error {
	if err := netlink.LinkAdd(l); err != nil {
		return fmt.Errorf("host: this kernel makes no %s: %w", l.Type(), err)
	}
	return netlink.LinkDel(l)
}

// Uplink makes a pair of interfaces that stands for a network card and the
// cable behind it. It is up and can be the parent of macvlan; its index is
// returned.
func Uplink(name string) (index int, err error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	card := netlink.NewVeth(attrs)
	card.PeerName = name + "-far"
	if err := netlink.LinkAdd(card); err != nil {
		return 0, fmt.Errorf("host: make %s: %w", name, err)
	}
	for _, n := range []string{name, name + "-far"} {
		if err := up(n); err != nil {
			return 0, err
		}
	}
	l, err := netlink.LinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("host: find %s: %w", name, err)
	}
	return l.Attrs().Index, nil
}

func up(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("host: find %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("host: set %s up: %w", name, err)
	}
	return nil
}
