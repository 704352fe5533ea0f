package lifecycle

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/metacni/metacni/ifname"
	"github.com/metacni/metacni/internal/inroot"
)

// netns is a network namespace: its path, and what distinguishes it from another
// at the same path. Device and inode do not suffice, because the kernel gives them
// to a new namespace when the old one is gone.
type netns struct {
	Path   string `json:"path,omitempty"`
	Dev    uint64 `json:"dev,omitempty"`
	Inode  uint64 `json:"inode,omitempty"`
	Unique string `json:"unique,omitempty"` // never used again on this machine; empty if the kernel does not tell
}

// same reports whether now, which exists, may be the recorded namespace n. Without
// n.Unique it compares device and inode only.
func (n netns) same(now netns) bool {
	return n.Dev == now.Dev && n.Inode == now.Inode && (n.Unique == "" || n.Unique == now.Unique)
}

// looking returns a function that identifies the namespace at a path in root. It looks at
// each path once: what it returns belongs to one operation.
func looking(root string) func(path string) netns {
	seen := make(map[string]netns)
	return func(path string) netns {
		n, ok := seen[path]
		if !ok {
			n = identify(root, path)
			seen[path] = n
		}
		return n
	}
}

// gone reports whether n is certainly not at its path in root any more, where look is
// looking(root). If the directory of the path does not exist, or a file there is not a
// namespace, this is not certain: the namespace may be mounted where this process does
// not see it. It is certain if the machine has been restarted since.
func (n netns) gone(root string, look func(path string) netns) bool {
	if n.Path == "" {
		return false
	}
	if now := look(n.Path); now.Inode != 0 {
		return n.Inode != 0 && n.other(now) && (now.Unique != "" || now.Dev == n.Dev || n.ofEarlierBoot())
	}
	if _, err := os.Stat(cmp.Or(root, "/")); err != nil {
		return false // if root is missing nothing in it can be seen
	}
	switch {
	case !errors.Is(stat(root, n.Path), fs.ErrNotExist):
		return false
	case n.Inode == 0 || n.ofEarlierBoot(): // it was not seen since this boot
		return true
	case strings.HasPrefix(n.Path, "/proc/"):
		return seesProcesses(root) // the directory of a process is gone when the process is
	}
	return stat(root, filepath.Dir(n.Path)) == nil
}

// nothingAt reports whether nothing exists at path in root, for certain.
func nothingAt(root, path string) bool {
	return path != "" && errors.Is(stat(root, path), fs.ErrNotExist) && stat(root, filepath.Dir(path)) == nil
}

func stat(root, path string) error {
	return inroot.With(root, path, func(path string) error { _, err := os.Stat(path); return err })
}

// ofEarlierBoot reports whether the machine has been restarted since n was
// recorded, for certain.
func (n netns) ofEarlierBoot() bool {
	boot := bootID()
	return boot != "" && n.Unique != "" && !strings.HasPrefix(n.Unique, boot+"/")
}

// other reports whether now, which exists, is certainly not the recorded namespace
// n. It ignores an empty now.Unique: a process that must not enter the namespace,
// or has no descriptors left, cannot get it.
func (n netns) other(now netns) bool {
	return n.Dev != now.Dev || n.Inode != now.Inode || n.Unique != "" && now.Unique != "" && n.Unique != now.Unique
}

// forDel returns the path that a plugin receives for the DEL of an attachment in
// n: given, the path in the runtime's DEL, or else that of n. It returns "" if n is
// at neither: what is there may be another container's. look is looking of the root
// of the paths.
func (n netns) forDel(look func(path string) netns, given string) string {
	if n.Inode == 0 {
		return given // n was never seen, so it cannot be compared
	}
	for _, path := range []string{given, n.Path} {
		if n.same(look(path)) {
			return path
		}
	}
	return ""
}

// namesIn returns [ifname.Taken] of the network namespace at path in root. A path
// that does not exist, is not a namespace or must not be entered by an ordinary
// user has no names: the plugins will report it.
func namesIn(root, path string) (names []string, err error) {
	err = inroot.With(root, path, func(path string) error {
		if _, err := os.Stat(path); err != nil {
			return fs.ErrNotExist
		}
		names, err = ifname.Taken(path)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ifname.ErrNetNS) || errors.Is(err, errors.ErrUnsupported) || err != nil && os.Geteuid() != 0 {
		return nil, nil
	}
	if e := (*ifname.Error)(nil); errors.As(err, &e) {
		err = &ifname.Error{NetNS: path, Err: e.Err} // not the path by which it was reached
	}
	return names, err
}
