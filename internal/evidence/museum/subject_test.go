package museum

import (
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/metacni/metacni/delegate/conform/host"
	"github.com/metacni/metacni/delegate/thick/wire"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/internal/test/process"
)

// A subject attaches containers to networks, as the runtime asks it to.
type subject struct {
	name   string
	column column // of the table
	path   string // of the executable
	// conf returns the configuration of the runtime for the networks of a pod. Nil: the subject is
	// cnitool, which is the runtime itself.
	conf  func(n *node, p *pod) object
	state func(n *node) string // the directory of its state
}

// A column of the table.
type column int

const (
	ours column = iota
	libcni
	multus
	flannel
	columns
)

func (s subject) cnitool() bool { return s.conf == nil }

var peers = process.Peers()

// subjects returns ours, cnitool, and those of -peer that are multus or flannel.
func subjects() map[string]subject {
	own := func(n *node) string { return n.File("state") }
	all := []subject{
		{"multinet", ours, built("multinet"), typed("multinet"), own},
		{"flannel", ours, built("flannel"), flannelConf, own},
		{"multinetd", ours, built("multinet-shim"), typed("multinet-shim"), own},
		{"cnitool", libcni, built("cnitool"), nil, func(*node) string { return cacheDir }},
	}
	for _, p := range *peers {
		switch p.Name {
		case "multus":
			all = append(all, subject{"Multus", multus, p.Path, typed("multus"), own})
		case "flannel":
			all = append(all, subject{"flannel's", flannel, p.Path, flannelConf, own})
		}
	}
	byName := map[string]subject{}
	for _, s := range all {
		byName[s.name] = s
	}
	return byName
}

// typed returns configurations of a meta-plugin that attaches to all networks.
func typed(typ string) func(*node, *pod) object {
	return func(n *node, p *pod) object {
		return object{
			"cniVersion": "1.1.0", "name": fmt.Sprintf("multi%d-%s", n.ID, p.IfName), "type": typ, "delegates": p.networks,
			"cniDir": n.File("state"), "confDir": n.File("net.d"), "binDir": host.Programs(),
			"daemonSocketDir": n.File("d"), "delQueueDir": n.File("queue"), "delQueueWait": "0s",
			"capabilities": object{"portMappings": true, "io.kubernetes.cri.pod-annotations": true},
		}
	}
}

// flannelConf is the configuration of flannel for a network of one plugin, whose subnet
// flanneld has given to the node.
func flannelConf(n *node, p *pod) object {
	n.Helper()
	list, _ := p.networks[0]["plugins"].([]object)
	delegate := maps.Clone(list[0])
	ipam, _ := delegate["ipam"].(object)
	ipam = maps.Clone(ipam)
	delete(delegate, "ipam")
	subnet, err := netip.ParsePrefix(fmt.Sprint(ipam["subnet"]))
	nodetest.OK(n, err)
	delete(ipam, "subnet")
	env := n.File(fmt.Sprint(p.networks[0]["name"], ".env"))
	nodetest.OK(n, os.WriteFile(env, fmt.Appendf(nil, "FLANNEL_NETWORK=10.0.0.0/8\nFLANNEL_SUBNET=%s/%d\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n",
		subnet.Addr().Next(), subnet.Bits()), 0o600))
	return object{
		"cniVersion": "1.1.0", "name": p.networks[0]["name"], "type": "flannel",
		"subnetFile": env, "dataDir": n.File("state"), "delegate": delegate, "ipam": ipam,
	}
}

// start starts a command for p as its runtime does: containerd's calls, or cnitool.
func (n *node) start(name string, p *pod, valid ...*pod) *command {
	n.Helper()
	if n.subject.cnitool() {
		return n.startCnitool(name, p)
	}
	conf := n.subject.conf(n, p)
	if p.ports != 0 {
		conf["runtimeConfig"] = object{"portMappings": mapping(p)}
	}
	if name == "DEL" && p.Result != nil {
		conf["prevResult"] = p.Result
	}
	env := n.Env(name, &p.Pod)
	if name == "GC" {
		list := []object{}
		for _, v := range valid {
			list = append(list, object{"containerID": v.ID, "ifname": v.IfName})
		}
		conf["cni.dev/valid-attachments"] = list
	} else if p.gone {
		env["CNI_NETNS"] = ""
	}
	stdin, err := json.Marshal(conf)
	nodetest.OK(n, err)
	return n.exec(env, stdin, n.subject.path)
}

func mapping(p *pod) []object {
	return []object{{"hostPort": p.ports, "containerPort": 80, "protocol": "tcp"}}
}

// cacheDir is where cnitool keeps what it has attached.
const cacheDir = "/var/lib/cni/results"

// cacheDisk is held exclusively by a script that fills the disk of cacheDir.
var cacheDisk sync.RWMutex

// lockCache is for a command of cnitool, and for a look into cacheDir.
func (n *node) lockCache() (unlock func()) {
	if n.alone || !n.subject.cnitool() {
		return func() {}
	}
	cacheDisk.RLock()
	return cacheDisk.RUnlock
}

// cnitoolID is the container's ID that cnitool derives from its namespace.
func cnitoolID(netns string) string {
	sum := sha512.Sum512([]byte(netns))
	return fmt.Sprintf("cnitool-%x", sum[:10])
}

// startCnitool starts cnitool with the first network, which it reads from a directory.
func (n *node) startCnitool(name string, p *pod) *command {
	n.Helper()
	dir := n.File("cnitool")
	nodetest.OK(n, os.RemoveAll(dir))
	nodetest.OK(n, os.MkdirAll(dir, 0o700))
	network := "none"
	if len(p.networks) > 0 {
		network = fmt.Sprint(p.networks[0]["name"])
		text, err := json.Marshal(p.networks[0])
		nodetest.OK(n, err)
		nodetest.OK(n, os.WriteFile(filepath.Join(dir, "net.conflist"), text, 0o600))
	}
	env := map[string]string{"NETCONFPATH": dir, "CNI_PATH": host.Programs(), "PATH": process.Path, "CNI_IFNAME": p.IfName}
	if p.ports != 0 {
		text, err := json.Marshal(object{"portMappings": mapping(p)})
		nodetest.OK(n, err)
		env["CAP_ARGS"] = string(text)
	}
	unlock := n.lockCache()
	c := n.exec(env, nil, n.subject.path, strings.ToLower(name), network, p.NetNS)
	c.ended = unlock
	return c
}

// gc tells the subject of p's configuration which pods are valid.
func (n *node) gc(p *pod, valid ...*pod) {
	n.Helper()
	if err := n.start("GC", p, valid...).wait(); err != nil {
		n.Logf("%s GC: %v", n.subject.name, err)
		n.lose("GC fails")
	}
}

// boot starts the daemon of the subject, if it has one, and waits until it serves.
func (n *node) boot(keys object) {
	n.Helper()
	if n.subject.name != "multinetd" {
		return
	}
	conf := object{"socketDir": n.File("d"), "queueDir": n.File("queue"), "cniDir": n.File("state"), "logLevel": "error"}
	maps.Copy(conf, keys)
	n.Write(conf, "daemon.json")
	cmd := exec.CommandContext(n.Context(), built("multinetd"), "--config", n.File("daemon.json"))
	cmd.Env = []string{"PATH=" + process.Path}
	n.daemon = n.Serve(n.File("daemon.log"), cmd)
	n.Await(n.daemon, n.File("d", multinet.SocketName), wire.PathReady)
}

// crash kills the daemon.
func (n *node) crash() {
	n.daemon.Kill()
	n.daemon = nil
}
