package dra

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
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
		"for all requests":                       {"net", []resourcev1.DeviceAllocationConfiguration{fromClaim(a)}, a, false},
		"for this request":                       {"net", []resourcev1.DeviceAllocationConfiguration{fromClaim(a, "net"), fromClaim(b, "other")}, a, false},
		"for the request of a subrequest":        {"net/fast", []resourcev1.DeviceAllocationConfiguration{fromClaim(a, "net")}, a, false},
		"for this subrequest":                    {"net/fast", []resourcev1.DeviceAllocationConfiguration{fromClaim(a, "net/fast"), fromClaim(b, "net/slow")}, a, false},
		"of the class":                           {"net", []resourcev1.DeviceAllocationConfiguration{fromClass(a, "net")}, a, true},
		"of the claim, which replaces the class": {"net", []resourcev1.DeviceAllocationConfiguration{fromClass(a), fromClaim(b)}, b, false},
		"of another driver as well": {"net", []resourcev1.DeviceAllocationConfiguration{fromClaim(a), {
			Source: resourcev1.AllocationConfigSourceClaim, DeviceConfiguration: resourcev1.DeviceConfiguration{
				Opaque: &resourcev1.OpaqueDeviceConfiguration{Driver: "other.example.com"},
			},
		}, {Source: resourcev1.AllocationConfigSourceClaim}}, a, false},
		"none":                       {"net", nil, "", false},
		"none for this request":      {"net", []resourcev1.DeviceAllocationConfiguration{fromClaim(a, "other")}, "", false},
		"two of the claim":           {"net", []resourcev1.DeviceAllocationConfiguration{fromClaim(a), fromClaim(b, "net")}, "", false},
		"two of the claim, the same": {"net", []resourcev1.DeviceAllocationConfiguration{fromClaim(a), fromClaim(a)}, "", false},
		"two of the class":           {"net", []resourcev1.DeviceAllocationConfiguration{fromClass(a), fromClass(b)}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ofClass, err := configOf(row.request, row.configs, driverName)
			nodetest.Equal(t, "of the class", ofClass, row.ofClass)
			if string(got) != row.want || (err != nil) != (row.want == "") {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

func TestWrongClaimsAreRefused(t *testing.T) {
	t.Parallel()
	type consumers = []resourcev1.ResourceClaimConsumerReference
	parameters := func(text string) func(*resourcev1.ResourceClaim) {
		return func(c *resourcev1.ResourceClaim) {
			c.Status.Allocation.Devices.Config = []resourcev1.DeviceAllocationConfiguration{fromClaim(text)}
		}
	}
	for name, row := range map[string]struct {
		edit func(*resourcev1.ResourceClaim)
		want string
	}{
		"for no pod": {func(c *resourcev1.ResourceClaim) { c.Status.ReservedFor = nil }, "reserved for 0 pods"},
		"for a pod and a service": {func(c *resourcev1.ResourceClaim) {
			c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "services", Name: "b", UID: "b"})
		}, `one of "services"`},
		"for no pod but a job": {func(c *resourcev1.ResourceClaim) {
			c.Status.ReservedFor = consumers{{APIGroup: "batch", Resource: "jobs", Name: "j", UID: "j"}}
		}, `one of "batch/jobs"`},
		"for a service": {func(c *resourcev1.ResourceClaim) {
			c.Status.ReservedFor = consumers{{Resource: "services", Name: "j", UID: "j"}}
		}, `one of "services"`},
		"for a pod without a UID":  {func(c *resourcev1.ResourceClaim) { c.Status.ReservedFor[0].UID = "" }, "UID"},
		"for a UID that is a path": {func(c *resourcev1.ResourceClaim) { c.Status.ReservedFor[0].UID = "../x" }, "UID"},
		"without a config":         {func(c *resourcev1.ResourceClaim) { c.Status.Allocation.Devices.Config = nil }, "no config"},
		"with two configs": {func(c *resourcev1.ResourceClaim) {
			c.Status.Allocation.Devices.Config = append(c.Status.Allocation.Devices.Config, fromClaim("{}"))
		}, "2 configs"},
		"of another driver": {func(c *resourcev1.ResourceClaim) { c.Status.Allocation.Devices.Results[0].Driver = "other.example.com" }, "no device of driver"},
		"with admin access": {func(c *resourcev1.ResourceClaim) {
			yes := true
			c.Status.Allocation.Devices.Results[0].AdminAccess = &yes
		}, "admin access"},
		"with a device twice": {func(c *resourcev1.ResourceClaim) {
			c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, allocatedTo("two", "storage", ""))
		}, "device node1/storage is that of request"},
		"with an interface twice": {func(c *resourcev1.ResourceClaim) {
			c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, allocatedTo("two", "other", ""))
		}, `interface "a" is that of request`},
		"with a config without type": {parameters(cni(`,"config":{"name":"n"}`)), "type"},
		"with the plugin itself":     {parameters(cni(`,"config":{"cniVersion":"1.1.0","name":"n","type":"multinet"}`)), "itself"},
		"with a forbidden namespace": {parameters(own(`,"definition":"red/n"`)), "namespaceIsolation"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			claim, err := claimOf(newClaim("a", row.edit), driverName)
			if err == nil {
				err = claim.check(Config{Policy: nad.Policy{Isolation: true}, Rules: nad.Rules{Own: []string{"multinet"}}, AllowedTypes: []string{"bridge", "multinet"}})
			}
			if !errors.Is(err, errClaim) || status.Code(err) != 7 || !strings.Contains(err.Error(), row.want) || !strings.HasPrefix(err.Error(), "claim blue/a: ") {
				t.Errorf("got %v, want %q", err, row.want)
			}
		})
	}
}

func TestClaimsHaveTheDevicesOfTheDriver(t *testing.T) {
	t.Parallel()
	one, two := cni(`,"ifName":"x","config":{ "a":1.0}`), own(`,"definition":"n"`)
	got, err := claimOf(newClaim("a", func(c *resourcev1.ResourceClaim) {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourcev1.DeviceRequestAllocationResult{Request: "gpu", Driver: "gpu.example.com", Pool: "p", Device: "d"}, allocatedTo("two/fast", "vlan", ""))
		c.Status.Allocation.Devices.Config = []resourcev1.DeviceAllocationConfiguration{fromClaim(one, "net"), fromClass(two, "two")}
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
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := mine.conflict(row.other)
			switch {
			case row.want == "" && err != nil:
				t.Error(err)
			case row.want != "" && (!errors.Is(err, errInUse) || !strings.Contains(err.Error(), row.want)):
				t.Errorf("got %v, want %q", err, row.want)
			}
		})
	}
}

// Who may make claims may not choose what runs as root, unless the configuration says so.
func TestNetworksInClaimsNeedAllowedTypes(t *testing.T) {
	t.Parallel()
	inline := own(`,"config":"{\"cniVersion\":\"1.1.0\",\"name\":\"n\",\"type\":\"bridge\"}"`)
	for name, row := range map[string]struct {
		of      func(string, ...string) resourcev1.DeviceAllocationConfiguration
		text    string
		allowed []string
		want    string // of the error; empty means none
	}{
		"of the claim":                  {fromClaim, inline, nil, "no networks of their own"},
		"of the claim, allowed":         {fromClaim, inline, []string{"macvlan", "bridge"}, ""},
		"of the claim, another type":    {fromClaim, inline, []string{"macvlan"}, `"bridge" is not one of allowedTypes`},
		"of the class":                  {fromClass, inline, nil, ""},
		"of the class, another type":    {fromClass, inline, []string{"macvlan"}, ""},
		"a definition":                  {fromClaim, own(`,"definition":"n"`), nil, ""},
		"of both, the claim decides":    {fromClaim, own(`,"definition":"n"`), []string{"macvlan"}, ""},
		"of the claim, in both kinds":   {fromClaim, cni(`,"config":{"cniVersion":"1.1.0","name":"n","type":"bridge"}`), nil, "no networks of their own"},
		"of the class, with other IPAM": {fromClass, cni(`,"config":{"cniVersion":"1.1.0","name":"n","type":"bridge","ipam":{"type":"host-local"}}`), []string{"bridge"}, ""},
		"of the claim, with other IPAM": {fromClaim, cni(`,"config":{"cniVersion":"1.1.0","name":"n","type":"bridge","ipam":{"type":"host-local"}}`), []string{"bridge"}, "host-local"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			claim, err := claimOf(newClaim("a", func(c *resourcev1.ResourceClaim) {
				c.Status.Allocation.Devices.Config = []resourcev1.DeviceAllocationConfiguration{row.of(row.text)}
			}), driverName)
			if err == nil {
				err = claim.check(Config{AllowedTypes: row.allowed})
			}
			if (row.want == "") != (err == nil) || err != nil && (!errors.Is(err, errClaim) || !strings.Contains(err.Error(), row.want)) {
				t.Errorf("got %v, want %q", err, row.want)
			}
		})
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
	record := func(id string, created int64, attached ...delegate.Attached) Record {
		return Record{
			Record: lifecycle.Record{Key: scratch.Key{ContainerID: id}, State: scratch.Added, Created: time.Unix(created, 0), Attached: attached},
			Detach: func(_ context.Context, ifName string) error {
				detached = append(detached, id+" "+ifName)
				return nil
			},
		}
	}
	ending := record("new", 3, attachedTo("p1", network("c1", "gone")))
	ending.State = scratch.Deleting
	c := Config{Records: func(context.Context, string) ([]Record, error) {
		return []Record{
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

// Claims that were released while the ADD has run are not held any more.
func TestAReleasedClaimIsNotHeld(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	k, storage, backup := n.kubelet(t), newClaim("storage", nil), newClaim("backup", func(c *resourcev1.ResourceClaim) {
		c.Status.Allocation.Devices.Results[0] = allocatedTo("net", "backup", "")
	})
	mustPrepare(t, k, kubetest.Put(n.server, storage), kubetest.Put(n.server, backup))
	n.attach(t, web.UID)
	plan := []delegate.Attachment{{}} // has no claim
	for _, a := range n.attached {
		plan = append(plan, a.Attachment)
	}
	nodetest.OK(t, n.Held(t.Context(), web, plan))
	nodetest.OK(t, k.Unprepare(t.Context(), backup))
	nodetest.Fails(t, n.Held(t.Context(), web, plan), 11, "claim blue/backup: not prepared: the kubelet has released it during the ADD")
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
