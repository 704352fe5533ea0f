package kubetest_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/metacni/metacni/internal/nodetest"
)

const (
	pods        = "/api/v1/namespaces/default/pods"
	allPods     = "/api/v1/pods"
	events      = "/apis/events.k8s.io/v1/namespaces/default/events"
	definitions = "/apis/k8s.cni.cncf.io/v1/namespaces/default/network-attachment-definitions"
	claims      = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"

	merge     = "application/merge-patch+json"
	jsonPatch = "application/json-patch+json"
)

// A contract client makes the requests of one test to an API server.
type contractClient struct {
	*testing.T
	http   *http.Client
	url    string
	name   string // no other test uses it: for objects and nodes
	token  string // instead of the configuration's, if not empty
	accept string // JSON, if empty
}

// contract runs a test of what an API server answers, against kubetest or, if METACNI_CONTRACT
// names a kubeconfig file, that server. This one needs the CRD of network-attachment-definitions,
// must admit pods of the namespace default without a service account, give the client all
// rights, and reject unknown tokens.
func contract(t *testing.T, name string, test func(c *contractClient)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		var config *rest.Config
		if file := os.Getenv("METACNI_CONTRACT"); file != "" {
			var err error
			config, err = clientcmd.BuildConfigFromFlags("", file)
			nodetest.OK(t, err)
		} else {
			s := newServer(t)
			s.SetToken("known")
			config = s.Config()
		}
		h, err := rest.HTTPClientFor(config)
		nodetest.OK(t, err)
		t.Cleanup(h.CloseIdleConnections)
		test(&contractClient{T: t, http: h, url: config.Host, name: "contract-" + rand.String(10)})
	})
}

// An answer is what a response must be like. Its zero fields say nothing.
type answer struct {
	code   int
	reason metav1.StatusReason
	cause  string // a field among the causes
}

func done() answer                { return answer{code: http.StatusOK} }
func invalid(cause string) answer { return answer{422, metav1.StatusReasonInvalid, cause} }
func conflict() answer            { return answer{409, metav1.StatusReasonConflict, ""} }
func missing() answer             { return answer{404, metav1.StatusReasonNotFound, ""} }
func malformed() answer           { return answer{400, metav1.StatusReasonBadRequest, ""} }

// want makes a request and wants this answer, whose body it returns.
func (c *contractClient) want(a answer, method, path, contentType, body string) []byte {
	c.Helper()
	resp := c.send(c.Context(), method, path, contentType, body)
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	nodetest.OK(c, err)
	var s metav1.Status
	if a.reason != "" || a.cause != "" {
		nodetest.OK(c, json.Unmarshal(data, &s))
	}
	var fields []string
	if s.Details != nil {
		for _, cause := range s.Details.Causes {
			fields = append(fields, cause.Field)
		}
	}
	if resp.StatusCode != a.code || s.Reason != a.reason && a.reason != "" || a.cause != "" && !slices.Contains(fields, a.cause) {
		c.Errorf("%s %s: not %v, but %d %s", method, path, a, resp.StatusCode, data)
	}
	return data
}

// send makes a request, again for as long as the server says that it is not ready: it is not for
// a moment after it has got a CRD.
func (c *contractClient) send(ctx context.Context, method, path, contentType, body string) *http.Response {
	c.Helper()
	for {
		q, err := http.NewRequestWithContext(ctx, method, c.url+path, strings.NewReader(body))
		nodetest.OK(c, err)
		q.Header.Set("Content-Type", cmp.Or(contentType, "application/json"))
		q.Header.Set("Accept", cmp.Or(c.accept, "application/json"))
		if c.token != "" {
			q.Header.Set("Authorization", "Bearer "+c.token)
		}
		resp, err := c.http.Do(q)
		nodetest.OK(c, err)
		if resp.StatusCode != http.StatusTooManyRequests {
			return resp
		}
		_ = resp.Body.Close()
		time.Sleep(100 * time.Millisecond) // only a real server answers so
	}
}

// A contractObject is the part of an answer that tests look at.
type contractObject struct {
	Kind     string            `json:"kind"`
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     *struct {
		NodeName string `json:"nodeName"`
		Config   string `json:"config"`
	} `json:"spec"`
	Status json.RawMessage  `json:"status"`
	Items  []contractObject `json:"items"`
}

// object makes a request that succeeds, and returns the object.
func (c *contractClient) object(method, path, contentType, body string) (o contractObject) {
	c.Helper()
	nodetest.OK(c, json.Unmarshal(c.want(done(), method, path, contentType, body), &o))
	return o
}

// create creates an object that is deleted at the end of the test.
func (c *contractClient) create(path, body string) (o contractObject) {
	c.Helper()
	nodetest.OK(c, json.Unmarshal(c.want(answer{code: http.StatusCreated}, "POST", path, "", body), &o))
	c.Cleanup(func() {
		resp := c.send(context.WithoutCancel(c.Context()), "DELETE", path+"/"+o.Metadata.Name, "", `{"gracePeriodSeconds":0}`)
		_ = resp.Body.Close()
	})
	return o
}

// pod creates the pod of that name, on the test's node.
func (c *contractClient) pod(name string) contractObject {
	c.Helper()
	return c.create(pods, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"labels":{"l":"1"}},
		"spec":{"nodeName":%q,"containers":[{"name":"c","image":"i"}]}}`, name, c.name))
}

func (c *contractClient) definition(name string) contractObject {
	c.Helper()
	return c.create(definitions, fmt.Sprintf(`{"apiVersion":"k8s.cni.cncf.io/v1","kind":"NetworkAttachmentDefinition",
		"metadata":{"name":%q},"spec":{"config":"{}"}}`, name))
}

// annotate sets the annotation a of the object at the path.
func (c *contractClient) annotate(path, value string) contractObject {
	c.Helper()
	return c.object("PATCH", path, merge, fmt.Sprintf(`{"metadata":{"annotations":{"a":%q}}}`, value))
}

func (c *contractClient) delete(path string) {
	c.Helper()
	c.want(done(), "DELETE", path, "", `{"gracePeriodSeconds":0}`)
}

// named returns the text with the test's name for NAME.
func (c *contractClient) named(text string) string { return strings.ReplaceAll(text, "NAME", c.name) }

// A stream is an open watch.
type stream struct {
	*contractClient
	lines *bufio.Reader
}

func (c *contractClient) watch(path, query string) *stream {
	c.Helper()
	resp := c.send(c.Context(), "GET", path+"?watch=true&"+c.named(query), "", "")
	c.Cleanup(func() { _ = resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		c.Fatalf("watch %s: %d", query, resp.StatusCode)
	}
	return &stream{c, bufio.NewReader(resp.Body)}
}

// next returns the next event: its type, and its object. The type is empty after the last one.
func (s *stream) next() (kind string, object json.RawMessage, o contractObject) {
	s.Helper()
	var e struct {
		Type   string          `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	line, err := s.lines.ReadBytes('\n')
	if err == io.EOF {
		return "", nil, o
	}
	nodetest.OK(s, err)
	nodetest.OK(s, json.Unmarshal(line, &e))
	if e.Type != "ERROR" {
		nodetest.OK(s, json.Unmarshal(e.Object, &o))
	}
	return e.Type, e.Object, o
}

// expect reads one event for each want, such as "ADDED 1": its type and the value of the
// annotation a. Bookmarks are left out, but one that ends the initial events is "END".
func (s *stream) expect(want ...string) {
	s.Helper()
	var got []string
	for len(got) < len(want) {
		switch kind, _, o := s.next(); {
		case kind == "":
			s.Fatalf("the watch has ended after %q, not %q", got, want)
		case kind == "BOOKMARK" && o.Metadata.Annotations[metav1.InitialEventsAnnotationKey] == "true":
			got = append(got, "END")
		case kind != "BOOKMARK":
			got = append(got, strings.TrimSpace(kind+" "+o.Metadata.Annotations["a"]))
		}
	}
	nodetest.Equal(s, "events", got, want)
}

// A patch of pods/status: that of another pod, a late one, a wrong one.
func TestContractOfAStatusPatch(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, kind, patch string // UID and VERSION are those of the pod
		want              answer
	}{
		{"with its UID changes the annotation", merge, `{"metadata":{"uid":"UID","annotations":{"a":"b"}}}`, done()},
		{"without a UID changes the annotation", merge, `{"metadata":{"annotations":{"a":"b"}}}`, done()},
		{"with another UID is invalid", merge, `{"metadata":{"uid":"other","annotations":{"a":"b"}}}`, invalid("metadata.uid")},
		{"with the resource version changes the annotation", merge, `{"metadata":{"resourceVersion":"VERSION","annotations":{"a":"b"}}}`, done()},
		{"with an old resource version conflicts", merge, `{"metadata":{"resourceVersion":"1","annotations":{"a":"b"}}}`, conflict()},
		{"with an old resource version and another UID conflicts", merge, `{"metadata":{"uid":"other","resourceVersion":"1"}}`, conflict()},
		{"in JSON whose test fails is invalid", jsonPatch, `[{"op":"test","path":"/metadata/uid","value":"other"}]`, invalid("")},
		{"in JSON whose test holds changes the annotation", jsonPatch, `[{"op":"test","path":"/metadata/uid","value":"UID"},{"op":"add","path":"/metadata/annotations","value":{"a":"b"}}]`, done()},
		{"that is not JSON is malformed", merge, `{"metadata":`, malformed()},
		{"with a number as an annotation is invalid", merge, `{"metadata":{"annotations":{"a":1}}}`, invalid("patch")},
		{"with annotations of 256 KiB is invalid", merge, `{"metadata":{"annotations":{"a":"` + strings.Repeat("x", 1<<18) + `"}}}`, invalid("metadata.annotations")},
		{"of an unknown kind is of an unsupported type", "text/plain", `{}`, answer{http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType, ""}},
	} {
		contract(t, row.name, func(c *contractClient) {
			p, path := c.pod(c.name), pods+"/"+c.name
			body := strings.NewReplacer("UID", string(p.Metadata.UID), "VERSION", p.Metadata.ResourceVersion).Replace(row.patch)
			c.want(row.want, "PATCH", path+"/status", row.kind, body)
			got, want := c.object("GET", path, "", ""), ""
			if row.want.code == http.StatusOK {
				want = "b"
			}
			nodetest.Equal(c, "annotation", got.Metadata.Annotations["a"], want)
			nodetest.Equal(c, "UID", got.Metadata.UID, p.Metadata.UID)
			nodetest.Equal(c, "whether the version is another", got.Metadata.ResourceVersion != p.Metadata.ResourceVersion, want != "")
		})
	}
	contract(t, "of a pod that is gone finds nothing", func(c *contractClient) {
		c.want(missing(), "PATCH", pods+"/"+c.name+"/status", merge, `{"metadata":{"uid":"u"}}`)
	})
	contract(t, "that changes nothing makes no version", func(c *contractClient) {
		c.pod(c.name)
		first, second := c.annotate(pods+"/"+c.name+"/status", "b"), c.annotate(pods+"/"+c.name+"/status", "b")
		nodetest.Equal(c, "version", second.Metadata.ResourceVersion, first.Metadata.ResourceVersion)
	})
	contract(t, "with null removes the annotation and no other", func(c *contractClient) {
		c.pod(c.name)
		path := pods + "/" + c.name + "/status"
		c.object("PATCH", path, merge, `{"metadata":{"annotations":{"a":"b","c":"d"}}}`)
		got := c.object("PATCH", path, merge, `{"metadata":{"annotations":{"a":null}}}`)
		nodetest.Equal(c, "annotations", got.Metadata.Annotations, map[string]string{"c": "d"})
	})
	contract(t, "changes labels and the status and leaves the spec", func(c *contractClient) {
		c.pod(c.name)
		got := c.object("PATCH", pods+"/"+c.name+"/status", merge, `{"metadata":{"labels":{"l":"2"}},"spec":{"nodeName":"other"},"status":{"message":"m"}}`)
		nodetest.Equal(c, "labels", got.Metadata.Labels, map[string]string{"l": "2"})
		nodetest.Equal(c, "node", got.Spec.NodeName, c.name)
		nodetest.Equal(c, "whether it has the message", strings.Contains(string(got.Status), `"message":"m"`), true)
	})
	for kind, path := range map[string]string{"Pod": pods + "/NAME/status", "NetworkAttachmentDefinition": definitions + "/NAME"} {
		contract(t, "of a "+kind+" is answered with the metadata if that is asked for", func(c *contractClient) {
			c.pod(c.name)
			c.definition(c.name)
			c.accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
			got := c.annotate(c.named(path), "b")
			if got.Kind != "PartialObjectMetadata" || got.Spec != nil || got.Metadata.Name != c.name || got.Metadata.ResourceVersion == "" || got.Metadata.Annotations["a"] != "b" {
				c.Errorf("%+v", got)
			}
			c.want(invalid("metadata.uid"), "PATCH", c.named(path), merge, `{"metadata":{"uid":"other"}}`)
		})
	}
}
