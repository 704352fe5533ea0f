package dra

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp/cmpopts"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// condition is the condition of a device.
func condition(status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: "Ready", Status: status, Reason: reason, Message: message}
}

var ignoreTimes = cmpopts.IgnoreFields(metav1.Condition{}, "LastTransitionTime")

// ready reports whether the first device of a claim has the condition Ready with that status.
func (n *node) ready(name string, status metav1.ConditionStatus) func() bool {
	return func() bool {
		c := kubetest.Get[resourcev1.ResourceClaim](n.server, "blue", name)
		return c != nil && len(c.Status.Devices) > 0 && len(c.Status.Devices[0].Conditions) > 0 && c.Status.Devices[0].Conditions[0].Status == status
	}
}

func TestTheStatusOfAClaimIsWhatIsAttached(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	foreign := resourcev1.AllocatedDeviceStatus{Driver: "gpu.example.com", Pool: "p", Device: "d"}
	a := kubetest.Put(n.server, newClaim("a", func(c *resourcev1.ResourceClaim) {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourcev1.DeviceRequestAllocationResult{Request: "gpu", Driver: "gpu.example.com", Pool: "p", Device: "d"})
		c.Status.Devices = []resourcev1.AllocatedDeviceStatus{foreign}
	}))
	mustPrepare(t, n.kubelet(t), a)
	nodetest.Equal(t, "updates before the ADD", n.server.Count("update", ""), 0)
	n.Attached("pod-web", errors.New("bridge: no address left"))
	devices := func() []resourcev1.AllocatedDeviceStatus {
		return kubetest.Get[resourcev1.ResourceClaim](n.server, "blue", "a").Status.Devices
	}
	check := func(what string, want resourcev1.AllocatedDeviceStatus) {
		t.Helper()
		nodetest.Equal(t, what, devices(), []resourcev1.AllocatedDeviceStatus{foreign, want}, ignoreTimes)
	}
	share := "share-a"
	status := resourcev1.AllocatedDeviceStatus{Driver: driverName, Pool: "node1", Device: "storage", ShareID: &share}

	n.await(t, "failed", func() bool { return len(devices()) == 2 })
	status.Conditions = []metav1.Condition{condition("False", "NetworkInterfaceNotReady", "bridge: no address left")}
	check("after an ADD that has failed", status)

	n.attach(t, "pod-web")
	n.await(t, "attached", func() bool { return devices()[1].Conditions[0].Status == "True" })
	status.Conditions = []metav1.Condition{condition("True", "NetworkInterfaceReady", "")}
	status.Data = &runtime.RawExtension{Raw: []byte(resultOfAdd)}
	status.NetworkData = &resourcev1.NetworkDeviceData{InterfaceName: "net1", IPs: []string{"192.0.2.5/24", "2001:db8::5/64"}, HardwareAddress: "02:00:00:00:00:01"}
	check("after the ADD", status)

	n.detach("claim-a")
	n.Attached("pod-web", nil)
	n.await(t, "detached", func() bool { return devices()[1].Conditions[0].Status == "False" })
	status.Conditions = []metav1.Condition{condition("False", "NetworkInterfaceNotReady", "")}
	status.Data, status.NetworkData = nil, nil
	check("after the DEL", status)
	for _, r := range n.server.Requests() {
		if r.Verb == "patch" || r.Verb == "update" && (r.Resource != "resourceclaims/status" || !strings.HasPrefix(r.Body, "k8s\x00")) {
			t.Errorf("not an update in protobuf: %+v", r)
		}
	}
}

// What could not be written is written after a restart, and what is written already is not.
func TestAStatusIsWrittenOnceWhateverRestarts(t *testing.T) {
	t.Parallel()
	n, _, _ := prepared(t)
	heal := n.server.Break(kubetest.Fault{Verb: "update", Status: 503})
	n.attach(t, "pod-web")
	n.await(t, "tried", func() bool { return n.server.Count("update", "") > 0 })
	n.Stop()
	heal()
	n.restart(t)
	n.await(t, "written", n.ready("a", "True"))
	before, updates := kubetest.Get[resourcev1.ResourceClaim](n.server, "blue", "a"), n.server.Count("update", "")
	n.restart(t)
	mustPrepare(t, n.kubelet(t), kubetest.Put(n.server, newClaim("b", nil)))
	n.attach(t, "pod-web")
	n.await(t, "written", n.ready("b", "True"))
	nodetest.Equal(t, "Claim", kubetest.Get[resourcev1.ResourceClaim](n.server, "blue", "a"), before)
	nodetest.Equal(t, "updates of another claim", n.server.Count("update", "")-updates, 1)
}

func TestAStatusIsTriedUntilItIsWritten(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]kubetest.Fault{
		"403":               {Resource: "resourceclaims/status", Status: 403},
		"409":               {Verb: "update", Resource: "resourceclaims/status", Status: 409},
		"429":               {Resource: "resourceclaims/status", Status: 429},
		"500 when it reads": {Verb: "get", Resource: "resourceclaims", Status: 500},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, _, _ := prepared(t)
			verb := cmp.Or(fault.Verb, "update")
			before := n.server.Count(verb, fault.Resource)
			heal := n.server.Break(fault)
			n.attach(t, "pod-web")
			n.await(t, "tried twice", func() bool { return n.server.Count(verb, fault.Resource) >= before+2 })
			n.counts(t, func(s Stats) bool {
				return s.Pending == 1 && s.Written == 0 && (s.Refused > 0) == (name == "403") && (s.Failed > 0) == (name != "403")
			})
			heal()
			n.await(t, "written", n.ready("a", "True"))
			n.counts(t, func(s Stats) bool { return s.Pending == 0 && s.Written == 1 })
		})
	}
}

// The kubelet may release a claim long after its pod has ended. Meanwhile another pod, perhaps of
// another node, may have it, or another claim its name: the status is that one's.
func TestTheStatusForALaterPodIsLeftAlone(t *testing.T) {
	t.Parallel()
	for name, later := range map[string]func(*resourcev1.ResourceClaim){
		"another pod": func(c *resourcev1.ResourceClaim) {
			c.Status.ReservedFor[0].UID = "pod-later"
			c.Status.Allocation.Devices.Results[0].Pool = "node2"
			c.Status.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: driverName, Pool: "node2", Device: "storage", Conditions: []metav1.Condition{condition("True", reasonReady, "")}}}
		},
		"another claim": func(c *resourcev1.ResourceClaim) { c.UID = "next" },
	} {
		n := newNode(t, nil)
		a, b := kubetest.Put(n.server, newClaim("a", nil)), kubetest.Put(n.server, newClaim("b", nil))
		mustPrepare(t, n.kubelet(t), a, b)
		n.attach(t, "pod-web")
		n.await(t, "written", n.ready("a", "True"))
		n.await(t, "written", n.ready("b", "True"))
		kubetest.Delete[resourcev1.ResourceClaim](n.server, "blue", "a")
		next := kubetest.Put(n.server, newClaim("a", later))
		updates := n.server.Count("update", "")
		for _, c := range []*resourcev1.ResourceClaim{a, b} {
			n.detach(string(c.UID))
		}
		n.Attached("pod-web", nil)
		n.await(t, "the other is written", n.ready("b", "False"))
		n.counts(t, func(s Stats) bool { return s.Pending == 0 })
		nodetest.Equal(t, name, kubetest.Get[resourcev1.ResourceClaim](n.server, "blue", "a"), next, ignoreTimes)
		nodetest.Equal(t, "updates", n.server.Count("update", "")-updates, 1)
	}
}

func TestAStatusHoldsWhatAnAPIServerTakes(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range 20 {
		many = append(many, fmt.Sprintf(`{"address":"192.0.2.%d/24"}`, i+1))
	}
	first := func(n int) (ips []string) {
		for i := range n {
			ips = append(ips, fmt.Sprintf("192.0.2.%d/24", i+1))
		}
		return ips
	}
	for name, row := range map[string]struct {
		result  string
		want    resourcev1.NetworkDeviceData
		hasData bool
	}{
		"a result":                {resultOfAdd, resourcev1.NetworkDeviceData{InterfaceName: "net1", IPs: []string{"192.0.2.5/24", "2001:db8::5/64"}, HardwareAddress: "02:00:00:00:00:01"}, true},
		"20 addresses":            {`{"cniVersion":"1.0.0","ips":[` + strings.Join(many, ",") + `]}`, resourcev1.NetworkDeviceData{InterfaceName: "net1", IPs: first(16)}, true},
		"an address twice":        {`{"cniVersion":"1.0.0","ips":[` + many[0] + `,` + many[0] + `]}`, resourcev1.NetworkDeviceData{InterfaceName: "net1", IPs: first(1)}, true},
		"CNI 0.2":                 {`{"cniVersion":"0.2.0","ip4":{"ip":"192.0.2.1/24"}}`, resourcev1.NetworkDeviceData{InterfaceName: "net1", IPs: first(1)}, true},
		"another interface name":  {`{"cniVersion":"1.0.0","interfaces":[{"name":"x","sandbox":"/n"}]}`, resourcev1.NetworkDeviceData{InterfaceName: "x"}, true},
		"a sandbox that is none":  {`{"cniVersion":"1.0.0","interfaces":[{"name":"dummy","mac":"0","sandbox":"0"},{"name":"x","sandbox":"/run/netns/c1"}],"ips":[{"interface":0,"address":"192.0.2.9/24"},{"interface":1,"address":"192.0.2.1/24"}]}`, resourcev1.NetworkDeviceData{InterfaceName: "x", IPs: first(1)}, true},
		"addresses of the host":   {`{"cniVersion":"1.0.0","interfaces":[{"name":"net1"}],"ips":[{"interface":0,"address":"192.0.2.1/24"}]}`, resourcev1.NetworkDeviceData{InterfaceName: "net1"}, true},
		"a long hardware address": {`{"cniVersion":"1.0.0","interfaces":[{"name":"net1","sandbox":"/n","mac":"` + strings.Repeat("0", 129) + `"}]}`, resourcev1.NetworkDeviceData{InterfaceName: "net1"}, true},
		"a long interface name":   {`{"cniVersion":"1.0.0","interfaces":[{"name":"` + strings.Repeat("x", 257) + `","sandbox":"/n"}]}`, resourcev1.NetworkDeviceData{InterfaceName: "net1"}, true},
		"null for an address":     {`{"cniVersion":"1.0.0","ips":[null,` + many[0] + `]}`, resourcev1.NetworkDeviceData{InterfaceName: "net1", IPs: first(1)}, true},
		"null for all":            {`{"cniVersion":"1.0.0","interfaces":[null],"ips":null,"routes":[null]}`, resourcev1.NetworkDeviceData{InterfaceName: "net1"}, true},
		"null in CNI 0.4":         {`{"cniVersion":"0.4.0","interfaces":[null],"ips":[null],"routes":[null]}`, resourcev1.NetworkDeviceData{InterfaceName: "net1"}, true},
		"null in CNI 0.2":         {`{"cniVersion":"0.2.0","ip4":null,"ip6":{"ip":"2001:db8::5/64","routes":[null]}}`, resourcev1.NetworkDeviceData{InterfaceName: "net1", IPs: []string{"2001:db8::5/64"}}, true},
		"an IPv4 address in IPv6": {`{"cniVersion":"1.0.0","ips":[{"address":"::ffff:192.0.2.9/120"},` + many[0] + `]}`, resourcev1.NetworkDeviceData{InterfaceName: "net1", IPs: first(1)}, true},
		"10 KiB":                  {`{"cniVersion":"1.0.0"` + strings.Repeat(" ", 10<<10-22) + `}`, resourcev1.NetworkDeviceData{InterfaceName: "net1"}, true},
		"10 KiB and a byte":       {`{"cniVersion":"1.0.0"` + strings.Repeat(" ", 10<<10-21) + `}`, resourcev1.NetworkDeviceData{InterfaceName: "net1"}, false},
		"no result":               {``, resourcev1.NetworkDeviceData{InterfaceName: "net1"}, false},
		"what is no result":       {`[]`, resourcev1.NetworkDeviceData{InterfaceName: "net1"}, false},
		"a version of tomorrow":   {`{"cniVersion":"9.0.0"}`, resourcev1.NetworkDeviceData{InterfaceName: "net1"}, true},
	} {
		a := attachment{ifName: "net1", netns: "/run/netns/c1", result: []byte(row.result)}
		nodetest.Equal(t, name, a.networkData(), &row.want)
		if data := a.data(); (data != nil) != row.hasData || data != nil && string(data.Raw) != row.result {
			t.Errorf("%s: data: %v", name, data)
		}
	}
}

func TestTimesAndOtherConditionsStay(t *testing.T) {
	t.Parallel()
	long := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	object := newClaim("a", nil)
	claim, err := claimOf(object, driverName)
	nodetest.OK(t, err)
	attached := []attachment{{device: claim.Networks[0].device(), ifName: "net1"}}
	status := desired(object, driverName, claim, attached, "")
	status[0].Conditions[0].LastTransitionTime = long
	status[0].Conditions = append(status[0].Conditions, metav1.Condition{Type: "Other", Status: "True", Reason: "R", LastTransitionTime: long})
	object.Status.Devices = status
	nodetest.Equal(t, "desired", desired(object, driverName, claim, attached, ""), status)
	failed := desired(object, driverName, claim, nil, strings.Repeat("x", maxMessage+1))
	if c := failed[0].Conditions; len(c) != 2 || !c[0].LastTransitionTime.After(long.Time) || len(c[0].Message) != maxMessage {
		t.Errorf("%+v", c[0].LastTransitionTime)
	}
	for _, message := range []string{"x" + strings.Repeat("é", maxMessage), "not UTF-8: \xff"} {
		if got := desired(object, driverName, claim, nil, message)[0].Conditions[0].Message; !utf8.ValidString(got) || len(got) < min(len(message), maxMessage)-2 || len(got) > maxMessage {
			t.Errorf("a message of %d bytes has become %d: %.20q", len(message), len(got), got)
		}
	}
	if !slices.ContainsFunc(object.Status.Devices, func(s resourcev1.AllocatedDeviceStatus) bool { return s.Conditions[0].Status == "True" }) {
		t.Error("the object has changed")
	}
	object.Status.Allocation.Devices.Results = nil
	nodetest.Equal(t, "the status of a device that is not allocated", desired(object, driverName, claim, attached, ""), nil)
}

// A pod that is attached while its status is computed is never said to have no network.
func TestAnADDDuringAWriteIsNotTakenForADetach(t *testing.T) {
	t.Parallel()
	n, _, _ := prepared(t)
	n.Stop() // the writer begins with what is prepared
	started := make(chan struct{})
	var once sync.Once
	n.config.Records = func(ctx context.Context, podUID string) ([]Detachable, error) {
		before, err := n.records(ctx, podUID)
		once.Do(func() {
			<-started
			n.attach(t, "pod-web")
		})
		return before, err
	}
	n.restart(t)
	close(started)
	n.await(t, "attached", n.ready("a", "True"))
	nodetest.Equal(t, "updates", n.server.Count("update", ""), 1)
}

// counts waits until the driver has counted something.
func (n *node) counts(t *testing.T, done func(Stats) bool) {
	t.Helper()
	nodetest.Until(t, "the driver has counted so", func() bool { return done(n.Stats()) })
}

// Whoever does not know whose attachments have changed has all looked at. The text of a failed
// attempt stays.
func TestRefreshFollowsWhatHasChanged(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	k := n.kubelet(t)
	a := kubetest.Put(n.server, newClaim("a", nil))
	b := kubetest.Put(n.server, newClaim("b", func(c *resourcev1.ResourceClaim) { c.Status.ReservedFor[0].UID = "pod-b" }))
	mustPrepare(t, k, a, b)
	n.attach(t, "pod-web")
	n.Attached("pod-b", errors.New("no free device"))
	n.await(t, "written", n.ready("a", "True"))
	n.await(t, "written", n.ready("b", "False"))
	n.counts(t, func(s Stats) bool { return s == Stats{Prepared: 2, Written: 2} })
	n.detach(string(a.UID))
	n.Refresh()
	n.await(t, "refreshed", n.ready("a", "False"))
	nodetest.Equal(t, "the text is now", kubetest.Get[resourcev1.ResourceClaim](n.server, "blue", "b").Status.Devices[0].Conditions[0].Message, "no free device")
}
