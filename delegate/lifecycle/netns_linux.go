package lifecycle

import (
	"os"
	"strconv"
	"strings"
	"unsafe"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/inroot"
)

// identify returns what identifies the namespace at path in root. If that cannot
// be read it returns the path alone.
func identify(root, path string) netns {
	n := netns{Path: path}
	if path == "" {
		return n
	}
	_ = inroot.With(root, path, func(path string) error { // on failure n stays without identity
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd) //nolint:errcheck // nothing was written
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		n.Dev, n.Inode = uint64(st.Dev), st.Ino //nolint:unconvert // not on every architecture
		n.Unique = unique(fd, path)
		return nil
	})
	return n
}

// unique returns a string that no other network namespace has had or will have:
// the ID of the boot, and a number that the kernel uses once per boot. It returns
// "" if the kernel does not tell.
func unique(fd int, path string) string {
	var fs unix.Statfs_t
	if unix.Fstatfs(fd, &fs) != nil || fs.Type != unix.NSFS_MAGIC {
		return ""
	}
	boot := bootID()
	if boot == "" {
		return ""
	}
	id, kind := namespaceID(fd), "id"
	if id == 0 {
		id, kind = cookie(path), "cookie"
	}
	if id == 0 {
		return ""
	}
	return boot + "/" + kind + "/" + strconv.FormatUint(id, 10)
}

// bootID returns the ID of this boot of the machine, or "" if the kernel does not
// tell.
func bootID() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id))
}

// seesProcesses reports whether the proc file system in root shows all processes
// of the machine, for certain: if this process or process 1 is in the kernel's
// initial PID namespace, whose number is fixed. Not everybody may read the link
// of process 1.
func seesProcesses(root string) bool {
	for _, process := range []string{"self", "1"} {
		link := ""
		_ = inroot.With(root, "/proc/"+process+"/ns", func(dir string) (err error) {
			link, err = os.Readlink(dir + "/pid")
			return err
		})
		if link == "pid:[4026531836]" {
			return true
		}
	}
	return false
}

// namespaceID asks for the number of the namespace itself (Linux 6.18).
func namespaceID(fd int) (id uint64) {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.NS_GET_ID, uintptr(unsafe.Pointer(&id)))
	if errno != 0 {
		return 0
	}
	return id
}

// cookie returns the SO_NETNS_COOKIE of a socket in the namespace (Linux 5.14).
// This needs the right to enter the namespace.
func cookie(path string) (id uint64) {
	_ = ns.WithNetNSPath(path, func(ns.NetNS) error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd) //nolint:errcheck // nothing was written
		id, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	})
	return id
}
