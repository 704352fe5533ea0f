package nad_test

import (
	"encoding/json"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf/nad"
)

func TestOriginReadsBackAsItWasRecorded(t *testing.T) {
	t.Parallel()
	selection := json.RawMessage(`{"name":"blue","cni-args":{"n":12345678901234567890,"text":"<&>"},"ipam-claim-reference":"claim"}`)
	for _, tt := range []struct {
		name   string
		origin nad.Origin
		want   string
		as     string // its name where CNI's is "cni"
		static bool
	}{
		{"zero", nad.Origin{}, "", "cni", false},
		{"of the configuration", nad.Origin{Use: nad.Cluster}, `{"use":"cluster"}`, "cni", false},
		{
			"of a definition",
			nad.Origin{Use: nad.Selected, Definition: blue, UID: "u", Version: "7", Selection: selection, PodSource: "api"},
			`{"use":"selected","definition":"ns/blue","uid":"u","version":"7","selection":` + string(selection) + `,"podSource":"api"}`, "ns/blue", false,
		},
		{"of a static pod", nad.Origin{Use: nad.Cluster, PodSource: "file"}, `{"use":"cluster","podSource":"file"}`, "cni", true},
		{"of a file, selected", nad.Origin{Use: nad.Attached, Selection: selection}, `{"use":"attached","selection":` + string(selection) + `}`, "cni", false},
		{
			"with a device",
			nad.Origin{Use: nad.Selected, Definition: blue, Resource: "vendor.example/vf", Device: "0000:3b:02.1"},
			`{"use":"selected","definition":"ns/blue","resource":"vendor.example/vf","device":"0000:3b:02.1"}`, "ns/blue", false,
		},
		{
			"of a claim",
			nad.Origin{Use: nad.Claimed, Definition: blue, Claim: nad.Claim{UID: "c", Name: "storage", Request: "net", Pool: "node", Device: "blue", Share: "s"}},
			`{"use":"claimed","definition":"ns/blue","claim":{"uid":"c","name":"storage","request":"net","pool":"node","device":"blue","share":"s"}}`, "ns/blue", false,
		},
	} {
		data := tt.origin.JSON()
		if string(data) != tt.want {
			t.Errorf("%s: recorded as %s, want %s", tt.name, data, tt.want)
		}
		got := nad.ParseOrigin(data)
		nodetest.Equal(t, tt.name, got, tt.origin)
		if name := got.NetworkName("cni"); name != tt.as {
			t.Errorf("%s: the network is named %q, want %q", tt.name, name, tt.as)
		}
		if got.StaticPod() != tt.static {
			t.Errorf("%s: static pod: %v", tt.name, got.StaticPod())
		}
	}
}

func TestClaimsAreNamed(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]nad.Claim{
		`claim "storage", request "net/fast"`: {UID: "u", Name: "storage", Request: "net/fast", Pool: "p", Device: "d"},
		`claim "storage"`:                     {UID: "u", Name: "storage"},
		`claim "u"`:                           {UID: "u"},
	} {
		if got := c.String(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestOriginLeavesOutWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	for _, selection := range []string{"", "{", `"` + "\xff" + `"`} {
		o := nad.Origin{Use: nad.Selected, Definition: nad.Ref{Namespace: "..", Name: "x"}, Selection: json.RawMessage(selection)}
		if got := string(o.JSON()); got != `{"use":"selected"}` {
			t.Errorf("selection %q: recorded as %s", selection, got)
		}
	}
}

// Origins are read to show them. Damage is no reason to fail.
func TestOriginsOfOthersSayNothing(t *testing.T) {
	t.Parallel()
	for _, data := range []string{
		"", "null", "{", `["secret",1.0]`, `"x"`, "{}", `{"kind":"x"}`,
		`{"use":1,"definition":"ns/blue"}`, `{"use":"selected","definition":"../blue"}`,
		`{"use":"selected","definition":"blue"}`, `{"use":"selected","definition":"ns/a/b"}`,
	} {
		nodetest.Equal(t, data, nad.ParseOrigin(json.RawMessage(data)), nad.Origin{})
	}
	later := nad.ParseOrigin(json.RawMessage(`{"use":"another","definition":"ns/blue","new":{"a":1}}`))
	nodetest.Equal(t, "of a later version", later, nad.Origin{Use: "another", Definition: blue})
}
