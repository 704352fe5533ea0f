package plugin

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/metacni/metacni/internal/inroot"
)

// A Root is the directory at which this process sees the root directory of the
// node. For example, a daemon in a container may mount the node's at /host. The
// empty Root is the process's own root directory. No path or symbolic link leads
// out of a Root.
type Root string

// OnNode returns path as a path of the node: without the prefix r, if it has it.
func (r Root) OnNode(path string) string {
	if r == "" {
		return path
	}
	if rest, ok := strings.CutPrefix(filepath.Clean(path), filepath.Clean(string(r))+"/"); ok {
		return "/" + rest
	}
	return path
}

// Resolve returns the path at which this process finds the node's path: a path in
// r without symbolic links. The file need not exist. The path may begin with r.
// With an empty Root, Resolve returns path.
//
// A container may also mount a directory of the node elsewhere, such as the node's
// /run at /host/run. For a path there, Resolve returns the same directory in r. It
// fails if there is none: what is written there would be lost on the node.
func (r Root) Resolve(path string) (string, error) {
	if r == "" {
		return path, nil
	}
	path = filepath.Join("/", r.OnNode(path))
	first, _, _ := strings.Cut(path[1:], "/")
	if first != "" && absent(filepath.Join(string(r), first)) && !absent("/"+first) {
		onNode := r.mounted(path)
		if onNode == "" {
			return "", fmt.Errorf("%q is not in %q, which has the node's root directory: want the path as the node has it", path, string(r))
		}
		path = onNode
	}
	return inroot.Resolve(string(r), path)
}

// mounted returns the path of the node for path, which is in a directory of the
// node that is mounted outside of r. It returns "" if there is none.
func (r Root) mounted(path string) string {
	there, missing := path, ""
	own, err := os.Stat(there)
	for err != nil && there != "/" {
		there, missing = filepath.Dir(there), filepath.Join(filepath.Base(there), missing)
		own, err = os.Stat(there)
	}
	if err != nil {
		return ""
	}
	for i, c := range there {
		if c != '/' || i == 0 {
			continue
		}
		if os.SameFile(own, r.stat(there[i:])) {
			return filepath.Join(there[i:], missing)
		}
	}
	return ""
}

func absent(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// With calls do with a path at which this process can use the node's path until do
// returns, and returns do's error. If there is no such file, With fails with an
// [*fs.PathError]. With an empty Root it calls do with path in any case.
func (r Root) With(path string, do func(path string) error) error {
	return inroot.With(string(r), path, do)
}

// Dir returns the node's directory at path for reading. Symbolic links mean what
// they mean on the node.
func (r Root) Dir(path string) fs.FS {
	return inroot.Dir{Root: string(r), Path: r.OnNode(path)}
}

// SameFile reports whether two paths of the node are the same file.
func (r Root) SameFile(a, b string) bool { return os.SameFile(r.stat(a), r.stat(b)) }

// OwnNetNS reports whether path is the network namespace of this process.
func (r Root) OwnNetNS(path string) bool {
	return os.SameFile(Root("").stat("/proc/self/ns/net"), r.stat(path))
}

// stat returns what is at the node's path. A missing file, nil, is the same file as none.
func (r Root) stat(path string) (info fs.FileInfo) {
	_ = r.With(path, func(path string) (err error) {
		info, err = os.Stat(path)
		return err
	})
	return info
}
