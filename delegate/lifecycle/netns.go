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

// netns is a network namespace: its path, and what tells it from another that
// has come to the same path. The kernel gives a new namespace the device and
// inode of one that has gone, so these do not suffice.
type netns struct {
	Path   string `json:"path,omitempty"`
	Dev    uint64 `json:"dev,omitempty"`
	Inode  uint64 `json:"inode,omitempty"`
	Unique string `json:"unique,omitempty"` // never used again on this machine; empty where it cannot be had
}

// same reports whether now, which is there, may be the namespace n that was
// recorded. A record made before namespaces had a Unique, or where it could
// not be had, goes by device and inode.
func (n netns) same(now netns) bool {
	return n.Dev == now.Dev && n.Inode == now.Inode && (n.Unique == "" || n.Unique == now.Unique)
}

// gone reports whether n is certainly not at its path in root any more. Where the
// directory of the path is not there, or what is there is no namespace, this
// process may just not see what is mounted there: unless the machine has been
// started since.
func (n netns) gone(root string) bool {
	if n.Path == "" {
		return false
	}
	if _, err := os.Stat(cmp.Or(root, "/")); err != nil {
		return false // without a root nothing is there
	}
	err := stat(root, n.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && (n.Inode == 0 || n.ofEarlierBoot()): // nobody has seen it since
		return true
	case errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(n.Path, "/proc/"):
		return seesProcesses(root) // what a process had there is gone with it, directory and all
	case errors.Is(err, fs.ErrNotExist):
		return stat(root, filepath.Dir(n.Path)) == nil
	case err != nil:
		return false
	}
	now := identify(root, n.Path)
	return n.Inode != 0 && now.Inode != 0 && n.other(now) && (now.Unique != "" || now.Dev == n.Dev || n.ofEarlierBoot())
}

// nothingAt reports whether there certainly is nothing at path in root.
func nothingAt(root, path string) bool {
	return path != "" && errors.Is(stat(root, path), fs.ErrNotExist) && stat(root, filepath.Dir(path)) == nil
}

func stat(root, path string) error {
	return inroot.With(root, path, func(path string) error { _, err := os.Stat(path); return err })
}

// ofEarlierBoot reports whether the machine has certainly been started since n was
// there.
func (n netns) ofEarlierBoot() bool {
	boot := bootID()
	return boot != "" && n.Unique != "" && !strings.HasPrefix(n.Unique, boot+"/")
}

// other reports whether now, which is there, is certainly not the namespace n
// that was recorded. It is not for want of now's Unique, which a process
// without the right to enter the namespace, or without descriptors, cannot get.
func (n netns) other(now netns) bool {
	return n.Dev != now.Dev || n.Inode != now.Inode || n.Unique != "" && now.Unique != "" && n.Unique != now.Unique
}

// forDel is the path to hand to a plugin for the DEL of an attachment in n,
// when the runtime's DEL came with path given, or empty where that would be,
// or might be, another container's namespace. Paths are looked at in root.
func (n netns) forDel(root, given string) string {
	if n.Inode == 0 {
		return given // it was never seen, so there is nothing to compare with
	}
	path := cmp.Or(given, n.Path)
	if !n.same(identify(root, path)) {
		return ""
	}
	return path
}

// interfaceNames returns the names in use in the network namespace at path.
func (m *Manager) interfaceNames(path string) ([]string, error) {
	switch {
	case path == "":
		return nil, nil
	case m.InterfaceNames != nil:
		return m.InterfaceNames(path)
	}
	return namesIn(m.Root, path)
}

// namesIn returns [ifname.Taken] of the network namespace at path, which
// is looked at in root if that is not empty. What is not a namespace, is not
// there, or must not be looked into by an ordinary user, has no names: that is
// for the plugins to find out.
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
		err = &ifname.Error{NetNS: path, Err: e.Err} // not the path it was reached by
	}
	return names, err
}
