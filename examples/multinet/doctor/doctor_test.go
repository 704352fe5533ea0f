package doctor

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/multinet/publish"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

const (
	blue       = `{"cniVersion":"1.0.0","name":"blue","plugins":[{"type":"bridge","ipam":{"type":"host-local"}}]}`
	published  = `{"cniVersion":"1.0.0","name":"multinet","plugins":[{"type":"multinet","capabilities":{"io.kubernetes.cri.pod-annotations":true},"delegates":[` + blue + `]}]}`
	small      = `{"cniVersion":"1.0.0","name":"blue","plugins":[{"type":"bridge","ipam":{"type":"host-local","ranges":[[{"subnet":"10.9.0.0/29","rangeEnd":"10.9.0.3"}]]}}]}`
	flannel    = `{"cniVersion":"1.0.0","name":"cbr0","plugins":[{"type":"flannel","delegate":{"isDefaultGateway":true}}]}`
	containerd = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\n  bin_dir = \"/opt/cni/bin\"\n  conf_dir = \"/etc/cni/net.d\"\n"
)

// A node is a healthy one, with multinet in front of the network blue and a container, all
// below the directory of the test.
type node struct {
	*nodetest.Node
	doctor Node
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{Node: nodetest.New(t, "bridge")}
	n.Write("etc/containerd/config.toml", containerd)
	n.Write("etc/cni/net.d/00-multinet.conflist", published)
	n.Write("etc/cni/net.d/10-blue.conflist", blue)
	n.Write("var/lib/cni/results/.keep", "")
	for _, name := range []string{"multinet", "bridge", "host-local", "loopback"} {
		n.Write("opt/cni/bin/"+name, "#!/bin/sh\n")
		nodetest.OK(t, os.Chmod(n.Path("opt/cni/bin", name), 0o755))
	}
	template, err := netconf.Plugin{}.Edit(netconf.Set("type", "multinet"), publish.Annotations())
	nodetest.OK(t, err)
	n.doctor = Node{
		Publisher: publish.Manager(publish.ConfDir, publish.ConfDir+"/00-multinet", template), StateDir: n.Path("var/lib/cni/multinet"),
		BinDir: "/opt/cni/bin", CacheDir: "/var/lib/cni", SocketDir: "/run/multus", QueueDir: "/var/lib/cni/multinet.queue",
		Version: "v1.0.0",
	}
	n.doctor.Publisher.Root = n.Dir
	n.attachTo("c1", blue, "10.9.0.2")
	return n
}

// change changes the cluster network, and publishes it again.
func (n *node) change(blue2 string) {
	n.Helper()
	n.Write("etc/cni/net.d/10-blue.conflist", blue2)
	n.Write("etc/cni/net.d/00-multinet.conflist", strings.Replace(published, blue, blue2, 1))
}

func (n *node) remove(names ...string) {
	n.Helper()
	for _, name := range names {
		nodetest.OK(n, os.RemoveAll(n.Path(name)))
	}
}

// attachTo attaches a container to a network, which gives it an address.
func (n *node) attachTo(id, network, address string) {
	n.Helper()
	ip := net.IPNet{IP: net.ParseIP(address), Mask: net.CIDRMask(128, 128)}
	n.Exec.Plugins["bridge"] = delegatetest.Result(&types100.Result{CNIVersion: "1.0.0", IPs: []*types100.IPConfig{{Address: ip}}})
	life := &lifecycle.Manager{Dir: n.doctor.StateDir, Root: n.Dir, Invoker: &delegate.Invoker{Exec: n.Exec}, InterfaceNames: func(string) ([]string, error) { return nil, nil }}
	a := delegate.Attachment{Network: nodetest.Parse(network), ContainerID: id, IfName: "eth0", NetNS: "/run/netns/" + id}
	_, err := life.Add(n.Context(), scratch.Key{Network: "multinet", ContainerID: id, IfName: "eth0"}, lifecycle.Transaction{Plan: lifecycle.Plan(a)})
	nodetest.OK(n, err)
	n.Cached("var/lib/cni", id, published, "/run/netns/"+id)
}

// findings returns the findings that are not ok, as "check verdict looked: found", with the
// directory of the node as $DIR.
func (n *node) findings() (all []string) {
	n.Helper()
	for _, f := range n.doctor.Check(n.Context()) {
		if f.Todo == "" != (f.Verdict == OK) || f.Looked == "" || f.Found == "" {
			n.Errorf("not whole: %+v", f)
		}
		if f.Verdict != OK && f.Check != "unknown" { // the containers have no network namespace
			all = append(all, strings.ReplaceAll(fmt.Sprintf("%s %s %s: %s", f.Check, f.Verdict, f.Looked, f.Found), n.Dir, "$DIR"))
		}
	}
	return all
}

// elf returns the first bytes of a program for a machine, little endian.
func elf(machine byte) string {
	return "\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9) + "\x02\x00" + string([]byte{machine, 0}) + strings.Repeat("x", 100)
}

// alien is a machine that this one is not.
func alien() (number byte, name string) {
	if goruntime.GOARCH == "s390x" {
		return 62, "amd64"
	}
	return 22, "s390x"
}

func TestHealthyNodeHasOnlyGoodFindings(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	nodetest.Equal(t, "findings", n.findings(), nil)
	var checks []string
	for _, f := range n.doctor.Check(t.Context()) {
		checks = append(checks, f.Check)
	}
	nodetest.Equal(t, "checks", slices.Compact(checks), []string{"runtimes", "first", "plugins", "annotations", "cilium", "chain", "disk", "files", "records", "unknown", "leases", "cache", "version"})
}

// A flaw is something that is wrong with a node.
type flaw func(n *node)

// put is a file with another text.
func put(name, text string) flaw { return func(n *node) { n.Helper(); n.Write(name, text) } }

// gone are files that are not there.
func gone(names ...string) flaw { return func(n *node) { n.Helper(); n.remove(names...) } }

// moved is a file with another name.
func moved(from, to string) flaw {
	return func(n *node) {
		n.Helper()
		nodetest.OK(n, errors.Join(os.MkdirAll(filepath.Dir(n.Path(to)), 0o700), os.Rename(n.Path(from), n.Path(to))))
	}
}

// link is a symbolic link in place of a file.
func link(target, name string) flaw {
	return func(n *node) { n.Helper(); n.remove(name); nodetest.OK(n, os.Symlink(target, n.Path(name))) }
}

// mode is a file with another mode.
func mode(name string, to os.FileMode) flaw {
	return func(n *node) { n.Helper(); nodetest.OK(n, os.Chmod(n.Path(name), to)) }
}

// network is another cluster network, in front of which ours is published.
func network(text string) flaw { return func(n *node) { n.Helper(); n.change(text) } }

// all are several flaws.
func all(flaws ...flaw) flaw {
	return func(n *node) {
		n.Helper()
		for _, f := range flaws {
			f(n)
		}
	}
}

// daemon is one of a version, of whose network the shim is installed.
func daemon(version string, ready int) flaw {
	return func(n *node) { n.Helper(); n.shim(); n.serve(version, ready) }
}

func TestEachFlawIsItsFinding(t *testing.T) {
	t.Parallel()
	number, machine := alien()
	const (
		config = "etc/containerd/config.toml"
		crio   = "etc/crio/crio.conf"
		netD   = "etc/cni/net.d/"
		first  = netD + "10-blue.conflist"
		ours   = netD + "00-multinet.conflist"
		more   = "etc/cni/multinet/net.d/"
		bin    = "opt/cni/bin/"
		state  = "var/lib/cni/multinet"
		leases = "var/lib/cni/networks/blue/"
		queue  = "var/lib/cni/multinet.queue/"

		ofBridge  = `plugins fatal /etc/cni/net.d/10-blue.conflist: plugin "bridge": `
		ofRuntime = "runtimes problem /etc/containerd/config.toml: containerd "
		ofRecords = "records problem /var/lib/cni/multinet: "
		ofCache   = "cache problem /var/lib/cni/results: "
		ofDaemon  = "daemon problem /run/multus/multus.sock: "
		ofFirst   = "first problem /etc/cni/net.d: "
		macvlan   = `{"cniVersion":"1.0.0","name":"storage","type":"macvlan"}`
	)
	elsewhere := strings.ReplaceAll(containerd, "/etc/cni/net.d", "/var/net.d")
	istio := func(more string) string {
		return strings.TrimSuffix(blue, "]}") + `,{"type":"istio-cni"}` + more + `]}`
	}
	for name, tt := range map[string]struct {
		flaw flaw
		want []string // the beginnings of findings
	}{
		"no configuration of a runtime":          {gone("etc/containerd"), []string{"runtimes unknown /etc: no configuration"}},
		"a runtime that reads other directories": {put(config, elsewhere), []string{"runtimes fatal /etc/containerd/config.toml: containerd reads networks in /var/net.d, plugins in /opt/cni/bin, not in /etc/cni/net.d"}},
		"a runtime that reads other directories than the chosen one": {
			func(n *node) {
				n.doctor.Publisher.Dir, n.doctor.Publisher.Output = "/etc/net.d", "/etc/net.d/00-multinet"
				all(moved("etc/cni/net.d", "etc/net.d"), put(config, elsewhere))(n)
			},
			[]string{ofRuntime + "reads networks in /var/net.d"},
		},
		"another runtime that reads other directories": {
			put("var/lib/rancher/k3s/agent/etc/containerd/config.toml", elsewhere),
			[]string{"runtimes unknown /var/lib/rancher/k3s/agent/etc/containerd/config.toml: k3s reads networks in /var/net.d"},
		},
		"plugins in another directory": {
			put(config, strings.ReplaceAll(containerd, "/opt/cni/bin", "/opt/bin")),
			[]string{
				ofRuntime + "reads networks in /etc/cni/net.d, plugins in /opt/bin, not in /opt/cni/bin",
				`plugins fatal /etc/cni/net.d/00-multinet.conflist: plugin "multinet": not found in /opt/bin`,
			},
		},
		"the directory by another name": {all(link("/etc/cni", "etc/link"), put(config, strings.ReplaceAll(containerd, "/etc/cni/net.d", "/etc/link/net.d"))), nil},
		"a runtime that runs no pods":   {put(config, "disabled_plugins = [\"cri\"]\n"), []string{ofRuntime + "runs no pods: disabled_plugins has its CRI plugin"}},
		"a runtime that runs no pods, by an import, of version 3": {
			all(put(config, "version = 3\nimports = ['conf.d/*.toml']\n"), put("etc/containerd/conf.d/a.toml", "version = 3\ndisabled_plugins = ['io.containerd.cri.v1.runtime']\n")),
			[]string{"runtimes problem /etc/containerd/conf.d/a.toml: containerd runs no pods"},
		},
		"containerd of docker beside cri-dockerd": {all(put(config, "disabled_plugins = [\"cri\"]\n"), put("run/cri-dockerd.sock", "")), []string{"runtimes unknown /etc: no configuration"}},
		"a runtime that takes two networks":       {put(config, containerd+"max_conf_num = 2\n"), []string{ofRuntime + "attaches pods to more networks than the first (max_conf_num, cni_max_conf_num: 2)"}},
		"a default runtime class with a directory of its own": {
			put(config, containerd+"[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = 'crun'\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.crun]\ncni_conf_dir = '/etc/cni/crun'\n"),
			[]string{"runtimes fatal /etc/containerd/config.toml: containerd reads networks in /etc/cni/crun"},
		},
		"another runtime class with a directory of its own": {
			put(config, containerd+"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.kata]\ncni_conf_dir = '/etc/cni/kata'\ncni_max_conf_num = 3\n"),
			nil,
		},
		"no loopback, containerd 1.x":            {gone(bin + "loopback"), []string{ofRuntime + "runs the plugin loopback for each pod, which is not in /opt/cni/bin"}},
		"a directory among files of CRI-O":       {put("etc/crio/crio.conf.d/old/x.conf", "[crio.network]\nnetwork_dir = \"/no\"\n"), nil},
		"a runtime that takes a network by name": {put(crio, "[crio.network]\ncni_default_network = \"blue\"\n"), []string{`runtimes problem /etc/crio/crio.conf: CRI-O takes the network "blue", and not the first`}},
		"a runtime that takes ours by name":      {put(crio, "[crio.network]\ncni_default_network = \"multinet\"\n"), nil},
		"a configuration that cannot be read": {
			func(n *node) { n.remove(config); nodetest.OK(n, unix.Mkfifo(n.Path(config), 0o600)) },
			[]string{`runtimes problem /etc/containerd/config.toml: invalid configuration: file "etc/containerd/config.toml": not a regular file`, "runtimes unknown /etc"},
		},

		"no subnet file of flannel": {
			all(gone("run"), put("run/.keep", ""), network(flannel), link("bridge", bin+"flannel")),
			[]string{`files problem /etc/cni/net.d/10-blue.conflist: plugin "flannel": /run/flannel/subnet.env is not there`},
		},
		"kubeconfigs that are missing": {
			all(network(strings.Replace(blue, `"bridge",`, `"bridge","kubernetes":{"kubeconfig":"/etc/cni/net.d/calico-kubeconfig"},`, 1)),
				put(more+"w.conf", `{"cniVersion":"1.0.0","name":"w","type":"bridge","ipam":{"type":"host-local","kubernetes":{"kubeconfig":"/etc/cni/net.d/w.d/w.kubeconfig"}}}`)),
			[]string{
				`files problem /etc/cni/net.d/10-blue.conflist: plugin "bridge": /etc/cni/net.d/calico-kubeconfig, which the key kubeconfig names, is not there`,
				`files problem /etc/cni/multinet/net.d/w.conf: plugin "bridge": /etc/cni/net.d/w.d/w.kubeconfig, which the key kubeconfig names, is not there`,
			},
		},
		"a range that leaked leases have filled": {
			all(network(small), put(leases+"10.9.0.2", "c1\r\neth0"), put(leases+"10.9.0.3", "gone\r\neth0"), put(leases+"last_reserved_ip.0", "10.9.0.3")),
			[]string{"leases problem /etc/cni/net.d/10-blue.conflist: at most one address of \"blue\" from 10.9.0.1 to 10.9.0.3 is free; in /var/lib/cni/networks/blue are leases of containers without a record, 1: 10.9.0.3"},
		},
		"a range that is full of containers": {
			all(network(small), func(n *node) { n.attachTo("c2", blue, "10.9.0.3") }, put(leases+"10.9.0.2", "c1\r\neth0"), put(leases+"10.9.0.3", "c2\r\neth0")),
			nil,
		},
		"a range with a free address": {all(network(small), put(leases+"10.9.0.3", "gone\r\neth0")), nil},

		"no directory of networks":           {gone("etc/cni"), []string{ofFirst}},
		"no network":                         {gone(ours, first), []string{ofFirst + "there is no network"}},
		"not published":                      {gone(ours), []string{ofFirst + "10-blue.conflist is first: 00-multinet.conflist is not there"}},
		"another network first":              {put(netD+"00-a.conf", blue), []string{ofFirst + "00-a.conf is first, as it sorts before 00-multinet.conflist"}},
		"a broken file of ours":              {put(ours, "{"), []string{ofFirst + "00-multinet.conflist is first, and cannot be used: "}},
		"no cluster network":                 {put(first, "{"), []string{ofFirst + "find \"/etc/cni/net.d\": no primary network"}},
		"a cluster network that has changed": {put(first, strings.Replace(blue, `"bridge"`, `"bridge","mtu":1400`, 1)), []string{ofFirst + "00-multinet.conflist has an older copy of 10-blue.conflist"}},
		"a chosen cluster network": {
			func(n *node) {
				red := strings.Replace(blue, "blue", "red", 1)
				all(put(netD+"20-red.conflist", red), put(first, strings.Replace(blue, "bridge", "absent", 1)), put(ours, strings.Replace(published, blue, red, 1)))(n)
			},
			[]string{"first unknown /etc/cni/net.d: 00-multinet.conflist is first, in front of 20-red.conflist and not of 10-blue.conflist"},
		},

		"a plugin that is missing":               {gone(bin + "bridge"), []string{ofBridge + "not found in /opt/cni/bin"}},
		"an IPAM plugin that is not executable":  {mode(bin+"host-local", 0o644), []string{`plugins fatal /etc/cni/net.d/10-blue.conflist: plugin "host-local": not found in /opt/cni/bin; /opt/cni/bin/host-local is not a file that can be executed`}},
		"a plugin that is a link to nothing":     {link("/nowhere", bin+"bridge"), []string{ofBridge + "not found in /opt/cni/bin; /opt/cni/bin/bridge is a link to nothing"}},
		"a plugin that is empty":                 {put(bin+"bridge", ""), []string{ofBridge + "/opt/cni/bin/bridge is neither a program nor a script"}},
		"a plugin that is cut off":               {put(bin+"bridge", elf(number)[:19]), []string{ofBridge + "/opt/cni/bin/bridge is cut off"}},
		"a plugin of another architecture":       {put(bin+"bridge", elf(number)), []string{ofBridge + "/opt/cni/bin/bridge is for " + machine}},
		"a script without its interpreter":       {all(put("usr/bin/env", ""), put(bin+"bridge", "#! /usr/bin/python4 -u\n"), put(bin+"host-local", "#!/usr/bin/env python3\n")), []string{ofBridge + "/opt/cni/bin/bridge is a script for /usr/bin/python4, which is not there"}},
		"a plugin in a directory of the runtime": {all(put(config, strings.ReplaceAll(containerd, `bin_dir = "/opt/cni/bin"`, `bin_dirs = ["/opt/cni/bin", "/opt/more"]`)), moved(bin+"bridge", "opt/more/bridge")), nil},
		"a plugin in the default of binDir": {
			all(func(n *node) { n.doctor.BinDir = "/opt/more" }, put(config, strings.ReplaceAll(containerd, "/opt/cni/bin", "/opt/more")), moved(bin+"multinet", "opt/more/multinet"), moved(bin+"loopback", "opt/more/loopback")),
			nil,
		},
		"no program of ours":                  {gone(bin + "multinet"), []string{`plugins fatal /etc/cni/net.d/00-multinet.conflist: plugin "multinet": not found`}},
		"networks of multinet":                {all(put(more+"storage.conf", macvlan), put(more+"z.conf", "{")), []string{`plugins problem /etc/cni/multinet/net.d/storage.conf: plugin "macvlan": not found`, "plugins problem /etc/cni/multinet/net.d/z.conf: "}},
		"a plugin that may be a resident one": {all(func(n *node) { n.doctor.Residents = true }, put(more+"storage.conf", macvlan)), []string{`plugins unknown /etc/cni/multinet/net.d/storage.conf: plugin "macvlan": not found`}},
		"a list in a file of one plugin":      {put(more+"x.conf", strings.ReplaceAll(blue, "blue", "x")), []string{`plugins problem /etc/cni/multinet/net.d/x.conf: invalid configuration: file "x.conf", network "x", key "type": missing, and programs read this file as one plugin: end the name of a list with .conflist`}},
		"no annotations":                      {put(ours, strings.ReplaceAll(published, "true", "false")), []string{"annotations problem /etc/cni/net.d/00-multinet.conflist: no capability io.kubernetes.cri.pod-annotations"}},
		"Cilium has renamed ours":             {moved(ours, ours+".cilium_bak"), []string{"first problem", "cilium fatal /etc/cni/net.d: Cilium has renamed 00-multinet.conflist"}},
		"Cilium has renamed another":          {put(netD+"87-podman.conflist.cilium_bak", ""), []string{"cilium problem /etc/cni/net.d: Cilium has renamed networks, and may rename 00-multinet.conflist, 1: 87-podman.conflist.cilium_bak"}},
		"Cilium renames its own":              {put(netD+"05-cilium.conf.cilium_bak", ""), nil},
		"Cilium is the cluster network":       {moved(first, netD+"05-cilium.conflist"), []string{"cilium unknown /etc/cni/net.d: Cilium is the cluster network, and may rename 00-multinet.conflist"}},
		"Multus":                              {put(netD+"20-multus.conf", `{"cniVersion":"1.0.0","name":"multus","type":"multus"}`), []string{"chain problem /etc/cni/net.d/20-multus.conf: multus is a meta-plugin too"}},
		"ours in ours":                        {put(ours, strings.Replace(published, `"type":"bridge"`, `"type":"some","delegate":{"type":"multinet"}`, 1)), []string{ofFirst + "00-multinet.conflist has an older copy of 10-blue.conflist", "chain problem /etc/cni/net.d/00-multinet.conflist: multinet is a meta-plugin too"}},
		"Istio in our file":                   {put(ours, strings.TrimSuffix(published, "]}")+`,{"type":"istio-cni"}]}`), []string{"chain problem /etc/cni/net.d/00-multinet.conflist: istio-cni is chained to this network"}},
		"Istio in a file that no pod gets":    {put(netD+"20-x.conflist", istio("")), []string{"chain problem /etc/cni/net.d/20-x.conflist: istio-cni is chained to this network"}},
		"Istio in the cluster network":        {all(link("bridge", bin+"istio-cni"), network(istio(""))), nil},
		"Istio twice":                         {all(link("bridge", bin+"istio-cni"), network(istio(`,{"type":"istio-cni"}`))), []string{"chain problem /etc/cni/net.d/10-blue.conflist: istio-cni is in the chain twice"}},
		"a key that stands twice": {
			all(network(strings.Replace(blue, `{"type"`, `{"type":"bridge","type"`, 1)), put(more+"x.conf", `{"name":"x","type":"bridge","mtu":1,"mtu":1}`)),
			[]string{`plugins problem /etc/cni/multinet/net.d/x.conf: key "mtu" is given twice, with one value`, `chain problem /etc/cni/net.d/10-blue.conflist: key "plugins[0].type" is given twice, with one value`},
		},
		"a root directory that is none": {
			func(n *node) {
				nodetest.OK(n, unix.Mkfifo(n.Path("fifo"), 0o600))
				n.doctor.Publisher.Root = n.Path("fifo")
			},
			[]string{"root fatal $DIR/fifo: not a directory"},
		},
		"a root directory that is absent": {func(n *node) { n.doctor.Publisher.Root = n.Path("absent") }, []string{"root fatal $DIR/absent: no such file or directory"}},

		"a directory of records that others can use": {mode(state, 0o755), []string{"disk problem /var/lib/cni/multinet: has the mode 0755"}},
		"a file instead of the directory of records": {all(gone(state), put(state, "")), []string{ofRecords + "list", "cache unknown"}},
		"no records yet":                     {gone(state, "var/lib/cni/results"), nil},
		"a container that is dead":           {func(n *node) { n.Restarted(state) }, []string{ofRecords + "records of containers that are dead, or half attached, 1: c1"}},
		"a record of the future":             {func(n *node) { n.state("c1", scratch.Added, time.Hour) }, []string{ofRecords + "records of the future: the clock has been set back, 1: c1"}},
		"a leftover":                         {func(n *node) { n.state("c1", scratch.Leftover, 0) }, []string{ofRecords + "records with something left of an ADD that failed, 1: c1"}},
		"a DEL that runs":                    {func(n *node) { n.state("c1", scratch.Deleting, -inTime/2) }, nil},
		"a DEL that has not run for a while": {func(n *node) { n.state("c1", scratch.Deleting, -2*inTime) }, []string{ofRecords + "records of containers that are dead, or half attached, 1: c1"}},
		"a container without a record":       {func(n *node) { n.Cached("var/lib/cni", "c2", published, "/run/netns/c2") }, []string{ofCache + "containers of multinet without a record, 1: c2"}},
		"a container of the cluster network": {func(n *node) { n.Cached("var/lib/cni", "c2", blue, "/run/netns/c2") }, []string{ofCache + "containers of the cluster network without a record, 1: c2"}},
		"an entry that cannot be read":       {put("var/lib/cni/results/multinet-c2-eth0", "{"), []string{ofCache + "entries that cannot be read, 1: /var/lib/cni/results/multinet-c2-eth0"}},
		"many damaged records": {
			func(n *node) {
				for i := range 5 {
					n.Write(fmt.Sprintf("%s/d%d@multinet@eth0.json", state, i), "{")
				}
			},
			[]string{ofRecords + "records that cannot be read, 5: d0, d1, d2"},
		},

		"no daemon": {
			all((*node).shim, put(queue+"x.json", ""), put(queue+"y.corrupt", "")),
			[]string{ofDaemon + "no daemon answers", "daemon problem /var/lib/cni/multinet.queue: queued DELs that cannot be read, 1: y.corrupt", "daemon problem /var/lib/cni/multinet.queue: queued DELs, 1: x.json"},
		},
		"another daemon":                 {daemon("", http.StatusOK), []string{ofDaemon + "another program answers there"}},
		"a daemon that is not ready":     {daemon("v1.0.0", http.StatusServiceUnavailable), []string{ofDaemon + "not ready: because"}},
		"a daemon of another version":    {daemon("v2.0.0", http.StatusOK), []string{ofDaemon + "multinetd is of version v2.0.0, this program of v1.0.0"}},
		"a daemon that is ready":         {all(daemon("v1.0.0", http.StatusOK), put(queue+"x.json", "")), nil},
		"our program of another version": {put(bin+"multinet", "#!\nmod\tgithub.com/metacni/metacni\tv2.0.0\t\n"), []string{"version problem /opt/cni/bin/multinet: is of version v2.0.0, this program of v1.0.0"}},
		"the shim of this version":       {all(daemon("v1.0.0", http.StatusOK), put(bin+"multinet-shim", "#!\nmod\n\nmod\tgithub.com/metacni/metacni/examples/multinet\tv1.0.0\t\n")), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			tt.flaw(n)
			before := n.Files("")
			got := n.findings()
			ok := len(got) == len(tt.want)
			for i := range min(len(got), len(tt.want)) {
				ok = ok && strings.HasPrefix(got[i], tt.want[i])
			}
			if !ok {
				t.Errorf("got %q,\nwant %q", got, tt.want)
			}
			nodetest.Equal(t, "files", n.Files(""), before)
		})
	}
}

// Containers of which it is not known whether they live are a finding with their number, the reason
// of the first, the age of the oldest, and what to do in the right order. It is a problem only if
// they hold a tenth of a range.
func TestUnknownContainers(t *testing.T) {
	t.Parallel()
	network := func(ipam string) string { return strings.Replace(blue, `{"type":"host-local"}`, ipam, 1) }
	for name, tt := range map[string]struct {
		ipam      string
		addresses []string
		dead      bool
		problem   string
	}{
		"no range":                  {ipam: `{"type":"host-local"}`, addresses: []string{"10.9.0.2"}},
		"a small subnet":            {ipam: `{"type":"host-local","subnet":"10.9.0.0/28"}`, addresses: []string{"10.9.0.2", "10.9.0.3"}, problem: `2 of 14 addresses of "blue", from 10.9.0.1 to 10.9.0.14`},
		"a tenth of a range":        {ipam: `{"type":"host-local","ranges":[[{"subnet":"10.9.0.0/16","rangeStart":"10.9.1.1","rangeEnd":"10.9.1.10"}]]}`, addresses: []string{"10.9.1.5"}, problem: "1 of 10 addresses"},
		"less than a tenth":         {ipam: `{"type":"host-local","ranges":[[{"subnet":"10.9.0.0/16","rangeStart":"10.9.1.1","rangeEnd":"10.9.1.11"}]]}`, addresses: []string{"10.9.1.5"}},
		"addresses outside":         {ipam: `{"type":"host-local","subnet":"10.8.0.0/28"}`, addresses: []string{"10.9.0.2", "10.9.0.3"}},
		"one address twice":         {ipam: `{"type":"host-local","subnet":"10.9.0.0/28"}`, addresses: []string{"10.9.0.2", "10.9.0.2"}},
		"IPv6":                      {ipam: `{"type":"host-local","ranges":[[{"subnet":"fd00::/64"}],[{"subnet":"fd01::/125"}]]}`, addresses: []string{"fd00::2", "fd01::2"}, problem: `1 of 7 addresses of "blue", from fd01::1 to fd01::7`},
		"a configuration of no use": {ipam: `{"type":"host-local","subnet":"x","ranges":[[{"subnet":"10.9.0.0/28","rangeStart":"fd00::1"}]]}`, addresses: []string{"10.9.0.2"}},
		"dead":                      {ipam: `{"type":"host-local","subnet":"10.9.0.0/28"}`, addresses: []string{"10.9.0.2", "10.9.0.3"}, dead: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.remove("var/lib/cni/multinet")
			for i, address := range tt.addresses {
				n.attachTo(fmt.Sprint("c", i), network(tt.ipam), address)
			}
			if tt.dead {
				n.Restarted("var/lib/cni/multinet")
			}
			var got []Finding
			for _, f := range n.doctor.Check(t.Context()) {
				if f.Check == "unknown" {
					got = append(got, f)
				}
			}
			if tt.dead {
				nodetest.Equal(t, "verdict", got[0].Verdict, OK)
				return
			}
			number := fmt.Sprintf("it is not known whether the containers of %d of %d records live, the oldest for ", len(tt.addresses), len(tt.addresses))
			const why = "; of the first, c0: no network namespace was seen when it was recorded"
			gc := "multinet gc --unknown --dry-run --dir /var/lib/cni/multinet on the node"
			if f := got[0]; f.Verdict != Unknown || !strings.HasPrefix(f.Found, number) || !strings.HasSuffix(f.Found, why) || f.Todo != Undecided("", gc) && f.Todo != Undecided("", strings.Replace(gc, " --dir /var/lib/cni/multinet", "", 1)) {
				t.Errorf("%+v", f)
			}
			if problem := len(got) == 2 && got[1].Verdict == Problem && strings.Contains(got[1].Found, tt.problem); problem != (tt.problem != "") {
				t.Errorf("findings %+v", got)
			}
		})
	}
}

// What to do begins with the runtime. Rights are named only if they are missing, and once.
func TestWhatToDoAboutUnknownContainers(t *testing.T) {
	t.Parallel()
	const gc = "multinet gc --unknown --dry-run"
	for why, order := range map[string][]string{
		"no network namespace was seen when it was recorded":                                        {"let the runtime", gc},
		"it takes CAP_SYS_ADMIN and CAP_SYS_PTRACE outside of user namespaces to see all processes": {"let the runtime", "run it as root in the initial PID namespace", gc},
	} {
		todo, at := Undecided(why, gc), -1
		for _, words := range order {
			i := strings.Index(todo, words)
			if i <= at {
				t.Errorf("%q: %q", why, todo)
			}
			at = i
		}
		nodetest.Equal(t, why, strings.Count(todo, "root"), len(order)-2)
		j := judged{lifecycle.AddRecord{State: scratch.Added}, lifecycle.Judgement{Why: why}}
		n := Node{judged: []judged{j, j}}
		n.lookAtUnknown()
		nodetest.Equal(t, why, len(n.findings) == 2 && strings.Contains(n.findings[1].Found, "cannot prove"), len(order) == 3)
	}
}

// A network that others may use is named, with the reason, and is no problem.
func TestSharedNetworksAreNamed(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Write("etc/containers/networks/blue.json", "{}")
	var shared []string
	for _, f := range n.doctor.Check(t.Context()) {
		if f.Check == "shared" {
			shared = append(shared, string(f.Verdict)+" "+f.Found)
		}
	}
	nodetest.Equal(t, "findings", shared, []string{`ok a GC does not tell the plugins of network "blue" which attachments are valid: podman has a network of this name, /etc/containers/networks/blue.json`})
}

// An ADD that was refused has no attachment.
func TestRefusedADDIsNoFinding(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	life := &lifecycle.Manager{Dir: n.doctor.StateDir, Root: n.Dir}
	nodetest.OK(t, life.Refuse(t.Context(), scratch.Key{Network: "second", ContainerID: "c1", IfName: "eth0"}, "/absent"))
	if !slices.Contains(n.Files("var/lib/cni/multinet"), "c1@second@eth0.json") {
		t.Fatalf("there is no mark: %q", n.Files("var/lib/cni/multinet"))
	}
	nodetest.Equal(t, "findings", n.findings(), nil)
}

// A file system without a size, such as ramfs, is not full.
func TestDiskWithoutSizeIsNotFull(t *testing.T) {
	t.Parallel()
	n := Node{StateDir: "/proc/self/fd"}
	n.lookAtDisk()
	nodetest.Equal(t, "findings", n.findings, nil)
}

// state gives a record another state, and another time of its last change.
func (n *node) state(id string, s scratch.State, in time.Duration) {
	n.Helper()
	name := "var/lib/cni/multinet/" + id + "@multinet@eth0.json"
	lines := strings.Split(strings.TrimSpace(n.Read(name)), "\n")
	_, text, _ := strings.Cut(lines[0], " ") // the first line has the whole value
	var keys map[string]any
	nodetest.OK(n, json.Unmarshal([]byte(text), &keys))
	keys["state"], keys["updated"] = s, time.Now().Add(in).UTC()
	line, err := json.Marshal(keys)
	nodetest.OK(n, err)
	sum := sha256.Sum256(line)
	n.Write(name, fmt.Sprintf("%x %s\n", sum[:8], line))
}

// shim publishes the network of the daemon.
func (n *node) shim() {
	n.Helper()
	n.Write("etc/cni/net.d/00-multinet.conflist", strings.Replace(published, `"multinet","capabilities"`, `"multinet-shim","capabilities"`, 1))
	nodetest.OK(n, os.Rename(n.Path("opt/cni/bin/multinet"), n.Path("opt/cni/bin/multinet-shim")))
}

// serve serves as a daemon of a version.
func (n *node) serve(version string, ready int) {
	n.Helper()
	nodetest.OK(n, os.MkdirAll(n.Path("run/multus"), 0o700))
	l, err := net.Listen("unix", n.Path("run/multus/multus.sock"))
	nodetest.OK(n, err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/info" && version != "" {
			_ = json.NewEncoder(w).Encode(map[string]any{"version": version})
			return
		}
		w.WriteHeader(ready)
		_, _ = io.WriteString(w, "because")
	})}
	go func() { _ = server.Serve(l) }()
	n.Cleanup(func() { _ = server.Close() })
}
