package tool

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
)

const podArgs = "IgnoreUnknown=1;K8S_POD_NAMESPACE=team-a;K8S_POD_NAME=web-0;K8S_POD_UID=u-1;K8S_POD_INFRA_CONTAINER_ID=c1"

// attach records a container c1 with these CNI_ARGS. Its networks are multi, of the
// configuration, and storage, which has the origin.
func (h *host) attach(t *testing.T, args string, origin json.RawMessage) {
	t.Helper()
	var plan []delegate.Attachment
	for i, plugin := range []string{"bridge", "macvlan"} {
		n, err := netconf.Parse(fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":%q,"type":%q,"password":%q}`, []string{"multi", "storage"}[i], plugin, secret))
		nodetest.OK(t, err)
		plan = append(plan, delegate.Attachment{Network: n, ContainerID: "c1", IfName: []string{"eth0", "net1"}[i], Args: args})
	}
	if origin != nil {
		plan[0].Origin, plan[1].Origin = nad.Origin{Use: nad.Cluster}.JSON(), origin
	}
	life := lifecycle.Manager{Dir: h.state(), Invoker: &delegate.Invoker{Exec: h.Exec}}
	if _, err := life.Add(t.Context(), scratch.Key{Network: "multi", ContainerID: "c1", IfName: "eth0"}, lifecycle.Transaction{Plan: lifecycle.Plan(plan...)}); err != nil {
		t.Fatal(err)
	}
}

// selected is the origin of a network that a pod has selected.
func selected() nad.Origin {
	return nad.Origin{
		Use: nad.Selected, Definition: nad.Ref{Namespace: "team-b", Name: "fast"}, UID: "u-2", Version: "77", PodSource: "file",
		Selection: json.RawMessage(`{"name":"fast","namespace":"team-b","ipam-claim-reference":"vm-1"}`),
	}
}

func TestToolShowsWhoseAttachmentItIsAndWhy(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.attach(t, podArgs, selected().JSON())
	out, err := h.tool(t, "list")
	nodetest.OK(t, err)
	lines := strings.Split(out, "\n")
	for i, want := range []string{"CONTAINER POD INTERFACE NETWORK NAD USE STATE", "c1 team-a/web-0 eth0 multi - cluster added", "c1 team-a/web-0 net1 storage team-b/fast selected added"} {
		if !strings.HasPrefix(strings.Join(strings.Fields(lines[i]), " "), want) {
			t.Errorf("line %d is %q, want %q", i, lines[i], want)
		}
	}
	out, err = h.tool(t, "show", "c1")
	for _, want := range []string{
		"\n  pod team-a/web-0, UID u-1\n", "\n    origin cluster\n",
		"\n    origin selected, NAD team-b/fast (UID u-2, version 77), IPAM claim \"vm-1\", pod from \"file\"\n",
	} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("show does not say %q: %v\n%s", want, err, out)
		}
	}
	for _, words := range [][]string{{"list"}, {"show", "c1"}} {
		out, err := h.tool(t, append(words, "-o", "json")...)
		var all []struct {
			Pod         map[string]string
			Attachments []struct{ Origin json.RawMessage }
		}
		if err == nil {
			err = json.Unmarshal([]byte(out), &all)
		}
		if err != nil || len(all) != 1 || len(all[0].Attachments) != 2 {
			t.Fatalf("%v: %v\n%s", words, err, out)
		}
		if p := all[0].Pod; p["namespace"] != "team-a" || p["name"] != "web-0" || p["uid"] != "u-1" {
			t.Errorf("%v: pod %v", words, p)
		}
		origin := nad.ParseOrigin(all[0].Attachments[1].Origin)
		if got := canonical(origin.JSON()); got != canonical(selected().JSON()) {
			t.Errorf("%v: origin %s", words, got)
		}
	}
	out, err = h.tool(t, "status", "c1")
	if err != nil || !strings.Contains(out, `"name": "multi"`) || !strings.Contains(out, `"name": "team-b/fast"`) {
		t.Errorf("status: %v\n%s", err, out)
	}
}

// The device of a claim, and the share of it, are what a driver and an administrator compare.
func TestToolShowsTheClaimOfAnAttachment(t *testing.T) {
	t.Parallel()
	claim := nad.Claim{UID: "u-3", Name: "storage", Request: "net/fast", Pool: "node-1", Device: "vf0"}
	shared := claim
	shared.Share = "s-4"
	for _, tt := range []struct {
		origin     nad.Origin
		list, show string
	}{
		{nad.Origin{Use: nad.Claimed, Claim: claim}, "net1 storage - claimed added", `origin claimed, claim "storage" (UID u-3), request "net/fast", device "vf0" of pool "node-1"` + "\n"},
		{
			nad.Origin{Use: nad.Claimed, Claim: shared, Definition: nad.Ref{Namespace: "team-b", Name: "fast"}, UID: "u-2", Version: "77", PodSource: "api"},
			"net1 storage team-b/fast claimed added",
			`origin claimed, NAD team-b/fast (UID u-2, version 77), claim "storage" (UID u-3), request "net/fast", device "vf0" of pool "node-1", share s-4, pod from "api"` + "\n",
		},
	} {
		h := newHost(t)
		h.attach(t, podArgs, tt.origin.JSON())
		out, err := h.tool(t, "list")
		if err != nil || !strings.Contains(strings.Join(strings.Fields(out), " "), tt.list) {
			t.Errorf("list does not say %q: %v\n%s", tt.list, err, out)
		}
		if out, err = h.tool(t, "show", "c1"); err != nil || !strings.Contains(out, tt.show) {
			t.Errorf("show does not say %q: %v\n%s", tt.show, err, out)
		}
		out, err = h.tool(t, "show", "c1", "-o", "json")
		var all []struct {
			Attachments []struct{ Origin json.RawMessage }
		}
		if err != nil || json.Unmarshal([]byte(out), &all) != nil || len(all) != 1 || len(all[0].Attachments) != 2 {
			t.Fatalf("%v\n%s", err, out)
		}
		if got := nad.ParseOrigin(all[0].Attachments[1].Origin).Claim; got != tt.origin.Claim {
			t.Errorf("claim %+v", got)
		}
	}
}

// A record of an older version has no origin, and a damaged one is none. The commands show
// the rest, and the status has the name of the network.
func TestToolShowsRecordsWithoutAnOrigin(t *testing.T) {
	t.Parallel()
	for _, origin := range []string{"", "7", `["x"]`, `{"use":3}`, `{"use":"selected","definition":"../x"}`} {
		h := newHost(t)
		h.attach(t, "K8S_POD_NAME", json.RawMessage(origin))
		for _, words := range [][]string{{"list"}, {"list", "-o", "json"}, {"show", "c1"}, {"show", "c1", "-o", "json"}, {"status", "c1"}} {
			out, err := h.tool(t, words...)
			if err != nil || !strings.Contains(out, "storage") || strings.Contains(out, "../x") || strings.Contains(out, `"pod"`) {
				t.Errorf("%v of %q: %v\n%s", words, origin, err, out)
			}
		}
		out, err := h.tool(t, "list")
		if line := strings.Join(strings.Fields(strings.Split(out, "\n")[2]), " "); err != nil || !strings.HasPrefix(line, "c1 - net1 storage - - added") {
			t.Errorf("list of %q: %v\n%s", origin, err, out)
		}
		life := lifecycle.Manager{Dir: h.state(), Invoker: &delegate.Invoker{Exec: h.Exec}}
		if err := life.Del(t.Context(), lifecycle.Removal{Key: scratch.Key{Network: "multi", ContainerID: "c1", IfName: "eth0"}}); err != nil || len(h.Exec.Live()) > 0 {
			t.Errorf("DEL of %q: %v, left %v", origin, err, h.Exec.Live())
		}
	}
}

// What the plugins print does not decide whether an attachment is in the status.
func TestToolStatusHasEveryAttachment(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.Exec.Plugins["macvlan"] = delegatetest.Result(nil)
	h.attach(t, podArgs, nil)
	out, err := h.tool(t, "status", "c1", "-o", "table")
	lines := strings.Split(out, "\n")
	if err != nil || len(lines) != 4 || strings.Join(strings.Fields(lines[2]), " ") != "storage net1 - - false" {
		t.Errorf("status: %v\n%s", err, out)
	}
}
