package kube

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/metacni/metacni/examples/lab/host"
)

// TestStoryOfAClaim tells how a pod gets a network by ResourceClaim: `make dra` prints the story.
// The objects are those that the users of a cluster write. It fails if something is not as it
// prints.
func TestStoryOfAClaim(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	n := newIdleDriver(t, nil)
	n.keys["dra"] = object{"driver": claimDriver, "networks": []object{{"device": "storage", "network": n.namespace + "/storage"}}}
	n.grantClaims(allClaimRights)
	n.ready()
	title := func(format string, args ...any) { fmt.Fprintf(t.Output(), "\n"+format+"\n\n", args...) }
	show := func(text string) {
		for line := range strings.Lines(strings.TrimSpace(text)) {
			fmt.Fprint(t.Output(), "    ", line)
		}
		fmt.Fprintln(t.Output())
	}
	object := func(o any) string {
		text, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}

	text, err := os.ReadFile("testdata/claim.yaml")
	if err != nil {
		t.Fatal(err)
	}
	title("1. A network, a DeviceClass, a ResourceClaim for the network, and a pod with the claim:")
	show(string(text))
	n.Kubectl(t, strings.Replace(string(text), "NODE", n.name, 1), "create", "-n", n.namespace, "-f", "-")
	title("2. multinetd publishes that the node has the network. Its ResourceSlice:")
	show(object(n.published("storage")))

	claims := n.scheduler.Client.ResourceV1().ResourceClaims(n.namespace)
	claim, err := claims.Get(t.Context(), "disk", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod, err := n.Core(t, n.Admin()).Pods(n.namespace).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if claim, err = n.scheduler.Allocate(t.Context(), claim, n.name, []string{"storage"}, pod); err != nil {
		t.Fatal(err)
	}
	title("3. The scheduler allocates the device to the claim, and reserves the claim for the pod.\n" +
		"   The kubelet has multinetd prepare it. No plugin has run.")
	n.register()
	n.prepare(claim)
	s := n.sandbox(pod)
	n.wantNothing(s)
	n.ok("ADD", s)
	title("4. The runtime runs one ADD: the cluster network and the claim's. The pod has")
	interfaces, err := host.Interfaces(s.netns)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range interfaces {
		if i.Name != "lo" {
			show(fmt.Sprintf("%-6s %-17s %v", i.Name, i.MAC, i.Addresses))
		}
	}
	n.wantAttached(claim, s, "data0", "eth0")
	title("5. multinetd writes what the pod has into the claim's status.devices:")
	devices := n.devices(claim)
	if devices[0].NetworkData.InterfaceName != "data0" {
		t.Errorf("the status is of %+v", devices[0].NetworkData)
	}
	show(object(devices))

	n.ok("DEL", s)
	n.wantDetached(claim, "")
	n.unprepare(claim)
	n.wantReleased(resourceClaims{claim}, s)
	same(t, "addresses", nil, glob(t, "/var/lib/cni/networks/storage/192.*"))
	title("6. The pod ends: the runtime runs DEL, and the kubelet has the claim released. Nothing is left:\n"+
		"   no interface, no address, no record, no prepared claim. That took %.1f s.", time.Since(begun).Seconds())
}
