package host

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/vishvananda/netlink"

	"github.com/metacni/metacni/delegate/conform/internal/realhost"
)

// Command returns a command that runs in a new network namespace and a new mount
// namespace. Unless the caller is root, it also runs in a user namespace in which the
// caller is root. The program calls [Setup] to make a host of them.
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

// Setup makes the new namespaces of this process a host. It mounts empty file systems
// over the directories in which plugins keep state, /run and /var/lib/cni, and sets the
// loopback interface up.
//
// It must not be called outside of the namespaces that [Command] makes: it would hide the
// real /run.
func Setup() error {
	if err := realhost.Mounts(nil); err != nil {
		return fmt.Errorf("host: %w", err)
	}
	return realhost.Up("lo")
}

// Offers returns nil if the kernel can make links of the kind of l. It makes l and
// deletes it again. For a kind that needs a parent, l's attributes have its index.
func Offers(l netlink.Link) error {
	if err := netlink.LinkAdd(l); err != nil {
		return fmt.Errorf("host: this kernel makes no %s: %w", l.Type(), err)
	}
	return netlink.LinkDel(l)
}

// AddCard makes a pair of interfaces that represents a network card and its cable, sets it up, and
// returns the index of the card. The card can be the parent of macvlan.
func AddCard(name string) (index int, err error) { return realhost.AddCard(name, name+"-far") }
