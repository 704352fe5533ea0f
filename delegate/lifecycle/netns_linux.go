package lifecycle

import (
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/inroot"
)

// identify looks at the namespace at path in root. What cannot be looked at has
// no identity.
func identify(root, path string) netns {
	n := netns{Path: path}
	if path == "" {
		return n
	}
	var st unix.Stat_t
	err := inroot.With(root, path, func(path string) error { return unix.Stat(path, &st) })
	if err == nil {
		n.Dev, n.Inode = uint64(st.Dev), st.Ino //nolint:unconvert // not on every architecture
	}
	return n
}
