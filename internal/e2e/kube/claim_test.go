package kube

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	n.register() // by another kubelet
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

// A claim that is released while its pod is attached is detached first, as far as that is possible,
// also where the network namespace is gone. What could not be detached is an error, the claim stays
// prepared, and the kubelet's next attempt detaches the rest.
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
	if len(n.prepared(c)) == 0 {
		t.Error("the claim is forgotten")
	}
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
	n.released(s, c)
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

// A status is written whatever the parameters look like, and the plugin gets each value as it is
// written in the claim, apart from blanks.
func TestEveryFormOfParametersReachesThePluginAndGetsAStatus(t *testing.T) {
	t.Parallel()
	n := newDriver(t, nil)
	text, err := json.Marshal(n.watched(4))
	if err != nil {
		t.Fatal(err)
	}
	// The values of the test come before those of the network.
	config := func(values string) string { return "{" + values + "," + string(text[1:]) }
	quoted := func(config string) string {
		text, err := json.Marshal(config)
		if err != nil {
			t.Fatal(err)
		}
		return `{"apiVersion":"dra.metacni.io/v1alpha1","kind":"Network","config":` + string(text) + "}"
	}
	const group = "cni.networking.x-k8s.io"
	for name, tt := range map[string]struct{ values, parameters string }{
		"canonical":      {`"a":1,"b":2`, ""},
		"unsorted":       {`"z":{"b":2,"a":1},"a":[{"d":1,"c":2}]`, ""},
		"point":          {`"a":1.0`, ""},
		"exponent":       {`"a":1e3`, ""},
		"digits":         {`"a":12345678901234567890`, ""},
		"blanks":         {"\"a\" : 1 ,\n\t\"b\" : [ 1 , 2 ]", ""},
		"other-spelling": {`"b":1.50,"a":"\u003c\/\u00e9"`, "CNIConfig cni.dra.networking.x-k8s.io"},
		"mixed-spelling": {`"b":1.50,"a":null`, "CNIConfig " + group},
		"as-a-string":    {"\"b\" : 1.0,\n\t\"a\":12345678901234567890", "string"},
	} {
		t.Run(name, func(t *testing.T) {
			want := config(tt.values)
			parameters := cniConfig("CNI", group, want)
			switch kind, group, spelled := strings.Cut(tt.parameters, " "); {
			case spelled:
				parameters = cniConfig(kind, group, want)
			case kind == "string":
				parameters = quoted(want)
			}
			s, c := n.one(name, parameters)
			n.ok("ADD", s)
			n.wantAttached(c, s, "eth0", "net1")
			got := values(t, n.read(n.file("given", "ADD-"+s.id+"-net1")))
			for key, value := range values(t, []byte(want)) {
				if diff := cmp.Diff(value, got[key]); diff != "" {
					t.Errorf("%s: the plugin gets another value (-want +got):\n%s", key, diff)
				}
			}
			n.released(s, c)
		})
	}
}

// values returns the values of an object as they are written, without blanks.
func values(t *testing.T, text []byte) map[string]string {
	t.Helper()
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(text, &keys); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for key, value := range keys {
		var compact bytes.Buffer
		if err := json.Compact(&compact, value); err != nil {
			t.Fatal(err)
		}
		all[key] = compact.String()
	}
	return all
}

// delete deletes a claim.
func (n *driverNode) delete(c *resourcev1.ResourceClaim) {
	n.t.Helper()
	if err := n.scheduler.Client.ResourceV1().ResourceClaims(c.Namespace).Delete(n.t.Context(), c.Name, metav1.DeleteOptions{}); err != nil {
		n.t.Fatal(err)
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
			n.gate.breakIt(fault{method: http.MethodPut, swallow: true})
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
			same(n.t, "interfaces", []string{"eth0"}, n.interfaces(s))
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
			same(n.t, "interfaces", []string{"eth0"}, n.interfaces(s))
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

// While the API server is away, in any way, only prepare fails: the kubelet reads the claim
// with it. A pod whose claims are prepared is attached and removed, also by another daemon, and
// its status is written afterwards.
func TestAnOutageDelaysOnlyPrepareAndTheStatus(t *testing.T) {
	t.Parallel()
	for name, o := range outages(t) {
		switch name {
		case "connections are refused", "no request is answered", "the API server has no database":
		default:
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newDriver(t, impatient())
			eventually(t, func() bool { return len(glob(t, n.file("nads", n.namespace, "blue.conf*"))) == 1 })
			gone, goneClaim := n.one("gone", own("blue"))
			n.ok("ADD", gone)
			n.wantAttached(goneClaim, gone, "eth0", "net1")
			kept, keptClaim := n.one("kept", own("blue"))
			late := n.claiming("late", "", "late")
			lateClaim := n.claim("late", own("blue"), "shared", late.pod)

			o.begin(n.node)
			if err := n.tryPrepareFor(impatience, lateClaim); err == nil {
				t.Error("prepare succeeds without the API server")
			}
			n.ok("DEL", gone)
			n.unprepare(goneClaim)
			n.ok("ADD", kept)
			n.ok("CHECK", kept)
			n.kill()
			n.start()
			n.until("/readyz")
			n.register()
			n.ok("CHECK", kept)
			second := n.sandbox(kept.pod)
			n.ok("ADD", second)
			o.end(n.node)
			n.wantAttached(keptClaim, second, "eth0", "net1")
			eventually(t, func() bool { return n.tryPrepare(lateClaim) == nil })
			n.ok("ADD", late)
			n.wantAttached(lateClaim, late, "eth0", "net1")
			for _, s := range []*sandbox{kept, second, late} {
				n.ok("DEL", s)
			}
			n.unprepare(keptClaim, lateClaim)
			n.wantReleased(resourceClaims{goneClaim, keptClaim, lateClaim}, gone, kept, second, late)
		})
	}
}

// A claim that is deleted and created again under its name, between prepare and ADD, is not the
// one that was prepared. The pod gets what was prepared for it, and the new claim no status.
func TestAClaimThatIsReplacedAfterPrepare(t *testing.T) {
	t.Parallel()
	n := newDriver(t, nil)
	s, c := n.one("one", own("blue"))
	n.delete(c)
	other := n.claiming("other", "", "one")
	replaced := n.claim("one", own("green"), "shared", other.pod)
	n.register() // a kubelet that has restarted asks again
	if err := n.tryPrepare(c); err == nil || !strings.Contains(err.Error(), "got replaced") {
		t.Errorf("prepare of the old claim: %v", err)
	}
	n.ok("ADD", s)
	same(t, "interfaces", []string{"eth0", "net1"}, n.interfaces(s))
	n.prepare(replaced)
	n.ok("ADD", other)
	n.wantAttached(replaced, other, "eth0", "net1")
	n.ok("DEL", s)
	n.unprepare(c)
	n.ok("CHECK", other)
	if !n.attachedBy(replaced, other) {
		t.Errorf("the status of the new claim has changed: %+v", n.devices(replaced))
	}
	n.delete(replaced) // before the pod's end
	n.ok("DEL", other)
	n.unprepare(replaced)
	n.wantReleased(resourceClaims{c, replaced}, s, other)
}
