package e2e

import (
	"fmt"
	"os"
	"testing"
)

// flannel returns a configuration of the flannel plugin.
func (w *world) flannel(version string, delegate object) object {
	return object{
		"cniVersion": version, "name": w.name("flan"), "type": "flannel",
		"subnetFile": w.file("subnet.env"), "dataDir": w.file("flannel"), "delegate": delegate,
	}
}

func (w *world) subnetEnv(lines string) {
	w.t.Helper()
	if err := os.WriteFile(w.file("subnet.env"), []byte(lines), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) subnetEnvOK() {
	w.t.Helper()
	w.subnetEnv(fmt.Sprintf("FLANNEL_NETWORK=10.%d.0.0/16\nFLANNEL_SUBNET=%s.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n", w.n%256, w.net(1)))
}

// TestFlannelWorksInEveryVersion: flannel attaches, checks and detaches a pod
// in every version of the protocol.
func TestFlannelWorksInEveryVersion(t *testing.T) {
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			w := newWorld(t)
			w.subnetEnvOK()
			p := w.pod(w.flannel(version, object{"bridge": w.name("br1-"), "isDefaultGateway": true}))
			w.ok("ADD", p)
			r := decode(t, p, version)
			if len(r.IPs) != 1 || r.IPs[0].Address.String() != w.net(1)+".2/24" {
				t.Errorf("result %s", p.result)
			}
			same(t, "leases", 1, len(w.leases()))
			w.mtu(p, "eth0", 1450)
			w.answersPing(p, w.net(1)+".1")
			w.checks(version, p)
			// DEL must use the configuration that ADD generated.
			w.subnetEnv("FLANNEL_SUBNET=nonsense\n")
			w.ok("DEL", p)
			same(t, "interfaces after DEL", nil, w.interfaces(p))
			w.nothingLeft()
			w.vanish(p)
			w.ok("DEL", p, withoutNetNS)
			w.nothingLeft()
		})
	}
}

// TestFlannelDualStack: a pod gets an address of each family.
func TestFlannelDualStack(t *testing.T) {
	w := newWorld(t)
	w.subnetEnv(fmt.Sprintf("FLANNEL_NETWORK=10.%d.0.0/16\nFLANNEL_SUBNET=%s.1/24\n"+
		"FLANNEL_IPV6_NETWORK=fd00:%d::/48\nFLANNEL_IPV6_SUBNET=fd00:%d:0:1::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n",
		w.n%256, w.net(1), w.n, w.n))
	p := w.pod(w.flannel("1.0.0", object{"bridge": w.name("br1-")}))
	w.ok("ADD", p)
	if r := decode(t, p, "1.0.0"); len(r.IPs) != 2 || r.IPs[0].Address.IP.To4() == nil || r.IPs[1].Address.IP.To4() != nil {
		t.Errorf("result %s", p.result)
	}
	w.ok("CHECK", p)
	w.ok("DEL", p)
	w.nothingLeft()
}

// TestFlannelNeedsItsSubnetFile: without the subnet file STATUS answers 50, and
// ADD fails and attaches nothing. The error names a missing or malformed key
// and the file.
func TestFlannelNeedsItsSubnetFile(t *testing.T) {
	w := newWorld(t)
	p := w.pod(w.flannel("1.1.0", w.fake("d")))
	w.fails(50, "STATUS", p, []string{"subnet.env"})
	if a := w.call("ADD", p); a.err == nil {
		t.Error("attached without a subnet")
	}
	for name, lines := range map[string]string{
		"FLANNEL_SUBNET": "FLANNEL_NETWORK=10.0.0.0/16\nFLANNEL_SUBNET\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n",
		"FLANNEL_MTU":    "FLANNEL_NETWORK=10.0.0.0/16\nFLANNEL_SUBNET=10.0.1.1/24\nFLANNEL_MTU=many\nFLANNEL_IPMASQ=true\n",
	} {
		w.subnetEnv(lines)
		a := w.call("ADD", p)
		if a.err == nil || a.err.Code != 6 && a.err.Code != 7 {
			t.Fatalf("%s: %s, want code 6 or 7", name, a.stdout)
		}
		w.failed(a, a.err.Code, name, "subnet.env")
	}
	w.trace()
	w.subnetEnvOK()
	w.ok("STATUS", p)
	w.nothingLeft()
}
