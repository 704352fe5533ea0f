package kube

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/metacni/metacni/examples/lab/host"
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
	n.prepare(c) // again, as the kubelet may
	n.ok("ADD", s)
	n.wantAttached(c, s, "eth0", "net1")
	n.wantRight(s, "multi", n.namespace+"/blue")
	n.ok("CHECK", s)
	path := "/apis/resource.k8s.io/v1/namespaces/" + n.namespace + "/resourceclaims/one"
	same(t, "requests", []string{"GET " + path, "GET " + path, "GET " + path, "PUT " + path + "/status"}, n.gate.made("resourceclaims"))
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

// One ADD attaches a pod to the node's networks, to what it selects and to what its claims want,
// by name and by configuration. The names of interfaces that claims wish are kept.
func TestOneADDAttachesStandingNetworksSelectionsAndClaims(t *testing.T) {
	t.Parallel()
	n := newDriver(t, nil)
	standing := n.bridge(3)
	standing["name"] = "standing"
	n.network["delegates"] = []object{n.bridge(0), standing}
	s := n.claiming("all", "green", "two", "other")
	named := strings.Replace(own("blue"), "{", `{"ifName":"fast0",`, 1)
	two := n.claims("two", []string{named}, []string{"shared"}, s.pod)
	other := n.claim("other", n.inline(n.watched(4)), "shared2", s.pod)
	n.prepare(two, other)
	n.ok("ADD", s)
	want := []string{"eth0", "fast0", "net1", "net2", "net4"}
	got := n.interfaces(s)
	if len(got) != 5 || !slices.Contains(got, "fast0") || !slices.Contains(got, "eth0") {
		t.Errorf("interfaces %q, want such as %q", got, want)
	}
	n.wantAttached(two, s, got...)
	n.wantAttached(other, s, got...)
	if data := n.devices(two)[0].NetworkData; data == nil || data.InterfaceName != "fast0" {
		t.Errorf("%+v", data)
	}
	n.ok("CHECK", s)
	n.ok("DEL", s)
	n.unprepare(two, other)
	n.wantReleased(resourceClaims{two, other}, s)
}

// A network that fails undoes the whole ADD, whether a claim, a selection or the node wants
// it, and the claim's status says why.
func TestAFailureUndoesEverythingOfTheADD(t *testing.T) {
	t.Parallel()
	n := newDriver(t, nil)
	standing := n.bridge(3)
	standing["name"] = "standing"
	n.network["delegates"] = []object{n.bridge(0), standing}
	s := n.claiming("pod", "green", "good", "bad")
	good, bad := n.claim("good", own("blue"), "shared", s.pod), n.claim("bad", n.inline(n.watched(4)), "shared2", s.pod)
	n.prepare(good, bad)
	mend := n.set("fail-ADD")
	n.fails("ADD", s, 100, "out of luck")
	n.wantNothing(s)
	n.wantDetached(good, "out of luck")
	n.wantDetached(bad, "out of luck")
	mend()
	n.ok("ADD", s)
	got := n.interfaces(s)
	n.wantAttached(good, s, got...)
	n.wantAttached(bad, s, got...)
	n.ok("DEL", s)

	s = n.claiming("other", "absent", "third")
	third := n.claim("third", own("blue"), "shared", s.pod)
	n.prepare(third)
	n.fails("ADD", s, 7, "absent")
	n.wantNothing(s)
	n.unprepare(good, bad, third)
	n.wantReleased(resourceClaims{good, bad, third}, s)
}

// The ADD of a pod whose claims the kubelet has not prepared has the runtime try again, and
// attaches nothing. The daemon knows of the claims from the pod in the API.
func TestADDOfAClaimThatIsNotPreparedIsTriedAgain(t *testing.T) {
	t.Parallel()
	n := newDriver(t, nil)
	s := n.claiming("pod", "", "one", "two")
	one, two := n.claim("one", own("blue"), "shared", s.pod), n.claim("two", own("green"), "shared2", s.pod)
	n.again("ADD", s, "claim")
	n.prepare(one)
	n.again("ADD", s, "two")
	n.wantNothing(s)
	n.prepare(two)
	earlier := n.sandbox(s.pod) // of a pod of the same name, which has no claims
	earlier.uid = "00000000-0000-4000-8000-000000000000"
	n.ok("ADD", earlier)
	same(t, "interfaces of another pod", []string{"eth0"}, n.interfaces(earlier))
	n.ok("DEL", earlier)
	n.wantNothing(s, earlier)
	n.ok("ADD", s)
	n.wantAttached(one, s, "eth0", "net1", "net2")
	n.ok("DEL", s)
	n.unprepare(one, two)
	n.wantReleased(resourceClaims{one, two}, s)
}

// Each sandbox of a pod is attached to the networks of its claims. The status is that of the
// newest one, also when an older one ends.
func TestEachSandboxOfAPodIsAttached(t *testing.T) {
	t.Parallel()
	n := newDriver(t, nil)
	first, c := n.one("one", own("blue"))
	second := n.sandbox(first.pod)
	n.ok("ADD", first)
	n.wantAttached(c, first, "eth0", "net1")
	n.ok("ADD", second)
	n.wantAttached(c, second, "eth0", "net1")
	n.ok("DEL", first)
	n.ok("CHECK", second)
	n.wantAttached(c, second, "eth0", "net1")
	third := n.sandbox(first.pod)
	n.ok("ADD", third)
	n.unprepare(c) // of both
	same(t, "interfaces", []string{"eth0"}, n.interfaces(second))
	same(t, "interfaces", []string{"eth0"}, n.interfaces(third))
	n.ok("DEL", second)
	n.ok("DEL", third)
	n.wantReleased(resourceClaims{c}, first, second, third)
}

// A claim that is released while its pod is attached is detached first. If that fails, the claim
// stays prepared, and the kubelet's next attempt detaches it.
func TestReleaseOfAnAttachedClaimDetachesIt(t *testing.T) {
	t.Parallel()
	n := newDriver(t, nil)
	s, c := n.one("one", n.inline(n.watched(4)))
	n.ok("ADD", s)
	n.wantAttached(c, s, "eth0", "net1")
	mend := n.set("fail-DEL")
	if err := n.kubelet.Unprepare(t.Context(), c); err == nil || !strings.Contains(err.Error(), "out of luck") {
		t.Errorf("a plugin that fails: %v", err)
	}
	if len(n.prepared(c)) == 0 {
		t.Error("the claim is forgotten")
	}
	mend()
	n.unprepare(c)
	same(t, "interfaces", []string{"eth0"}, n.interfaces(s))
	n.ok("CHECK", s)
	n.ok("DEL", s)
	n.wantReleased(resourceClaims{c}, s)
}

// A release detaches what it can, also where one plugin fails or the network namespace is gone,
// and reports what it could not.
func TestAReleaseDetachesAllThatItCan(t *testing.T) {
	t.Parallel()
	n := newDriver(t, nil)
	s := n.claiming("two", "", "two")
	draft := n.scheduler.Claim(n.namespace, "two", n.class(), []string{"a", "b", "c"}, own("blue"), n.inline(n.watched(4)), own("green"))
	for i := range draft.Spec.Devices.Config {
		draft.Spec.Devices.Config[i].Requests = []string{draft.Spec.Devices.Requests[i].Name}
	}
	c := n.allocate(draft, []string{"shared", "single", "shared2"}, s.pod)
	n.prepare(c)
	n.ok("ADD", s)
	n.wantAttached(c, s, "eth0", "net1", "net2", "net3")
	if err := host.RemoveNS(s.netns); err != nil {
		t.Fatal(err)
	}
	mend := n.set("fail-DEL")
	if err := n.kubelet.Unprepare(t.Context(), c); err == nil || !strings.Contains(err.Error(), "out of luck") {
		t.Errorf("a plugin that fails: %v", err)
	}
	same(t, "addresses left", 2, len(n.leases())) // of eth0 and of the plugin that fails
	mend()
	n.unprepare(c)
	same(t, "addresses left", 1, len(n.leases()))
	n.ok("DEL", s)
	n.wantReleased(resourceClaims{c})
}

// Containers see files with the interface and the addresses of their claims. They are right when
// the ADD returns, and gone after the release.
func TestContainersSeeWhatTheirClaimsAreAttachedTo(t *testing.T) {
	t.Parallel()
	n := newIdleDriver(t, nil)
	n.keys["dra"].(object)["metadata"], n.keys["dra"].(object)["cdiDir"] = true, n.file("cdi")
	n.begin()
	s, c := n.one("one", own("blue"))
	n.ok("ADD", s)
	data := n.attached(s)[1]
	address := data[strings.Index(data, "[")+1 : strings.Index(data, "]")]
	// The runtime mounts the file of the specification.
	var spec struct {
		Devices []struct {
			ContainerEdits struct{ Mounts []struct{ HostPath string } }
		}
	}
	specs := glob(t, n.file("cdi/*"))
	if len(specs) != 1 {
		t.Fatalf("CDI specifications: %q", specs)
	}
	if err := json.Unmarshal(n.read(specs[0]), &spec); err != nil || len(spec.Devices) != 1 || len(spec.Devices[0].ContainerEdits.Mounts) != 1 {
		t.Fatalf("%v: %s", err, n.read(specs[0]))
	}
	if text := string(n.read(spec.Devices[0].ContainerEdits.Mounts[0].HostPath)); !strings.Contains(text, `"net1"`) || !strings.Contains(text, address+"/24") {
		t.Errorf("not %s: %s", data, text)
	}
	n.ok("DEL", s)
	n.unprepare(c)
	n.wantReleased(resourceClaims{c}, s)
}

// The node publishes its networks as devices, with their plugins and attributes. One whose
// STATUS fails is withdrawn, as one without a definition is, until it can be had again; a pod
// that has it keeps it.
func TestDevicesAreWithdrawnWhileTheirNetworksAreNotReady(t *testing.T) {
	t.Parallel()
	n := newIdleDriver(t, nil)
	lonely := n.namespace + "/lonely"
	n.keys["dra"] = object{"driver": claimDriver, "networks": []object{
		{"device": "lonely", "network": lonely, "exclusive": true},
		{"device": "shared", "network": n.namespace + "/blue", "attributes": object{"rack": "r1"}},
	}}
	n.defineIn(n.namespace, "lonely", n.watched(4))
	n.grantClaims(allClaimRights)
	n.ready()
	devices := n.published("lonely", "shared")
	n.register()
	attribute := func(d resourcev1.Device, name resourcev1.QualifiedName) string {
		if a, ok := d.Attributes[name]; ok && a.StringValue != nil {
			return *a.StringValue
		}
		return ""
	}
	same(t, "attributes", []string{"watched", "bridge", "r1"}, []string{attribute(devices[0], "plugin"), attribute(devices[1], "plugin"), attribute(devices[1], "rack")})
	for i, want := range []bool{false, true} {
		if got := devices[i].AllowMultipleAllocations; (got != nil && *got) != want {
			t.Errorf("%s can be allocated to several claims: %v", devices[i].Name, !want)
		}
	}
	s := n.claiming("one", "", "one")
	c := n.claim("one", own("lonely"), "lonely", s.pod)
	n.prepare(c)
	n.ok("ADD", s)
	mend := n.set("fail-STATUS")
	n.defineIn(n.namespace, "lonely", n.watched(6)) // has the daemon ask again before half a minute has passed
	n.published("shared")
	n.wantAttached(c, s, "eth0", "net1")
	mend()
	n.defineIn(n.namespace, "lonely", n.watched(4))
	n.published("lonely", "shared")
	n.undefine(n.namespace, "lonely")
	n.published("shared")
	n.ok("DEL", s)
	n.unprepare(c)
	n.wantReleased(resourceClaims{c}, s)
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
	n.ok("DEL", s)
	n.unprepare(c)
	n.wantReleased(resourceClaims{c}, s)
	if len(n.gate.made(http.MethodPatch+" /apis/resource.k8s.io")) > 0 {
		t.Error("a claim is patched: the API server refuses that for some forms of parameters")
	}
}
