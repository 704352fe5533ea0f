package kubetest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

const (
	pods        = "/api/v1/namespaces/default/pods"
	nodes       = "/api/v1/nodes"
	allPods     = "/api/v1/pods"
	events      = "/apis/events.k8s.io/v1/namespaces/default/events"
	definitions = "/apis/k8s.cni.cncf.io/v1/namespaces/default/network-attachment-definitions"
	claims      = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"

	mergePatch = "application/merge-patch+json"
)

// A client makes the requests of one test to an API server.
type client struct {
	*testing.T
	http       *http.Client
	url, token string
	name       string // no other test uses it: for objects and nodes
	accept     string // JSON, if empty
}

// An endpoint is an API server.
type endpoint struct {
	URL, Token string
	CA         []byte
	ServerName string // in its certificate; empty: that of the URL
}

func (e endpoint) client(t *testing.T) *client {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(e.CA)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: e.ServerName, MinVersion: tls.VersionTLS12}}
	t.Cleanup(transport.CloseIdleConnections)
	return &client{T: t, http: &http.Client{Transport: transport}, url: e.URL, token: e.Token, name: "contract-" + strings.ToLower(rand.Text()[:10])}
}

// contract runs a test of what an API server answers, against this package or, if
// METACNI_CONTRACT is the JSON of an endpoint, that server. This one needs the CRD of
// network-attachment-definitions, must admit pods of the namespace default without a service
// account, give the client all rights, and reject unknown tokens.
func contract(t *testing.T, name string, test func(c *client)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		var e endpoint
		if text := os.Getenv("METACNI_CONTRACT"); text != "" {
			nodetest.OK(t, json.Unmarshal([]byte(text), &e))
		} else {
			e = start(t).endpoint("known")
		}
		test(e.client(t))
	})
}

// want makes a request and wants an answer with this HTTP status, and with this cause if it is
// not empty: the reason of a Status object, or a field in its causes. It returns the body.
func (c *client) want(code int, why, method, path, contentType, body string) []byte {
	c.Helper()
	resp := c.send(c.Context(), method, path, contentType, body)
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	nodetest.OK(c, err)
	var s struct {
		Reason  string
		Details struct{ Causes []cause }
	}
	if why != "" {
		nodetest.OK(c, json.Unmarshal(data, &s))
	}
	if resp.StatusCode != code || why != "" && s.Reason != why && !slices.ContainsFunc(s.Details.Causes, func(is cause) bool { return is.Field == why }) {
		c.Errorf("%s %s: not %d %s, but %d %s", method, path, code, why, resp.StatusCode, data)
	}
	return data
}

// send makes a request, again for as long as the server says that it is not ready: it is not for
// a moment after it has got a CRD.
func (c *client) send(ctx context.Context, method, path, contentType, body string) *http.Response {
	c.Helper()
	for {
		q, err := http.NewRequestWithContext(ctx, method, c.url+path, strings.NewReader(body))
		nodetest.OK(c, err)
		q.Header.Set("Content-Type", cmp.Or(contentType, "application/json"))
		q.Header.Set("Accept", cmp.Or(c.accept, "application/json"))
		q.Header.Set("Authorization", "Bearer "+c.token)
		resp, err := c.http.Do(q)
		nodetest.OK(c, err)
		if resp.StatusCode != http.StatusTooManyRequests {
			return resp
		}
		_ = resp.Body.Close()
		time.Sleep(100 * time.Millisecond) // only a real server answers so
	}
}

// get makes a request that succeeds, and returns the object.
func (c *client) do(method, path, contentType, body string) *object {
	c.Helper()
	return mustRead[*object](c.want(http.StatusOK, "", method, path, contentType, body))
}

func (c *client) get(path string) *object { c.Helper(); return c.do("GET", path, "", "") }

// create creates an object that is deleted at the end of the test.
func (c *client) create(path, body string) *object {
	c.Helper()
	o := mustRead[*object](c.want(http.StatusCreated, "", "POST", path, "", c.named(body)))
	c.Cleanup(func() {
		resp := c.send(context.WithoutCancel(c.Context()), "DELETE", path+"/"+o.meta.Name, "", `{"gracePeriodSeconds":0}`)
		_ = resp.Body.Close()
	})
	return o
}

// pod creates the pod of that name, on the test's node.
func (c *client) pod(name string) *object {
	c.Helper()
	return c.create(pods, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"labels":{"l":"1"}},
		"spec":{"nodeName":"NAME","containers":[{"name":"c","image":"i"}]}}`, name))
}

func (c *client) definition(name string) *object {
	c.Helper()
	return c.create(definitions, fmt.Sprintf(`{"apiVersion":"k8s.cni.cncf.io/v1","kind":"NetworkAttachmentDefinition",
		"metadata":{"name":%q},"spec":{"config":"{}"}}`, name))
}

// annotate sets the annotation a of the object at the path.
func (c *client) annotate(path, value string) *object {
	c.Helper()
	return c.do("PATCH", path, mergePatch, fmt.Sprintf(`{"metadata":{"annotations":{"a":%q}}}`, value))
}

func (c *client) delete(path string) {
	c.Helper()
	c.want(http.StatusOK, "", "DELETE", path, "", `{"gracePeriodSeconds":0}`)
}

// named returns the text with the test's name for NAME.
func (c *client) named(text string) string { return strings.ReplaceAll(text, "NAME", c.name) }

// A stream is an open watch.
type stream struct {
	*client
	lines *bufio.Reader
}

func (c *client) watch(path, query string) *stream {
	c.Helper()
	resp := c.send(c.Context(), "GET", path+"?watch=true&"+c.named(query), "", "")
	c.Cleanup(func() { _ = resp.Body.Close() })
	nodetest.Equal(c, "HTTP status", resp.StatusCode, http.StatusOK)
	return &stream{c, bufio.NewReader(resp.Body)}
}

// next returns the next event but bookmarks within the events: its type, "END" for the bookmark
// that ends the initial events, and its object. The type is empty after the last one.
func (s *stream) next() (kind string, o *object) {
	s.Helper()
	for {
		line, err := s.lines.ReadBytes('\n')
		if err != nil {
			return "", &object{}
		}
		e := mustRead[struct {
			Type   string
			Object *object
		}](line)
		switch {
		case e.Type != "BOOKMARK":
			return e.Type, e.Object
		case e.Object.meta.Annotations["k8s.io/initial-events-end"] == "true":
			return "END", e.Object
		}
	}
}

// expect reads one event for each want, such as "ADDED 1": its type and the value of the
// annotation a.
func (s *stream) expect(want ...string) {
	s.Helper()
	for _, w := range want {
		kind, o := s.next()
		nodetest.Equal(s, "event", strings.TrimSpace(kind+" "+o.meta.Annotations["a"]), w)
	}
}

// A patch of pods/status: that of another pod, a late one, a wrong one.
func TestContractOfAStatusPatch(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, patch string // UID and VERSION are those of the pod
		code        int
		cause       string
	}{
		{"with its UID changes the annotation", `{"metadata":{"uid":"UID","annotations":{"a":"b"}}}`, 200, ""},
		{"without a UID changes the annotation", `{"metadata":{"annotations":{"a":"b"}}}`, 200, ""},
		{"with another UID is invalid", `{"metadata":{"uid":"other","annotations":{"a":"b"}}}`, 422, "metadata.uid"},
		{"with the resource version changes the annotation", `{"metadata":{"resourceVersion":"VERSION","annotations":{"a":"b"}}}`, 200, ""},
		{"with an old resource version and another UID conflicts", `{"metadata":{"uid":"other","resourceVersion":"1"}}`, 409, "Conflict"},
	} {
		contract(t, row.name, func(c *client) {
			p, path := c.pod(c.name), pods+"/"+c.name
			body := strings.NewReplacer("UID", p.meta.UID, "VERSION", p.meta.ResourceVersion).Replace(row.patch)
			c.want(row.code, row.cause, "PATCH", path+"/status", mergePatch, body)
			got, want := c.get(path), ""
			if row.code == http.StatusOK {
				want = "b"
			}
			nodetest.Equal(c, "annotation", got.meta.Annotations["a"], want)
			nodetest.Equal(c, "UID", got.meta.UID, p.meta.UID)
			nodetest.Equal(c, "labels", got.meta.Labels, p.meta.Labels)
			nodetest.Equal(c, "whether the version is another", got.meta.ResourceVersion != p.meta.ResourceVersion, want != "")
		})
	}
	contract(t, "of a pod that is gone finds nothing", func(c *client) {
		c.want(404, "", "PATCH", pods+"/"+c.name+"/status", mergePatch, `{"metadata":{"uid":"u"}}`)
	})
	contract(t, "that changes nothing makes no version", func(c *client) {
		path := pods + "/" + c.pod(c.name).meta.Name + "/status"
		nodetest.Equal(c, "version", c.annotate(path, "b").meta.ResourceVersion, c.annotate(path, "b").meta.ResourceVersion)
	})
	contract(t, "with null removes the annotation and no other", func(c *client) {
		path := pods + "/" + c.pod(c.name).meta.Name + "/status"
		c.do("PATCH", path, mergePatch, `{"metadata":{"annotations":{"a":"b","c":"d"}}}`)
		got := c.do("PATCH", path, mergePatch, `{"metadata":{"annotations":{"a":null}}}`)
		nodetest.Equal(c, "annotations", got.meta.Annotations, map[string]string{"c": "d"})
	})
	contract(t, "changes labels and the status and leaves the spec", func(c *client) {
		c.pod(c.name)
		got := c.do("PATCH", pods+"/"+c.name+"/status", mergePatch, `{"metadata":{"labels":{"l":"2"}},"spec":{"nodeName":"other"},"status":{"message":"m"}}`)
		nodetest.Equal(c, "labels", got.meta.Labels, map[string]string{"l": "2"})
		nodetest.Equal(c, "node", got.field("spec.nodeName"), c.name)
		nodetest.Equal(c, "whether it has the message", bytes.Contains(got.other["status"], []byte(`"message":"m"`)), true)
	})
	contract(t, "is answered with the metadata if that is asked for", func(c *client) {
		path := pods + "/" + c.pod(c.name).meta.Name + "/status"
		c.accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
		got := c.annotate(path, "b")
		nodetest.Equal(c, "kind", string(got.other["kind"]), `"PartialObjectMetadata"`)
		nodetest.Equal(c, "annotations", got.meta.Annotations, map[string]string{"a": "b"})
		nodetest.Equal(c, "whether it has a spec", got.other["spec"] != nil, false)
		c.want(422, "metadata.uid", "PATCH", path, mergePatch, `{"metadata":{"uid":"other"}}`)
	})
}

func TestContractOfLists(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, path, query string // NAME is the test's, VERSION that of its last pod
		want              []string
	}{
		{"by node", allPods, "fieldSelector=spec.nodeName%3DNAME", []string{"NAME", "NAME-2"}},
		{"by node in another namespace", "/api/v1/namespaces/kube-system/pods", "fieldSelector=spec.nodeName%3DNAME", nil},
		{"by node from the cache", allPods, "resourceVersion=VERSION&resourceVersionMatch=NotOlderThan&fieldSelector=spec.nodeName%3DNAME", []string{"NAME", "NAME-2"}},
		{"by name and node", allPods, "fieldSelector=metadata.name%3DNAME,spec.nodeName%3DNAME", []string{"NAME"}},
		{"of all definitions by name", "/apis/k8s.cni.cncf.io/v1/network-attachment-definitions", "fieldSelector=metadata.name%3DNAME", []string{"NAME"}},
	} {
		contract(t, row.name, func(c *client) {
			c.pod(c.name)
			last := c.pod(c.name + "-2")
			c.definition(c.name)
			list := c.get(row.path + "?" + strings.ReplaceAll(c.named(row.query), "VERSION", last.meta.ResourceVersion))
			var got, want []string
			for _, o := range mustRead[[]*object](list.other["items"]) {
				got = append(got, o.meta.Name)
			}
			for _, name := range row.want {
				want = append(want, c.named(name))
			}
			nodetest.Equal(c, "list", got, want)
			nodetest.Equal(c, "whether it has a version", list.meta.ResourceVersion != "", true)
		})
	}
	contract(t, "with an unknown token are refused", func(c *client) {
		c.token = "unknown"
		c.want(401, "", "GET", pods+"?watch=true", "", "")
	})
}

func TestContractOfObjects(t *testing.T) {
	t.Parallel()
	contract(t, "what does not exist is not found", func(c *client) {
		for _, path := range []string{pods + "/NAME", definitions + "/NAME", pods + "/NAME/status"} {
			c.want(404, "", "GET", c.named(path), "", "")
		}
		c.want(404, "", "GET", "/apis/none.example/v1/nothing", "", "")
	})
	contract(t, "a pod that was deleted is gone", func(c *client) {
		path := pods + "/" + c.pod(c.name).meta.Name
		c.delete(path)
		c.want(404, "", "GET", path, "", "")
		c.want(404, "", "DELETE", path, "", "")
	})
	contract(t, "a patch of a pod leaves the status", func(c *client) {
		path := pods + "/" + c.pod(c.name).meta.Name
		got := c.do("PATCH", path, mergePatch, `{"metadata":{"annotations":{"a":"b"}},"status":{"message":"m"}}`)
		nodetest.Equal(c, "annotations", got.meta.Annotations, map[string]string{"a": "b"})
		nodetest.Equal(c, "whether it has the message", bytes.Contains(got.other["status"], []byte(`"message":"m"`)), false)
	})
	contract(t, "a definition is patched", func(c *client) {
		d, path := c.definition(c.name), definitions+"/"+c.name
		got := c.do("PATCH", path, mergePatch, `{"spec":{"config":"{\"a\":1}"}}`)
		nodetest.Equal(c, "config", mustRead[Definition](got.text()).Config, `{"a":1}`)
		c.want(409, "Conflict", "PATCH", path, mergePatch, `{"metadata":{"resourceVersion":"`+d.meta.ResourceVersion+`"}}`)
		c.want(422, "metadata.uid", "PATCH", path, mergePatch, `{"metadata":{"uid":"other"}}`)
	})
	contract(t, "an event is created", func(c *client) {
		c.create(events, `{"metadata":{"name":"NAME"},"eventTime":"2026-01-02T03:04:05.678901Z","type":"Normal","reason":"R","action":"A",
			"reportingController":"c.example/x","reportingInstance":"i","note":"n","regarding":{"kind":"Pod","namespace":"default","name":"p"}}`)
	})
	contract(t, "the taints of a node are replaced, unless it has changed", func(c *client) {
		path := nodes + "/" + c.create(nodes, `{"apiVersion":"v1","kind":"Node","metadata":{"name":"NAME"},"spec":{"taints":[{"key":"a","effect":"NoSchedule"}]}}`).meta.Name
		patch := func(version string) string {
			return fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"spec":{"taints":[]}}`, version)
		}
		old := c.get(path).meta.ResourceVersion
		version := c.annotate(path, "1").meta.ResourceVersion
		c.want(409, "Conflict", "PATCH", path, mergePatch, patch(old))
		got := c.do("PATCH", path, mergePatch, patch(version))
		nodetest.Equal(c, "whether it has the taint", bytes.Contains(got.other["spec"], []byte(`"a"`)), false)
	})
}

// Updates of resourceclaims/status, as a driver makes them. The parameters in the allocation
// are no canonical JSON.
func TestContractOfAClaimsStatus(t *testing.T) {
	t.Parallel()
	const allocated = `"allocation":{"devices":{"results":[{"request":"r","driver":"d.example","pool":"p","device":"net"}],` +
		`"config":[{"source":"FromClaim","opaque":{"driver":"d.example","parameters":{"b":1.0,"a":1e3}}}]}}`
	for _, row := range []struct {
		name, version, status string // VERSION is that of the claim
		code                  int
		cause                 string
	}{
		{"of an allocated device is taken", "VERSION", allocated + `,"devices":[{"driver":"d.example","pool":"p","device":"net","conditions":[]}]`, 200, ""},
		{"of an old version conflicts", "1", allocated, 409, "Conflict"},
	} {
		contract(t, row.name, func(c *client) {
			path := claims + "/" + c.name
			update := func(code int, cause, version, status string) {
				c.want(code, cause, "PUT", path+"/status", "", fmt.Sprintf(
					`{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":%q,"namespace":"default","resourceVersion":%q},"status":{%s}}`, c.name, version, status))
			}
			made := c.create(claims, `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":"NAME"},
				"spec":{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"c"}}]}}}`)
			update(200, "", made.meta.ResourceVersion, allocated)
			before := c.get(path)
			update(row.code, row.cause, strings.Replace(row.version, "VERSION", before.meta.ResourceVersion, 1), row.status)
			after := c.get(path)
			for _, o := range []*object{before, after} {
				nodetest.Equal(c, "whether the parameters are as written", bytes.Contains(o.other["status"], []byte(`{"b":1.0,"a":1e3}`)), true)
			}
		})
	}
}

// initial is the query of a watch that begins with all objects.
const initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan"

// Watches of the pods of one node, and of a definition. A pod on a node changes before it is
// deleted: it gets a deletionTimestamp.
func TestContractOfWatches(t *testing.T) {
	t.Parallel()
	for _, kind := range []struct {
		name, path, query string
		create            func(*client, string) *object
		deleted           []string
	}{
		{"pods of a node", pods, "fieldSelector=spec.nodeName%3DNAME&", (*client).pod, []string{"MODIFIED 2", "DELETED 2"}},
		{"a definition", definitions, "fieldSelector=metadata.name%3DNAME&", (*client).definition, []string{"DELETED 2"}},
	} {
		for _, row := range []struct {
			name, query string // VERSION: that of a list after the first change
			want        []string
		}{
			{"with initial events begins with the objects and a bookmark", initial + "&allowWatchBookmarks=true", []string{"ADDED 1", "END", "MODIFIED 2"}},
			{"with initial events of a version begins with the objects", initial + "&allowWatchBookmarks=true&resourceVersion=VERSION", []string{"ADDED 1", "END", "MODIFIED 2"}},
			{"of the version of a list begins with what comes after", "allowWatchBookmarks=true&resourceVersion=VERSION", []string{"MODIFIED 2"}},
		} {
			contract(t, kind.name+" "+row.name, func(c *client) {
				path := kind.path + "/" + kind.create(c, c.name).meta.Name
				c.annotate(path, "1")
				w := c.watch(kind.path, kind.query+strings.ReplaceAll(row.query, "VERSION", c.get(kind.path).meta.ResourceVersion))
				c.annotate(path, "2")
				c.delete(path)
				w.expect(append(row.want, kind.deleted...)...)
			})
		}
		contract(t, kind.name+" sees one with another UID as deleted and added", func(c *client) {
			old := kind.create(c, c.name)
			w := c.watch(kind.path, kind.query+"resourceVersion="+old.meta.ResourceVersion)
			c.delete(kind.path + "/" + c.name)
			kind.create(c, c.name)
			for range len(kind.deleted) - 1 {
				e, o := w.next()
				nodetest.Equal(c, "event", e, "MODIFIED")
				nodetest.Equal(c, "whether it is being deleted", o.meta.DeletionTimestamp != "", true)
			}
			a, gone := w.next()
			b, is := w.next()
			nodetest.Equal(c, "events", []string{a, b}, []string{"DELETED", "ADDED"})
			nodetest.Equal(c, "UID", gone.meta.UID, old.meta.UID)
			if gone.meta.ResourceVersion == old.meta.ResourceVersion || is.meta.UID == old.meta.UID {
				c.Errorf("%+v has gone, and %+v has come", gone.meta, is.meta)
			}
		})
	}
	// A new cluster has not forgotten its pods since version 1, but the definitions from
	// before their CRD.
	contract(t, "from a version that is forgotten is told so", func(c *client) {
		w := c.watch(definitions, "resourceVersion=1")
		e, s := w.next()
		end, _ := w.next()
		nodetest.Equal(c, "events", []string{e, end}, []string{"ERROR", ""})
		nodetest.Equal(c, "code", string(s.other["code"]), "410")
	})
}
