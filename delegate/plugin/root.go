package plugin

import (
	"cmp"
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

// OnNode returns path, which this process has in r, as a path of the node: without the prefix r.
// Paths in a configuration may be others, see [Root.Node].
func (r Root) OnNode(path string) string {
	if r == "" {
		return path
	}
	if rest, ok := strings.CutPrefix(filepath.Clean(path), filepath.Clean(string(r))+"/"); ok {
		return "/" + rest
	}
	return path
}

// Node returns the path of the node that a configuration means with path. With an empty Root, or a
// path that is not absolute, it returns path. The file need not exist. The path may be
//
//   - as the node has it, such as /run/multus;
//   - as this process has it in r, such as /host/run/multus;
//   - in a directory of the node that is mounted elsewhere, such as the node's /run at /mnt/run.
//
// Node does not guess: if the node has a directory /host or /mnt of its own, it fails and says that
// the path could be in that as well.
func (r Root) Node(path string) (string, error) {
	if r == "" || !filepath.IsAbs(path) {
		return path, nil
	}
	path = filepath.Clean(path)
	own := !r.lacks(path)
	other := r.OnNode(path)
	if other != path {
		own = !absent(filepath.Join(string(r), string(r)))
	} else {
		other = cmp.Or(r.mounted(path), path)
	}
	if own && other != path {
		return "", fmt.Errorf("%q could be %q of the node, or the node's own %[1]q: want the path as the node has it, such as %[2]q, or remove the node's directory", path, other)
	}
	return other, nil
}

// lacks reports whether the node has nothing that path could be in.
func (r Root) lacks(path string) bool {
	first, _, _ := strings.Cut(path[1:], "/")
	return first != "" && absent(filepath.Join(string(r), first))
}

// Resolve returns the path at which this process finds the node's path: a path in
// r without symbolic links. The file need not exist. The path is one of a configuration, see
// [Root.Node]. With an empty Root, Resolve returns path.
//
// It fails if this process has such a directory and the node does not: what is written there would
// be lost on the node.
func (r Root) Resolve(path string) (string, error) {
	if r == "" {
		return path, nil
	}
	onNode, err := r.Node(filepath.Join("/", path))
	if err != nil {
		return "", err
	}
	if first, _, _ := strings.Cut(onNode[1:], "/"); r.lacks(onNode) && !absent("/"+first) {
		return "", fmt.Errorf("%q is not in %q, which has the node's root directory: want the path as the node has it", path, string(r))
	}
	return inroot.Resolve(string(r), onNode)
}

// mounted returns the path of the node for path, which this process may have mounted from the
// node. It returns "" if there is none.
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
		if c == '/' && os.SameFile(own, r.stat(there[i:])) {
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

// Dir returns the node's directory at path for reading. The path is one of a configuration: nothing
// can be opened in it if [Root.Node] fails. Symbolic links mean what they mean on the node.
func (r Root) Dir(path string) fs.FS {
	onNode, err := r.Node(path)
	if err != nil {
		return noDir{because: err}
	}
	return inroot.Dir{Root: string(r), Path: onNode}
}

// A noDir is a directory that cannot be found.
type noDir struct{ because error }

// Open fails.
func (d noDir) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: d.because}
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
