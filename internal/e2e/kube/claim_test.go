package kube

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/metacni/metacni/delegate/conform/host"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

type resourceClaims = []*resourcev1.ResourceClaim

// A claim goes its whole way with the rights of the manifests: ResourceSlice, prepare, ADD,
// status, DEL, unprepare. The ADD makes no request, and the status costs one GET and one
// update.
func TestAClaimGoesItsWholeWay(t *testing.T) {
	t.Parallel()
	n := newDriver(t, nil)
	s, c := n.one("one", own("blue"))
	if got := n.prepared(c); len(got) == 0 {
		t.Error("a prepared claim leaves no file")
	}
	n.register() // by another kubelet
	n.prepare(c) // again, as the kubelet may
	n.ok("ADD", s)
	n.wantAttached(c, s, "eth0", "net1")
	n.wantRight(s, "multi", n.namespace+"/blue")
	n.ok("CHECK", s)
	path := "/apis/resource.k8s.io/v1/namespaces/" + n.namespace + "/resourceclaims/one"
	nodetest.Equal(t, "requests", n.gate.made("resourceclaims"), []string{"GET " + path, "GET " + path, "GET " + path, "PUT " + path + "/status"})
	n.ok("DEL", s)
	n.wantDetached(c, "")
	n.unprepare(c)
	n.unprepare(c)
	n.wantReleased(resourceClaims{c}, s)
	n.fails("ADD", s, 11, "claim")
	n.ok("DEL", s)
	n.wantReleased(resourceClaims{c}, s)
	if log := n.log(); strings.Contains(log, "forbidden") {
		t.Errorf("a right is missing:\n%s", log)
	}
}

// Without the right that API servers require since 1.36, everything works but the status. The
// log says which right is missing, and the status is written as soon as the right is there.
func TestOnlyTheStatusNeedsTheRightOfTheDriver(t *testing.T) {
	t.Parallel()
	n := newIdleDriver(t, nil)
	n.grantClaims(oldClaimRights)
	n.ready()
	n.published("shared", "shared2", "single")
	n.register()
	s, c := n.one("one", own("blue"))
	n.ok("ADD", s)
	eventually(t, func() bool { return strings.Contains(n.log(), "changing status.devices requires") })
	if got := n.devices(c); len(got) > 0 {
		t.Errorf("status: %+v", got)
	}
	n.grantClaims(allClaimRights)
	n.wantAttached(c, s, "eth0", "net1")
	n.released(s, c)
	if len(n.gate.made(http.MethodPatch+" /apis/resource.k8s.io")) > 0 {
		t.Error("a claim is patched: the API server refuses that for some forms of parameters")
	}
}

// A daemon that is killed in any window has its successor go on: the pod is attached, its
// status is written, and nothing is left in the end.
func TestKilledInEveryWindowOfAClaim(t *testing.T) {
	t.Parallel()
	for name, window := range map[string]func(n *driverNode, s *sandbox, c resourceClaims) *sandbox{
		"between prepare and ADD": func(n *driverNode, s *sandbox, c resourceClaims) *sandbox {
			n.restart()
			n.ok("ADD", s)
			n.wantAttached(c[0], s, "eth0", "net1")
			n.ok("DEL", s)
			return nil
		},
		"during ADD": func(n *driverNode, s *sandbox, c resourceClaims) *sandbox {
			let := n.set("hold-ADD")
			var add error
			var adding sync.WaitGroup
			adding.Go(func() { add = n.cni("ADD", s) })
			ended := n.held("ADD")
			n.kill()
			if adding.Wait(); add == nil {
				n.t.Error("the ADD succeeds")
			}
			let()
			ended() // a bridge that is killed may leave one that its next ADD cannot use
			n.ready()
			n.register()
			n.ok("DEL", s)
			n.wantNothing(s)
			next := n.sandbox(s.pod) // as the kubelet does
			n.ok("ADD", next)
			n.wantAttached(c[0], next, "eth0", "net1")
			n.ok("DEL", next)
			return next
		},
		"between ADD and status": func(n *driverNode, s *sandbox, c resourceClaims) *sandbox {
			n.gate.keep(http.MethodPut)
			n.ok("ADD", s)
			eventually(n.t, func() bool { return n.statusRequests() > 0 })
			n.kill()
			n.gate.heal()
			n.ready()
			n.register()
			n.wantAttached(c[0], s, "eth0", "net1")
			n.ok("DEL", s)
			return nil
		},
		"between ADD and DEL": func(n *driverNode, s *sandbox, c resourceClaims) *sandbox {
			n.ok("ADD", s)
			n.wantAttached(c[0], s, "eth0", "net1")
			n.restart()
			n.wantAttached(c[0], s, "eth0", "net1")
			n.ok("CHECK", s)
			n.ok("DEL", s)
			return nil
		},
		"between ADD and unprepare, without DEL": func(n *driverNode, s *sandbox, c resourceClaims) *sandbox {
			n.ok("ADD", s)
			n.restart()
			n.unprepare(c...)
			nodetest.Equal(n.t, "interfaces", n.interfaces(s), []string{"eth0"})
			n.ok("DEL", s)
			return nil
		},
		"during unprepare": func(n *driverNode, s *sandbox, c resourceClaims) *sandbox {
			n.ok("ADD", s)
			let := n.set("hold-DEL")
			var release error
			var releasing sync.WaitGroup
			releasing.Go(func() { release = n.kubelet.Unprepare(n.t.Context(), c...) })
			n.held("DEL")
			n.kill()
			if releasing.Wait(); release == nil {
				n.t.Error("unprepare succeeds")
			}
			let()
			n.ready()
			n.register()
			n.unprepare(c...)
			nodetest.Equal(n.t, "interfaces", n.interfaces(s), []string{"eth0"})
			n.ok("DEL", s)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newDriver(t, nil)
			s, c := n.one("one", n.inline(n.watched(4)))
			all := []*sandbox{s}
			if next := window(n, s, resourceClaims{c}); next != nil {
				all = append(all, next)
			}
			n.unprepare(c)
			n.wantReleased(resourceClaims{c}, all...)
		})
	}
}

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
		nodetest.OK(t, err)
		return string(text)
	}

	text, err := os.ReadFile("testdata/claim.yaml")
	nodetest.OK(t, err)
	title("1. A network, a DeviceClass, a ResourceClaim for the network, and a pod with the claim:")
	show(string(text))
	n.Kubectl(t, strings.Replace(string(text), "NODE", n.name, 1), "create", "-n", n.namespace, "-f", "-")
	title("2. multinetd publishes that the node has the network. Its ResourceSlice:")
	show(object(n.published("storage")))

	claims := n.scheduler.Client.ResourceV1().ResourceClaims(n.namespace)
	claim, err := claims.Get(t.Context(), "disk", metav1.GetOptions{})
	nodetest.OK(t, err)
	pod, err := n.Core(t, n.Admin()).Pods(n.namespace).Get(t.Context(), "web", metav1.GetOptions{})
	nodetest.OK(t, err)
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
	interfaces, err := host.Interfaces(s.NetNS)
	nodetest.OK(t, err)
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
	nodetest.Equal(t, "addresses", glob(t, "/var/lib/cni/networks/storage/192.*"), nil)
	title("6. The pod ends: the runtime runs DEL, and the kubelet has the claim released. Nothing is left:\n"+
		"   no interface, no address, no record, no prepared claim. That took %.1f s.", time.Since(begun).Seconds())
}
