package doctor

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/netconf"
)

const istio = "istio-cni"

// lookAtFirst looks at which network the runtime takes: the one whose file has the first name.
func (n *Node) lookAtFirst() {
	const again = "publish it again with multinet install, or restart multinetd"
	const install = "install a cluster network, or use another --conf-dir (multinetd: --cni-config-dir)"
	for f, err := range netconf.Files(n.root.Dir(n.dir)) {
		switch {
		case f.Name == "":
			n.fail(n.dir, err)
		case f.Name < n.own:
			n.say(Problem, n.dir, f.Name+" is first, as it sorts before "+n.own, "remove it, or choose an --output that sorts before it")
		case n.Installing: // and will change it
		case f.Name == n.own && errors.Is(err, fs.ErrPermission):
			n.fail(filepath.Join(n.dir, n.own), err)
		case f.Name == n.own && err != nil:
			n.say(Problem, n.dir, fmt.Sprintf("%s is first, and cannot be used: %v", f.Name, err), again)
		case f.Name == n.own && n.noCluster != nil:
			n.say(Problem, n.dir, n.noCluster.Error(), install)
		case f.Name == n.own && n.isOld():
			n.say(Problem, n.dir, f.Name+" has an older copy of "+n.cluster.Name, again)
		case f.Name == n.own && n.first != n.cluster.Name:
			n.say(Unknown, n.dir, fmt.Sprintf("%s is first, in front of %s and not of %s", f.Name, n.cluster.Name, n.first), again+", unless --cluster-network has chosen it")
		case f.Name > n.own:
			n.say(Problem, n.dir, fmt.Sprintf("%s is first: %s is not there", f.Name, n.own), "publish it with multinet install, start multinetd, or use the --output that it has")
		}
		return
	}
	n.say(Problem, n.dir, "there is no network", install)
}

// choose makes the network of this name the cluster network, if it is there.
func (n *Node) choose(name string) {
	for f, err := range netconf.Files(n.root.Dir(n.dir)) {
		if err == nil && f.Name != n.own && f.Network.Name() == name {
			n.cluster = f
			return
		}
	}
}

// isOld reports whether our network has a copy of the cluster network that differs from it.
func (n *Node) isOld() bool {
	var conf struct{ Delegates []json.RawMessage }
	if err := n.plugin.Decode(&conf); err != nil || len(conf.Delegates) == 0 {
		return false // it has none
	}
	copied, err := netconf.Parse(conf.Delegates[0])
	was, _ := copied.MarshalJSON()
	is, _ := n.cluster.Network.MarshalJSON() // both have been read
	return err != nil || !bytes.Equal(was, is)
}

// lookAtPlugins looks for the plugins that every pod needs, and for those of the networks in
// multinet's directory.
func (n *Node) lookAtPlugins() {
	var conf struct{ ConfDir, BinDir string }
	_ = n.plugin.Decode(&conf) // an ADD reports it
	n.confDir = cmp.Or(conf.ConfDir, multinet.DefaultConfDir)
	dirs := slices.Compact(append([]string{n.BinDir, n.ofRuntime(cmp.Or(conf.BinDir, multinet.DefaultBinDir))}, n.pluginDirs...))
	for _, dir := range dirs {
		if _, err := fs.ReadDir(n.root.Dir(dir), "."); errors.Is(err, fs.ErrPermission) {
			n.fail(dir, err)
			return
		}
	}
	if !n.ours.IsZero() && !n.Installing {
		where := n.pluginDirs // the runtime looks nowhere else for our program
		if where == nil {
			where = []string{n.BinDir}
		}
		n.lookForPrograms(Fatal, filepath.Join(n.dir, n.own), netconf.Single(n.plugin), where)
	}
	if n.noCluster == nil {
		n.lookForPrograms(Fatal, filepath.Join(n.Publisher.Dir, n.cluster.Name), n.cluster.Network, dirs)
	}
	for f, err := range netconf.Files(n.RuntimeRoot.Dir(n.confDir)) {
		switch {
		case err == nil:
			n.lookForRepeated(n.RuntimeRoot, n.confDir, f.Name)
			n.lookForPrograms(Problem, filepath.Join(n.confDir, f.Name), f.Network, dirs)
		case f.Name != "" || !errors.Is(err, fs.ErrNotExist):
			n.fail(filepath.Join(n.confDir, f.Name), err)
		}
	}
}

// networks yields our network, the cluster network and those in multinet's directory, by their files.
func (n *Node) networks(yield func(file string, network netconf.Network) bool) {
	if !n.ours.IsZero() && !yield(filepath.Join(n.dir, n.own), n.ours) || n.noCluster == nil && !yield(filepath.Join(n.Publisher.Dir, n.cluster.Name), n.cluster.Network) {
		return
	}
	for f, err := range netconf.Files(n.RuntimeRoot.Dir(n.confDir)) {
		if err == nil && !yield(filepath.Join(n.confDir, f.Name), f.Network) {
			return
		}
	}
}

// lookAtFiles looks for files that plugins read: kubeconfigs, and the subnet file of flannel.
func (n *Node) lookAtFiles() {
	type named struct {
		Kubeconfig string
		Kubernetes struct{ Kubeconfig string }
	}
	for file, network := range n.networks {
		for _, p := range network.Plugins() {
			if slices.Contains(multinet.OwnTypes(), p.Type()) {
				continue // it reads no such file
			}
			var conf struct {
				named

				SubnetFile string
				IPAM       named
			}
			_ = p.Decode(&conf) // an ADD reports it
			for _, path := range []string{conf.Kubeconfig, conf.Kubernetes.Kubeconfig, conf.IPAM.Kubeconfig, conf.IPAM.Kubernetes.Kubeconfig} {
				if n.missing(path) {
					n.say(Problem, file, fmt.Sprintf("plugin %q: %s, which the key kubeconfig names, is not there", p.Type(), path), "restart the agent of the network, which writes it, or correct the key")
				}
			}
			if path := cmp.Or(conf.SubnetFile, "/run/flannel/subnet.env"); p.Type() == "flannel" && n.missing(path) {
				n.say(Problem, file, fmt.Sprintf("plugin %q: %s is not there", p.Type(), path), "see the log of flanneld, which writes it; another path needs the key subnetFile")
			}
		}
	}
}

// missing reports whether there is no file at an absolute path of the node, for certain: its first
// directory is there.
func (n *Node) missing(path string) bool {
	if !filepath.IsAbs(path) {
		return false
	}
	_, err := stat(n.RuntimeRoot, path)
	first, _, _ := strings.Cut(filepath.Clean(path)[1:], "/")
	_, unseen := stat(n.RuntimeRoot, "/"+first)
	return errors.Is(err, fs.ErrNotExist) && unseen == nil
}

// lookForRepeated looks for a key that stands twice in a file, with one value.
func (n *Node) lookForRepeated(root plugin.Root, dir, name string) {
	text, _ := netconf.ReadFile(root.Dir(dir), name) // it has been read
	if key := netconf.Repeated(text); key != "" {
		n.say(Problem, filepath.Join(dir, name), fmt.Sprintf("key %q is given twice, with one value", key), "remove one: other programs may refuse the file")
	}
}

// lookForPrograms looks for the plugins of a network in dirs. The verdict is v if one cannot be
// run.
func (n *Node) lookForPrograms(v Verdict, file string, network netconf.Network, dirs []string) {
	if n.Residents {
		v = Unknown
	}
	for _, p := range network.Plugins() {
		var ipam struct{ Type string }
		text, _ := p.Get("ipam")
		_ = json.Unmarshal(text, &ipam) // of another form it names no plugin
		for _, typ := range []string{p.Type(), ipam.Type} {
			if typ == "" {
				continue
			}
			path, err := (&delegate.Process{Root: string(n.root)}).FindInPath(typ, dirs)
			if err != nil {
				n.say(v, file, fmt.Sprintf("plugin %q: %v%s", typ, err, n.dangling(typ, dirs)), "install it first, chmod +x, or name its directory with the key binDir in --config")
			} else if why := n.unfit(path); why != "" {
				n.say(v, file, fmt.Sprintf("plugin %q: %s is %s", typ, path, why), "install the plugin for "+goruntime.GOARCH)
			} else if n.noexec(path) {
				n.say(v, file, fmt.Sprintf("plugin %q: %s is on a file system that is mounted noexec", typ, path), "mount it with exec, or move the plugins, and name their directory to the runtime and with the key binDir in --config")
			}
		}
	}
}

// dangling says which links to nothing dirs have in place of a plugin.
func (n *Node) dangling(typ string, dirs []string) (text string) {
	for _, dir := range dirs {
		entries, _ := fs.ReadDir(n.root.Dir(dir), ".") // FindInPath reports it
		link := slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == typ && e.Type() == fs.ModeSymlink })
		if _, err := stat(n.root, filepath.Join(dir, typ)); link && err != nil {
			text += "; " + filepath.Join(dir, typ) + " is a link to nothing"
		}
	}
	return text
}

// unfit says what the program at path is, or nothing if this machine may run it.
func (n *Node) unfit(path string) string {
	head := make([]byte, 256) // as much as the kernel reads
	f, err := n.root.Dir(filepath.Dir(path)).Open(filepath.Base(path))
	if err != nil {
		return "" // the runtime may read it
	}
	read, _ := io.ReadFull(f, head) // the program may be shorter
	_ = f.Close()                   // nothing was written
	if !bytes.HasPrefix(head, []byte("\x7fELF")) {
		line, _, _ := strings.Cut(string(head[:read]), "\n")
		line, isScript := strings.CutPrefix(line, "#!")
		switch words := strings.Fields(line); {
		case !isScript:
			return "neither a program nor a script"
		case len(words) > 0 && n.gone(words[0]):
			return "a script for " + words[0] + ", which is not there"
		}
		return ""
	}
	number := binary.LittleEndian.Uint16(head[18:])
	if head[5] == 2 {
		number = binary.BigEndian.Uint16(head[18:])
	}
	is := map[uint16]string{3: "386", 21: "ppc64le", 22: "s390x", 40: "arm", 62: "amd64", 183: "arm64", 243: "riscv64", 258: "loong64"}[number]
	switch here := goruntime.GOARCH; {
	case read < 20:
		return "cut off"
	case is == here || is == "386" && here == "amd64" || is == "arm" && here == "arm64":
		return ""
	}
	return "for " + cmp.Or(is, fmt.Sprint("machine ", number))
}

// lookAtAnnotations looks whether our network asks the runtime for the annotations of pods.
func (n *Node) lookAtAnnotations() {
	if !slices.Contains(n.plugin.Capabilities(), plugin.PodAnnotationsCapability) {
		n.say(Problem, filepath.Join(n.dir, n.own), "no capability "+plugin.PodAnnotationsCapability+": unless multinetd asks the API, pods select no networks",
			"install with --pod-annotations (multinetd: see the key capabilities)")
	}
}

// lookForCilium looks for files that Cilium has renamed. It does so while cni.exclusive is on,
// and does not rename them back.
func (n *Node) lookForCilium() {
	const (
		suffix = ".cilium_bak"
		off    = "set cni.exclusive=false in the values of Cilium, and remove what it has renamed"
	)
	renamed, _ := fs.Glob(n.root.Dir(n.dir), "*"+suffix)                                                    // lookAtFirst reports errors
	renamed = slices.DeleteFunc(renamed, func(name string) bool { return name == "05-cilium.conf"+suffix }) // always renamed
	_, err := stat(n.root, filepath.Join(n.dir, n.own))
	switch {
	case err != nil && slices.Contains(renamed, n.own+suffix):
		n.say(Fatal, n.dir, "Cilium has renamed "+n.own, off)
	case renamed == nil && strings.Contains(n.cluster.Name, "cilium"):
		n.say(Unknown, n.dir, "Cilium is the cluster network, and may rename "+n.own, off)
	default:
		n.list(n.dir, renamed, "Cilium has renamed networks, and may rename "+n.own, off)
	}
}

// lookAtChain looks for another meta-plugin, one inside another, and for Istio's plugin in a
// network that pods do not get.
func (n *Node) lookAtChain() {
	for f, err := range netconf.Files(n.root.Dir(n.dir)) {
		if err != nil {
			continue // lookAtFirst reports it where it matters
		}
		file := filepath.Join(n.dir, f.Name)
		if f.Name != n.own {
			n.lookForRepeated(n.root, n.dir, f.Name)
		}
		text, _ := f.Network.MarshalJSON() // it has been read
		var compact bytes.Buffer
		_ = json.Compact(&compact, text)
		for _, typ := range multinet.OwnTypes() {
			count := strings.Count(compact.String(), `"type":"`+typ+`"`)
			if f.Name == n.own && f.Network.Plugins()[0].Type() == typ {
				count-- // its own place
			}
			if count > 0 {
				n.say(Problem, file, typ+" is a meta-plugin too: pods could be attached twice", "uninstall it, or remove it from the file")
			}
		}
		if f.Name == n.cluster.Name && strings.Count(compact.String(), `"type":"`+istio+`"`) > 1 {
			n.say(Problem, file, istio+" is in the chain twice", "remove one of them from the file")
		}
		if f.Name != n.cluster.Name && slices.ContainsFunc(f.Network.Plugins(), func(p netconf.Plugin) bool { return p.Type() == istio }) {
			n.say(Problem, file, istio+" is chained to this network, not to the cluster network", fmt.Sprintf("set cniConfFileName of %s to %q", istio, n.cluster.Name))
		}
	}
}
