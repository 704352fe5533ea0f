package program

import (
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/status"
)

// With a root, namespaces are looked at there and nowhere else (S22). The proc
// file system makes one in which there are some.
func TestS22NamespacesInRoot(t *testing.T) {
	t.Parallel()
	host := func(root, netns string) uint {
		return status.Code(RefuseHostNetwork(root, &skel.CmdArgs{Netns: netns}))
	}
	for _, tt := range []struct {
		root, netns string
		refused     bool
	}{
		{"/proc", "/self/ns/net", true},
		{"/proc", "/self/task/../ns/net", true},
		{"/", "/proc/self/ns/net", true},
		{"", "/self/ns/net", false},
		{"/proc", "/proc/self/ns/net", false},
		{t.TempDir(), "/proc/self/ns/net", false},
		{"/does/not/exist", "/proc/self/ns/net", false},
	} {
		if got := host(tt.root, tt.netns) == types.ErrInvalidNetNS; got != tt.refused {
			t.Errorf("%s in %q: refused is %t", tt.netns, tt.root, got)
		}
	}
}

// One namespace may be reached by several paths, but only in the root.
func TestS22SameFileInRoot(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		root, a, b string
		same       bool
	}{
		{"", "/proc/self/ns/net", "/proc/thread-self/ns/net", true},
		{"/proc", "/self/ns/net", "/thread-self/ns/net", true},
		{"/proc", "/self/ns/net", "/self/ns/uts", false},
		{"/proc", "/self/ns/net", "/proc/self/ns/net", false},
		{"", "/absent", "/absent", false},
	} {
		if got := SameFile(tt.root, tt.a, tt.b); got != tt.same {
			t.Errorf("%s and %s in %q: %t", tt.a, tt.b, tt.root, got)
		}
	}
}
