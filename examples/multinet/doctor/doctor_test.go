package doctor

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
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
	n.put("etc/containerd/config.toml", containerd)
	n.put("etc/cni/net.d/00-multinet.conflist", published)
	n.put("etc/cni/net.d/10-blue.conflist", blue)
	n.put("var/lib/cni/results/.keep", "")
	for _, name := range []string{"multinet", "bridge", "host-local", "loopback"} {
		n.put("opt/cni/bin/"+name, "#!/bin/sh\n")
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
	n.attach("c1")
	return n
}

// put writes a file and its directories.
func (n *node) put(name, text string) {
	n.Helper()
	nodetest.OK(n, os.MkdirAll(filepath.Dir(n.Path(name)), 0o700))
	n.Write(name, text)
}

// change changes the cluster network, and publishes it again.
func (n *node) change(blue2 string) {
	n.Helper()
	n.put("etc/cni/net.d/10-blue.conflist", blue2)
	n.put("etc/cni/net.d/00-multinet.conflist", strings.Replace(published, blue, blue2, 1))
}

func (n *node) remove(names ...string) {
	n.Helper()
	for _, name := range names {
		nodetest.OK(n, os.RemoveAll(n.Path(name)))
	}
}

// attach attaches a container to blue, as an ADD does.
func (n *node) attach(id string) {
	n.Helper()
	n.attachTo(id, blue, "10.9.0.2")
}

// attachTo attaches a container to a network, which gives it an address.
func (n *node) attachTo(id, network, address string) {
	n.Helper()
	ip := net.IPNet{IP: net.ParseIP(address), Mask: net.CIDRMask(128, 128)}
	if v4 := ip.IP.To4(); v4 != nil {
		ip = net.IPNet{IP: v4, Mask: net.CIDRMask(24, 32)}
	}
	n.Exec.Plugins["bridge"] = delegatetest.Result(&types100.Result{CNIVersion: "1.0.0", IPs: []*types100.IPConfig{{Address: ip}}})
	life := &lifecycle.Manager{Dir: n.doctor.StateDir, Root: n.Dir, Invoker: &delegate.Invoker{Exec: n.Exec}, InterfaceNames: func(string) ([]string, error) { return nil, nil }}
	a := delegate.Attachment{Network: nodetest.Parse(network), ContainerID: id, IfName: "eth0", NetNS: "/run/netns/" + id}
	_, err := life.Add(n.Context(), scratch.Key{Network: "multinet", ContainerID: id, IfName: "eth0"}, lifecycle.Transaction{Plan: lifecycle.Plan(a)})
	nodetest.OK(n, err)
	n.cached(id, "multinet", published)
}

// cached writes what libcni records of a container.
func (n *node) cached(id, network, conf string) {
	n.Helper()
	n.put("var/lib/cni/results/"+network+"-"+id+"-eth0", fmt.Sprintf(`{"kind":"cniCacheV1","containerId":%q,"config":%q,"ifName":"eth0","networkName":%q,"netns":%q}`,
		id, base64.StdEncoding.EncodeToString([]byte(conf)), network, "/run/netns/"+id))
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

func TestEachFlawIsItsFinding(t *testing.T) {
	t.Parallel()
	number, machine := alien()
	const (
		netD = "etc/cni/net.d/"
		bin  = "opt/cni/bin/"
		ours = netD + "00-multinet.conflist"
	)
	for name, tt := range map[string]struct {
		flaw func(n *node)
		want []string // the beginnings of findings
	}{
		"no configuration of a runtime": {
			func(n *node) { n.remove("etc/containerd") },
			[]string{"runtimes unknown /etc: no configuration"},
		},
		"a runtime that reads other directories": {
			func(n *node) {
				n.put("etc/containerd/config.toml", strings.ReplaceAll(containerd, "/etc/cni/net.d", "/var/net.d"))
			},
			[]string{"runtimes fatal /etc/containerd/config.toml: containerd reads networks in /var/net.d, plugins in /opt/cni/bin, not in /etc/cni/net.d"},
		},
		"a runtime that reads other directories than the chosen one": {
			func(n *node) {
				n.doctor.Publisher.Dir, n.doctor.Publisher.Output = "/etc/net.d", "/etc/net.d/00-multinet"
				nodetest.OK(n, os.Rename(n.Path("etc/cni/net.d"), n.Path("etc/net.d")))
				n.put("etc/containerd/config.toml", strings.ReplaceAll(containerd, "/etc/cni/net.d", "/var/net.d"))
			},
			[]string{"runtimes problem /etc/containerd/config.toml: containerd reads networks in /var/net.d"},
		},
		"another runtime that reads other directories": {
			func(n *node) {
				n.put("var/lib/rancher/k3s/agent/etc/containerd/config.toml", strings.ReplaceAll(containerd, "/etc/cni/net.d", "/var/net.d"))
			},
			[]string{"runtimes unknown /var/lib/rancher/k3s/agent/etc/containerd/config.toml: k3s reads networks in /var/net.d"},
		},
		"plugins in another directory": {
			func(n *node) {
				n.put("etc/containerd/config.toml", strings.ReplaceAll(containerd, "/opt/cni/bin", "/opt/bin"))
			},
			[]string{
				"runtimes problem /etc/containerd/config.toml: containerd reads networks in /etc/cni/net.d, plugins in /opt/bin, not in /opt/cni/bin",
				`plugins fatal /etc/cni/net.d/00-multinet.conflist: plugin "multinet": not found in /opt/bin`,
			},
		},
		"the directory by another name": {
			func(n *node) {
				nodetest.OK(n, os.Symlink("/etc/cni", n.Path("etc/link")))
				n.put("etc/containerd/config.toml", strings.ReplaceAll(containerd, "/etc/cni/net.d", "/etc/link/net.d"))
			},
			nil,
		},
		"a runtime that runs no pods": {
			func(n *node) { n.put("etc/containerd/config.toml", "disabled_plugins = [\"cri\"]\n") },
			[]string{"runtimes problem /etc/containerd/config.toml: containerd runs no pods: disabled_plugins has its CRI plugin"},
		},
		"a runtime that runs no pods, by an import, of version 3": {
			func(n *node) {
				n.put("etc/containerd/config.toml", "version = 3\nimports = ['conf.d/*.toml']\n")
				n.put("etc/containerd/conf.d/a.toml", "version = 3\ndisabled_plugins = ['io.containerd.cri.v1.runtime']\n")
			},
			[]string{"runtimes problem /etc/containerd/conf.d/a.toml: containerd runs no pods"},
		},
		"containerd of docker beside cri-dockerd": {
			func(n *node) {
				n.put("etc/containerd/config.toml", "disabled_plugins = [\"cri\"]\n")
				n.put("run/cri-dockerd.sock", "")
			},
			[]string{"runtimes unknown /etc: no configuration"},
		},
		"a runtime that takes two networks": {
			func(n *node) { n.put("etc/containerd/config.toml", containerd+"max_conf_num = 2\n") },
			[]string{"runtimes problem /etc/containerd/config.toml: containerd attaches pods to more networks than the first (max_conf_num, cni_max_conf_num: 2)"},
		},
		"a runtime that takes all networks, of version 3": {
			func(n *node) {
				n.put("etc/containerd/config.toml", "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nmax_conf_num = 0\n")
			},
			[]string{"runtimes problem /etc/containerd/config.toml: containerd attaches pods to more networks"},
		},
		"a default runtime class with a directory of its own": {
			func(n *node) {
				n.put("etc/containerd/config.toml", containerd+"[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = 'crun'\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.crun]\ncni_conf_dir = '/etc/cni/crun'\n")
			},
			[]string{"runtimes fatal /etc/containerd/config.toml: containerd reads networks in /etc/cni/crun"},
		},
		"another runtime class with a directory of its own": {
			func(n *node) {
				n.put("etc/containerd/config.toml", containerd+"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.kata]\ncni_conf_dir = '/etc/cni/kata'\ncni_max_conf_num = 3\n")
			},
			nil,
		},
		"no loopback, containerd 1.x": {
			func(n *node) { n.remove(bin + "loopback") },
			[]string{"runtimes problem /etc/containerd/config.toml: containerd runs the plugin loopback for each pod, which is not in /opt/cni/bin"},
		},
		"no subnet file of flannel": {
			func(n *node) {
				n.remove("run")
				nodetest.OK(n, os.MkdirAll(n.Path("run"), 0o700))
				n.change(flannel)
				nodetest.OK(n, os.Symlink("bridge", n.Path(bin+"flannel")))
			},
			[]string{
				`files problem /etc/cni/net.d/10-blue.conflist: plugin "flannel": /run/flannel/subnet.env is not there`,
			},
		},
		"kubeconfigs that are missing": {
			func(n *node) {
				n.change(strings.Replace(blue, `"bridge",`, `"bridge","kubernetes":{"kubeconfig":"/etc/cni/net.d/calico-kubeconfig"},`, 1))
				n.put("etc/cni/multinet/net.d/w.conf", `{"cniVersion":"1.0.0","name":"w","type":"bridge","ipam":{"type":"host-local","kubernetes":{"kubeconfig":"/etc/cni/net.d/w.d/w.kubeconfig"}}}`)
			},
			[]string{
				`files problem /etc/cni/net.d/10-blue.conflist: plugin "bridge": /etc/cni/net.d/calico-kubeconfig, which the key kubeconfig names, is not there`,
				`files problem /etc/cni/multinet/net.d/w.conf: plugin "bridge": /etc/cni/net.d/w.d/w.kubeconfig, which the key kubeconfig names, is not there`,
			},
		},
		"a range that leaked leases have filled": {
			func(n *node) {
				n.change(small)
				n.put("var/lib/cni/networks/blue/10.9.0.2", "c1\r\neth0")
				n.put("var/lib/cni/networks/blue/10.9.0.3", "gone\r\neth0")
				n.put("var/lib/cni/networks/blue/last_reserved_ip.0", "10.9.0.3")
			},
			[]string{"leases problem /etc/cni/net.d/10-blue.conflist: at most one address of \"blue\" from 10.9.0.1 to 10.9.0.3 is free; in /var/lib/cni/networks/blue are leases of containers without a record, 1: 10.9.0.3"},
		},
		"a range that is full of containers": {
			func(n *node) {
				n.change(small)
				n.attachTo("c2", blue, "10.9.0.3")
				n.put("var/lib/cni/networks/blue/10.9.0.2", "c1\r\neth0")
				n.put("var/lib/cni/networks/blue/10.9.0.3", "c2\r\neth0")
			},
			nil,
		},
		"a range with a free address": {
			func(n *node) {
				n.change(small)
				n.put("var/lib/cni/networks/blue/10.9.0.3", "gone\r\neth0")
			},
			nil,
		},
		"a configuration that cannot be read": {
			func(n *node) {
				n.remove("etc/containerd/config.toml")
				nodetest.OK(n, unix.Mkfifo(n.Path("etc/containerd/config.toml"), 0o600))
			},
			[]string{`runtimes problem /etc/containerd/config.toml: invalid configuration: file "etc/containerd/config.toml": not a regular file`, "runtimes unknown /etc"},
		},
		"no directory of networks": {
			func(n *node) { n.remove("etc/cni") },
			[]string{"first problem /etc/cni/net.d: "},
		},
		"no network": {
			func(n *node) { n.remove(ours, netD+"10-blue.conflist") },
			[]string{"first problem /etc/cni/net.d: there is no network"},
		},
		"not published": {
			func(n *node) { n.remove(ours) },
			[]string{"first problem /etc/cni/net.d: 10-blue.conflist is first: 00-multinet.conflist is not there"},
		},
		"another network first": {
			func(n *node) { n.put(netD+"00-a.conf", blue) },
			[]string{"first problem /etc/cni/net.d: 00-a.conf is first, as it sorts before 00-multinet.conflist"},
		},
		"a broken file of ours": {
			func(n *node) { n.put(ours, "{") },
			[]string{"first problem /etc/cni/net.d: 00-multinet.conflist is first, and cannot be used: "},
		},
		"no cluster network": {
			func(n *node) { n.put(netD+"10-blue.conflist", "{") },
			[]string{"first problem /etc/cni/net.d: find \"/etc/cni/net.d\": no primary network"},
		},
		"a plugin that is missing": {
			func(n *node) { n.remove(bin + "bridge") },
			[]string{`plugins fatal /etc/cni/net.d/10-blue.conflist: plugin "bridge": not found in /opt/cni/bin`},
		},
		"an IPAM plugin that is not executable": {
			func(n *node) { nodetest.OK(n, os.Chmod(n.Path(bin+"host-local"), 0o644)) },
			[]string{`plugins fatal /etc/cni/net.d/10-blue.conflist: plugin "host-local": not found in /opt/cni/bin; /opt/cni/bin/host-local is not a file that can be executed`},
		},
		"a plugin that is a directory": {
			func(n *node) {
				n.remove(bin + "bridge")
				nodetest.OK(n, os.Mkdir(n.Path(bin+"bridge"), 0o700))
			},
			[]string{`plugins fatal /etc/cni/net.d/10-blue.conflist: plugin "bridge": not found in /opt/cni/bin; /opt/cni/bin/bridge is not a file that can be executed`},
		},
		"a plugin that is a link to nothing": {
			func(n *node) {
				n.remove(bin + "bridge")
				nodetest.OK(n, os.Symlink("/nowhere", n.Path(bin+"bridge")))
			},
			[]string{`plugins fatal /etc/cni/net.d/10-blue.conflist: plugin "bridge": not found in /opt/cni/bin; /opt/cni/bin/bridge is a link to nothing`},
		},
		"a plugin that is empty": {
			func(n *node) { n.put(bin+"bridge", "") },
			[]string{`plugins fatal /etc/cni/net.d/10-blue.conflist: plugin "bridge": /opt/cni/bin/bridge is neither a program nor a script`},
		},
		"a plugin that is cut off": {
			func(n *node) { n.put(bin+"bridge", elf(number)[:19]) },
			[]string{`plugins fatal /etc/cni/net.d/10-blue.conflist: plugin "bridge": /opt/cni/bin/bridge is cut off`},
		},
		"a script without its interpreter": {
			func(n *node) {
				n.put("usr/bin/env", "")
				n.put(bin+"bridge", "#! /usr/bin/python4 -u\n")
				n.put(bin+"host-local", "#!/usr/bin/env python3\n")
			},
			[]string{`plugins fatal /etc/cni/net.d/10-blue.conflist: plugin "bridge": /opt/cni/bin/bridge is a script for /usr/bin/python4, which is not there`},
		},
		"a plugin of another architecture": {
			func(n *node) { n.put(bin+"bridge", elf(number)) },
			[]string{`plugins fatal /etc/cni/net.d/10-blue.conflist: plugin "bridge": /opt/cni/bin/bridge is for ` + machine},
		},
		"a plugin in a directory of the runtime": {
			func(n *node) {
				n.put("etc/containerd/config.toml", strings.ReplaceAll(containerd, `bin_dir = "/opt/cni/bin"`, `bin_dirs = ["/opt/cni/bin", "/opt/more"]`))
				nodetest.OK(n, os.Mkdir(n.Path("opt/more"), 0o700))
				nodetest.OK(n, os.Rename(n.Path(bin+"bridge"), n.Path("opt/more/bridge")))
			},
			nil,
		},
		"a plugin in the default of binDir": {
			func(n *node) {
				n.doctor.BinDir = "/opt/more"
				n.put("etc/containerd/config.toml", strings.ReplaceAll(containerd, "/opt/cni/bin", "/opt/more"))
				nodetest.OK(n, os.Mkdir(n.Path("opt/more"), 0o700))
				nodetest.OK(n, os.Rename(n.Path(bin+"multinet"), n.Path("opt/more/multinet")))
				nodetest.OK(n, os.Rename(n.Path(bin+"loopback"), n.Path("opt/more/loopback")))
			},
			nil,
		},
		"no program of ours": {
			func(n *node) { n.remove(bin + "multinet") },
			[]string{`plugins fatal /etc/cni/net.d/00-multinet.conflist: plugin "multinet": not found`},
		},
		"networks of multinet": {
			func(n *node) {
				n.put("etc/cni/multinet/net.d/storage.conf", `{"cniVersion":"1.0.0","name":"storage","type":"macvlan"}`)
				n.put("etc/cni/multinet/net.d/z.conf", "{")
			},
			[]string{`plugins problem /etc/cni/multinet/net.d/storage.conf: plugin "macvlan": not found`, "plugins problem /etc/cni/multinet/net.d/z.conf: "},
		},
		"a plugin that may be a resident one": {
			func(n *node) {
				n.doctor.Residents = true
				n.put("etc/cni/multinet/net.d/storage.conf", `{"cniVersion":"1.0.0","name":"storage","type":"macvlan"}`)
			},
			[]string{`plugins unknown /etc/cni/multinet/net.d/storage.conf: plugin "macvlan": not found`},
		},
		"no annotations": {
			func(n *node) { n.put(ours, strings.ReplaceAll(published, "true", "false")) },
			[]string{"annotations problem /etc/cni/net.d/00-multinet.conflist: no capability io.kubernetes.cri.pod-annotations"},
		},
		"Cilium has renamed ours": {
			func(n *node) { nodetest.OK(n, os.Rename(n.Path(ours), n.Path(ours+".cilium_bak"))) },
			[]string{"first problem", "cilium fatal /etc/cni/net.d: Cilium has renamed 00-multinet.conflist"},
		},
		"Cilium has renamed another": {
			func(n *node) { n.put(netD+"87-podman.conflist.cilium_bak", "") },
			[]string{"cilium problem /etc/cni/net.d: Cilium has renamed networks, and may rename 00-multinet.conflist, 1: 87-podman.conflist.cilium_bak"},
		},
		"Cilium renames its own": {
			func(n *node) { n.put(netD+"05-cilium.conf.cilium_bak", "") },
			nil,
		},
		"Cilium is the cluster network": {
			func(n *node) {
				nodetest.OK(n, os.Rename(n.Path(netD+"10-blue.conflist"), n.Path(netD+"05-cilium.conflist")))
			},
			[]string{"cilium unknown /etc/cni/net.d: Cilium is the cluster network, and may rename 00-multinet.conflist"},
		},
		"Multus": {
			func(n *node) { n.put(netD+"20-multus.conf", `{"cniVersion":"1.0.0","name":"multus","type":"multus"}`) },
			[]string{"chain problem /etc/cni/net.d/20-multus.conf: multus is a meta-plugin too"},
		},
		"ours in ours": {
			func(n *node) {
				n.put(ours, strings.Replace(published, `"type":"bridge"`, `"type":"some","delegate":{"type":"multinet"}`, 1))
			},
			[]string{"first problem /etc/cni/net.d: 00-multinet.conflist has an older copy of 10-blue.conflist", "chain problem /etc/cni/net.d/00-multinet.conflist: multinet is a meta-plugin too"},
		},
		"Istio in our file": {
			func(n *node) { n.put(ours, strings.TrimSuffix(published, "]}")+`,{"type":"istio-cni"}]}`) },
			[]string{"chain problem /etc/cni/net.d/00-multinet.conflist: istio-cni is chained to this network"},
		},
		"Istio in a file that no pod gets": {
			func(n *node) {
				n.put(netD+"20-x.conflist", strings.TrimSuffix(blue, "]}")+`,{"type":"istio-cni"}]}`)
			},
			[]string{"chain problem /etc/cni/net.d/20-x.conflist: istio-cni is chained to this network"},
		},
		"Istio in the cluster network": {
			func(n *node) {
				nodetest.OK(n, os.Symlink("bridge", n.Path(bin+"istio-cni")))
				n.change(strings.TrimSuffix(blue, "]}") + `,{"type":"istio-cni"}]}`)
			},
			nil,
		},
		"Istio twice": {
			func(n *node) {
				nodetest.OK(n, os.Symlink("bridge", n.Path(bin+"istio-cni")))
				n.change(strings.TrimSuffix(blue, "]}") + `,{"type":"istio-cni"},{"type":"istio-cni"}]}`)
			},
			[]string{"chain problem /etc/cni/net.d/10-blue.conflist: istio-cni is in the chain twice"},
		},
		"a key that stands twice": {
			func(n *node) {
				n.change(strings.Replace(blue, `{"type"`, `{"type":"bridge","type"`, 1))
				n.put("/etc/cni/multinet/net.d/x.conf", `{"name":"x","type":"bridge","mtu":1,"mtu":1}`)
			},
			[]string{
				`plugins problem /etc/cni/multinet/net.d/x.conf: key "mtu" is given twice, with one value`,
				`chain problem /etc/cni/net.d/10-blue.conflist: key "plugins[0].type" is given twice, with one value`,
			},
		},
		"a list in a file of one plugin": {
			func(n *node) { n.put("/etc/cni/multinet/net.d/x.conf", strings.ReplaceAll(blue, "blue", "x")) },
			[]string{`plugins problem /etc/cni/multinet/net.d/x.conf: invalid configuration: file "x.conf", network "x", key "type": missing, and programs read this file as one plugin: end the name of a list with .conflist`},
		},
		"a cluster network that has changed": {
			func(n *node) {
				n.put(netD+"10-blue.conflist", strings.Replace(blue, `"bridge"`, `"bridge","mtu":1400`, 1))
			},
			[]string{"first problem /etc/cni/net.d: 00-multinet.conflist has an older copy of 10-blue.conflist"},
		},
		"a chosen cluster network": {
			func(n *node) {
				red := strings.Replace(blue, "blue", "red", 1)
				n.put(netD+"20-red.conflist", red)
				n.put(netD+"10-blue.conflist", strings.Replace(blue, "bridge", "absent", 1))
				n.put(ours, strings.Replace(published, blue, red, 1))
			},
			[]string{"first unknown /etc/cni/net.d: 00-multinet.conflist is first, in front of 20-red.conflist and not of 10-blue.conflist"},
		},
		"a directory among files of CRI-O": {
			func(n *node) { n.put("etc/crio/crio.conf.d/old/x.conf", "[crio.network]\nnetwork_dir = \"/no\"\n") },
			nil,
		},
		"a runtime that takes a network by name": {
			func(n *node) { n.put("etc/crio/crio.conf", "[crio.network]\ncni_default_network = \"blue\"\n") },
			[]string{`runtimes problem /etc/crio/crio.conf: CRI-O takes the network "blue", and not the first`},
		},
		"a runtime that takes ours by name": {
			func(n *node) { n.put("etc/crio/crio.conf", "[crio.network]\ncni_default_network = \"multinet\"\n") },
			nil,
		},
		"a root directory that is none": {
			func(n *node) {
				nodetest.OK(n, unix.Mkfifo(n.Path("fifo"), 0o600))
				n.doctor.Publisher.Root = n.Path("fifo")
			},
			[]string{"root fatal $DIR/fifo: not a directory"},
		},
		"a root directory that is absent": {
			func(n *node) { n.doctor.Publisher.Root = n.Path("absent") },
			[]string{"root fatal $DIR/absent: no such file or directory"},
		},
		"a directory of records that others can use": {
			func(n *node) { nodetest.OK(n, os.Chmod(n.doctor.StateDir, 0o755)) },
			[]string{"disk problem /var/lib/cni/multinet: has the mode 0755"},
		},
		"a file instead of the directory of records": {
			func(n *node) {
				n.remove("var/lib/cni/multinet")
				n.put("var/lib/cni/multinet", "")
			},
			[]string{"records problem /var/lib/cni/multinet: list", "cache unknown"},
		},
		"no records yet": {
			func(n *node) { n.remove("var/lib/cni/multinet", "var/lib/cni/results") },
			nil,
		},
		"a container that is dead": {
			func(n *node) { n.Restarted("var/lib/cni/multinet") },
			[]string{"records problem /var/lib/cni/multinet: records of containers that are dead, or half attached, 1: c1"},
		},
		"a damaged record": {
			func(n *node) { n.put("var/lib/cni/multinet/c1@multinet@eth0.json", "{") },
			[]string{"records problem /var/lib/cni/multinet: records that cannot be read, 1: c1"},
		},
		"many damaged records": {
			func(n *node) {
				for i := range 5 {
					n.put(fmt.Sprintf("var/lib/cni/multinet/d%d@multinet@eth0.json", i), "{")
				}
			},
			[]string{"records problem /var/lib/cni/multinet: records that cannot be read, 5: d0, d1, d2"},
		},
		"a record of the future": {
			func(n *node) { n.state("c1", scratch.Added, time.Hour) },
			[]string{"records problem /var/lib/cni/multinet: records of the future: the clock has been set back, 1: c1"},
		},
		"a leftover":                         {func(n *node) { n.state("c1", scratch.Leftover, 0) }, []string{"records problem /var/lib/cni/multinet: records with something left of an ADD that failed, 1: c1"}},
		"a DEL that runs":                    {func(n *node) { n.state("c1", scratch.Deleting, -inTime/2) }, nil},
		"a DEL that has not run for a while": {func(n *node) { n.state("c1", scratch.Deleting, -2*inTime) }, []string{"records problem /var/lib/cni/multinet: records of containers that are dead, or half attached, 1: c1"}},
		"a container without a record": {
			func(n *node) {
				n.cached("c2", "multinet", published)
			},
			[]string{"cache problem /var/lib/cni/results: containers of multinet without a record, 1: c2"},
		},
		"a container of the cluster network": {
			func(n *node) {
				n.cached("c2", "blue", blue)
			},
			[]string{"cache problem /var/lib/cni/results: containers of the cluster network without a record, 1: c2"},
		},
		"an entry that cannot be read": {
			func(n *node) { n.put("var/lib/cni/results/multinet-c2-eth0", "{") },
			[]string{"cache problem /var/lib/cni/results: entries that cannot be read, 1: /var/lib/cni/results/multinet-c2-eth0"},
		},
		"no daemon": {
			func(n *node) {
				n.shim()
				n.put("var/lib/cni/multinet.queue/x.json", "")
				n.put("var/lib/cni/multinet.queue/y.corrupt", "")
			},
			[]string{
				"daemon problem /run/multus/multus.sock: no daemon answers", "daemon problem /var/lib/cni/multinet.queue: queued DELs that cannot be read, 1: y.corrupt",
				"daemon problem /var/lib/cni/multinet.queue: queued DELs, 1: x.json",
			},
		},
		"another daemon": {
			func(n *node) { n.shim(); n.serve("", http.StatusOK) },
			[]string{"daemon problem /run/multus/multus.sock: another program answers there"},
		},
		"a daemon that is not ready": {
			func(n *node) { n.shim(); n.serve("v1.0.0", http.StatusServiceUnavailable) },
			[]string{"daemon problem /run/multus/multus.sock: not ready: because"},
		},
		"a daemon of another version": {
			func(n *node) { n.shim(); n.serve("v2.0.0", http.StatusOK) },
			[]string{"daemon problem /run/multus/multus.sock: multinetd is of version v2.0.0, this program of v1.0.0"},
		},
		"a daemon that is ready": {
			func(n *node) {
				n.shim()
				n.serve("v1.0.0", http.StatusOK)
				n.put("var/lib/cni/multinet.queue/x.json", "")
			},
			nil,
		},
		"our program of another version": {
			func(n *node) {
				n.put(bin+"multinet", "#!\nmod\tgithub.com/metacni/metacni\tv2.0.0\t\n")
			},
			[]string{"version problem /opt/cni/bin/multinet: is of version v2.0.0, this program of v1.0.0"},
		},
		"the shim of this version": {
			func(n *node) {
				n.shim()
				n.serve("v1.0.0", http.StatusOK)
				n.put(bin+"multinet-shim", "#!\nmod\n\nmod\tgithub.com/metacni/metacni/examples/multinet-shim\tv1.0.0\t\n")
			},
			nil,
		},
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
		"a large subnet":            {ipam: `{"type":"host-local","subnet":"10.9.0.0/24"}`, addresses: []string{"10.9.0.2", "10.9.0.3"}},
		"a small subnet":            {ipam: `{"type":"host-local","subnet":"10.9.0.0/28"}`, addresses: []string{"10.9.0.2", "10.9.0.3"}, problem: `2 of 14 addresses of "blue", from 10.9.0.1 to 10.9.0.14`},
		"a tenth of a range":        {ipam: `{"type":"host-local","ranges":[[{"subnet":"10.9.0.0/16","rangeStart":"10.9.1.1","rangeEnd":"10.9.1.10"}]]}`, addresses: []string{"10.9.1.5"}, problem: "1 of 10 addresses"},
		"less than a tenth":         {ipam: `{"type":"host-local","ranges":[[{"subnet":"10.9.0.0/16","rangeStart":"10.9.1.1","rangeEnd":"10.9.1.11"}]]}`, addresses: []string{"10.9.1.5"}},
		"addresses outside":         {ipam: `{"type":"host-local","subnet":"10.8.0.0/28"}`, addresses: []string{"10.9.0.2", "10.9.0.3"}},
		"one address twice":         {ipam: `{"type":"host-local","subnet":"10.9.0.0/28"}`, addresses: []string{"10.9.0.2", "10.9.0.2"}},
		"one address of a range":    {ipam: `{"type":"host-local","rangeStart":"10.9.0.2","rangeEnd":"10.9.0.3","subnet":"10.9.0.0/28"}`, addresses: []string{"10.9.0.2"}, problem: "1 of 2"},
		"IPv6":                      {ipam: `{"type":"host-local","ranges":[[{"subnet":"fd00::/64"}],[{"subnet":"fd01::/125"}]]}`, addresses: []string{"fd00::2", "fd01::2"}, problem: `1 of 7 addresses of "blue", from fd01::1 to fd01::7`},
		"another IPAM plugin":       {ipam: `{"type":"whereabouts","range":"10.9.0.0/28","subnet":"10.9.0.0/28"}`, addresses: []string{"10.9.0.2", "10.9.0.3"}},
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
	for why, rights := range map[string]bool{
		"no network namespace was seen when it was recorded":                                                                        false,
		"it takes CAP_SYS_ADMIN and CAP_SYS_PTRACE outside of user namespaces to see all processes":                                 true,
		"its network namespace is not at its path, and may be elsewhere: this process sees only the processes of its PID namespace": true,
	} {
		order := []string{"let the runtime", "run it as root in the initial PID namespace", gc}
		if !rights {
			order = slices.Delete(order, 1, 2)
		}
		todo, at := Undecided(why, gc), -1
		for _, words := range order {
			if i := strings.Index(todo, words); i <= at {
				t.Errorf("%q: %q", why, todo)
			} else {
				at = i
			}
		}
		nodetest.Equal(t, why, strings.Count(todo, "root"), len(order)-2)
		n := Node{judged: []judged{{lifecycle.Record{State: scratch.Added}, lifecycle.Judgement{Why: why}}, {lifecycle.Record{State: scratch.Added}, lifecycle.Judgement{Why: why}}}}
		n.lookAtUnknown()
		nodetest.Equal(t, why, len(n.findings) == 2 && strings.Contains(n.findings[1].Found, "cannot prove"), rights)
	}
}

// A network that others may use is named, with the reason, and is no problem.
func TestSharedNetworksAreNamed(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.put("etc/containers/networks/blue.json", "{}")
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
	if n.findings != nil {
		t.Errorf("findings %+v", n.findings)
	}
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
	n.put(name, fmt.Sprintf("%x %s\n", sum[:8], line))
}

// shim publishes the network of the daemon.
func (n *node) shim() {
	n.Helper()
	n.put("etc/cni/net.d/00-multinet.conflist", strings.Replace(published, `"multinet","capabilities"`, `"multinet-shim","capabilities"`, 1))
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
