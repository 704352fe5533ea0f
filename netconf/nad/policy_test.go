package nad_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

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
		{p, netconf.Selection{Name: "blue"}, nad.Selected, "pods/blue"},
		{p, netconf.Selection{Name: "blue", Namespace: "other"}, nad.Selected, "other/blue"},
		{p, netconf.Selection{Name: "blue"}, nad.Attached, "pods/blue"},
		{p, netconf.Selection{Name: "blue"}, nad.PodDefault, "admin/blue"},
		{p, netconf.Selection{Name: "blue", Namespace: "other"}, nad.PodDefault, "other/blue"},
		{p, netconf.Selection{Name: "blue"}, nad.Cluster, "admin/blue"},
		{p, netconf.Selection{Name: "blue"}, nad.Default, "admin/blue"},
		{nad.Policy{}, netconf.Selection{Name: "blue"}, nad.PodDefault, "kube-system/blue"},
	} {
		got, err := tt.policy.Ref("pods", tt.s, tt.use)
		if err != nil || got.String() != tt.want {
			t.Errorf("%s of %v: got %s, %v, want %s", tt.use, tt.s, got, err, tt.want)
		}
	}
	for key, s := range map[string]netconf.Selection{"name": {Name: "Blue_1"}, "namespace": {Name: "blue", Namespace: "../x"}} {
		_, err := p.Ref("pods", s, nad.Selected)
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
		{"no isolation, other namespace", nad.Policy{}, "a", "b/x", nad.Selected, "yes"},
		{"own namespace", isolated, "a", "a/x", nad.Selected, "yes"},
		{"other namespace", isolated, "a", "b/x", nad.Selected, "forbidden"},
		{"global namespace by default", isolated, "a", "default/x", nad.Selected, "yes"},
		{"the administrator's namespace is not global", isolated, "a", "kube-system/x", nad.Selected, "forbidden"},
		{"global namespaces are exactly those that are set", own, "a", "default/x", nad.Selected, "forbidden"},
		{"the first one set", own, "a", "shared/x", nad.Selected, "yes"},
		{"the second one set", own, "a", "more/x", nad.Selected, "yes"},
		{"none are set", none, "a", "default/x", nad.Selected, "forbidden"},
		{"a pod without a namespace", isolated, "", "a/x", nad.Selected, "forbidden"},

		{"default network, no isolation", nad.Policy{}, "a", "b/x", nad.PodDefault, "yes"},
		{"default network of another namespace", isolated, "a", "b/x", nad.PodDefault, "forbidden"},
		{"default network of the own namespace", isolated, "a", "a/x", nad.PodDefault, "yes"},
		{"default network of the administrator's namespace", isolated, "a", "kube-system/x", nad.PodDefault, "forbidden"},
		{"default network of the administrator's namespace, when set", own, "a", "admin/x", nad.PodDefault, "forbidden"},
		{"default network of what would be that by default", own, "a", "kube-system/x", nad.PodDefault, "forbidden"},
		{"default network of a global namespace", own, "a", "shared/x", nad.PodDefault, "yes"},
		{"default network of a pod of a system namespace", own, "sys", "sys/x", nad.PodDefault, "yes"},
		{"default networks are not for pods to choose", nad.Policy{NoPodDefault: true}, "a", "a/x", nad.PodDefault, "forbidden"},
		{"selections are all the same", nad.Policy{NoPodDefault: true}, "a", "a/x", nad.Selected, "yes"},

		{"the configuration is not checked", none, "a", "b/x", nad.Cluster, "yes"},
		{"nor are its further networks", none, "a", "b/x", nad.Default, "yes"},
		{"system pods have the primary network", isolated, "kube-system", "b/x", nad.Cluster, "yes"},
		{"and no others", isolated, "kube-system", "b/x", nad.Default, "no"},
		{"but what they select", isolated, "kube-system", "kube-system/x", nad.Selected, "yes"},
		{"system namespaces are those that are set", own, "kube-system", "b/x", nad.Default, "yes"},
		{"and these", own, "sys", "b/x", nad.Default, "no"},
		{"none are system namespaces", none, "kube-system", "b/x", nad.Default, "yes"},
		{"the namespace of the definition does not count", isolated, "a", "kube-system/x", nad.Default, "yes"},
		{"a container without a pod", isolated, "", "b/x", nad.Default, "yes"},

		{"a request for the own namespace", isolated, "a", "a/x", nad.Attached, "yes"},
		{"a request for another namespace", isolated, "a", "b/x", nad.Attached, "forbidden"},

		{"a use that is none", nad.Policy{}, "a", "a/x", "", "forbidden"},
		{"another one", nad.Policy{}, "a", "a/x", "SELECTED", "forbidden"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := decision(t, tt.policy, tt.pod, tt.ref, tt.use); got != tt.want {
				t.Errorf("%s", got)
			}
		})
	}
}

func TestRefusalsNameBothNamespacesAndSayWhatToDo(t *testing.T) {
	t.Parallel()
	_, err := nad.Policy{Isolation: true}.Decide("pods", nad.Ref{Namespace: "other", Name: "blue"}, nad.Selected)
	for _, part := range []string{"NAD other/blue", `"pods"`, `"other"`, "namespaceIsolation", "globalNamespaces"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not say %s", err, part)
		}
	}
}

// A reference that somebody built by hand is no way around the policy.
func TestPolicyRefusesNamesThatAreNone(t *testing.T) {
	t.Parallel()
	for _, r := range []nad.Ref{{}, {Namespace: "a"}, {Name: "x"}, {Namespace: "..", Name: "x"}, {Namespace: "a", Name: "../x"}} {
		for _, use := range []nad.Use{nad.Selected, nad.PodDefault, nad.Attached} {
			attach, err := nad.Policy{}.Decide(r.Namespace, r, use)
			if attach || !errors.Is(err, netconf.ErrInvalid) {
				t.Errorf("%v: %v, %v", r, attach, err)
			}
		}
		// A network in a file has no reference.
		if attach, err := (nad.Policy{}).Decide("a", r, nad.Default); !attach || err != nil {
			t.Errorf("%v: %v, %v", r, attach, err)
		}
	}
}

func TestNamespacesAreAListWithCommas(t *testing.T) {
	t.Parallel()
	for list, want := range map[string][]string{
		"": nil, " , ": nil, "a": {"a"}, " a ,b-1,\tc\n,": {"a", "b-1", "c"},
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
