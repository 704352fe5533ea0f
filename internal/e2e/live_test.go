package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/metacni/metacni/delegate/conform/host"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// TestLiveNodeOfTheRuntime installs multinet on a node with running pods and
// uninstalls it again. Every pod's port answers all the time, and every stopped
// pod leaves nothing.
func TestLiveNodeOfTheRuntime(t *testing.T) {
	n := newLiveNode(t)
	n.network("blue", n.with(n.bridge(1), object{"cniVersion": "1.0.0"}))
	n.Write(n.primary(), "cni", "10-primary.conflist")
	first, second, third := n.startPod(""), n.startPod(""), n.startPod("")
	dead := n.startPod("")
	dead.dies()
	others := filepath.Join("cache", "results", "podman-"+second.ID+"-eth1")
	n.Write(object{
		"kind": "cniCacheV1", "containerId": second.ID, "ifName": "eth1", "networkName": "podman",
		"config": []byte(`{"cniVersion":"1.0.0","name":"podman","plugins":[{"type":"bridge"}]}`),
	}, others)

	n.install()
	for _, p := range []*livePod{first, second, third} {
		p.answers()
		p.check()
	}
	nodetest.Equal(t, "records", n.records(), []string{
		first.ID + " eth0 added", second.ID + " eth0 added", third.ID + " eth0 added", dead.ID + " eth0 added",
	})
	n.operator(0, "gc", "--unknown", "--dir", n.File("state"), "--bin-dir", n.Bin) // nobody has seen its namespace
	dead.isGone()
	n.install() // a second time changes nothing, nor does adopt
	said := n.operator(0, "adopt", "--dir", n.File("state"), "--conf-dir", n.File("cni"), "--cache-dir", n.File("cache"), "--multus-dir", n.File("multus")).Stdout
	if strings.Contains(said, "adopted") || !strings.Contains(said, "recorded") {
		t.Errorf("adopted a second time: %s", said)
	}
	unnoticed := n.startPod("")
	unnoticed.dies()
	n.collect(func() bool { return len(n.records()) == 3 }, "--dir", n.File("state"), "--bin-dir", n.Bin)
	if err := os.Remove(n.File("cache", "results", "multinet-"+unnoticed.ID+"-eth0")); err != nil { // the runtime removes its own entry
		t.Error(err)
	}
	unnoticed.isGone()

	late := n.newPod("") // which the runtime had begun with the old network
	if _, err := n.runtime("cache").AddNetworkList(t.Context(), n.list(n.File("cni", "10-primary.conflist")), late.rt()); err != nil {
		t.Fatal(err)
	}
	late.stop()
	first.stop()
	fourth := n.startPod("blue")
	fourth.answers()
	nodetest.Equal(t, "interfaces", n.interfaces(fourth.pod), []string{"eth0", "net1"})
	fifth := n.startPod("blue")
	fifth.stop()

	if said := n.uninstall(1).Stderr; !strings.Contains(said, "3 containers") {
		t.Errorf("uninstall with containers: %s", said)
	}
	second.stop() // multinet is still installed
	n.uninstall(0, "--detach")
	nodetest.Equal(t, "records", n.records(), nil)
	nodetest.Equal(t, "the first network", n.first().Name, n.chainName(0))
	nodetest.Equal(t, "interfaces", n.interfaces(fourth.pod), []string{"eth0"})
	for _, p := range []*livePod{third, fourth} {
		p.answers()
		p.stop()
	}
	sixth := n.startPod("")
	sixth.answers()
	sixth.stop()
	nodetest.Equal(t, "rules", n.rules(), nil)
	n.nothingLeft()
	if _, err := os.Stat(n.File(others)); err != nil {
		t.Errorf("another program's entry: %v", err)
	}
}

// multus returns a pod that Multus has attached to the primary network and to a
// second one, by libcni with a cache of its own.
func (n *liveNode) multus() *livePod {
	n.Helper()
	p := n.newPod("")
	second := n.with(n.bridge(1), object{"cniVersion": "1.0.0", "name": n.Numbered("second")})
	state := []object{}
	for i, conf := range []object{n.primary(), second} {
		text, err := json.Marshal(conf)
		nodetest.OK(n, err)
		rt := p.rt()
		if i > 0 {
			rt.IfName, rt.CapabilityArgs = "net1", nil
		}
		if conf["plugins"] == nil {
			state = append(state, object{"Conf": conf, "ConfList": object{}, "Name": conf["name"], "Bytes": text})
			text, err = json.Marshal(object{"name": conf["name"], "cniVersion": "1.0.0", "plugins": []object{conf}})
		} else {
			state = append(state, object{"Conf": object{}, "ConfList": conf, "Name": conf["name"], "Bytes": text})
		}
		nodetest.OK(n, err)
		if _, err := n.runtime("multus").AddNetworkList(n.Context(), n.parse(text), rt); err != nil {
			n.Fatalf("ADD %s: %v", p.ID, err)
		}
	}
	n.Write(state, "multus", p.ID)
	n.Write(object{
		"kind": "cniCacheV1", "containerId": p.ID, "ifName": "eth0", "networkName": "multus-cni-network", "netns": p.NetNS,
		"config": []byte(`{"cniVersion":"1.0.0","name":"multus-cni-network","plugins":[{"type":"multus"}]}`),
	}, "cache", "results", "multus-cni-network-"+p.ID+"-eth0")
	return p
}

// TestLiveNodeOfMultus installs multinet on a node whose pods Multus has
// attached. DEL by multinet removes all their networks. uninstall --detach
// removes all but the primary network, whose DEL Multus can do.
func TestLiveNodeOfMultus(t *testing.T) {
	n := newLiveNode(t)
	n.Write(n.primary(), "cni", "10-primary.conflist")
	nodetest.OK(t, os.MkdirAll(n.File("cache", "results"), 0o700))
	first, second, dead := n.multus(), n.multus(), n.multus()
	dead.dies()
	n.install()
	nodetest.Equal(t, "records", n.records(), []string{
		first.ID + " eth0 added", second.ID + " eth0 added", dead.ID + " eth0 added",
	})
	n.operator(0, "gc", "--unknown", "--dir", n.File("state"), "--bin-dir", n.Bin)
	dead.isGone()
	first.answers()
	first.check()
	nodetest.Equal(t, "interfaces", n.interfaces(first.pod), []string{"eth0", "net1"})
	first.stop()

	n.uninstall(0, "--detach", "--multus-dir", n.File("multus"))
	nodetest.Equal(t, "interfaces", n.interfaces(second.pod), []string{"eth0"})
	second.answers()
	nodetest.OK(t, n.runtime("multus").DelNetworkList(t.Context(), n.first(), second.rt()))
	if err := os.Remove(n.File("multus", second.ID)); err != nil { // as Multus does
		t.Error(err)
	}
	second.isGone() // the runtime's cache has nothing of it
	nodetest.Equal(t, "rules", n.rules(), nil)
	n.nothingLeft()
}

// TestLiveNodeOfFlannel: our flannel plugin removes pods that flannel's own
// plugin has attached. It finds flannel's state in the same place as its own.
func TestLiveNodeOfFlannel(t *testing.T) {
	n := newLiveNode(t)
	n.subnetEnv()
	ours := n.flannel("1.0.0", object{"isDefaultGateway": true})
	name := ours["name"]
	delete(ours, "name")
	delete(ours, "cniVersion")
	list := func(first object) object {
		return object{"name": name, "cniVersion": "1.0.0", "plugins": []object{first, n.portmap()}}
	}
	n.Write(list(n.bridge(0)), "cni", "10-flannel.conflist") // as flannel's plugin delegates
	delegated := n.with(n.bridge(0), object{"cniVersion": "1.0.0", "name": name})
	nodetest.OK(t, os.MkdirAll(n.File("flannel"), 0o700))
	var pods []*livePod
	for range 2 {
		p := n.startPod("")
		n.Write(delegated, "flannel", p.ID)
		pods = append(pods, p)
	}
	n.Write(list(ours), "cni", "10-flannel.conflist") // our plugin instead of flannel's
	for _, p := range pods {
		p.answers()
		if err := n.runtime("cache").CheckNetworkList(t.Context(), n.first(), p.rt()); err != nil {
			t.Error(err)
		}
	}
	pods[0].stop()
	pods[1].stop()
	n.nothingLeft()
}

// TestLiveNodeBackToFlannel: after a return to flannel's own plugin, which does
// not know our records, "multinet gc" removes what our plugin attached.
func TestLiveNodeBackToFlannel(t *testing.T) {
	n := newLiveNode(t)
	n.subnetEnv()
	running := n.pod(n.flannel("1.0.0", object{"bridge": n.Numbered("br1-")}))
	stopped := n.pod(running.Conf)
	n.ok("ADD", running)
	n.ok("ADD", stopped)
	n.vanish(stopped) // flannel's own DEL found no file and succeeded
	left := func(leases int) func() bool { return func() bool { return len(n.leases()) == leases } }
	n.collect(left(2), "--dir", n.File("flannel"), "--bin-dir", n.Bin)
	nodetest.Equal(t, "leases while one pod runs", len(n.leases()), 2)
	n.vanish(running)
	n.collect(left(0), "--dir", n.File("flannel"), "--bin-dir", n.Bin)
	n.nothingLeft()
}

// A liveNode is a node whose runtime works like containerd: it runs the first
// network of its configuration directory by libcni, with libcni's cache.
type liveNode struct {
	*node
	pods []*livePod
}

// A livePod is a pod of a liveNode. It serves a port.
type livePod struct {
	*pod
	n        *liveNode
	hostPort int
	server   net.Listener
}

func newLiveNode(t *testing.T) *liveNode {
	t.Helper()
	n := &liveNode{node: newNode(t)}
	n.needsRules()
	for _, dir := range []string{"cni", "cache", "multus"} {
		nodetest.OK(t, os.MkdirAll(n.File(dir), 0o700))
	}
	return n
}

// primary returns the network of the node's pods without a meta-plugin.
func (n *liveNode) primary() object {
	return n.chain(0, n.bridge(0), n.portmap(), n.firewall())
}

// runtime returns libcni with a cache in a directory of the node.
func (n *liveNode) runtime(cache string) *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir([]string{n.Bin}, n.File(cache), nil)
}

// first returns the network that the runtime runs: the first in its directory.
func (n *liveNode) first() *libcni.NetworkConfigList {
	n.Helper()
	files, err := libcni.ConfFiles(n.File("cni"), []string{".conf", ".conflist"})
	if err != nil || len(files) == 0 {
		n.Fatalf("no network: %v", err)
	}
	slices.Sort(files)
	return n.list(files[0])
}

func (n *liveNode) list(file string) *libcni.NetworkConfigList {
	n.Helper()
	text, err := os.ReadFile(file)
	nodetest.OK(n, err)
	return n.parse(text)
}

func (n *liveNode) parse(text []byte) *libcni.NetworkConfigList {
	n.Helper()
	list, err := libcni.NetworkConfFromBytes(text)
	nodetest.OK(n, err)
	return list
}

func (p *livePod) rt() *libcni.RuntimeConf {
	args := map[string]any{
		"portMappings": []object{{"hostPort": p.hostPort, "containerPort": 80, "protocol": "tcp"}},
	}
	if p.Annotations != nil {
		args["io.kubernetes.cri.pod-annotations"] = p.Annotations
	}
	return &libcni.RuntimeConf{
		ContainerID: p.ID, NetNS: p.NetNS, IfName: p.IfName, CapabilityArgs: args,
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", p.ID}},
	}
}

// newPod returns a pod that is not attached yet. Its server answers with the
// pod's ID.
func (n *liveNode) newPod(networks string) *livePod {
	n.Helper()
	p := &livePod{pod: n.pod(nil), n: n, hostPort: 20000 + 16*n.ID + len(n.pods)}
	if networks != "" {
		p.Annotations = map[string]string{"k8s.v1.cni.cncf.io/networks": networks}
	}
	n.pods = append(n.pods, p)
	err := host.Do(p.NetNS, func() error {
		l, err := (&net.ListenConfig{}).Listen(n.Context(), "tcp", ":80")
		if err != nil {
			return err
		}
		p.server = l
		n.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = fmt.Fprint(c, p.ID)
				_ = c.Close()
			}
		}()
		return nil
	})
	nodetest.OK(n, err)
	return p
}

// startPod lets the runtime start a pod.
func (n *liveNode) startPod(networks string) *livePod {
	n.Helper()
	p := n.newPod(networks)
	result, err := n.runtime("cache").AddNetworkList(n.Context(), n.first(), p.rt())
	if err != nil {
		n.Fatalf("ADD %s: %v", p.ID, err)
	}
	if p.Result, err = json.Marshal(result); err != nil {
		n.Fatal(err)
	}
	return p
}

// stop lets the runtime stop a pod, and fails the test if anything of it is
// left.
func (p *livePod) stop() {
	p.n.Helper()
	if err := p.n.runtime("cache").DelNetworkList(p.n.Context(), p.n.first(), p.rt()); err != nil {
		p.n.Fatalf("DEL %s: %v", p.ID, err)
	}
	p.isGone()
}

// dies removes a pod's namespace without telling the runtime.
func (p *livePod) dies() {
	p.n.Helper()
	_ = p.server.Close() // an open socket keeps the namespace
	p.n.vanish(p.pod)
}

// isGone fails the test if anything is left of p.
func (p *livePod) isGone() {
	p.n.Helper()
	if _, err := os.Stat(p.NetNS); err == nil {
		nodetest.Equal(p.n, "interfaces of "+p.ID, p.n.interfaces(p.pod), nil)
	}
	nodetest.Equal(p.n, "rules of "+p.ID, p.n.Rules(p.n.marks(p.ID)...), nil)
	for _, lease := range p.n.leases() {
		if strings.Contains(lease+" ", " "+p.ID+" ") {
			p.n.Errorf("%s has still %s", p.ID, lease)
		}
	}
	for _, dir := range []string{"state", "cache", "multus"} {
		for _, name := range p.n.in(dir) {
			if strings.Contains(name, p.ID) && !strings.Contains(name, "podman") {
				p.n.Errorf("%s is still in %s/%s", p.ID, dir, name)
			}
		}
	}
}

// in lists the files in a directory of the node.
func (n *liveNode) in(dir string) []string { return n.List(n.File(dir)) }

// answers fails the test unless p's port answers on the host.
func (p *livePod) answers() {
	p.n.Helper()
	addr := net.JoinHostPort(p.n.Net(0)+".1", fmt.Sprint(p.hostPort))
	c, err := (&net.Dialer{Timeout: time.Minute}).DialContext(p.n.Context(), "tcp", addr)
	if err != nil {
		p.n.Fatalf("%s: %v", p.ID, err)
	}
	defer func() { _ = c.Close() }()
	said := make([]byte, 64)
	k, _ := c.Read(said)
	nodetest.Equal(p.n, "who answers on the host's port", string(said[:k]), p.ID)
}

// places returns the flags that make multinet work on this node only.
func (n *liveNode) places() []string {
	return []string{"--conf-dir", n.File("cni"), "--bin-dir", n.Bin, "--cache-dir", n.File("cache")}
}

// install puts multinet in front of the node's network.
func (n *liveNode) install() {
	n.Helper()
	n.Write(object{"confDir": n.File("net.d"), "binDir": n.Bin}, "more.json")
	n.operator(0, slices.Concat([]string{"install"}, n.places(), []string{
		"--multus-dir", n.File("multus"), "--cni-dir", n.File("state"), "--config", n.File("more.json"),
	})...)
	if got := n.first().Plugins[0].Network.Type; got != "multinet" {
		n.Fatalf("the first network's plugin is %s", got)
	}
}

// records lists the container, interface and state of each of multinet's
// records.
func (n *liveNode) records() (list []string) {
	n.Helper()
	r := n.operator(0, "list", "-o", "json", "--dir", n.File("state"))
	var records []struct{ Container, Interface, State string }
	nodetest.OK(n, json.Unmarshal([]byte(r.Stdout), &records))
	for _, r := range records {
		list = append(list, r.Container+" "+r.Interface+" "+r.State)
	}
	slices.Sort(list)
	return list
}

// uninstall removes multinet from the node.
func (n *liveNode) uninstall(want int, flags ...string) report {
	n.Helper()
	return n.operator(want, slices.Concat([]string{"uninstall"}, n.places(), []string{"--dir", n.File("state")}, flags)...)
}

// check runs CHECK of multinet for p, as a runtime does.
func (p *livePod) check() {
	p.n.Helper()
	list := p.n.first()
	var conf object
	nodetest.OK(p.n, json.Unmarshal(list.Plugins[0].Bytes, &conf))
	conf["name"], conf["cniVersion"] = list.Name, list.CNIVersion
	q := *p.pod
	q.Conf, q.Annotations = conf, nil
	p.n.ok("CHECK", &q)
}

// TestDoctorSaysWhatIsWrong runs multinet doctor on a node with real plugins and pods, which is
// healthy and then is not.
func TestDoctorSaysWhatIsWrong(t *testing.T) {
	n := newLiveNode(t)
	n.network("blue", n.with(n.bridge(1), object{"cniVersion": "1.0.0"}))
	n.Write(n.primary(), "cni", "10-primary.conflist")
	before := n.startPod("")
	n.install()
	pod, dies := n.startPod("blue"), n.startPod("")
	wrong := func() []string {
		t.Helper()
		return n.wrong(n.operator(-1, slices.Concat([]string{"doctor", "-o", "json", "--dir", n.File("state")}, n.places())...))
	}
	nodetest.Equal(t, "on a healthy node", wrong(), nil)
	dies.dies()
	nodetest.OK(t, os.Remove(n.recordFile(before.pod, "state")))
	n.network("blue", object{"cniVersion": "1.0.0", "type": "absent"})
	want := []string{
		`plugins problem plugin "absent": not found in ` + n.Bin,
		"records problem records of containers that are dead, or half attached, 1: " + dies.ID,
		"cache problem containers of the cluster network without a record, 1: " + before.ID,
	}
	got := wrong()
	for end := time.Now().Add(time.Minute); !slices.Equal(got, want) && time.Now().Before(end); got = wrong() {
		continue // the kernel is still removing the interfaces of the dead
	}
	nodetest.Equal(t, "on a node that is not", got, want)
	n.operator(0, "gc", "--dir", n.File("state"), "--bin-dir", n.Bin)
	n.operator(0, "adopt", "--dir", n.File("state"), "--conf-dir", n.File("cni"), "--cache-dir", n.File("cache"), "--multus-dir", n.File("multus"))
	nodetest.OK(t, os.Remove(n.File("cache", "results", "multinet-"+dies.ID+"-eth0")))
	nodetest.Equal(t, "after what it says to do", wrong(), want[:1])
	pod.check()

	// A cluster network with a program that nobody can run.
	n.uninstall(0, "--detach")
	program := filepath.Join(n.Bin, "doctor-"+before.ID)
	nodetest.OK(t, os.WriteFile(program, nil, 0o600))
	defer func() { nodetest.OK(t, os.Remove(program)) }()
	n.Write(object{"cniVersion": "1.0.0", "name": "new", "type": filepath.Base(program)}, "cni", "05-new.conf")
	said := n.operator(1, slices.Concat([]string{"install"}, n.places(), []string{"--multus-dir", n.File("multus"), "--cni-dir", n.File("state")})...)
	if !strings.Contains(said.Stderr, program+" is not a file that can be executed: install it first, chmod +x, ") || n.first().Name != "new" {
		t.Errorf("installed: %s", said.Stderr)
	}
}

// wrong returns the findings of a doctor that are not ok, except about runtimes: the machine of
// the test may have one.
func (n *node) wrong(r report) (all []string) {
	n.Helper()
	var findings []struct{ Check, Verdict, Looked, Found string }
	nodetest.OK(n, json.Unmarshal([]byte(r.Stdout), &findings))
	for _, f := range findings {
		if f.Check != "runtimes" && f.Verdict != "ok" {
			all = append(all, f.Check+" "+f.Verdict+" "+f.Found)
		}
	}
	return all
}

// TestDoctorAsksTheDaemon runs multinetd doctor while the daemon runs and while it does not.
func TestDoctorAsksTheDaemon(t *testing.T) {
	n := newNode(t)
	nodetest.OK(t, os.Mkdir(n.File("cni"), 0o700))
	n.Write(n.with(n.chain(0, n.bridge(0)), object{"cniVersion": "1.0.0"}), "cni", "10-primary.conflist")
	d := n.daemon(daemonConf{keys: object{"multusConfigFile": "auto", "cniConfigDir": n.File("cni"), "cniCacheDir": n.File("cache"), "binDir": n.Bin}})
	wrong := func() []string {
		t.Helper()
		return n.wrong(n.reports(-1, "multinetd", "doctor", "-o", "json", "--config", n.File("daemon.json")))
	}
	nodetest.Equal(t, "while it runs", wrong(), nil)
	d.Kill()
	nodetest.Equal(t, "afterwards", wrong(), []string{"daemon problem no daemon answers on " + n.socket() + ": connect: connection refused"})
}
