package lifecycle

import "golang.org/x/sys/unix"

// identify looks at the namespace at path. What cannot be looked at has no
// identity.
func identify(path string) netns {
	n := netns{Path: path}
	var st unix.Stat_t
	if path != "" && unix.Stat(path, &st) == nil {
		n.Dev, n.Inode = uint64(st.Dev), st.Ino //nolint:unconvert // not on every architecture
	}
	return n
}
