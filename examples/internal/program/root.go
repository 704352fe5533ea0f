package program

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/metacni/metacni/internal/inroot"
)

// OnNode returns path as the node has it, for a process that sees the node's
// root directory as root: without root, where path begins with that.
func OnNode(root, path string) string {
	if root == "" {
		return path
	}
	if rest, ok := strings.CutPrefix(filepath.Clean(path), filepath.Clean(root)+"/"); ok {
		return "/" + rest
	}
	return path
}

// InRoot returns where a process that sees the node's root directory as root
// finds what the node has at path, which need not be there yet: a path in root
// without links. With an empty root it is path itself. The path may begin with
// root or not.
//
// A path whose first directory is not the node's, and is there in the process's
// own root, is of another mount, as containers of Multus have them: /host/run for
// the node's /run. It is the node's directory that is mounted there. InRoot fails
// where that is not in the path: what is made there would be lost on the node.
func InRoot(root, path string) (string, error) {
	if root == "" {
		return path, nil
	}
	path = filepath.Join("/", OnNode(root, path))
	first, _, _ := strings.Cut(path[1:], "/")
	if first != "" && absent(filepath.Join(root, first)) && !absent("/"+first) {
		onNode := mounted(root, path)
		if onNode == "" {
			return "", fmt.Errorf("%q is not in %q, which has the node's root directory: want the path as the node has it", path, root)
		}
		path = onNode
	}
	return inroot.Resolve(root, path)
}

// mounted returns the end of path that is, in root, the same directory as path,
// or is to be made in the same directory; or nothing.
func mounted(root, path string) string {
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
		_ = inroot.With(root, there[i:], func(path string) error { // what is not there is not the same
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
