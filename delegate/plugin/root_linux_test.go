package plugin_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/metacni/metacni/delegate/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// With a root, namespaces are looked at there and nowhere else. The proc file
// system makes one in which there are some. One may be reached by several paths.
func TestNamespacesAreLookedAtInTheRoot(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		root  plugin.Root
		netns string
		own   bool
	}{
		{"/proc", "/self/task/../ns/net", true},
		{"/", "/proc/self/ns/net", true},
		{"", "/self/ns/net", false},
		{"/proc", "/proc/self/ns/net", false},
		{"/does/not/exist", "/proc/self/ns/net", false},
	} {
		nodetest.Equal(t, tt.netns+" is our own", tt.root.OwnNetNS(tt.netns), tt.own)
	}
	for _, tt := range []struct {
		root plugin.Root
		a, b string
		same bool
	}{
		{"", "/proc/self/ns/net", "/proc/thread-self/ns/net", true},
		{"/proc", "/self/ns/net", "/thread-self/ns/net", true},
		{"/proc", "/self/ns/net", "/self/ns/uts", false},
		{"/proc", "/self/ns/net", "/proc/self/ns/net", false},
		{"", "/absent", "/absent", false},
	} {
		nodetest.Equal(t, tt.a+" is "+tt.b, tt.root.SameFile(tt.a, tt.b), tt.same)
	}
}

// A path of a configuration is the node's, as the node has it, as this process sees it, or as this
// process has mounted it. If the node has a directory of its own at that path, nobody guesses.
func TestPathsOfAConfiguration(t *testing.T) {
	t.Parallel()
	root, mounts := t.TempDir(), t.TempDir() // links stand for mounts
	nodetest.OK(t, errors.Join(
		os.MkdirAll(root+"/etc/cni/net.d", 0o700), os.MkdirAll(root+"/run", 0o700), os.WriteFile(root+"/etc/cni/net.d/10.conf", nil, 0o600),
		os.MkdirAll(mounts+"/etc/cni", 0o700), os.Symlink(root+"/etc/cni/net.d", mounts+"/etc/cni/net.d"), os.Symlink(root+"/run", mounts+"/run"),
	))
	paths := []struct{ path, want, says string }{
		{"/etc/cni/net.d/10.conf", "/etc/cni/net.d/10.conf", ""},
		{"/absent//x", "/absent/x", ""},
		{root + "/etc/cni/net.d/10.conf", "/etc/cni/net.d/10.conf", root},
		{mounts + "/etc/cni/net.d/absent/20.conf", "/etc/cni/net.d/absent/20.conf", mounts},
		{mounts + "/run/multus/", "/run/multus", mounts},
		{mounts + "/elsewhere", mounts + "/elsewhere", ""},
		{"relative", "relative", ""},
	}
	for _, twice := range []bool{false, true} { // the node has the directories of the paths too
		for _, tt := range paths {
			got, err := plugin.Root(root).Node(tt.path)
			if tt.says == "" || !twice {
				nodetest.OK(t, err)
				nodetest.Equal(t, tt.path, got, tt.want)
				continue
			}
			nodetest.Says(t, err, tt.says, strconv.Quote(tt.want))
			_, err = fs.Stat(plugin.Root(root).Dir(filepath.Dir(tt.path)), filepath.Base(tt.path))
			if err == nil || errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s is looked for: %v", tt.path, err)
			}
		}
		nodetest.OK(t, errors.Join(os.MkdirAll(root+root, 0o700), os.MkdirAll(root+mounts, 0o700)))
	}
}

// A path of the configuration is the node's, as the node has it or as this
// process sees it, and never leads out of the root.
func TestPathsOfTheNode(t *testing.T) {
	t.Parallel()
	root, mounts := t.TempDir(), t.TempDir() // links stand for mounts
	nodetest.OK(t, errors.Join(
		os.MkdirAll(root+"/var/lib", 0o700), os.Symlink("/data", root+"/var/lib/cni"),
		os.Symlink(root+"/var", mounts+"/var"), os.Symlink(root+"/var/lib", mounts+"/other"),
	))
	for _, tt := range []struct{ root, path, node, want string }{
		{"", "/var/lib/cni", "/var/lib/cni", "/var/lib/cni"},
		{root, "/var/lib/cni/q", "/var/lib/cni/q", root + "/data/q"},
		{root, root + "/var/lib/cni/q", "/var/lib/cni/q", root + "/data/q"},
		{root + "/", root + "//var/q", "/var/q", root + "/var/q"},
		{root, root + "-2/q", root + "-2/q", ""}, // beside it
		{root, "/proc/q", "/proc/q", ""},         // this process's
		{root, "/a-directory/of/nobody", "/a-directory/of/nobody", root + "/a-directory/of/nobody"},
		{root, "/", "/", root},
		{root, mounts + "/var/lib/cni/q", mounts + "/var/lib/cni/q", root + "/data/q"},
		{root, mounts + "/other/q", mounts + "/other/q", ""}, // where on the node, nobody knows
	} {
		nodetest.Equal(t, tt.path+" on the node", plugin.Root(tt.root).OnNode(tt.path), tt.node)
		got, err := plugin.Root(tt.root).Resolve(tt.path)
		nodetest.Equal(t, tt.path, got, tt.want)
		nodetest.Equal(t, tt.path+" is refused", err != nil, tt.want == "")
	}
}
