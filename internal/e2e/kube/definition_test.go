package kube

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/metacni/metacni/internal/e2e/kube/server"
)

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

// A definition that is edited concerns new containers alone: the others are checked and
// detached as they were attached.
func TestEditedDefinitionConcernsNewContainersAlone(t *testing.T) {
	t.Parallel()
	n := readyNode(t, nil)
	blue := n.namespace + "/blue"
	old, next := n.pod("old", "blue"), n.pod("next", "blue")
	n.ok("ADD", old)
	n.wantRight(old, "multi", blue)
	n.define(n.namespace, "blue", 2)
	eventually(t, func() bool { // the daemon has seen it
		n.ok("ADD", next)
		if len(glob(t, n.file("leases", "blue", fmt.Sprintf("10.%d.2.*", n.number)))) == 1 {
			return true
		}
		n.ok("DEL", next)
		return false
	})
	n.wantRight(next, "multi", blue)
	n.ok("CHECK", old)
	n.ok("DEL", old)
	n.ok("DEL", next)
	n.wantNothing(old, next)
}

// Namespace, definition and pod may be deleted in any order before DEL.
func TestDELNeedsNothingOfTheCluster(t *testing.T) {
	t.Parallel()
	n := newNode(t, world(t).Server, nil)
	n.ready()
	const namespace, nad, pod = "namespace", "definition", "pod"
	var all []*sandbox
	for _, order := range [][]string{
		{namespace, nad, pod},
		{namespace, pod, nad},
		{nad, namespace, pod},
		{nad, pod, namespace},
		{pod, namespace, nad},
		{pod, nad, namespace},
	} {
		in := n.Namespace(t)
		n.define(in, "blue", 1)
		p := server.PodOn(n.name, in, "one")
		p.Annotations = map[string]string{networksAnnotation: "blue"}
		s := n.sandbox(n.Pod(t, p))
		n.ok("ADD", s)
		n.wantRight(s, "multi", in+"/blue")
		for _, what := range order {
			switch what {
			case namespace:
				request(t, n.Admin(), http.MethodDelete, "/api/v1/namespaces/"+in, "").is(t, http.StatusOK, "")
			case nad:
				n.undefine(in, "blue")
			case pod:
				n.DeletePod(t, s.pod)
			}
			n.ok("CHECK", s)
		}
		n.ok("DEL", s)
		all = append(all, s)
	}
	n.wantNothing(all...)
	same(t, "requests", len(all), len(n.gate.made("PATCH")))
}

// A definition that is deleted while there is no daemon is not served from the mirror
// afterwards.
func TestDefinitionDeletedWithoutADaemon(t *testing.T) {
	t.Parallel()
	n := newNode(t, world(t).Server, nil)
	n.define(n.namespace, "blue", 1)
	mirrored := func() bool { return len(glob(t, n.file("nads", n.namespace, "blue.conf*"))) > 0 }
	n.ready()
	eventually(t, mirrored)
	n.kill()
	n.undefine(n.namespace, "blue")
	n.ready()
	eventually(t, func() bool { return !mirrored() })
	s := n.pod("one", "blue")
	n.fails("ADD", s, 7, "NAD "+n.namespace+"/blue: does not exist")
	n.wantNothing(s)
	eventually(t, func() bool { return len(n.events(s.pod)) > 0 })
	same(t, "Events", []string{"NoNetworkFound"}, n.events(s.pod))
}
