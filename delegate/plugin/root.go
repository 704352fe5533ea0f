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

// A Root is a directory in which this process finds the root directory of the
// node, as a daemon in a container does that mounts the node's at /host. The
// empty Root is the process's own root directory. No path leads out of a Root.
type Root string

// OnNode returns path as the node has it: without r, where path begins with r.
func (r Root) OnNode(path string) string {
	if r == "" {
		return path
	}
	if rest, ok := strings.CutPrefix(filepath.Clean(path), filepath.Clean(string(r))+"/"); ok {
		return "/" + rest
	}
	return path
}

// Resolve returns where this process finds what the node has at path, which need
// not exist yet: a path in r without links. With an empty Root it is path itself.
// The path may begin with r or not.
//
// A container may mount a directory of the node somewhere else as well, such as
// /host/run for /run. Resolve finds the directory of the node for a path there.
// It fails if that is outside of r: what is made there would be lost on the node.
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

// mounted returns the end of path that is, in r, the same directory as path, or
// is to be made in the same directory; or nothing.
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
		same := false
		_ = r.With(there[i:], func(path string) error { // what is not there is not the same
			info, err := os.Stat(path)
			same = err == nil && os.SameFile(own, info)
			return err
		})
		if same {
			return filepath.Join(there[i:], missing)
		}
	}
	return ""
}

func absent(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// With calls do with a path by which this process reaches what the node has at
// path, and returns what do returns. The path is good until do returns. With an
// empty Root it is path itself, whether or not there is anything; else With
// fails with an [*fs.PathError] where nothing is.
func (r Root) With(path string, do func(path string) error) error {
	return inroot.With(string(r), path, do)
}

// Dir returns the node's directory at path, to read files in. Links in it are
// followed as the node follows them.
func (r Root) Dir(path string) fs.FS { //nolint:ireturn // it is what readers take
	return inroot.Dir{Root: string(r), Path: r.OnNode(path)}
}

// SameFile reports whether two paths of the node lead to one file.
func (r Root) SameFile(a, b string) bool {
	stat := func(path string) (info fs.FileInfo) {
		_ = r.With(path, func(path string) (err error) { // what is not there is not the same
			info, err = os.Stat(path)
			return err
		})
		return info
	}
	first, second := stat(a), stat(b)
	return first != nil && second != nil && os.SameFile(first, second)
}

// OwnNetNS reports whether the network namespace at path is that of this process.
func (r Root) OwnNetNS(path string) bool {
	own := false
	_ = r.With(path, func(path string) error { // what is not there is not ours
		theirs, err := os.Stat(path)
		if err != nil {
			return err
		}
		ours, err := os.Stat("/proc/self/ns/net")
		own = err == nil && os.SameFile(ours, theirs)
		return err
	})
	return own
}
