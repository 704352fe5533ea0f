package dra

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/kubetest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

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
			if logged := strings.Contains(log.String(), "claim=blue/x"); logged != (tt.fault != nil) {
				t.Errorf("logged: %v:\n%s", logged, log)
			}
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
	added := append([]delegate.Attached{{}}, n.attached...) // the first has no claim
	nodetest.OK(t, n.Held(web, added))
	nodetest.OK(t, unprepareClaim(t, k, backup))
	if err := n.Held(web, added); status.Code(err) != 11 || err.Error() != "claim blue/backup: not prepared: the kubelet has released it during the ADD" {
		t.Errorf("code %d: %v", status.Code(err), err)
	}
}

// A daemon without a driver calls the same methods.
func TestNilDriverDoesNothing(t *testing.T) {
	t.Parallel()
	var d *Driver
	claims, err := d.Claims(t.Context(), web, "storage")
	if len(claims) > 0 || err != nil || d.Held(web, []delegate.Attached{{}}) != nil || d.UpdateMetadata(t.Context(), web.UID) != nil || d.Err() != nil || d.Stats() != (Stats{}) {
		t.Errorf("%v, %v", claims, err)
	}
	d.Attached(web.UID, nil)
	d.Refresh()
	d.Stop()
}
