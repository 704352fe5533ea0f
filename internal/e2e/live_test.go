package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// TestLiveNodeOfTheRuntime installs multinet on a node with running pods and
// uninstalls it again. Every pod's port answers all the time, and every stopped
// pod leaves nothing.
func TestLiveNodeOfTheRuntime(t *testing.T) {
	n := newLiveNode(t)
	n.network("blue", n.with(n.bridge(1), object{"cniVersion": "1.0.0"}))
	n.write(n.primary(), "cni", "10-primary.conflist")
	first, second, third := n.startPod(""), n.startPod(""), n.startPod("")
	dead := n.startPod("")
	dead.dies()
	others := filepath.Join("cache", "results", "podman-"+second.id+"-eth1")
	n.write(object{
		"kind": "cniCacheV1", "containerId": second.id, "ifName": "eth1", "networkName": "podman",
		"config": []byte(`{"cniVersion":"1.0.0","name":"podman","plugins":[{"type":"bridge"}]}`),
	}, others)

	n.install()
	for _, p := range []*livePod{first, second, third} {
		p.answers()
		p.check()
	}
	nodetest.Equal(t, "records", n.records(), []string{
		first.id + " eth0 added", second.id + " eth0 added", third.id + " eth0 added", dead.id + " eth0 added",
	})
	n.operator(0, "gc", "--unknown", "--dir", n.file("state"), "--bin-dir", n.bin) // nobody has seen its namespace
	dead.isGone()
	n.install() // a second time changes nothing, nor does adopt
	said := n.operator(0, "adopt", "--dir", n.file("state"), "--conf-dir", n.file("cni"), "--cache-dir", n.file("cache"), "--multus-dir", n.file("multus")).stdout
	if strings.Contains(said, "adopted") || !strings.Contains(said, "recorded") {
		t.Errorf("adopted a second time: %s", said)
	}
	unnoticed := n.startPod("")
	unnoticed.dies()
	n.collect(func() bool { return len(n.records()) == 3 }, "--dir", n.file("state"), "--bin-dir", n.bin)
	if err := os.Remove(n.file("cache", "results", "multinet-"+unnoticed.id+"-eth0")); err != nil { // the runtime removes its own entry
		t.Error(err)
	}
	unnoticed.isGone()

	late := n.newPod("") // which the runtime had begun with the old network
	if _, err := n.runtime("cache").AddNetworkList(t.Context(), n.list(n.file("cni", "10-primary.conflist")), late.rt()); err != nil {
		t.Fatal(err)
	}
	late.stop()
	first.stop()
	fourth := n.startPod("blue")
	fourth.answers()
	nodetest.Equal(t, "interfaces", n.interfaces(fourth.pod), []string{"eth0", "net1"})
	fifth := n.startPod("blue")
	fifth.stop()

	if said := n.uninstall(1).stderr; !strings.Contains(said, "3 containers") {
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
	if _, err := os.Stat(n.file(others)); err != nil {
		t.Errorf("another program's entry: %v", err)
	}
}

// multus returns a pod that Multus has attached to the primary network and to a
// second one, by libcni with a cache of its own.
func (n *liveNode) multus() *livePod {
	n.Helper()
	p := n.newPod("")
	second := n.with(n.bridge(1), object{"cniVersion": "1.0.0", "name": n.name("second")})
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
			n.Fatalf("ADD %s: %v", p.id, err)
		}
	}
	n.write(state, "multus", p.id)
	n.write(object{
		"kind": "cniCacheV1", "containerId": p.id, "ifName": "eth0", "networkName": "multus-cni-network", "netns": p.netns,
		"config": []byte(`{"cniVersion":"1.0.0","name":"multus-cni-network","plugins":[{"type":"multus"}]}`),
	}, "cache", "results", "multus-cni-network-"+p.id+"-eth0")
	return p
}

// TestLiveNodeOfMultus installs multinet on a node whose pods Multus has
// attached. DEL by multinet removes all their networks. uninstall --detach
// removes all but the primary network, whose DEL Multus can do.
func TestLiveNodeOfMultus(t *testing.T) {
	n := newLiveNode(t)
	n.write(n.primary(), "cni", "10-primary.conflist")
	nodetest.OK(t, os.MkdirAll(n.file("cache", "results"), 0o700))
	first, second, dead := n.multus(), n.multus(), n.multus()
	dead.dies()
	n.install()
	nodetest.Equal(t, "records", n.records(), []string{
		first.id + " eth0 added", second.id + " eth0 added", dead.id + " eth0 added",
	})
	n.operator(0, "gc", "--unknown", "--dir", n.file("state"), "--bin-dir", n.bin)
	dead.isGone()
	first.answers()
	first.check()
	nodetest.Equal(t, "interfaces", n.interfaces(first.pod), []string{"eth0", "net1"})
	first.stop()

	n.uninstall(0, "--detach", "--multus-dir", n.file("multus"))
	nodetest.Equal(t, "interfaces", n.interfaces(second.pod), []string{"eth0"})
	second.answers()
	nodetest.OK(t, n.runtime("multus").DelNetworkList(t.Context(), n.first(), second.rt()))
	if err := os.Remove(n.file("multus", second.id)); err != nil { // as Multus does
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
	n.write(list(n.bridge(0)), "cni", "10-flannel.conflist") // as flannel's plugin delegates
	delegated := n.with(n.bridge(0), object{"cniVersion": "1.0.0", "name": name})
	nodetest.OK(t, os.MkdirAll(n.file("flannel"), 0o700))
	var pods []*livePod
	for range 2 {
		p := n.startPod("")
		n.write(delegated, "flannel", p.id)
		pods = append(pods, p)
	}
	n.write(list(ours), "cni", "10-flannel.conflist") // our plugin instead of flannel's
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
	running := n.pod(n.flannel("1.0.0", object{"bridge": n.name("br1-")}))
	stopped := n.pod(running.conf)
	n.ok("ADD", running)
	n.ok("ADD", stopped)
	n.vanish(stopped) // flannel's own DEL found no file and succeeded
	left := func(leases int) func() bool { return func() bool { return len(n.leases()) == leases } }
	n.collect(left(2), "--dir", n.file("flannel"), "--bin-dir", n.bin)
	nodetest.Equal(t, "leases while one pod runs", len(n.leases()), 2)
	n.vanish(running)
	n.collect(left(0), "--dir", n.file("flannel"), "--bin-dir", n.bin)
	n.nothingLeft()
}
