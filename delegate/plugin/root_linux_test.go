package plugin_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// With a root, namespaces are looked at there and nowhere else. The proc file
// system makes one in which there are some.
func TestNamespacesAreLookedAtInTheRoot(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		root  plugin.Root
		netns string
		own   bool
	}{
		{"/proc", "/self/ns/net", true},
		{"/proc", "/self/task/../ns/net", true},
		{"/", "/proc/self/ns/net", true},
		{"", "/self/ns/net", false},
		{"/proc", "/proc/self/ns/net", false},
		{plugin.Root(t.TempDir()), "/proc/self/ns/net", false},
		{"/does/not/exist", "/proc/self/ns/net", false},
	} {
		if got := tt.root.OwnNetNS(tt.netns); got != tt.own {
			t.Errorf("%s in %q: own is %t", tt.netns, tt.root, got)
		}
	}
}

// One namespace may be reached by several paths, but only in the root.
func TestSameFileInTheRoot(t *testing.T) {
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
		if got := plugin.Root(tt.root).SameFile(tt.a, tt.b); got != tt.same {
			t.Errorf("%s and %s in %q: %t", tt.a, tt.b, tt.root, got)
		}
	}
}

// A path of a configuration is the node's, as the node has it, as this process sees it, or as this
// process has mounted it. If the node has a directory of its own at that path, nobody guesses.
func TestPathsOfAConfiguration(t *testing.T) {
	t.Parallel()
	root, mounts := t.TempDir(), t.TempDir() // links stand for mounts
	if err := errors.Join(
		os.MkdirAll(root+"/etc/cni/net.d", 0o700), os.MkdirAll(root+"/run", 0o700), os.WriteFile(root+"/etc/cni/net.d/10.conf", nil, 0o600),
		os.MkdirAll(mounts+"/etc/cni", 0o700), os.Symlink(root+"/etc/cni/net.d", mounts+"/etc/cni/net.d"), os.Symlink(root+"/run", mounts+"/run"),
	); err != nil {
		t.Fatal(err)
	}
	paths := []struct{ path, want, says string }{
		{"/etc/cni/net.d/10.conf", "/etc/cni/net.d/10.conf", ""},
		{"/absent//x", "/absent/x", ""},
		{root + "/etc/cni/net.d/10.conf", "/etc/cni/net.d/10.conf", root},
		{mounts + "/etc/cni/net.d/10.conf", "/etc/cni/net.d/10.conf", mounts},
		{mounts + "/etc/cni/net.d/absent/20.conf", "/etc/cni/net.d/absent/20.conf", mounts},
		{mounts + "/run/multus/", "/run/multus", mounts},
		{mounts + "/elsewhere", mounts + "/elsewhere", ""},
		{"relative", "relative", ""},
	}
	for _, tt := range paths {
		if got, err := plugin.Root(root).Node(tt.path); got != tt.want || err != nil {
			t.Errorf("%s: %s, %v; want %s", tt.path, got, err, tt.want)
		}
	}
	nodetest.OK(t, errors.Join(os.MkdirAll(root+root, 0o700), os.MkdirAll(root+mounts, 0o700)))
	for _, tt := range paths {
		got, err := plugin.Root(root).Node(tt.path)
		if tt.says == "" && (got != tt.want || err != nil) {
			t.Errorf("%s: %s, %v; want %s", tt.path, got, err, tt.want)
		}
		if tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), strconv.Quote(tt.want))) {
			t.Errorf("%s, which the node has too: %s, %v", tt.path, got, err)
		}
		_, err = fs.Stat(plugin.Root(root).Dir(filepath.Dir(tt.path)), filepath.Base(tt.path))
		if tt.says != "" && (err == nil || errors.Is(err, fs.ErrNotExist)) {
			t.Errorf("%s, which the node has too, is looked for: %v", tt.path, err)
		}
	}
}

// A path of the configuration is the node's, as the node has it or as this
// process sees it, and never leads out of the root.
func TestPathsOfTheNode(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	mounts := t.TempDir() // links stand for mounts
	if err := errors.Join(
		os.MkdirAll(root+"/var/lib", 0o700), os.Symlink("/data", root+"/var/lib/cni"),
		os.Symlink(root+"/var", mounts+"/var"), os.Symlink(root+"/var/lib", mounts+"/other"),
	); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ root, path, node, want string }{
		{"", "/var/lib/cni", "/var/lib/cni", "/var/lib/cni"},
		{"", root + "/x", root + "/x", root + "/x"},
		{root, "/var/lib/cni/q", "/var/lib/cni/q", root + "/data/q"},
		{root, root + "/var/lib/cni/q", "/var/lib/cni/q", root + "/data/q"},
		{root + "/", root + "//var/q", "/var/q", root + "/var/q"},
		{root, root + "-2/q", root + "-2/q", ""}, // beside it
		{root, "/proc/q", "/proc/q", ""},         // this process's
		{root, "/a-directory/of/nobody", "/a-directory/of/nobody", root + "/a-directory/of/nobody"},
		{root, "/", "/", root},
		{root, mounts + "/var", mounts + "/var", root + "/var"},
		{root, mounts + "/var/run/x", mounts + "/var/run/x", root + "/var/run/x"},
		{root, mounts + "/var/lib/cni/q", mounts + "/var/lib/cni/q", root + "/data/q"},
		{root, mounts + "/other/q", mounts + "/other/q", ""}, // where on the node, nobody knows
	} {
		if got := plugin.Root(tt.root).OnNode(tt.path); got != tt.node {
			t.Errorf("%s in %s: on the node %s, want %s", tt.path, tt.root, got, tt.node)
		}
		if got, err := plugin.Root(tt.root).Resolve(tt.path); got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%s in %s: %s, %v; want %s", tt.path, tt.root, got, err, tt.want)
		}
	}
}
