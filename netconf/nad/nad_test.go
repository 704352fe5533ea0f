package nad_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// wantError is what the tests ask of an error.
type wantError struct {
	kind error  // nil: any
	code uint   // 0: that of kind
	ref  string // of the error; "" for none
	key  string
	text string // part of the text
}

func (w wantError) check(t *testing.T, err error) {
	t.Helper()
	e, ok := err.(*nad.Error)
	if !ok {
		t.Fatalf("error is %T (%v), want *nad.Error", err, err)
	}
	if w.kind != nil && !errors.Is(err, w.kind) {
		t.Errorf("error is not %v: %v", w.kind, err)
	}
	if w.code == 0 {
		w.code = 7
		if w.kind == netconf.ErrDecode {
			w.code = 6
		}
	}
	if e.CNICode() != w.code {
		t.Errorf("CNI code is %d, want %d: %v", e.CNICode(), w.code, err)
	}
	var inner *netconf.Error
	key := ""
	if errors.As(err, &inner) {
		key = inner.Key
	}
	if key != w.key {
		t.Errorf("key is %q, want %q: %v", key, w.key, err)
	}
	if (e.Ref != nad.Ref{}) != (w.ref != "") || w.ref != "" && (e.Ref.String() != w.ref || !strings.HasPrefix(err.Error(), "NAD "+w.ref+": ")) {
		t.Errorf("about %v, want %q: %v", e.Ref, w.ref, err)
	}
	if !strings.Contains(err.Error(), w.text) || strings.Contains(err.Error(), "\n") {
		t.Errorf("text is %q, want one line with %q", err, w.text)
	}
}

func TestReferencesAreNamesOfKubernetesObjects(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 253)
	for s, want := range map[string]nad.Ref{
		"blue":                         {Namespace: "ns", Name: "blue"},
		"kube-system/blue":             {Namespace: "kube-system", Name: "blue"},
		"a/1.b-2.c":                    {Namespace: "a", Name: "1.b-2.c"},
		long:                           {Namespace: "ns", Name: long},
		strings.Repeat("n", 63) + "/x": {Namespace: strings.Repeat("n", 63), Name: "x"},
	} {
		got, err := nad.ParseRef(s, "ns")
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", s, err, d)
		}
		again, err := nad.ParseRef(got.String(), "other")
		if again != got || err != nil {
			t.Errorf("%s parses to %v, %v", got, again, err)
		}
	}
}

func TestNamesThatAreNoneOfKubernetesAreRefused(t *testing.T) {
	t.Parallel()
	for s, key := range map[string]string{
		"": "name", "/": "namespace", "/a": "namespace", "a/": "name", "a/b/c": "name",
		"..": "name", ".": "name", "../a": "namespace", "a/..": "name", "a/../b": "name", "./a": "namespace",
		"Blue": "name", "a_b": "name", "-a": "name", "a-": "name", "a..b": "name", ".a": "name", "a.": "name", "a b": "name", "é": "name",
		"a\x00": "name", "a\\b": "name", " a": "name", "a@net1": "name",
		"A/b": "namespace", "a.b/c": "namespace", strings.Repeat("n", 64) + "/x": "namespace", strings.Repeat("a", 254): "name",
	} {
		_, err := nad.ParseRef(s, "ns")
		wantError{kind: netconf.ErrInvalid, key: key}.check(t, err)
	}
	_, err := nad.ParseRef("blue", "") // a container without a pod
	wantError{kind: netconf.ErrInvalid, key: "namespace", text: "missing"}.check(t, err)
}

func TestDefaultNetworkAnnotation(t *testing.T) {
	t.Parallel()
	for annotation, want := range map[string]*netconf.Selection{
		"": nil, " ": nil, "[]": nil,
		"blue":              {Name: "blue"},
		"ns/blue@eth0":      {Name: "blue", Namespace: "ns", Interface: "eth0"},
		`[{"name":"blue"}]`: {Name: "blue"},
		`[{"name":"blue","interface":"eth0","mac":"02:00:00:00:00:01","ips":["10.0.0.5/24"]}]`: {
			Name: "blue", Interface: "eth0", MAC: "02:00:00:00:00:01", IPs: []string{"10.0.0.5/24"},
		},
		`[{"name":"blue","default-route":["10.0.0.1"]}]`: {Name: "blue", DefaultRoute: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
	} {
		got, err := nad.ParseDefaultNetwork(annotation, "eth0")
		if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); d != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", annotation, err, d)
		}
	}
}

func TestDefaultNetworkAnnotationsThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	for annotation, want := range map[string]wantError{
		"blue,red":                             {kind: netconf.ErrInvalid, key: "[1]", text: "one"},
		`[{"name":"a"},{"name":"a"}]`:          {kind: netconf.ErrInvalid, key: "[1]"},
		"blue@net1":                            {kind: netconf.ErrInvalid, key: "[0].interface", text: `"eth0"`},
		`[{"name":"a","interface":"net1"}]`:    {kind: netconf.ErrInvalid, key: "[0].interface"},
		`[{"name":"a","interface":"a/b"}]`:     {kind: netconf.ErrInvalid, key: "[0].interface"},
		`[{"name":"a","mac":1}]`:               {kind: netconf.ErrDecode, key: "[0].mac"},
		`[{"name":"a"`:                         {kind: netconf.ErrDecode},
		`[{"name":"a","default-route":["x"]}]`: {kind: netconf.ErrInvalid, key: "[0].default-route[0]"},
	} {
		_, err := nad.ParseDefaultNetwork(annotation, "eth0")
		want.check(t, err)
		if !strings.HasPrefix(err.Error(), "annotation v1.multus-cni.io/default-network: ") {
			t.Errorf("the error does not name the annotation: %v", err)
		}
	}
}
