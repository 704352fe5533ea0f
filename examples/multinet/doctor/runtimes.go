package doctor

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/examples/multinet/publish"
	"github.com/metacni/metacni/netconf"
)

// A runtime is a container runtime, and what its configuration says.
type runtime struct {
	name  string
	files []string // patterns; a later file wins

	file    string // the last one that says something
	confDir string
	binDirs []string
	network string // it takes the network of this name, whichever is first
	off     string // the file that says that it runs no pods

	version  int                        // of the configuration of containerd
	loopback bool                       // it needs no plugin for lo
	most     *int                       // of the networks that it attaches pods to
	class    string                     // the name of the default runtime class
	classes  map[string]networkSettings // by name
}

// runtimes returns the runtimes whose configurations have a usual place.
func runtimes() []*runtime {
	return []*runtime{
		{name: "containerd", files: []string{"/etc/containerd/config.toml"}},
		{name: "k3s", files: []string{"/var/lib/rancher/k3s/agent/etc/containerd/config.toml"}},
		{name: "RKE2", files: []string{"/var/lib/rancher/rke2/agent/etc/containerd/config.toml"}},
		{name: "MicroK8s", files: []string{"/var/snap/microk8s/current/args/containerd.toml"}},
		{name: "Talos", files: []string{"/etc/cri/containerd.toml"}}, // imports /etc/cri/conf.d/cri.toml
		{name: "k0s", files: []string{"/etc/k0s/containerd.toml"}},
		{name: "CRI-O", files: []string{"/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*"}}, // of OpenShift too
	}
}

// read reads the configuration of r. It ends even if links give a file names without end.
func (n *Node) read(r *runtime) {
	root, seen := n.RuntimeRoot.Dir("/"), make(map[string]bool)
	for patterns := r.files; len(patterns) > 0 && len(seen) < 100; patterns = patterns[1:] {
		files, _ := fs.Glob(root, strings.TrimPrefix(patterns[0], "/"))
		for _, file := range files {
			if seen[file] {
				continue
			}
			seen[file] = true
			if info, err := fs.Stat(root, file); err == nil && info.IsDir() {
				continue // CRI-O leaves them out too
			}
			var says settings
			text, err := netconf.ReadFile(root, file)
			if err == nil { // SNAP_DATA is MicroK8s's
				err = toml.Unmarshal(bytes.ReplaceAll(text, []byte("${SNAP_DATA}"), []byte("/var/snap/microk8s/current")), &says)
			}
			if at := (*toml.DecodeError)(nil); errors.As(err, &at) {
				line, _ := at.Position()
				err = fmt.Errorf("line %d: %w", line, err)
			}
			if err != nil {
				n.fail("/"+file, err)
				continue
			}
			r.take("/"+file, says)
			for _, pattern := range says.Imports {
				if !filepath.IsAbs(pattern) {
					pattern = filepath.Join("/", filepath.Dir(file), pattern)
				}
				patterns = append(patterns, pattern)
			}
		}
	}
}

// settings are the keys about networks in a file of CRI-O, or of containerd, of versions 1 to 3 of
// its configuration.
type settings struct {
	Version  int      `toml:"version"`
	Imports  []string `toml:"imports"`
	Disabled []string `toml:"disabled_plugins"`
	Plugins  struct {
		One   criSettings `toml:"cri"`
		Two   criSettings `toml:"io.containerd.grpc.v1.cri"`
		Three criSettings `toml:"io.containerd.cri.v1.runtime"`
	} `toml:"plugins"`
	CRIO struct {
		Network networkSettings `toml:"network"`
	} `toml:"crio"`
}

type criSettings struct {
	Network    networkSettings `toml:"cni"`
	Containerd struct {
		Default string                     `toml:"default_runtime_name"`
		Classes map[string]networkSettings `toml:"runtimes"`
	} `toml:"containerd"`
}

// networkSettings have the keys of containerd and of CRI-O, and those of a runtime class.
type networkSettings struct {
	Most         *int   `toml:"max_conf_num"`
	Loopback     *bool  `toml:"use_internal_loopback"`
	ClassConfDir string `toml:"cni_conf_dir"`
	ClassMost    int    `toml:"cni_max_conf_num"`

	ConfDir    string   `toml:"conf_dir"`
	BinDir     string   `toml:"bin_dir"`
	BinDirs    []string `toml:"bin_dirs"`
	NetworkDir string   `toml:"network_dir"`
	PluginDir  string   `toml:"plugin_dir"`
	PluginDirs []string `toml:"plugin_dirs"`
	Default    string   `toml:"cni_default_network"`
}

// take adds what a file says to r.
func (r *runtime) take(file string, s settings) {
	if r.file == "" {
		r.file, r.confDir, r.binDirs = file, publish.ConfDir, []string{multinet.DefaultBinDir}
	}
	for _, n := range []networkSettings{s.Plugins.One.Network, s.Plugins.Two.Network, s.Plugins.Three.Network, s.CRIO.Network} {
		dirs := slices.DeleteFunc(slices.Concat([]string{n.BinDir, n.PluginDir}, n.BinDirs, n.PluginDirs), func(dir string) bool { return dir == "" })
		if len(dirs) > 0 {
			r.file, r.binDirs = file, dirs
		}
		if dir := cmp.Or(n.ConfDir, n.NetworkDir); dir != "" {
			r.file, r.confDir = file, filepath.Clean(dir)
		}
		if n.Default != "" {
			r.file, r.network = file, n.Default
		}
		if n.Most != nil {
			r.file, r.most = file, n.Most
		}
		if n.Loopback != nil {
			r.loopback = *n.Loopback
		}
	}
	for _, c := range []criSettings{s.Plugins.One, s.Plugins.Two, s.Plugins.Three} {
		r.class = cmp.Or(c.Containerd.Default, r.class)
		for name, class := range c.Containerd.Classes {
			if r.classes == nil {
				r.classes = make(map[string]networkSettings)
			}
			was := r.classes[name]
			r.classes[name] = networkSettings{ClassConfDir: cmp.Or(class.ClassConfDir, was.ClassConfDir), ClassMost: cmp.Or(class.ClassMost, was.ClassMost)}
		}
	}
	r.version = max(r.version, s.Version)
	for _, name := range s.Disabled { // as in the containerd of docker
		if slices.Contains([]string{"cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"}, name) {
			r.off = file
		}
	}
}

// settle applies the settings of the default runtime class.
func (r *runtime) settle() {
	class := r.classes[cmp.Or(r.class, "runc")]
	if class.ClassConfDir == "" {
		return // the class has no directory of its own
	}
	r.confDir = filepath.Clean(class.ClassConfDir)
	if class.ClassMost != 0 {
		r.most = &class.ClassMost
	}
}

// lookAtRuntimes looks at which directories the runtimes read.
func (n *Node) lookAtRuntimes() {
	off := "" // the configuration of a runtime that runs no pods
	all := slices.DeleteFunc(runtimes(), func(r *runtime) bool {
		n.read(r)
		r.settle()
		off = cmp.Or(off, r.off)
		return r.file == "" || r.off != ""
	})
	otherwise := Fatal // if a runtime reads another directory
	if n.dir != publish.ConfDir {
		otherwise = Problem // the user has chosen it, and may know better
	}
	for _, r := range all {
		if n.same(r.confDir, n.dir) {
			otherwise = Unknown // the other runtime may run no pods
			for _, dir := range r.binDirs {
				n.pluginDirs = append(n.pluginDirs, n.ofRuntime(dir))
			}
		}
	}
	for _, r := range all {
		reads := fmt.Sprintf("%s reads networks in %s, plugins in %s", r.name, r.confDir, strings.Join(r.binDirs, ":"))
		todo := fmt.Sprintf("if pods run there, use --conf-dir %s --bin-dir %s (multinetd: --cni-config-dir, --install-shim)", r.confDir, r.binDirs[0])
		switch {
		case !n.same(r.confDir, n.dir):
			n.say(otherwise, r.file, reads+", not in "+n.dir, todo)
		case n.BinDir != "" && !n.Daemon && !slices.ContainsFunc(r.binDirs, func(dir string) bool { return n.same(dir, n.BinDir) }):
			n.say(Problem, r.file, reads+", not in "+n.BinDir, todo)
		case r.network != "" && r.network != n.name():
			n.say(Problem, r.file, fmt.Sprintf("%s takes the network %q, and not the first", r.name, r.network), "remove cni_default_network, or set it to "+n.name())
		case r.most != nil && *r.most != 1:
			n.say(Problem, r.file, fmt.Sprintf("%s attaches pods to more networks than the first (max_conf_num, cni_max_conf_num: %d): they get the cluster network twice", r.name, *r.most),
				"remove max_conf_num (cni_max_conf_num of the default runtime class), or set it to 1, and restart the runtime")
		case r.version < 3 && r.name != "CRI-O" && !r.loopback && n.lacks("loopback", r.binDirs):
			n.say(Problem, r.file, fmt.Sprintf("%s runs the plugin loopback for each pod, which is not in %s", r.name, strings.Join(r.binDirs, ":")), "install it there, from the release of containernetworking/plugins")
		default:
			n.say(OK, r.file, reads, "")
		}
	}
	switch _, err := stat(n.RuntimeRoot, "/run/cri-dockerd.sock"); {
	case len(all) > 0:
	case off != "" && err != nil:
		n.say(Problem, off, "containerd runs no pods: disabled_plugins has its CRI plugin", "remove it from disabled_plugins, and restart containerd, unless another runtime runs pods")
	default:
		n.say(Unknown, "/etc", "no configuration of a runtime in a usual place", "see that the runtime reads "+n.dir)
	}
}

// lacks reports whether no program of that name is in dirs, for certain: they can be read.
func (n *Node) lacks(name string, dirs []string) bool {
	return !slices.ContainsFunc(dirs, func(dir string) bool {
		_, err := stat(n.RuntimeRoot, filepath.Join(dir, name))
		_, unseen := fs.ReadDir(n.RuntimeRoot.Dir(dir), ".")
		return err == nil || unseen != nil
	})
}

// ofRuntime returns the path in n.root of a path that a runtime or its plugins have.
func (n *Node) ofRuntime(path string) string {
	if n.RuntimeRoot != n.root {
		if found, err := n.RuntimeRoot.Resolve(path); err == nil {
			return found
		}
	}
	return path
}

// name returns the name of our network, as it is published or would be.
func (n *Node) name() string {
	if !n.ours.IsZero() {
		return n.ours.Name()
	}
	var named struct{ Name string }
	_ = n.plugin.Decode(&named) // an ADD reports it
	return cmp.Or(named.Name, publish.Network)
}

// same reports whether a, as a runtime has it, and b are the same directory.
func (n *Node) same(a, b string) bool {
	first, err := stat(n.RuntimeRoot, a)
	second, _ := stat(n.root, b)
	return filepath.Clean(a) == filepath.Clean(n.root.OnNode(b)) || err == nil && os.SameFile(first, second)
}
