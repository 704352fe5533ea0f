package kube

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"

	"github.com/metacni/metacni/internal/e2e/kube/server"
)

// A pod gets the network of its annotation, and its status and one Event tell so. All
// that the API server is asked for is to write these two. DEL asks for nothing.
func TestPodCostsOnePatchAndOneEvent(t *testing.T) {
	t.Parallel()
	n := readyNode(t, nil)
	s := n.pod("one", "blue")
	n.ok("ADD", s)
	if !n.right(s, "multi", n.namespace+"/blue") { // the ADD has waited for it
		names, interfaces := n.status(s.pod)
		t.Errorf("status %q %q, but the pod has %q", names, interfaces, n.attached(s))
	}
	eventually(t, func() bool { return len(n.events(s.pod)) > 0 })
	for _, command := range []string{"CHECK", "STATUS", "DEL", "DEL"} {
		n.ok(command, s)
	}
	n.ok("GC", s)
	n.wantNothing(s)
	n.stop()
	same(t, "requests", []string{
		"PATCH " + statusPath(s.pod),
		"POST /apis/events.k8s.io/v1/namespaces/" + n.namespace + "/events",
	}, n.gate.made(""))
	same(t, "Events", []string{"AddedInterface"}, n.events(s.pod))
}

// events lists the reasons of the Events on a pod.
func (n *node) events(pod *corev1.Pod) (reasons []string) {
	n.t.Helper()
	got := request(n.t, n.Admin(), http.MethodGet, "/apis/events.k8s.io/v1/namespaces/"+pod.Namespace+"/events", "")
	var list eventsv1.EventList
	if err := json.Unmarshal([]byte(got.Body), &list); err != nil {
		n.t.Fatal(got, err)
	}
	for _, e := range list.Items {
		if e.Regarding.Name == pod.Name && e.Regarding.UID == pod.UID {
			reasons = append(reasons, e.Reason)
		}
	}
	return reasons
}

// The daemon cannot write the status of a pod on another node: the policy refuses it. The
// pod is attached nevertheless, and an Event on the daemon's pod tells what is wrong.
func TestStatusOfAPodOnAnotherNodeIsNeverWritten(t *testing.T) {
	t.Parallel()
	n := newNode(t, world(t).Server, nil)
	n.ready()
	s := n.sandbox(n.Pod(t, server.PodOn(otherNode, n.namespace, "elsewhere")))
	n.ok("ADD", s)
	eventually(t, func() bool { return len(n.events(n.daemonPod)) > 0 })
	same(t, "Events on the daemon's pod", []string{"StatusNotWritten"}, n.events(n.daemonPod))
	if names, _ := n.status(s.pod); names != nil {
		t.Errorf("status: %q", names)
	}
	n.ok("DEL", s)
	n.wantNothing(s)
}

// definition returns a NetworkAttachmentDefinition as JSON.
func definition(namespace, name, config string) string {
	text, err := json.Marshal(map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
		"metadata": map[string]any{"namespace": namespace, "name": name},
		"spec":     map[string]any{"config": config},
	})
	if err != nil {
		panic(err)
	}
	return string(text)
}

// The API server accepts every definition whose config is a string, whatever that says:
// what is wrong with it shows when a pod selects it.
func TestDefinitionsThatTheServerAccepts(t *testing.T) {
	t.Parallel()
	w := world(t)
	namespace := w.Namespace(t)
	path := nads + "namespaces/" + namespace + "/network-attachment-definitions"
	for name, tt := range map[string]struct {
		metadata, rest string // of the object, as JSON
		code           int
		text           string // in the answer
	}{
		"no spec":                  {``, ``, 201, ""},
		"empty spec":               {``, `"spec":{}`, 201, `"spec":{}`},
		"no spec by null":          {``, `"spec":null`, 201, ""},
		"no config by null":        {``, `"spec":{"config":null}`, 201, `"spec":{}`},
		"empty config":             {``, `"spec":{"config":""}`, 201, `"config":""`},
		"not JSON":                 {``, `"spec":{"config":"{"}`, 201, `"config":"{"`},
		"a null in the text":       {``, `"spec":{"config":"\u0000"}`, 201, `"config":"\u0000"`},
		"a large number":           {``, `"spec":{"config":"{\"vni\":12345678901234567890, \"b\":1.0, \"a\":[ ]}"}`, 201, `{\"vni\":12345678901234567890, \"b\":1.0, \"a\":[ ]}`},
		"another key is dropped":   {``, `"spec":{"config":"{}","other":1},"more":2`, 201, `"spec":{"config":"{}"}`},
		"a megabyte":               {``, `"spec":{"config":"` + strings.Repeat("x", 1<<20) + `"}`, 201, ""},
		"a name of a domain":       {`"name":"a.b-c.d",`, ``, 201, ""},
		"config is an object":      {``, `"spec":{"config":{}}`, 422, "spec.config"},
		"config is a number":       {``, `"spec":{"config":1}`, 422, "spec.config"},
		"spec is a string":         {``, `"spec":"{}"`, 422, "spec"},
		"more than etcd takes":     {``, `"spec":{"config":"` + strings.Repeat("x", 7<<18) + `"}`, 500, "too large"},
		"sixteen megabytes":        {``, `"spec":{"config":"` + strings.Repeat("x", 16<<20) + `"}`, 413, "too large"},
		"a name with a slash":      {`"name":"a/b",`, ``, 422, "metadata.name"},
		"a name of capitals":       {`"name":"Green",`, ``, 422, "metadata.name"},
		"a name with ..":           {`"name":"..",`, ``, 422, "metadata.name"},
		"an annotation of numbers": {`"annotations":{"k8s.v1.cni.cncf.io/resourceName":1},`, ``, 400, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body := `{"apiVersion":"k8s.cni.cncf.io/v1","kind":"NetworkAttachmentDefinition","metadata":{` + tt.metadata + `"generateName":"test-"}`
			if tt.rest != "" {
				body += "," + tt.rest
			}
			got := request(t, w.Admin(), http.MethodPost, path, body+"}")
			got.is(t, tt.code, tt.text)
			if strings.Contains(got.Body, `"more"`) || strings.Contains(got.Body, `"other"`) {
				t.Errorf("unknown keys: %s", got.Body)
			}
		})
	}
}

func TestShortNamesOfDefinitions(t *testing.T) {
	t.Parallel()
	w := world(t)
	namespace := w.Namespace(t)
	w.Kubectl(t, definition(namespace, "green", "{}"), "create", "-f", "-")
	for _, name := range []string{"nad", "net-attach-def", "network-attachment-definition"} {
		if got := w.Kubectl(t, "", "get", name, "-n", namespace, "-o", "name"); !strings.HasSuffix(got, "/green\n") {
			t.Errorf("get %s: %q", name, got)
		}
	}
}
