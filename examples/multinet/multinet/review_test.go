package multinet

import (
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

func (h *host) reviewer(t *testing.T, keys string) *Reviewer {
	t.Helper()
	r, err := NewReviewer([]byte(h.conf(keys)))
	nodetest.OK(t, err)
	return r
}

// same fails unless the review refuses what the ADD refuses, with its code and in its
// words.
func same(t *testing.T, add, review error) {
	t.Helper()
	switch {
	case (add == nil) != (review == nil) || status.Code(add) != status.Code(review):
		t.Errorf("ADD: %v\nreview: %v", add, review)
	case add != nil && !strings.Contains(add.Error(), review.Error()):
		t.Errorf("ADD: %v\nreview: %v", add, review)
	}
}

// What the review of a definition says is what the ADD of a pod that selects it says.
func TestReviewOfADefinitionIsThatOfAnADD(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		keys, config string
		code         uint
	}{
		"a plugin":                        {"", `{"type":"macvlan"}`, 0},
		"a list":                          {"", `{"cniVersion":"1.0.0","plugins":[{"type":"macvlan"},{"type":"tuning"}]}`, 0},
		"nothing, for a file of the node": {"", ``, 0},
		"blanks":                          {"", " \n", 0},
		"nothing, with isolation":         {`"namespaceIsolation":true,`, ``, 7},
		"blanks, with isolation":          {`"namespaceIsolation":true,`, " \n", 7},
		"not JSON":                        {"", `{`, 6},
		"not an object":                   {"", `[]`, 6},
		"a key twice":                     {"", `{"type":"macvlan","type":"bridge"}`, 6},
		"no type":                         {"", `{"name":"x"}`, 7},
		"no plugins":                      {"", `{"plugins":[]}`, 7},
		"a plugin and a list":             {"", `{"type":"macvlan","plugins":[{"type":"tuning"}]}`, 7},
		"a Type and a list":               {"", `{"Type":"macvlan","plugins":[{"type":"tuning"}]}`, 7},
		"a type that is a path":           {"", `{"type":"../macvlan"}`, 7},
		"an IPAM type that is a path":     {"", `{"type":"macvlan","ipam":{"type":"/bin/sh"}}`, 7},
		"multinet itself":                 {"", `{"type":"multinet"}`, 7},
		"the shim of multinet":            {"", `{"plugins":[{"type":"macvlan"},{"type":"multinet-shim"}]}`, 7},
		"not a version":                   {"", `{"cniVersion":"new","type":"macvlan"}`, 7},
		"args that are no object":         {"", `{"type":"macvlan","args":[]}`, 7},
		"an allowed type":                 {`"allowedTypes":{"nad":["macvlan"]},`, `{"type":"macvlan"}`, 0},
		"another type":                    {`"allowedTypes":{"nad":["macvlan"]},`, `{"type":"tuning"}`, 7},
		"an allowed type, for all":        {`"allowedTypes":["macvlan","bridge"],`, `{"type":"tuning"}`, 7},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.0.0")
			h.Write("net.d/a/other.conf", tt.config)
			add := h.run(t, "ADD", tt.keys+keys(bridge, annotated("other")), podOf("a"))
			review := h.reviewer(t, tt.keys+bridge).Definition(nad.Definition{Ref: nad.Ref{Namespace: "a", Name: "other"}, Config: tt.config})
			if status.Code(review) != tt.code {
				t.Errorf("code %d, want %d", status.Code(review), tt.code)
			}
			same(t, add, review)
		})
	}
}

// A definition in multusNamespace may be for the configuration, which may have other types,
// and files.
func TestReviewAllowsWhatTheConfigurationMayName(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	r := h.reviewer(t, keys(bridge, `"allowedTypes":{"nad":["macvlan"],"standing":["bridge"]},"multusNamespace":"net"`))
	for namespace, code := range map[string]uint{"net": 0, "a": 7, "kube-system": 7} {
		for typ, other := range map[string]uint{"bridge": code, "macvlan": 0, "tuning": 7, "multinet": 7} {
			err := r.Definition(nad.Definition{Ref: nad.Ref{Namespace: namespace, Name: "x"}, Config: `{"type":"` + typ + `"}`})
			if status.Code(err) != other {
				t.Errorf("%s of %s: code %d, want %d: %v", typ, namespace, status.Code(err), other, err)
			}
		}
	}
	r = h.reviewer(t, keys(bridge, `"namespaceIsolation":true,"multusNamespace":"net"`))
	for namespace, code := range map[string]uint{"net": 0, "a": 7, "default": 7} {
		err := r.Definition(nad.Definition{Ref: nad.Ref{Namespace: namespace, Name: "x"}})
		if status.Code(err) != code {
			t.Errorf("empty, of %s: code %d, want %d: %v", namespace, status.Code(err), code, err)
		}
	}
}

// What the review of a pod says is what its ADD says. Whether the networks exist is not
// known to it.
func TestReviewOfAPodIsThatOfAnADD(t *testing.T) {
	t.Parallel()
	const isolated = `"namespaceIsolation":true,`
	for name, tt := range map[string]struct {
		keys, networks, primary string
		code                    uint
	}{
		"nothing":                        {"", "", "", 0},
		"blanks":                         {"", " ", " ", 0},
		"a list":                         {"", "blue, b/blue@data", "", 0},
		"JSON":                           {"", `[{"name":"blue"},{"name":"blue","namespace":"b"}]`, "", 0},
		"broken JSON":                    {"", `[{"name":"blue"`, "", 6},
		"not a name":                     {"", "Blue", "", 7},
		"a path":                         {"", "a/../blue", "", 7},
		"a mask in place of an address":  {"", `[{"name":"blue","ips":["x"]}]`, "", 7},
		"two default routes":             {"", `[{"name":"blue","default-route":["10.0.0.1"]},{"name":"blue","default-route":["10.0.0.2"]}]`, "", 7},
		"an interface name twice":        {"", "blue@x,b/blue@x", "", 7},
		"the name of the primary":        {"", "blue@eth0", "", 7},
		"not an interface name":          {"", "blue@averyveryverylongname", "", 7},
		"another namespace":              {isolated, "b/blue", "", 7},
		"a global namespace":             {isolated, "default/blue", "", 0},
		"another one":                    {isolated + `"globalNamespaces":"b",`, "b/blue", "", 0},
		"its primary":                    {"", "", "a/blue", 0},
		"its primary of multusNamespace": {isolated, "", "blue", 7},
		"its primary of a global one":    {isolated, "", "default/blue", 0},
		"its primary of another":         {isolated, "", "b/blue", 7},
		"no choice of the primary":       {`"podDefaultNetwork":false,`, "", "blue", 7},
		"two primaries":                  {"", "", "a/blue,b/blue", 7},
		"its primary under its name":     {"", "", "a/blue@eth0", 0},
		"its primary under another":      {"", "", "a/blue@eth1", 7},
		"one default route with it":      {"", `[{"name":"blue","default-route":["10.0.0.1"]}]`, `[{"name":"blue","namespace":"a","default-route":["10.0.0.2"]}]`, 7},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := written(t)
			annotations := map[string]string{nad.NetworksAnnotation: tt.networks, nad.DefaultNetworkAnnotation: tt.primary, "other": "["}
			both := strings.TrimSuffix(annotated(tt.networks), "}}") + `,` + strings.SplitN(defaultNetwork(tt.primary), `{"io.kubernetes.cri.pod-annotations":{`, 2)[1]
			add := h.run(t, "ADD", tt.keys+keys(bridge, both), podOf("a"), func(a *skel.CmdArgs) { a.IfName = "eth0" })
			review := h.reviewer(t, tt.keys+bridge).Pod("a", annotations)
			if status.Code(review) != tt.code {
				t.Errorf("code %d, want %d: %v", status.Code(review), tt.code, review)
			}
			if status.Code(add) != tt.code {
				t.Errorf("ADD: code %d, want %d: %v", status.Code(add), tt.code, add)
			}
		})
	}
}

// A review is about the namespace of the pod, and a name that no definition can have is wrong
// with any config.
func TestReviewKnowsNamespaces(t *testing.T) {
	t.Parallel()
	r := newHost(t, "1.0.0").reviewer(t, keys(bridge, `"namespaceIsolation":true`))
	for _, namespace := range []string{"a", "b"} {
		for _, of := range []string{"a", "b"} {
			if err := r.Pod(namespace, map[string]string{nad.NetworksAnnotation: of + "/blue"}); (err == nil) != (namespace == of) {
				t.Errorf("a pod of %s selects a network of %s: %v", namespace, of, err)
			}
		}
	}
	for _, config := range []string{"", `{"type":"macvlan"}`} {
		for _, ref := range []nad.Ref{{Namespace: "a", Name: "../x"}, {Namespace: "A", Name: "x"}, {Name: "x"}} {
			if err := r.Definition(nad.Definition{Ref: ref, Config: config}); status.Code(err) != 7 {
				t.Errorf("%s with %q: %v", ref, config, err)
			}
		}
	}
}

func TestReviewNeedsAConfigurationThatAnADDAccepts(t *testing.T) {
	t.Parallel()
	for _, conf := range []string{`{`, `{"type":"multinet","namespaceIsolation":5}`, `{"type":"multinet","multusNamespace":"A"}`, `{"type":"multinet","globalNamespaces":"a b"}`} {
		if _, err := NewReviewer([]byte(conf)); err == nil {
			t.Errorf("%s: no error", conf)
		}
	}
	if _, err := NewReviewer([]byte(`{"type":"multinet-shim"}`)); err != nil {
		t.Error(err)
	}
}
