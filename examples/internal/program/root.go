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
// without links. The path may begin with root or not. With an empty root it is
// path itself.
//
// It fails for a path whose first directory is not the node's and is there in
// the process's own root: whoever configured that means another mount, and what
// is made in root would be lost on the node.
func InRoot(root, path string) (string, error) {
	if root == "" {
		return path, nil
	}
	path = filepath.Join("/", OnNode(root, path))
	first, _, _ := strings.Cut(path[1:], "/")
	if first != "" && absent(filepath.Join(root, first)) && !absent("/"+first) {
		return "", fmt.Errorf("%q is not in %q, which has the node's root directory: want the path as the node has it", path, root)
	}
	return inroot.Resolve(root, path)
}

func absent(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}
