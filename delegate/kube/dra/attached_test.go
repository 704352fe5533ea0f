package dra_test

import (
	"encoding/json"
	"testing"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/kube/dra"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf/nad"
)

func TestRecordsSayWhatIsAttachedBecauseOfAClaim(t *testing.T) {
	t.Parallel()
	claim := dra.Claim{Ref: dra.Ref{UID: "c1", Namespace: "blue", Name: "storage", Pod: "p1"}}
	net := dra.Network{DeviceID: dra.DeviceID{Pool: "node", Device: "storage", Share: "s"}, Request: "net"}
	attached := func(ifname, pod string, o nad.Origin) delegate.Attached {
		return delegate.Attached{
			Attachment: delegate.Attachment{IfName: ifname, Args: "K8S_POD_UID=" + pod, Origin: o.JSON()},
			Result:     json.RawMessage(`{"cniVersion":"1.1.0"}`),
		}
	}
	other := claim
	other.UID = "c2"
	got := claim.Attached([]delegate.Attached{
		attached("eth0", "p1", nad.Origin{Use: nad.Cluster}),
		attached("net1", "p1", nad.Origin{Use: nad.Claimed, Claim: other.Device(net)}),
		attached("net2", "p1", nad.Origin{Use: nad.Claimed, Claim: claim.Device(net)}),
		attached("net3", "p2", nad.Origin{Use: nad.Claimed, Claim: claim.Device(net)}),
	})
	want := []dra.Attachment{{DeviceID: net.DeviceID, IfName: "net2", Result: json.RawMessage(`{"cniVersion":"1.1.0"}`)}}
	nodetest.Equal(t, "got", got, want)
	if got := (dra.Ref{Pod: "p1"}).Attached([]delegate.Attached{attached("eth0", "p1", nad.Origin{})}); got != nil {
		t.Errorf("a claim without a UID has %v", got)
	}
}
