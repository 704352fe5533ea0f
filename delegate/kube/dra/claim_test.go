package dra

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

func TestEachRequestHasOneConfig(t *testing.T) {
	t.Parallel()
	const a, b = "a", "b"
	for name, row := range map[string]struct {
		request string
		configs []resourcev1.DeviceAllocationConfiguration
		want    string // empty: an error
		ofClass bool
	}{
		"for all requests":                       {"net", []parameters{fromClaim(a)}, a, false},
		"for this request":                       {"net", []parameters{fromClaim(a, "net"), fromClaim(b, "other")}, a, false},
		"for the request of a subrequest":        {"net/fast", []parameters{fromClaim(a, "net")}, a, false},
		"for this subrequest":                    {"net/fast", []parameters{fromClaim(a, "net/fast"), fromClaim(b, "net/slow")}, a, false},
		"of the class":                           {"net", []parameters{fromClass(a, "net")}, a, true},
		"of the claim, which replaces the class": {"net", []parameters{fromClass(a), fromClaim(b)}, b, false},
		"of another driver as well": {"net", []parameters{fromClaim(a), {
			Source: resourcev1.AllocationConfigSourceClaim, DeviceConfiguration: resourcev1.DeviceConfiguration{
				Opaque: &resourcev1.OpaqueDeviceConfiguration{Driver: "other.example.com"},
			},
		}, {Source: resourcev1.AllocationConfigSourceClaim}}, a, false},
		"none":                  {"net", nil, "", false},
		"none for this request": {"net", []parameters{fromClaim(a, "other")}, "", false},
		"two of the claim":      {"net", []parameters{fromClaim(a), fromClaim(b, "net")}, "", false},
		"two of the class":      {"net", []parameters{fromClass(a), fromClass(b)}, "", false},
	} {
		got, ofClass, err := configOf(row.request, row.configs, driverName)
		if string(got) != row.want || ofClass != row.ofClass || (err != nil) != (row.want == "") {
			t.Errorf("%s: got %q, of the class %v, %v", name, got, ofClass, err)
		}
	}
}

// Who may make claims may not choose what runs as root, unless the configuration says so.
func TestWrongClaimsAreRefused(t *testing.T) {
	t.Parallel()
	configured := func(configs ...parameters) func(*resourcev1.ResourceClaim) {
		return func(c *resourcev1.ResourceClaim) { c.Status.Allocation.Devices.Config = configs }
	}
	reserved := func(by ...resourcev1.ResourceClaimConsumerReference) func(*resourcev1.ResourceClaim) {
		return func(c *resourcev1.ResourceClaim) { c.Status.ReservedFor = by }
	}
	result := func(edit func(*resourcev1.DeviceRequestAllocationResult)) func(*resourcev1.ResourceClaim) {
		return func(c *resourcev1.ResourceClaim) { edit(&c.Status.Allocation.Devices.Results[0]) }
	}
	twice := func(device string) func(*resourcev1.ResourceClaim) {
		return func(c *resourcev1.ResourceClaim) {
			c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, allocatedTo("two", device, ""))
		}
	}
	pod := resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: "web", UID: "pod-web"}
	inline, both := own(`,"config":"{\"cniVersion\":\"1.1.0\",\"name\":\"n\",\"type\":\"bridge\"}"`), []string{"bridge", "multinet"}
	ipam := cni(`,"config":{"cniVersion":"1.1.0","name":"n","type":"bridge","ipam":{"type":"host-local"}}`)
	for name, row := range map[string]struct {
		edit    func(*resourcev1.ResourceClaim)
		allowed []string // types
		want    string   // empty: it is not refused
	}{
		"of the claim":                  {configured(fromClaim(inline)), nil, "no networks of their own"},
		"of the claim, allowed":         {configured(fromClaim(inline)), []string{"macvlan", "bridge"}, ""},
		"of the claim, another type":    {configured(fromClaim(inline)), []string{"macvlan"}, `"bridge" is not one of allowedTypes`},
		"of the class":                  {configured(fromClass(inline)), nil, ""},
		"a definition":                  {configured(fromClaim(own(`,"definition":"n"`))), nil, ""},
		"of both, the claim decides":    {configured(fromClaim(own(`,"definition":"n"`))), []string{"macvlan"}, ""},
		"of the claim, in both kinds":   {configured(fromClaim(cni(`,"config":` + bridge))), nil, "no networks of their own"},
		"of the class, with other IPAM": {configured(fromClass(ipam)), []string{"bridge"}, ""},
		"of the claim, with other IPAM": {configured(fromClaim(ipam)), []string{"bridge"}, "host-local"},

		"for no pod":                 {reserved(), both, "reserved for 0 pods"},
		"for a pod and a service":    {reserved(pod, resourcev1.ResourceClaimConsumerReference{Resource: "services", Name: "b", UID: "b"}), both, `one of "services"`},
		"for no pod but a job":       {reserved(resourcev1.ResourceClaimConsumerReference{APIGroup: "batch", Resource: "jobs", Name: "j", UID: "j"}), both, `one of "batch/jobs"`},
		"for a pod without a UID":    {reserved(resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: "web"}), both, "UID"},
		"for a UID that is a path":   {reserved(resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: "web", UID: "../x"}), both, "UID"},
		"without a config":           {configured(), both, "no config"},
		"with two configs":           {configured(fromClaim("{}"), fromClaim("{}")), both, "2 configs"},
		"of another driver":          {result(func(r *resourcev1.DeviceRequestAllocationResult) { r.Driver = "other.example.com" }), both, "no device of driver"},
		"with admin access":          {result(func(r *resourcev1.DeviceRequestAllocationResult) { r.AdminAccess = new(true) }), both, "admin access"},
		"with a device twice":        {twice("storage"), both, "device node1/storage is that of request"},
		"with an interface twice":    {twice("other"), both, `interface "a" is that of request`},
		"with a config without type": {configured(fromClaim(cni(`,"config":{"name":"n"}`))), both, "type"},
		"with the plugin itself":     {configured(fromClaim(cni(`,"config":{"cniVersion":"1.1.0","name":"n","type":"multinet"}`))), both, "itself"},
		"with a forbidden namespace": {configured(fromClaim(own(`,"definition":"red/n"`))), both, "namespaceIsolation"},
	} {
		claim, err := claimOf(newClaim("a", row.edit), driverName)
		if err == nil {
			err = claim.check(Config{Policy: nad.Policy{Isolation: true}, Rules: nad.Rules{Own: []string{"multinet"}}, AllowedTypes: row.allowed})
		}
		if row.want == "" && err == nil {
			continue
		}
		if row.want == "" || !errors.Is(err, errClaim) || status.Code(err) != 7 || !strings.Contains(err.Error(), row.want) || !strings.HasPrefix(err.Error(), "claim blue/a: ") {
			t.Errorf("%s: got %v, want %q", name, err, row.want)
		}
	}
}

func TestClaimsHaveTheDevicesOfTheDriver(t *testing.T) {
	t.Parallel()
	one, two := cni(`,"ifName":"x","config":{ "a":1.0}`), own(`,"definition":"n"`)
	got, err := claimOf(newClaim("a", func(c *resourcev1.ResourceClaim) {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourcev1.DeviceRequestAllocationResult{Request: "gpu", Driver: "gpu.example.com", Pool: "p", Device: "d"}, allocatedTo("two/fast", "vlan", ""))
		c.Status.Allocation.Devices.Config = []parameters{fromClaim(one, "net"), fromClass(two, "two")}
	}), driverName)
	want := Claim{
		Ref: Ref{UID: "claim-a", Namespace: "blue", Name: "a", Pod: "pod-web"}, Networks: []Network{
			{Claim: nad.Claim{UID: "claim-a", Name: "a", Request: "net", Pool: "node1", Device: "storage", Share: "share-a"}, IfName: "x", Config: `{ "a":1.0}`},
			{Claim: nad.Claim{UID: "claim-a", Name: "a", Request: "two/fast", Pool: "node1", Device: "vlan"}, OfClass: true, Definition: nad.Ref{Namespace: "blue", Name: "n"}},
		}, Shared: true,
	}
	nodetest.OK(t, err)
	nodetest.Equal(t, "claim", got, want)
}

func TestDevicesAndInterfacesBelongToOneClaim(t *testing.T) {
	t.Parallel()
	claim := func(uid, pod string, d device, ifName string) Claim {
		return Claim{Ref: Ref{uid, "blue", uid, pod}, Networks: []Network{{Claim: nad.Claim{Request: "net", Pool: d.pool, Device: d.name, Share: d.share}, IfName: ifName}}}
	}
	share := func(s string) device { return device{"node1", "storage", s} }
	mine := claim("a", "pod", share("1"), "net1")
	for name, row := range map[string]struct {
		other Claim
		want  string
	}{
		"another share":                       {claim("b", "other", share("2"), "net1"), ""},
		"the same share":                      {claim("b", "other", share("1"), "net2"), "device node1/storage (share 1) is that of claim blue/b"},
		"the whole device":                    {claim("b", "other", share(""), "net2"), "device"},
		"the same name in another pool":       {claim("b", "other", device{"node2", "storage", "1"}, "net2"), ""},
		"the same interface of the same pod":  {claim("b", "pod", share("2"), "net1"), `interface "net1" is that of claim blue/b`},
		"another interface of the same pod":   {claim("b", "pod", share("2"), "net2"), ""},
		"interfaces that the plugin may name": {claim("b", "pod", share("2"), ""), ""},
	} {
		if err := mine.conflict(row.other); errors.Is(err, errInUse) != (row.want != "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: got %v, want %q", name, err, row.want)
		}
	}
}

// The records name the attachments of a claim: the newest sandbox decides about the status, and
// a release detaches those of all sandboxes.
func TestRecordsSayWhatIsAttachedBecauseOfAClaim(t *testing.T) {
	t.Parallel()
	ref := Ref{UID: "c1", Namespace: "blue", Name: "storage", Pod: "p1"}
	network := func(uid, ifName string) Network {
		return Network{Claim: nad.Claim{UID: uid, Pool: "node1", Device: "storage", Share: "s"}, IfName: ifName}
	}
	var detached []string
	record := func(id string, created int64, attached ...delegate.Attached) Detachable {
		return Detachable{
			AddRecord: lifecycle.AddRecord{Key: scratch.Key{ContainerID: id}, State: scratch.Added, Created: time.Unix(created, 0), Attached: attached},
			Detach: func(_ context.Context, ifName string) error {
				detached = append(detached, id+" "+ifName)
				return nil
			},
		}
	}
	ending := record("new", 3, attachedTo("p1", network("c1", "gone")))
	ending.State = scratch.Deleting
	c := Config{Records: func(context.Context, string) ([]Detachable, error) {
		return []Detachable{
			record("old", 1, attachedTo("p1", network("c1", "net1"))), ending,
			record("new", 2, delegate.Attached{Attachment: delegate.Attachment{IfName: "eth0", Args: "K8S_POD_UID=p1"}},
				attachedTo("p1", network("c2", "net1")), attachedTo("p1", network("c1", "net2")), attachedTo("p2", network("c1", "net3")), attachedTo("p1", network("c1", "net4"))),
		}, nil
	}}
	got, err := c.attached(t.Context(), ref)
	nodetest.OK(t, err)
	var names []string
	for _, a := range got {
		if a.device != (device{"node1", "storage", "s"}) || string(a.result) != resultOfAdd {
			t.Errorf("got %+v", a)
		}
		names = append(names, a.ifName)
	}
	nodetest.Equal(t, "attached", names, []string{"net2", "net4"})
	nodetest.OK(t, c.detach(t.Context(), ref))
	nodetest.Equal(t, "detached", detached, []string{"old net1", "new gone", "new net4", "new net2"})
	if got, err := c.attached(t.Context(), Ref{Pod: "p1"}); got != nil || err != nil {
		t.Errorf("a claim without a UID has %v, %v", got, err)
	}
}

var web = nad.Pod{Namespace: "blue", Name: "web", UID: "pod-web"}

// A claim of the pod that is not prepared fails the ADD if it certainly is for this driver.
func TestAClaimThatIsNotPreparedFailsTheADDOnlyIfItIsOurs(t *testing.T) {
	t.Parallel()
	ours := func(*resourcev1.ResourceClaim) {}
	for name, tt := range map[string]struct {
		claim func(*resourcev1.ResourceClaim) // nil is no claim
		fault *kubetest.Fault
		code  uint
	}{
		"ours": {claim: ours, code: 11},
		"another driver's": {claim: func(c *resourcev1.ResourceClaim) {
			c.Status.Allocation.Devices.Results[0].Driver = "gpu.example.com"
		}},
		"not allocated":                     {claim: func(c *resourcev1.ResourceClaim) { c.Status.Allocation = nil }},
		"gone":                              {},
		"ours, and the API has an error":    {claim: ours, fault: &kubetest.Fault{Status: 500}},
		"ours, and it is forbidden":         {claim: ours, fault: &kubetest.Fault{Status: 403}},
		"ours, and the API does not answer": {claim: ours, fault: &kubetest.Fault{BlackHole: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := &nodetest.Log{}
			n := newNode(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
			prepared := kubetest.Put(n.server, newClaim("storage", nil))
			mustPrepare(t, n.kubelet(t), prepared)
			if tt.claim != nil {
				kubetest.Put(n.server, newClaim("x", tt.claim))
			}
			if tt.fault != nil {
				tt.fault.Verb, tt.fault.Resource = "get", "resourceclaims"
				defer n.server.Break(*tt.fault)()
			}
			before := n.server.Count("get", "resourceclaims")
			got, err := n.Claims(t.Context(), web, "storage", "x")
			if status.Code(err) != tt.code || (len(got) == 1) != (tt.code == 0) {
				t.Errorf("%d claims, code %d, want %d: %v", len(got), status.Code(err), tt.code, err)
			}
			if tt.code != 0 && err.Error() != "claim blue/x: not prepared" {
				t.Error(err)
			}
			nodetest.Equal(t, "requests", n.server.Count("get", "resourceclaims")-before, 1)
			nodetest.Equal(t, "logged", strings.Contains(log.String(), "claim=blue/x"), tt.fault != nil)
		})
	}
}

// Pods whose claims are prepared, or that are not known to have any, cause no request, and do not
// wait: the API server does not answer at all.
func TestPodsWithoutOtherClaimsDoNotFeelAnOutage(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	mustPrepare(t, n.kubelet(t), kubetest.Put(n.server, newClaim("storage", nil)))
	defer n.server.Break(kubetest.Fault{BlackHole: true})()
	ended, end := context.WithCancel(t.Context())
	end() // whoever waits or asks fails
	before := n.server.Count("get", "resourceclaims")
	for name, of := range map[string]struct {
		pod    nad.Pod
		names  []string
		claims int
	}{
		"prepared":    {web, []string{"storage"}, 1},
		"not known":   {web, nil, 1},
		"without":     {nad.Pod{Namespace: "blue", Name: "plain", UID: "plain"}, nil, 0},
		"without UID": {nad.Pod{Namespace: "blue", Name: "web"}, nil, 0},
	} {
		if got, err := n.Claims(ended, of.pod, of.names...); len(got) != of.claims || err != nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	nodetest.Equal(t, "requests", n.server.Count("get", "resourceclaims")-before, 0)
}

// A daemon without a driver calls the same methods.
func TestNilDriverDoesNothing(t *testing.T) {
	t.Parallel()
	var d *Driver
	claims, err := d.Claims(t.Context(), web, "storage")
	if len(claims) > 0 || err != nil || d.Held(t.Context(), web, []delegate.Attachment{{}}) != nil || d.UpdateMetadata(t.Context(), web.UID) != nil || d.Err() != nil || d.Stats() != (Stats{}) {
		t.Errorf("%v, %v", claims, err)
	}
	d.Attached(web.UID, nil)
	d.Refresh()
	d.Stop()
}

// shares reserves a claim for more pods.
func (n *node) shares(c *resourcev1.ResourceClaim, pods ...string) *resourcev1.ResourceClaim {
	for _, pod := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: pod, UID: types.UID(pod)})
	}
	return kubetest.Put(n.server, c)
}

var second = nad.Pod{Namespace: "blue", Name: "second", UID: "second"}

// The kubelet has a claim prepared once, for the first pod. The second pod finds it nevertheless,
// whether or not somebody knows that it has the claim, and also when the first has ended.
func TestPodsShareAClaim(t *testing.T) {
	t.Parallel()
	for name, names := range map[string][]string{"the claims of the pod are known": {"a"}, "they are not known": nil} {
		for state, ended := range map[string]bool{"the first pod runs": false, "the first pod has ended": true} {
			t.Run(name+", "+state, func(t *testing.T) {
				t.Parallel()
				n, k, a := prepared(t)
				n.attach(t, "pod-web")
				a = n.shares(a, second.UID)
				mustPrepare(t, k, a) // does not ask
				if ended {
					n.detach(string(a.UID))
					a.Status.ReservedFor = a.Status.ReservedFor[1:]
					a = kubetest.Put(n.server, a)
					nodetest.OK(t, n.sweepAll(t.Context()))
					n.wantClaims(t, "pod-web", 0)
				}
				claims, err := n.Claims(t.Context(), second, names...)
				if err != nil || len(claims) != 1 || claims[0].UID != "claim-a" || claims[0].Pod != second.UID {
					t.Fatalf("%+v, %v", claims, err)
				}
				n.attach(t, second.UID)
				if !ended {
					n.wantClaims(t, "pod-web", 1)
				}
				nodetest.OK(t, k.Unprepare(t.Context(), a))
				left, err := n.all()
				nodetest.OK(t, err)
				nodetest.Equal(t, "prepared", len(left), 0)
				nodetest.Equal(t, "attached", len(n.attached), 0)
			})
		}
	}
}

// After a restart the kubelet asks again, when several pods have the claim.
func TestASharedClaimIsPreparedForEachPod(t *testing.T) {
	t.Parallel()
	n, _, a := prepared(t)
	a = n.shares(a, second.UID, "third")
	k := n.kubelet(t)
	mustPrepare(t, k, a)
	for _, pod := range []string{"pod-web", "second", "third"} {
		n.wantClaims(t, pod, 1)
	}
	// An interface that one of them has of another claim harms that one alone.
	b := n.shares(newClaim("b", func(c *resourcev1.ResourceClaim) {
		c.Status.Allocation.Devices.Config[0].Opaque.Parameters.Raw = []byte(strings.Replace(
			string(c.Status.Allocation.Devices.Config[0].Opaque.Parameters.Raw), `"ifName":"b"`, `"ifName":"a"`, 1))
	}), "fourth")
	mustPrepare(t, k, b)
	claims, err := n.Claims(t.Context(), nad.Pod{Namespace: "blue", Name: "fourth", UID: "fourth"}, "b")
	nodetest.OK(t, err)
	nodetest.Equal(t, "claims of fourth", len(claims), 1)
	_, err = n.Claims(t.Context(), web, "a", "b")
	nodetest.Fails(t, err, 11, `claim blue/b: in use: request "net": interface "a" is that of claim blue/a`)
}

// A claim that no other pod can have, or that is not reserved for the pod, is not shared.
func TestClaimsOfOtherPodsAreTheirs(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		edit  func(*resourcev1.ResourceClaim)
		fault *kubetest.Fault
		names []string
		code  uint
	}{
		"not reserved for the pod":               {},
		"not reserved for the pod, which has it": {names: []string{"a"}, code: 11},
		"of a template": {edit: func(c *resourcev1.ResourceClaim) {
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "web", UID: "pod-web"}}
		}},
		"in another namespace": {edit: func(c *resourcev1.ResourceClaim) { c.Namespace = "red" }},
		"the API is away":      {fault: &kubetest.Fault{Status: 500}},
		"the API is away, and the pod has it": {
			fault: &kubetest.Fault{Status: 500}, names: []string{"a"}, code: 11,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, nil)
			mustPrepare(t, n.kubelet(t), kubetest.Put(n.server, newClaim("a", tt.edit)))
			if tt.fault != nil {
				tt.fault.Verb, tt.fault.Resource = "get", "resourceclaims"
				defer n.server.Break(*tt.fault)()
			}
			claims, err := n.Claims(t.Context(), second, tt.names...)
			nodetest.Code(t, err, tt.code)
			nodetest.Equal(t, "claims", len(claims), 0)
		})
	}
}

// The status of a shared claim is that of the newest sandbox that has it. The file that containers see
// is one for all pods, and so has the addresses of none.
func TestASharedClaimHasOneStatus(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(c *Config) { c.CDIDir = t.TempDir() })
	mustPrepare(t, n.kubelet(t), n.shares(newClaim("a", nil), second.UID))
	n.attach(t, "pod-web")
	n.attach(t, second.UID)
	n.await(t, "written", n.ready("a", "True"))
	files, err := filepath.Glob(filepath.Join(n.config.plugin(), "dra-device-metadata/*/*/metadata.json"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	text, err := os.ReadFile(files[0])
	nodetest.OK(t, err)
	nodetest.Equal(t, "an address in the file", strings.Contains(string(text), "192.0.2.5"), false)
	n.mu.Lock()
	n.attached = n.attached[1:] // the first pod has ended
	n.mu.Unlock()
	n.Attached("pod-web", errors.New("gone"))
	n.counts(t, func(s Stats) bool { return s.Pending == 0 })
	nodetest.Equal(t, "ready", n.ready("a", "True")(), true)
}

// plan returns the attachment for the claim a as a plugin records it.
func (n *node) plan(t *testing.T, a *resourcev1.ResourceClaim) delegate.Attached {
	t.Helper()
	claim, err := claimOf(a, driverName)
	nodetest.OK(t, err)
	return attachedTo("pod-web", claim.Networks[0])
}

// A claim stays prepared while any record has something of it, whatever the status of the claim
// shows: nobody else gets the device.
func TestAClaimStaysWhileAnyRecordHasIt(t *testing.T) {
	t.Parallel()
	for name, record := range map[string]func(r *Detachable, a delegate.Attached){
		"an attached container": func(r *Detachable, a delegate.Attached) { r.Attached = []delegate.Attached{a} },
		"an ADD that has begun": func(r *Detachable, a delegate.Attached) {
			r.State, r.Attached = scratch.Planned, []delegate.Attached{a}
		},
		"a DEL that has begun": func(r *Detachable, a delegate.Attached) {
			r.State, r.Attached = scratch.Deleting, []delegate.Attached{a}
		},
		"an undo that has failed": func(r *Detachable, a delegate.Attached) {
			r.State, r.Attached = scratch.Leftover, []delegate.Attached{a}
		},
		"a leftover of an ADD before":     func(r *Detachable, a delegate.Attached) { r.Leftovers = []delegate.Attached{a} },
		"a container of an unknown pod":   func(r *Detachable, a delegate.Attached) { a.Args = ""; r.Attached = []delegate.Attached{a} },
		"an earlier sandbox of the pod":   func(r *Detachable, a delegate.Attached) { r.Created, r.Attached = time.Time{}, []delegate.Attached{a} },
		"one of several in the container": func(r *Detachable, a delegate.Attached) { r.Attached = []delegate.Attached{{}, a} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, k, a := prepared(t)
			fails := errors.New("not now")
			r := Detachable{Detach: func(context.Context, string) error { return nil }} // as a DEL that finds nothing to do
			r.Key, r.State, r.Created = scratch.Key{Network: "multi", ContainerID: "c1", IfName: "eth0"}, scratch.Added, time.Now()
			record(&r, n.plan(t, a))
			newer := Detachable{Detach: func(context.Context, string) error { return fails }}
			newer.Key, newer.State, newer.Created = scratch.Key{ContainerID: "c2"}, scratch.Added, time.Now().Add(time.Hour)
			n.others = []Detachable{r, newer}
			nodetest.Says(t, k.Unprepare(t.Context(), a), "multi/c1/eth0", "still attached")
			nodetest.Code(t, n.releaseAll(t.Context(), Ref{UID: string(a.UID), Namespace: "blue", Name: "a"}), 11)
			kubetest.Delete[resourcev1.ResourceClaim](n.server, "blue", "a")
			nodetest.OK(t, n.sweepAll(t.Context()))
			n.wantClaims(t, "pod-web", 1)
			b := kubetest.Put(n.server, newClaim("b", func(c *resourcev1.ResourceClaim) {
				c.Status.Allocation.Devices.Results[0] = allocatedTo("net", "storage", "share-a")
			}))
			refused(t, k, b, "in use")
			nodetest.OK(t, os.Remove(filepath.Join(n.config.Dir, "pod-web@claim-a@claim.json")))
			nodetest.Says(t, k.Unprepare(t.Context(), a), "still attached") // also without a record of the claim
			n.others = nil
			nodetest.OK(t, k.Unprepare(t.Context(), a))
			mustPrepare(t, k, b)
		})
	}
}

// A sandbox that can neither be attached nor detached is let go by its DEL, and so is its claim.
func TestAClaimIsReleasedAsTheDELIs(t *testing.T) {
	t.Parallel()
	n, k, a := prepared(t)
	r := Detachable{Detach: func(context.Context, string) error { return errors.New("the plugin fails") }}
	r.Key, r.State, r.Attached = scratch.Key{Network: "multi", ContainerID: "c1", IfName: "eth0"}, scratch.Leftover, []delegate.Attached{n.plan(t, a)}
	n.others = []Detachable{r}
	nodetest.Says(t, k.Unprepare(t.Context(), a), "the plugin fails")
	n.wantClaims(t, "pod-web", 1)
	n.others[0].GivenUp = true
	nodetest.OK(t, k.Unprepare(t.Context(), a))
	n.wantClaims(t, "pod-web", 0)
}

// Nobody knows of which claim a record is that cannot be read.
func TestAClaimStaysWhileARecordCannotBeRead(t *testing.T) {
	t.Parallel()
	n, k, a := prepared(t)
	kubetest.Delete[resourcev1.ResourceClaim](n.server, "blue", "a")
	n.fail(&scratch.Error{Op: "list", Key: scratch.Key{Network: "multi", ContainerID: "c1", IfName: "eth0"}, Err: scratch.ErrCorrupt})
	nodetest.Says(t, k.Unprepare(t.Context(), a), `record "multi/c1/eth0": corrupt record`)
	nodetest.Is(t, n.sweepAll(t.Context()), scratch.ErrCorrupt)
	n.fail(nil)
	n.wantClaims(t, "pod-web", 1)
}

// The kubelet prepares a claim again while the sweep asks the API server about it.
func TestTheSweepSparesWhatIsPreparedAgain(t *testing.T) {
	t.Parallel()
	n, _, a := prepared(t)
	for r, err := range n.config.store().List(t.Context()) {
		nodetest.OK(t, err)
		mustPrepare(t, n.kubelet(t), a)
		released, err := n.release(t.Context(), r.Value.Ref, r.Updated)
		nodetest.OK(t, err)
		nodetest.Equal(t, "released", released, false)
	}
	n.wantClaims(t, "pod-web", 1)
}

// A claim that the kubelet asks for again keeps what a later release has recorded, on each level.
// Of another allocation it does not.
func TestKeysOfALaterReleaseAreKept(t *testing.T) {
	t.Parallel()
	d := &Driver{ctx: t.Context(), config: Config{Dir: t.TempDir()}}
	c := Claim{Ref: Ref{"a", "blue", "name", "pod1"}, Networks: []Network{{
		Claim: nad.Claim{UID: "a", Request: "net", Pool: "node1", Device: "storage"}, Definition: nad.Ref{Namespace: "blue", Name: "x"},
	}}}
	nodetest.OK(t, d.put(t.Context(), c))
	later := scratch.Store[map[string]json.RawMessage]{Dir: d.config.Dir}
	lock, err := later.Lock(t.Context(), c.Pod)
	nodetest.OK(t, err)
	r, err := later.Get(c.key())
	nodetest.OK(t, err)
	r.Value["Later"] = json.RawMessage(`{"b":1.0}`)
	r.Value["Networks"] = json.RawMessage(strings.NewReplacer(`"IfName"`, `"Later":1e400,"IfName"`, `"pool"`, `"later":"<","pool"`, `"Name":"x"`, `"Name":"x","Later":null`).Replace(string(r.Value["Networks"])))
	nodetest.OK(t, errors.Join(later.Put(lock, r), lock.Unlock()))
	want := fmt.Sprintf("%s", r.Value)

	nodetest.OK(t, d.put(t.Context(), c))
	r, err = later.Get(c.key())
	nodetest.OK(t, err)
	nodetest.Equal(t, "recorded", fmt.Sprintf("%s", r.Value), want)
	claims, err := d.prepared(c.Pod)
	nodetest.OK(t, err)
	nodetest.Equal(t, "prepared", claims, []Claim{c})

	c.Networks[0].Claim.Device = "other"
	nodetest.OK(t, d.put(t.Context(), c))
	claims, err = d.prepared(c.Pod)
	nodetest.OK(t, err)
	nodetest.Equal(t, "prepared", claims, []Claim{c})
	r, err = later.Get(c.key())
	nodetest.OK(t, err)
	if text := fmt.Sprintf("%s", r.Value); strings.Contains(strings.ToLower(text), "later") {
		t.Error(text)
	}
}

// The record of a claim is what every release since the first reads and writes.
func TestFormOfARecordedClaim(t *testing.T) {
	t.Parallel()
	d := &Driver{ctx: t.Context(), config: Config{Dir: t.TempDir()}}
	const text = `{"UID":"a","Namespace":"blue","Name":"name","Pod":"pod1","Networks":[` +
		`{"Claim":{"uid":"a","name":"name","request":"net","pool":"node1","device":"storage"},"OfClass":false,"IfName":"net1","Definition":{"Namespace":"blue","Name":"x"},"Config":""},` +
		`{"Claim":{"uid":"a","request":"own"},"OfClass":true,"IfName":"","Definition":{"Namespace":"","Name":""},"Config":"{\"type\":\"<\"}"}]}`
	c := Claim{Ref: Ref{"a", "blue", "name", "pod1"}, Networks: []Network{
		{Claim: nad.Claim{UID: "a", Name: "name", Request: "net", Pool: "node1", Device: "storage"}, IfName: "net1", Definition: nad.Ref{Namespace: "blue", Name: "x"}},
		{Claim: nad.Claim{UID: "a", Request: "own"}, OfClass: true, Config: `{"type":"<"}`},
	}}
	nodetest.OK(t, d.put(t.Context(), c))
	raw := scratch.Store[json.RawMessage]{Dir: d.config.Dir}
	r, err := raw.Get(c.key())
	nodetest.OK(t, err)
	nodetest.Equal(t, "written", strings.ReplaceAll(string(r.Value), `\u003c`, "<"), text)
	lock, err := raw.Lock(t.Context(), c.Pod)
	nodetest.OK(t, err)
	r.Value = json.RawMessage(text)
	nodetest.OK(t, errors.Join(raw.Put(lock, r), lock.Unlock()))
	claims, err := d.prepared(c.Pod)
	nodetest.OK(t, err)
	nodetest.Equal(t, "read", claims, []Claim{c})
}

const bridge = `{"cniVersion":"1.1.0","name":"storage","type":"bridge"}`

// own returns parameters of this package's kind.
func own(rest string) string {
	return `{"apiVersion":"dra.metacni.io/v1alpha1","kind":"Network"` + rest + `}`
}

// cni returns parameters of the kind of cni-dra-driver.
func cni(rest string) string {
	return `{"apiVersion":"cni.networking.x-k8s.io/v1alpha1","kind":"CNI"` + rest + `}`
}

// parsed returns the network in parameters of a claim in the namespace blue.
func parsed(data string) (Network, error) {
	var n Network
	err := n.parse([]byte(data), "blue")
	return n, err
}

func TestParametersNameOneNetwork(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		data string
		want Network
	}{
		"a definition of the claim's namespace": {own(`,"definition":"storage"`), Network{Definition: nad.Ref{Namespace: "blue", Name: "storage"}}},
		"a definition of another namespace":     {own(`,"definition":"red/storage","ifName":"net1"`), Network{IfName: "net1", Definition: nad.Ref{Namespace: "red", Name: "storage"}}},
		"a config as a string":                  {own(`,"config":"{ \"b\":1.0, \"a\":1e3 }"`), Network{Config: `{ "b":1.0, "a":1e3 }`}},
		"CNI":                                   {cni(`,"ifName":"net1","config":` + bridge), Network{IfName: "net1", Config: bridge}},
		"CNI without an interface":              {cni(`,"config":` + bridge), Network{Config: bridge}},
		"CNIConfig":                             {`{"kind":"CNIConfig","apiVersion":"cni.networking.x-k8s.io/v1alpha1","config":` + bridge + `}`, Network{Config: bridge}},
		"of the other group":                    {`{"kind":"CNIConfig","apiVersion":"cni.dra.networking.x-k8s.io/v1alpha1","config":` + bridge + `}`, Network{Config: bridge}},
		"exactly 10 KiB":                        {padded(maxParameters), Network{Definition: nad.Ref{Namespace: "blue", Name: "storage"}}},
	} {
		got, err := parsed(row.data)
		nodetest.OK(t, err)
		nodetest.Equal(t, name, got, row.want)
	}
	for name, config := range forms() { // keep their bytes
		got, err := parsed(cni(`,"config":` + config))
		nodetest.OK(t, err)
		nodetest.Equal(t, name, got.Config, config)
		nodetest.OK(t, got.check("blue", Config{AllowedTypes: []string{"bridge"}}))
	}
}

// padded returns valid parameters of that many bytes.
func padded(size int) string {
	return strings.Replace(own(`,"definition":"storage"`), ",", ","+strings.Repeat(" ", size-len(own(`,"definition":"storage"`))), 1)
}

// forms are configurations that JSON programs like to rewrite.
func forms() map[string]string {
	const rest = `,"cniVersion":"1.1.0","name":"storage","type":"bridge"}`
	return map[string]string{
		"sorted":             `{"a":1,"b":2` + rest,
		"not sorted":         `{"b":2,"a":1` + rest,
		"a decimal zero":     `{"a":1.0` + rest,
		"an exponent":        `{"a":1e3` + rest,
		"twenty digits":      `{"a":12345678901234567890` + rest,
		"blanks":             "{ \"a\" : 1 ,\n\t\"b\":2" + rest,
		"escaped characters": `{"a":"\u003c\/\u00e9"` + rest,
		"a nested object":    `{"z":{"y":[1.50,{"b":null,"a":true}]}` + rest,
	}
}

func TestWrongParametersAreRefused(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		data string
		kind error
		key  string
	}{
		"nothing":                    {``, netconf.ErrDecode, ""},
		"null":                       {`null`, netconf.ErrDecode, ""},
		"broken JSON":                {own(`,"definition":`), netconf.ErrDecode, ""},
		"two objects":                {own(`,"definition":"a"`) + `{}`, netconf.ErrDecode, ""},
		"a key twice":                {own(`,"definition":"a","definition":"b"`), netconf.ErrDecode, "definition"},
		"no kind":                    {`{"definition":"a"}`, netconf.ErrInvalid, "kind"},
		"another kind":               {`{"apiVersion":"dra.metacni.io/v1alpha1","kind":"CNI","config":{}}`, netconf.ErrInvalid, "kind"},
		"another version":            {`{"apiVersion":"dra.metacni.io/v1","kind":"Network","definition":"a"}`, netconf.ErrInvalid, "kind"},
		"a kind that is no string":   {`{"apiVersion":1,"kind":"CNI"}`, netconf.ErrDecode, "apiVersion"},
		"an unknown key":             {own(`,"definition":"a","ips":[]`), netconf.ErrInvalid, "ips"},
		"a key in another case":      {own(`,"Definition":"a"`), netconf.ErrInvalid, "definition"},
		"no network":                 {own(``), netconf.ErrInvalid, "definition"},
		"two networks":               {own(`,"definition":"a","config":"{}"`), netconf.ErrInvalid, "definition"},
		"a config that is an object": {own(`,"config":{}`), netconf.ErrDecode, "config"},
		"a definition that is null":  {own(`,"definition":null`), netconf.ErrDecode, "definition"},
		"a path for a definition":    {own(`,"definition":"../a"`), netconf.ErrInvalid, "definition"},
		"no config":                  {cni(``), netconf.ErrInvalid, "config"},
		"a config that is null":      {cni(`,"config":null`), netconf.ErrDecode, "config"},
		"a config that is a string":  {cni(`,"config":"{}"`), netconf.ErrDecode, "config"},
		"a number for an interface":  {cni(`,"ifName":1,"config":{}`), netconf.ErrDecode, "ifName"},
		"an interface of 16 bytes":   {cni(`,"ifName":"` + strings.Repeat("a", 16) + `","config":{}`), netconf.ErrInvalid, "ifName"},
		"10 KiB and a byte":          {padded(maxParameters + 1), netconf.ErrInvalid, ""},
	} {
		got, err := parsed(row.data)
		var e *netconf.Error
		if !errors.As(err, &e) || !errors.Is(err, row.kind) || e.Key != row.key {
			t.Errorf("%s: got %+v, %v; want %v of key %q", name, got, err, row.kind, row.key)
		}
	}
}

func TestANetworkWithoutAVersionHasThatOfTheRules(t *testing.T) {
	t.Parallel()
	rules := nad.Rules{CNIVersion: "1.0.0"}
	for config, want := range map[string]string{
		bridge:                         "1.1.0",
		`{"name":"n","type":"bridge"}`: "1.0.0",
	} {
		n, err := (Network{Config: config}).Network(rules)
		if err != nil || n.CNIVersion() != want {
			t.Errorf("%s: %q, %v, want %s", config, n.CNIVersion(), err, want)
		}
	}
}

// Whatever is accepted has one network, and is the same when it is read again.
func FuzzParseParameters(f *testing.F) {
	for _, config := range forms() {
		f.Add([]byte(cni(`,"ifName":"net1","config":` + config)))
	}
	f.Add([]byte(own(`,"definition":"red/storage"`)))
	f.Add([]byte(own(`,"config":"{}"`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := parsed(string(data))
		if err != nil {
			if !errors.As(err, new(*netconf.Error)) {
				t.Fatalf("%+v, %v", p, err)
			}
			return
		}
		if (p.Config == "") == (p.Definition == nad.Ref{}) {
			t.Fatalf("not one network: %+v", p)
		}
		var head struct{ Kind string }
		nodetest.OK(t, json.Unmarshal(data, &head))
		nodetest.Equal(t, "is written: "+p.Config, head.Kind == parametersKind || strings.Contains(string(data), p.Config), true)
		again, err := parsed(string(data))
		if diff := cmp.Diff(p, again); diff != "" || err != nil {
			t.Fatal(diff, err)
		}
		_ = p.check("blue", Config{Rules: nad.Rules{Own: []string{"multinet"}}}) // never panics
	})
}

// What the manifests of multinetd have as examples is what the driver reads.
func TestTheExamplesAreParameters(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../../examples/multinet/deploy/dra/examples/*.yaml")
	if err != nil || len(files) < 4 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		nodetest.OK(t, err)
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			_, parameters, ok := strings.Cut(document, "parameters:\n")
			if !ok {
				continue
			}
			data, err := yaml.YAMLToJSON([]byte(parameters))
			nodetest.OK(t, err)
			n, err := parsed(string(data))
			nodetest.OK(t, err)
			n.OfClass = true
			nodetest.Equal(t, file, n.check("blue", Config{}), nil)
		}
	}
}

// An ADD has read the claim before it is released, and records what it attaches at any moment of
// the release. Either the claim stays, or the ADD fails.
func TestReleaseAndADDSeeEachOther(t *testing.T) {
	t.Parallel()
	for moment := range 7 { // 1, 3 and 5 are before the release reads the records
		for _, by := range []string{"the kubelet", "the sweep"} {
			n, _, a := prepared(t)
			r := Detachable{Detach: func(context.Context, string) error { return nil }}
			r.Key, r.State = scratch.Key{Network: "multi", ContainerID: "c1", IfName: "eth0"}, scratch.Planned
			r.Attached = []delegate.Attached{n.plan(t, a)}
			held := make(chan error, 1)
			add := func() {
				n.mu.Lock()
				n.others = []Detachable{r}
				n.mu.Unlock()
				hold := func(ctx context.Context) error {
					return n.Held(ctx, web, []delegate.Attachment{{}, r.Attached[0].Attachment}) // the first has no claim
				}
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				if err := hold(ctx); !errors.Is(err, context.DeadlineExceeded) {
					held <- err
					return
				}
				go func() { held <- hold(t.Context()) }() // it waits for the release
			}
			added := false
			n.looking = func(look int) {
				if look == moment {
					add()
					added = true
				}
			}
			if by == "the kubelet" {
				if err := n.releaseAll(t.Context(), Ref{UID: string(a.UID), Namespace: "blue", Name: "a"}); err != nil {
					nodetest.Is(t, err, errInUse)
				}
			} else {
				kubetest.Delete[resourcev1.ResourceClaim](n.server, "blue", "a")
				nodetest.OK(t, n.sweepAll(t.Context()))
			}
			left, err := n.all()
			nodetest.OK(t, err)
			if !added {
				add()
			}
			err = nodetest.Come(t, held, "the ADD knows")
			if released := len(left) == 0; released == (err == nil) {
				t.Errorf("by %s, moment %d: released %t, the ADD: %v", by, moment, released, err)
			} else if released {
				nodetest.Fails(t, err, 11, "claim blue/a: not prepared: the kubelet has released it during the ADD")
			}
		}
	}
}
