package nad_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/metacni/metacni/internal/fault"
	nodetest "github.com/metacni/metacni/internal/test/node"
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
	if w.kind != nil {
		nodetest.Is(t, err, w.kind)
	}
	if w.code == 0 {
		w.code = 7
		if w.kind == netconf.ErrDecode {
			w.code = 6
		}
	}
	nodetest.Equal(t, "CNI code", fault.Code(e, 999), w.code)
	var inner *netconf.Error
	key := ""
	if errors.As(err, &inner) {
		key = inner.Key
	}
	nodetest.Equal(t, "key", key, w.key)
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
		nodetest.OK(t, err)
		nodetest.Equal(t, s, got, want)
		again, err := nad.ParseRef(got.String(), "other")
		nodetest.OK(t, err)
		nodetest.Equal(t, "parsed once more", again, got)
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
		"blue":         {Name: "blue"},
		"ns/blue@eth0": {Name: "blue", Namespace: "ns", Interface: "eth0"},
		`[{"name":"blue","interface":"eth0","mac":"02:00:00:00:00:01","ips":["10.0.0.5/24"]}]`: {
			Name: "blue", Interface: "eth0", MAC: "02:00:00:00:00:01", IPs: []string{"10.0.0.5/24"},
		},
		`[{"name":"blue","default-route":["10.0.0.1"]}]`: {Name: "blue", DefaultRoute: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
	} {
		got, err := nad.ParseDefaultNetwork(annotation, "eth0")
		nodetest.OK(t, err)
		nodetest.Equal(t, annotation, got, want, cmpopts.EquateComparable(netip.Addr{}))
	}
}

func TestDefaultNetworkAnnotationsThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	for annotation, want := range map[string]wantError{
		"blue,red":                             {kind: netconf.ErrInvalid, key: "[1]", text: "one"},
		"blue@net1":                            {kind: netconf.ErrInvalid, key: "[0].interface", text: `"eth0"`},
		`[{"name":"a","interface":"net1"}]`:    {kind: netconf.ErrInvalid, key: "[0].interface"},
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

func TestPodOfARuntimesArguments(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, args string
		want       nad.Pod
		text       string
	}{
		{
			"containerd", "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=u",
			nad.Pod{Namespace: "ns", Name: "p", UID: "u", Container: "c1"},
			"ns/p",
		},
		{
			"any order, and unknown arguments", "K8S_POD_UID=u;x;MAC=aa:bb;;K8S_POD_NAME=p;=;K8S_POD_NAMESPACE=ns;",
			nad.Pod{Namespace: "ns", Name: "p", UID: "u"},
			"ns/p",
		},
		{"the first equals sign splits", "K8S_POD_UID==u=v=", nad.Pod{UID: "=u=v="}, ""},
		{"the last of two counts", "K8S_POD_NAME=a;K8S_POD_NAME=b", nad.Pod{Name: "b"}, "/b"},
		{"nothing", "", nad.Pod{}, ""},
		{"a path", "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=../p", nad.Pod{Namespace: "ns", Name: "../p"}, "ns/../p"},
	} {
		got := nad.PodOf(tt.args)
		if got != tt.want || got.String() != tt.text {
			t.Errorf("%s: %q is %+v (%q), want %+v (%q)", tt.name, tt.args, got, got, tt.want, tt.text)
		}
		nodetest.Equal(t, fmt.Sprintf("%s: valid", tt.name), got.Valid(), tt.text == "ns/p")
	}
}

// The namespace of a reference without one is the pod's for what the pod selects. It
// is the administrator's for the default network and for the configuration.
func TestNamespaceOfAReferenceWithoutOne(t *testing.T) {
	t.Parallel()
	p := nad.Policy{Namespace: "admin"}
	for _, tt := range []struct {
		policy nad.Policy
		s      netconf.Selection
		use    nad.Use
		want   string
	}{
		{p, netconf.Selection{Name: "blue"}, nad.UseSelected, "pods/blue"},
		{p, netconf.Selection{Name: "blue", Namespace: "other"}, nad.UseSelected, "other/blue"},
		{p, netconf.Selection{Name: "blue"}, nad.UseAttached, "pods/blue"},
		{p, netconf.Selection{Name: "blue"}, nad.UsePodDefault, "admin/blue"},
		{p, netconf.Selection{Name: "blue", Namespace: "other"}, nad.UsePodDefault, "other/blue"},
		{p, netconf.Selection{Name: "blue"}, nad.UseDefault, "admin/blue"},
		{nad.Policy{}, netconf.Selection{Name: "blue"}, nad.UsePodDefault, "kube-system/blue"},
	} {
		got, err := tt.policy.Ref("pods", tt.s, tt.use)
		if err != nil || got.String() != tt.want {
			t.Errorf("%s of %v: got %s, %v, want %s", tt.use, tt.s, got, err, tt.want)
		}
	}
	for key, s := range map[string]netconf.Selection{"name": {Name: "Blue_1"}, "namespace": {Name: "blue", Namespace: "../x"}} {
		_, err := p.Ref("pods", s, nad.UseSelected)
		wantError{kind: netconf.ErrInvalid, key: key}.check(t, err)
	}
}

// decision is what a Policy decides: "yes", "no", or "forbidden".
func decision(t *testing.T, p nad.Policy, pod, ref string, use nad.Use) string {
	t.Helper()
	r, err := nad.ParseRef(ref, "")
	nodetest.OK(t, err)
	attach, err := p.Decide(pod, r, use)
	switch {
	case err == nil && attach:
		return "yes"
	case err == nil:
		return "no"
	case attach:
		t.Errorf("both attached and refused: %v", err)
	}
	wantError{kind: nad.ErrForbidden, ref: ref}.check(t, err)
	return "forbidden"
}

func TestPolicy(t *testing.T) {
	t.Parallel()
	isolated := nad.Policy{Isolation: true}
	own := nad.Policy{Isolation: true, Namespace: "admin", GlobalNamespaces: []string{"shared", "more"}, SystemNamespaces: []string{"sys"}}
	none := nad.Policy{Isolation: true, GlobalNamespaces: []string{}, SystemNamespaces: []string{}}
	for _, tt := range []struct {
		name     string
		policy   nad.Policy
		pod, ref string
		use      nad.Use
		want     string
	}{
		{"no isolation, other namespace", nad.Policy{}, "a", "b/x", nad.UseSelected, "yes"},
		{"own namespace", isolated, "a", "a/x", nad.UseSelected, "yes"},
		{"other namespace", isolated, "a", "b/x", nad.UseSelected, "forbidden"},
		{"global namespace by default", isolated, "a", "default/x", nad.UseSelected, "yes"},
		{"the administrator's namespace is not global", isolated, "a", "kube-system/x", nad.UseSelected, "forbidden"},
		{"global namespaces are exactly those that are set", own, "a", "default/x", nad.UseSelected, "forbidden"},
		{"the first one set", own, "a", "shared/x", nad.UseSelected, "yes"},
		{"none are global namespaces", none, "a", "default/x", nad.UseSelected, "forbidden"},
		{"a pod without a namespace", isolated, "", "a/x", nad.UseSelected, "forbidden"},

		{"default network, no isolation", nad.Policy{}, "a", "b/x", nad.UsePodDefault, "yes"},
		{"default network of another namespace", isolated, "a", "b/x", nad.UsePodDefault, "forbidden"},
		{"default network of the administrator's namespace", isolated, "a", "kube-system/x", nad.UsePodDefault, "forbidden"},
		{"default network of the administrator's namespace, when set", own, "a", "admin/x", nad.UsePodDefault, "forbidden"},
		{"default network of what would be that by default", own, "a", "kube-system/x", nad.UsePodDefault, "forbidden"},
		{"default network of a global namespace", own, "a", "shared/x", nad.UsePodDefault, "yes"},
		{"default network of a pod of a system namespace", own, "sys", "sys/x", nad.UsePodDefault, "yes"},
		{"default networks are not for pods to choose", nad.Policy{NoPodDefault: true}, "a", "a/x", nad.UsePodDefault, "forbidden"},

		{"the configuration is not checked", none, "a", "b/x", nad.UseCluster, "yes"},
		{"system pods have the primary network", isolated, "kube-system", "b/x", nad.UseCluster, "yes"},
		{"and no others", isolated, "kube-system", "b/x", nad.UseDefault, "no"},
		{"but what they select", isolated, "kube-system", "kube-system/x", nad.UseSelected, "yes"},
		{"and these", own, "sys", "b/x", nad.UseDefault, "no"},
		{"none are system namespaces", none, "kube-system", "b/x", nad.UseDefault, "yes"},
		{"the namespace of the definition does not count", isolated, "a", "kube-system/x", nad.UseDefault, "yes"},
		{"a container without a pod", isolated, "", "b/x", nad.UseDefault, "yes"},

		{"a request for another namespace", isolated, "a", "b/x", nad.UseAttached, "forbidden"},

		{"a use that is none", nad.Policy{}, "a", "a/x", "", "forbidden"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			nodetest.Equal(t, "got", decision(t, tt.policy, tt.pod, tt.ref, tt.use), tt.want)
		})
	}
}

func TestRefusalsNameBothNamespacesAndSayWhatToDo(t *testing.T) {
	t.Parallel()
	_, err := nad.Policy{Isolation: true}.Decide("pods", nad.Ref{Namespace: "other", Name: "blue"}, nad.UseSelected)
	nodetest.Says(t, err, "NAD other/blue", `"pods"`, `"other"`, "namespaceIsolation", "globalNamespaces")
}

// A reference that somebody built by hand is no way around the policy.
func TestPolicyRefusesNamesThatAreNone(t *testing.T) {
	t.Parallel()
	for _, r := range []nad.Ref{{}, {Namespace: "a"}, {Name: "x"}, {Namespace: "..", Name: "x"}, {Namespace: "a", Name: "../x"}} {
		for _, use := range []nad.Use{nad.UseSelected, nad.UsePodDefault, nad.UseAttached} {
			attach, err := nad.Policy{}.Decide(r.Namespace, r, use)
			if attach || !errors.Is(err, netconf.ErrInvalid) {
				t.Errorf("%v: %v, %v", r, attach, err)
			}
		}
		// A network in a file has no reference.
		if attach, err := (nad.Policy{}).Decide("a", r, nad.UseDefault); !attach || err != nil {
			t.Errorf("%v: %v, %v", r, attach, err)
		}
	}
}

func TestNamespacesAreAListWithCommas(t *testing.T) {
	t.Parallel()
	for list, want := range map[string][]string{
		"": nil, ",": {}, " , ": {}, " ": {}, "a": {"a"}, " a ,b-1,\tc\n,": {"a", "b-1", "c"},
	} {
		got, err := nad.ParseNamespaces(list)
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("%q: %v (-want +got):\n%s", list, err, d)
		}
	}
	for _, list := range []string{"A", "a b", "a,../b", "a.b", "*"} {
		_, err := nad.ParseNamespaces(list)
		wantError{kind: netconf.ErrInvalid}.check(t, err)
	}
}

func TestOriginReadsBackAsItWasRecorded(t *testing.T) {
	t.Parallel()
	selection := json.RawMessage(`{"name":"blue","cni-args":{"n":12345678901234567890,"text":"<&>"},"ipam-claim-reference":"claim"}`)
	for _, tt := range []struct {
		name   string
		origin nad.Origin
		want   string
	}{
		{"zero", nad.Origin{}, ""},
		{"of the configuration", nad.Origin{Use: nad.UseCluster}, `{"use":"cluster"}`},
		{
			"of a definition",
			nad.Origin{Use: nad.UseSelected, Definition: blue, UID: "u", Version: "7", Selection: selection, PodSource: "api"},
			`{"use":"selected","definition":"ns/blue","uid":"u","version":"7","selection":` + string(selection) + `,"podSource":"api"}`,
		},
		{"of a file, selected", nad.Origin{Use: nad.UseAttached, Selection: selection}, `{"use":"attached","selection":` + string(selection) + `}`},
		{
			"with a device",
			nad.Origin{Use: nad.UseSelected, Definition: blue, Resource: "vendor.example/vf", Device: "0000:3b:02.1"},
			`{"use":"selected","definition":"ns/blue","resource":"vendor.example/vf","device":"0000:3b:02.1"}`,
		},
		{
			"of a claim",
			nad.Origin{Use: nad.UseClaimed, Definition: blue, Claim: nad.Claim{UID: "c", Name: "storage", Request: "net", Pool: "node", Device: "blue", Share: "s"}},
			`{"use":"claimed","definition":"ns/blue","claim":{"uid":"c","name":"storage","request":"net","pool":"node","device":"blue","share":"s"}}`,
		},
	} {
		data := tt.origin.JSON()
		nodetest.Equal(t, tt.name+": recorded", string(data), tt.want)
		got := nad.ParseOrigin(data)
		nodetest.Equal(t, tt.name, got, tt.origin)
	}
}

func TestClaimsAreNamed(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]nad.Claim{
		`claim "storage", request "net/fast"`: {UID: "u", Name: "storage", Request: "net/fast", Pool: "p", Device: "d"},
		`claim "storage"`:                     {UID: "u", Name: "storage"},
		`claim "u"`:                           {UID: "u"},
	} {
		nodetest.Equal(t, "got", c.String(), want)
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
	for _, selection := range []string{"", "{", `"` + "\xff" + `"`} {
		o := nad.Origin{Use: nad.UseSelected, Definition: nad.Ref{Namespace: "..", Name: "x"}, Selection: json.RawMessage(selection)}
		nodetest.Equal(t, "recorded", string(o.JSON()), `{"use":"selected"}`)
	}
	later := nad.ParseOrigin(json.RawMessage(`{"use":"another","definition":"ns/blue","new":{"a":1}}`))
	nodetest.Equal(t, "of a later version", later, nad.Origin{Use: "another", Definition: blue})
}

// checkError holds an error of the package against its contract.
func checkError(t *testing.T, err error) {
	t.Helper()
	e, ok := err.(*nad.Error)
	if !ok {
		t.Fatalf("error is a %T", err)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error has more than a line: %q", err)
	}
	known := errors.Is(err, netconf.ErrDecode) || errors.Is(err, netconf.ErrInvalid) || errors.Is(err, netconf.ErrNotFound) || errors.Is(err, nad.ErrForbidden)
	if !known || !slices.Contains([]uint{4, 6, 7}, fault.Code(e, 999)) {
		t.Errorf("error of code %d: %v", fault.Code(e, 999), err)
	}
	if e.Ref != (nad.Ref{}) && e.Ref.Validate() != nil {
		t.Errorf("error is about %q", e.Ref)
	}
}

// Whatever names a pod gives, namespaceIsolation holds and no reference leads elsewhere. TestPolicy
// has what is allowed.
func FuzzPolicy(f *testing.F) {
	for _, use := range []nad.Use{nad.UseSelected, nad.UsePodDefault, nad.UseAttached, nad.UseClaimed, ""} {
		f.Add("a", "b", "blue", string(use), "default,b")
		f.Add("", "", "../x", string(use), "..,")
	}
	f.Fuzz(func(t *testing.T, pod, namespace, name, use, global string) {
		p := nad.Policy{Isolation: true, GlobalNamespaces: strings.Split(global, ",")}
		r, err := p.Ref(pod, netconf.Selection{Namespace: namespace, Name: name}, nad.Use(use))
		if err == nil && use != string(nad.UseCluster) && use != string(nad.UseDefault) {
			var attach bool
			attach, err = p.Decide(pod, r, nad.Use(use))
			if attach && (err != nil || r.Namespace != pod && !slices.Contains(p.GlobalNamespaces, r.Namespace) || path.Clean("/"+r.String()) != "/"+r.String()) {
				t.Errorf("a pod of %q gets %v, %v", pod, r, err)
			}
		}
		if err != nil {
			checkError(t, err)
		}
	})
}

func FuzzDefinition(f *testing.F) {
	for _, config := range []string{
		"", "x", "{}", `{"name":"","type":"x","n":12345678901234567890}`, `{"name":"chain","plugins":[{"type":"x","ipam":{"type":"a/b"},"IPAM":{"Type":"own"}}]}`,
		`{"type":"own"}`, `{"type":"x","args":{"cni":1}}`, `{"cniVersion":"9.9.9","type":"x"}`, `{"name":"","z":1e999,"type":"x"}`, "{\"type\":\"..\"}",
	} {
		f.Add([]byte(`{"metadata":{"name":"blue","namespace":"ns"}}`), config)
		quoted, err := json.Marshal(config)
		nodetest.OK(f, err)
		f.Add([]byte(object(`,"spec":{"config":`+string(quoted)+`}`, `,"uid":"u","annotations":{"k8s.v1.cni.cncf.io/resourceName":"r"}`)), config)
	}
	rules := nad.Rules{CNIVersion: "1.1.0", Own: []string{"own"}, ConfDir: files(map[string]string{"1.conf": `{"name":"blue","type":"from-a-file"}`, "chain/1.conf": `{"type":"administrators"}`})}
	f.Fuzz(func(t *testing.T, data []byte, config string) {
		d, err := nad.Parse(data)
		if err != nil {
			checkError(t, err)
			d = nad.Definition{Ref: blue}
		}
		for _, d := range []nad.Definition{d, {Ref: d.Ref, UID: d.UID, Version: d.Version, Resource: d.Resource, Config: config}} {
			checkNetwork(t, d, rules)
			checkMirror(t, d)
		}
	})
}

func checkNetwork(t *testing.T, d nad.Definition, rules nad.Rules) {
	t.Helper()
	n, err := d.Network(rules)
	if err != nil {
		checkError(t, err)
		if !strings.HasPrefix(err.Error(), "NAD "+d.String()+": ") {
			t.Errorf("the error does not name %s: %v", d.Ref, err)
		}
		return
	}
	if err := n.Runnable(); err != nil || n.CNIVersion() == "" {
		t.Errorf("%s: %v", d.Config, err)
	}
	for i, p := range n.Plugins() {
		if strings.ContainsAny(p.Type(), "/\\\x00") || p.Type() == ".." || p.Type() == "own" || p.Type() == "administrators" {
			t.Errorf("type %q", p.Type())
		}
		var seen struct{ IPAM struct{ Type string } } // as a plugin sees it
		request, err := n.Request(i, netconf.Request{})
		nodetest.OK(t, err)
		if json.Unmarshal(request, &seen) == nil && (strings.ContainsAny(seen.IPAM.Type, "/\\\x00") || seen.IPAM.Type == "own") {
			t.Errorf("IPAM type %q", seen.IPAM.Type)
		}
		if _, err := n.EditPlugins(netconf.In("args", netconf.In("cni", netconf.Set("k", 1)))); err != nil {
			t.Errorf("cni-args cannot be merged: %v", err)
		}
	}
	again, err := d.Network(rules)
	if err != nil || !again.Equal(n) {
		t.Errorf("%v, then %v, %v", n, again, err)
	}
}

func checkMirror(t *testing.T, d nad.Definition) {
	t.Helper()
	fsys := fstest.MapFS{}
	if d.Validate() != nil || nad.TooLong(d.Name) {
		return
	}
	for _, f := range mirrored(d) {
		if path.Dir(f.Name) != d.Namespace || !strings.HasPrefix(path.Base(f.Name), d.Name+".") {
			t.Errorf("%s writes %s", d.Ref, f.Name)
		}
		if f.Data != nil {
			fsys[f.Name] = &fstest.MapFile{Data: bytes.Clone(f.Data)}
		}
	}
	if got, err := nad.Load(fsys, d.Ref); err != nil || got != d {
		t.Errorf("%+v is mirrored as %+v, %v", d, got, err)
	}
}

// Whatever lies in a mirror is a definition or an error.
func FuzzMirror(f *testing.F) {
	f.Add(mirrored(plugin)[0].Data, []byte(plugin.Config), []byte(nil))
	f.Add([]byte(nil), []byte("{}"), []byte("{}"))
	f.Add([]byte(`{"uid":1}`), []byte(nil), []byte("{}"))
	f.Fuzz(func(t *testing.T, key, conf, conflist []byte) {
		fsys := fstest.MapFS{}
		for name, data := range map[string][]byte{"ns/blue.key": key, "ns/blue.conf": conf, "ns/blue.conflist": conflist} {
			if len(data) > 0 {
				fsys[name] = &fstest.MapFile{Data: data}
			}
		}
		d, err := nad.Load(fsys, blue)
		if fault.Code(err, 999) == 11 {
			return
		}
		if err != nil {
			checkError(t, err)
			return
		}
		if d.Ref != blue || d.Config != string(conf) && d.Config != string(conflist) {
			t.Errorf("%+v", d)
		}
	})
}

// Whatever is recorded as an origin can be read, and what was read can be recorded: it is
// JSON, and reads as the same.
func FuzzOrigin(f *testing.F) {
	for _, data := range []string{
		"", "null", "{", `{"use":"selected","definition":"ns/blue","uid":"u","version":"7","selection":{"name":"blue"},"podSource":"api"}`,
		`{"definition":"../x"}`, `{"selection":"<&>"}`, `{"use":"\ud800"}`, "{\"uid\":\"\xff\"}", `{"selection":null}`, `{"selection": [ 1 , 2.0 ]}`,
	} {
		f.Add([]byte(data))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		o := nad.ParseOrigin(data)
		if o.Definition != (nad.Ref{}) && o.Definition.Validate() != nil {
			t.Errorf("definition %q", o.Definition)
		}
		recorded := o.JSON()
		if recorded != nil && (!json.Valid(recorded) || !utf8.Valid(recorded)) {
			t.Errorf("recorded as %q", recorded)
		}
		if again := nad.ParseOrigin(recorded).JSON(); !bytes.Equal(again, recorded) {
			t.Errorf("recorded as %s, then as %s", recorded, again)
		}
	})
}
