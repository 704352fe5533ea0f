package kube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
			n.ok("DEL", s)
			n.unprepare(c)
			n.wantReleased(resourceClaims{c}, s)
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

// Parameters that mean nothing are refused when the kubelet prepares the claim, with a reason,
// and before any plugin runs.
func TestParametersThatAreRefused(t *testing.T) {
	t.Parallel()
	n := newDriver(t, nil)
	for name, tt := range map[string]struct {
		parameters []string
		want       string
	}{
		"none":                      {nil, "no config"},
		"two":                       {[]string{own("blue"), own("green")}, "2 configs"},
		"an empty object":           {[]string{`{}`}, `kind`},
		"another kind":              {[]string{`{"apiVersion":"dra.metacni.io/v1alpha1","kind":"Other","definition":"blue"}`}, "kind"},
		"another version":           {[]string{`{"apiVersion":"dra.metacni.io/v2","kind":"Network","definition":"blue"}`}, "v2"},
		"a kind that is a number":   {[]string{`{"apiVersion":"dra.metacni.io/v1alpha1","kind":1}`}, "not a string"},
		"an unknown key":            {[]string{strings.Replace(own("blue"), "{", `{"more":1,`, 1)}, "more"},
		"a key twice":               {[]string{strings.Replace(own("blue"), "{", `{"kind":"Network",`, 1)}, "kind"},
		"neither name nor config":   {[]string{`{"apiVersion":"dra.metacni.io/v1alpha1","kind":"Network"}`}, "definition"},
		"a name and a config":       {[]string{strings.Replace(own("blue"), "{", `{"config":"{}",`, 1)}, "config"},
		"a name that is null":       {[]string{`{"apiVersion":"dra.metacni.io/v1alpha1","kind":"Network","definition":null}`}, "not a string"},
		"a name that is none":       {[]string{own("../../x/y")}, "definition"},
		"an interface that is none": {[]string{strings.Replace(own("blue"), "{", `{"ifName":"a/b",`, 1)}, "ifName"},
		"a string in place of an object": {
			[]string{cniConfig("CNI", "cni.networking.x-k8s.io", `"{}"`)}, "not an object",
		},
		"an object in place of a string": {
			[]string{`{"apiVersion":"dra.metacni.io/v1alpha1","kind":"Network","config":{}}`}, "not a string",
		},
		"a network without a type": {[]string{cniConfig("CNI", "cni.networking.x-k8s.io", `{"cniVersion":"1.1.0","name":"x"}`)}, "config"},
		"a network that is multinet's": {
			[]string{cniConfig("CNI", "cni.networking.x-k8s.io", `{"cniVersion":"1.1.0","name":"x","type":"multinet"}`)}, "multinet",
		},
		"a type that is a path": {
			[]string{cniConfig("CNI", "cni.networking.x-k8s.io", `{"cniVersion":"1.1.0","name":"x","type":"../bridge"}`)}, "a path",
		},
	} {
		t.Run(name, func(t *testing.T) {
			name := strings.ReplaceAll(strings.ReplaceAll(name, " ", "-"), "'", "")
			s := n.claiming(name, "", name)
			c := n.claims(name, tt.parameters, []string{"shared"}, s.pod)
			if err := n.tryPrepare(c); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			same(t, "prepared", nil, n.prepared(c))
		})
	}
	n.wantReleased(nil)
	same(t, "plugins run", nil, glob(t, n.file("given/*")))
}

// What is no object, or has more than 10 KiB, the API server refuses. What has exactly 10 KiB
// is attached.
func TestParametersAtTheLimitOfTheServer(t *testing.T) {
	t.Parallel()
	n := newDriver(t, nil)
	sized := func(size int) string {
		network := n.watched(4)
		network["pad"] = ""
		network["pad"] = strings.Repeat("x", size-len(n.inline(network)))
		return n.inline(network)
	}
	for name, parameters := range map[string]string{
		"a string": `"x"`, "a number": `1`, "a list": `[]`, "null": `null`, "too long": sized(resourcev1.OpaqueParametersMaxLength + 1),
	} {
		claim := n.scheduler.Claim(n.namespace, "refused", n.class(), []string{"r"}, parameters)
		if _, err := n.scheduler.Create(t.Context(), claim); err == nil {
			t.Errorf("the API server accepts %s", name)
		}
	}
	s, c := n.one("longest", sized(resourcev1.OpaqueParametersMaxLength))
	n.ok("ADD", s)
	n.wantAttached(c, s, "eth0", "net1")
	n.ok("DEL", s)
	n.unprepare(c)
	n.wantReleased(resourceClaims{c}, s)
}

// A claim that cannot be had is refused, and harms no other one of the same request.
func TestClaimsThatAreRefused(t *testing.T) {
	t.Parallel()
	n := newDriver(t, nil)
	first, second := n.claiming("first", "", "has"), n.claiming("second", "", "wants")
	has, many := n.claim("has", own("green"), "single", first.pod), n.claim("many", own("blue"), "shared", first.pod, second.pod)
	if err := n.tryPrepare(has, many); err == nil || !strings.Contains(err.Error(), "reserved for 2 pods") {
		t.Errorf("a claim for two pods: %v", err)
	}
	same(t, "prepared", nil, n.prepared(many))
	if len(n.prepared(has)) != 1 {
		t.Error("the good claim of a request with a bad one is not prepared")
	}
	wants := n.claim("wants", own("blue"), "single", second.pod)
	if err := n.tryPrepare(wants); err == nil || !strings.Contains(err.Error(), n.namespace+"/has") {
		t.Errorf("a device of another claim: %v", err)
	}
	unknown := wants.DeepCopy()
	unknown.UID = "00000000-0000-4000-8000-000000000000"
	if err := n.tryPrepare(unknown); err == nil || !strings.Contains(err.Error(), "got replaced") {
		t.Errorf("a wrong UID: %v", err)
	}
	absent := wants.DeepCopy()
	absent.Name = "absent"
	if err := n.tryPrepare(absent); err == nil {
		t.Error("a claim that does not exist is prepared")
	}
	n.unprepare(unknown, absent) // nobody has them
	n.ok("ADD", first)
	n.wantAttached(has, first, "eth0", "net1")
	n.ok("DEL", first)
	n.unprepare(has)
	n.prepare(wants)
	n.ok("ADD", second)
	n.wantAttached(wants, second, "eth0", "net1")
	n.ok("DEL", second)
	n.unprepare(wants)
	n.wantReleased(resourceClaims{has, many, wants, unknown}, first, second)
}

// Without a configuration of its own a claim has that of its DeviceClass. Several of a class are
// refused as several of a claim are.
func TestTheConfigurationOfAClassIsTheDefault(t *testing.T) {
	t.Parallel()
	n := newDriver(t, nil)
	for name, tt := range map[string]struct {
		class, claim []string
		bridge       int // 0 means refused
	}{
		"of-the-class":     {[]string{own("green")}, nil, 2},
		"of-the-claim":     {[]string{own("green")}, []string{own("blue")}, 1},
		"two-of-the-class": {[]string{own("green"), own("blue")}, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			class := n.namespace + "-" + name
			if err := n.scheduler.Class(t.Context(), class, tt.class...); err != nil {
				t.Fatal(err)
			}
			s := n.claiming(name, "", name)
			c := n.allocate(n.scheduler.Claim(n.namespace, name, class, []string{"r"}, tt.claim...), []string{"shared"}, s.pod)
			if tt.bridge == 0 {
				if err := n.tryPrepare(c); err == nil || !strings.Contains(err.Error(), "2 configs") {
					t.Errorf("%v", err)
				}
				return
			}
			n.prepare(c)
			n.ok("ADD", s)
			n.wantAttached(c, s, "eth0", "net1")
			if ips := n.devices(c)[0].NetworkData.IPs; !strings.HasPrefix(ips[0], fmt.Sprintf("10.%d.%d.", n.number, tt.bridge)) {
				t.Errorf("%q is not of bridge %d", ips, tt.bridge)
			}
			n.ok("DEL", s)
			n.unprepare(c)
			n.wantReleased(resourceClaims{c}, s)
		})
	}
}

// delete deletes a claim.
func (n *driverNode) delete(c *resourcev1.ResourceClaim) {
	n.t.Helper()
	if err := n.scheduler.Client.ResourceV1().ResourceClaims(c.Namespace).Delete(n.t.Context(), c.Name, metav1.DeleteOptions{}); err != nil {
		n.t.Fatal(err)
	}
}
