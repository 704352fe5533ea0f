package kube

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
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
