package inroot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// nonblock makes opening a FIFO return at once.
const nonblock = unix.O_NONBLOCK

// races is how often a path is looked up while others rename files.
const races = 100

func with(root, path string, do func(path string) error) error {
	fd, err := open(root, path)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	return do(fmt.Sprintf("/proc/self/fd/%d", fd))
}

// open opens path in root, so that nothing but looking comes of it: a FIFO
// does not block, and a device does not notice.
func open(root, path string) (int, error) {
	dir, err := os.Open(root)
	if err != nil {
		return -1, err
	}
	defer dir.Close() //nolint:errcheck // opened to read
	fd, err := lookup(int(dir.Fd()), path)
	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.ELOOP) {
		return namespace(int(dir.Fd()), path)
	}
	return fd, err
}

func lookup(root int, path string) (int, error) {
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT}
	return again(func() (int, error) { return unix.Openat2(root, path, how) })
}

// again calls open until nothing interferes, at most as often as races says.
func again(open func() (int, error)) (fd int, err error) {
	for range races {
		fd, err = open()
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return fd, err
}

// namespace opens path if it is a link such as /proc/1/ns/net, which the kernel
// refuses to follow inside a root: it could lead anywhere, but not from there.
func namespace(root int, path string) (int, error) {
	dir, err := lookup(root, filepath.Dir(path))
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir) //nolint:errcheck // nothing was written
	if !onFS(dir, unix.PROC_SUPER_MAGIC) {
		return -1, unix.ELOOP
	}
	fd, err := unix.Openat(dir, filepath.Base(path), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err == nil && !onFS(fd, unix.NSFS_MAGIC) {
		_ = unix.Close(fd)
		return -1, unix.ELOOP
	}
	return fd, err
}

func onFS(fd int, magic int64) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(fd, &st) == nil && int64(st.Type) == magic //nolint:unconvert // not on every architecture
}
