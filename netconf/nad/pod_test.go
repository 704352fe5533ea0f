package nad_test

import (
	"testing"

	"github.com/metacni/metacni/netconf/nad"
)

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
		{"names are exact", "k8s_pod_name=a; K8S_POD_NAME=b;K8S_POD_NAMESPACES=c", nad.Pod{}, ""},
		{"no value", "K8S_POD_NAME;K8S_POD_NAMESPACE=", nad.Pod{}, ""},
		{"outside of Kubernetes", "IgnoreUnknown=1", nad.Pod{}, ""},
		{"nothing", "", nad.Pod{}, ""},
		{"a path", "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=../p", nad.Pod{Namespace: "ns", Name: "../p"}, "ns/../p"},
	} {
		got := nad.PodOf(tt.args)
		if got != tt.want || got.String() != tt.text {
			t.Errorf("%s: %q is %+v (%q), want %+v (%q)", tt.name, tt.args, got, got, tt.want, tt.text)
		}
		if valid := tt.text == "ns/p"; got.Valid() != valid {
			t.Errorf("%s: valid: %v", tt.name, got.Valid())
		}
	}
}
