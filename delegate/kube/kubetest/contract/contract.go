// Package contract says what an API server answers to the requests that a plugin or a
// daemon on a node makes. The cases hold for kube-apiserver 1.36 and for
// [github.com/metacni/metacni/delegate/kube/kubetest] alike; run them against both:
//
//	for _, c := range contract.Cases() {
//		t.Run(c.Name, func(t *testing.T) {
//			if err := c.Run(t.Context(), config); errors.Is(err, contract.ErrUnsupported) {
//				t.Skip(err)
//			} else if err != nil {
//				t.Error(err)
//			}
//		})
//	}
//
// A real server needs the CRD of network-attachment-definitions, and must admit pods of
// the namespace default without a service account. The client must have all rights, and
// the server must reject unknown tokens.
package contract

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/rest"
)

// ErrUnsupported is the error of a case that the server answers with 415 because it
// does not do such patches.
var ErrUnsupported = errors.New("the server does not support this kind of patch")

// A Case is a few requests and their answers. Cases may run at the same time, against
// one server or several.
type Case struct {
	// Name says what the answers are, such as "a patch with another UID is refused".
	Name string

	run func(ctx context.Context, c *client) error
}

// Run makes the requests. It returns an error that says which answer is not the
// expected one, and ErrUnsupported (errors.Is) if the server does not support them.
// What it creates it deletes again.
func (c Case) Run(ctx context.Context, config *rest.Config) error {
	h, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return err
	}
	cl := &client{http: h, url: strings.TrimSuffix(base.String(), "/"), name: "contract-" + rand.String(10)}
	defer func() {
		for _, path := range slices.Backward(cl.created) {
			_, _ = cl.do(context.WithoutCancel(ctx), "DELETE", path, "", `{"gracePeriodSeconds":0}`)
		}
		h.CloseIdleConnections()
	}()
	return c.run(ctx, cl)
}

// Cases returns all cases.
func Cases() []Case {
	return slices.Concat(patchCases(), readCases(), metadataCases(), watchCases(), eventCases(), definitionCases(), claimCases())
}

const (
	pods        = "/api/v1/namespaces/default/pods"
	allPods     = "/api/v1/pods"
	events      = "/apis/events.k8s.io/v1/namespaces/default/events"
	definitions = "/apis/k8s.cni.cncf.io/v1/namespaces/default/network-attachment-definitions"

	merge     = "application/merge-patch+json"
	strategic = "application/strategic-merge-patch+json"
	jsonPatch = "application/json-patch+json"
	apply     = "application/apply-patch+yaml"
)

// A client makes the requests of one case.
type client struct {
	http    *http.Client
	url     string
	name    string   // no other case uses it: for objects and nodes
	created []string // paths
	token   string   // instead of the configuration's, if not empty
	accept  string   // JSON, if empty
}

// A response is what the server has answered.
type response struct {
	code int
	body []byte
}

// An answer is what a response must be like. Its zero fields say nothing.
type answer struct {
	code   int
	reason metav1.StatusReason
	cause  string // a field among the causes
}

func immutable() answer { return answer{422, metav1.StatusReasonInvalid, "metadata.uid"} }
func conflict() answer  { return answer{409, metav1.StatusReasonConflict, ""} }
func missing() answer   { return answer{404, metav1.StatusReasonNotFound, ""} }
func invalid() answer   { return answer{422, metav1.StatusReasonInvalid, ""} }
func malformed() answer { return answer{400, metav1.StatusReasonBadRequest, ""} }

// of returns an error if the response is not this answer.
func (a answer) of(r response, err error) error {
	if err != nil {
		return err
	}
	if r.code == http.StatusUnsupportedMediaType && a.code != r.code {
		return ErrUnsupported
	}
	var s metav1.Status
	if a.reason != "" || a.cause != "" {
		if err := json.Unmarshal(r.body, &s); err != nil {
			return fmt.Errorf("%w in %s", err, r.body)
		}
	}
	var fields []string
	if s.Details != nil {
		for _, c := range s.Details.Causes {
			fields = append(fields, c.Field)
		}
	}
	if r.code != a.code || s.Reason != a.reason && a.reason != "" || a.cause != "" && !slices.Contains(fields, a.cause) {
		return fmt.Errorf("answer is not %v: %d %s", a, r.code, r.body)
	}
	return nil
}

// do makes one request and reads the whole response.
func (c *client) do(ctx context.Context, method, path, contentType, body string) (response, error) {
	resp, err := c.send(ctx, method, path, contentType, body)
	if err != nil {
		return response{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	return response{resp.StatusCode, data}, err
}

func (c *client) send(ctx context.Context, method, path, contentType, body string) (*http.Response, error) {
	q, err := http.NewRequestWithContext(ctx, method, c.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if contentType == "" {
		contentType = "application/json"
	}
	q.Header.Set("Content-Type", contentType)
	q.Header.Set("Accept", cmp.Or(c.accept, "application/json"))
	if c.token != "" {
		q.Header.Set("Authorization", "Bearer "+c.token)
	}
	return c.http.Do(q)
}

// An object is the part of an answer that cases look at.
type object struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		NodeName      string `json:"nodeName"`
		RestartPolicy string `json:"restartPolicy"`
		Config        string `json:"config"`
	} `json:"spec"`
	Status json.RawMessage `json:"status"`
	Items  []object        `json:"items"`
	Series *struct {
		Count int `json:"count"`
	} `json:"series"`
}

func (o object) names() []string {
	var names []string
	for _, i := range o.Items {
		names = append(names, i.Metadata.Name)
	}
	return names
}

// ok makes a request that must succeed, and returns the object.
func (c *client) ok(ctx context.Context, method, path, contentType, body string) (object, error) {
	var o object
	r, err := c.do(ctx, method, path, contentType, body)
	if err == nil && r.code == http.StatusUnsupportedMediaType {
		return o, ErrUnsupported
	}
	if err == nil && r.code/100 != 2 {
		err = fmt.Errorf("%s %s: %d %s", method, path, r.code, r.body)
	}
	if err == nil {
		err = json.Unmarshal(r.body, &o)
	}
	return o, err
}

// create creates an object that is deleted at the end of the case.
func (c *client) create(ctx context.Context, path, body string) (object, error) {
	o, err := c.ok(ctx, "POST", path, "", body)
	if err == nil {
		c.created = append(c.created, path+"/"+o.Metadata.Name)
	}
	return o, err
}

// pod creates the pod of that name, on the case's node.
func (c *client) pod(ctx context.Context, name string) (object, error) {
	return c.create(ctx, pods, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"labels":{"l":"1"}},
		"spec":{"nodeName":%q,"containers":[{"name":"c","image":"i"}]}}`, name, c.name))
}

func (c *client) definition(ctx context.Context, name string) (object, error) {
	return c.create(ctx, definitions, fmt.Sprintf(`{"apiVersion":"k8s.cni.cncf.io/v1","kind":"NetworkAttachmentDefinition",
		"metadata":{"name":%q},"spec":{"config":"{}"}}`, name))
}

// annotate sets the annotation a of the object at the path.
func (c *client) annotate(ctx context.Context, path, value string) (object, error) {
	return c.ok(ctx, "PATCH", path, merge, fmt.Sprintf(`{"metadata":{"annotations":{"a":%q}}}`, value))
}

// A stream is an open watch.
type stream struct {
	body  io.ReadCloser
	lines *bufio.Reader
}

func (c *client) watch(ctx context.Context, path, query string) (*stream, error) {
	resp, err := c.send(ctx, "GET", path+"?watch=true&"+query, "", "")
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		data, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		return nil, fmt.Errorf("watch %s: %d %s", query, resp.StatusCode, data)
	}
	return &stream{resp.Body, bufio.NewReader(resp.Body)}, nil
}

func (s *stream) close() { _ = s.body.Close() }

// An event is one of a watch.
type event struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

func (s *stream) next() (event, object, error) {
	var e event
	var o object
	line, err := s.lines.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &e)
	}
	if err == nil && e.Type != "ERROR" {
		err = json.Unmarshal(e.Object, &o)
	}
	return e, o, err
}

// expect reads one event for each want, such as "ADDED 1": its type and the value of
// the annotation a. Bookmarks are left out, but one that ends the initial events is
// "END".
func (s *stream) expect(want ...string) error {
	var got []string
	for len(got) < len(want) {
		e, o, err := s.next()
		if err != nil {
			return fmt.Errorf("%w after %q, not %q", err, got, want)
		}
		switch {
		case e.Type == "BOOKMARK" && o.Metadata.Annotations[metav1.InitialEventsAnnotationKey] == "true":
			got = append(got, "END")
		case e.Type != "BOOKMARK":
			got = append(got, strings.TrimSpace(e.Type+" "+o.Metadata.Annotations["a"]))
		}
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("events %q, not %q", got, want)
	}
	return nil
}

// same returns an error if the two are not the same JSON.
func same(what string, got, want any) error {
	g, err1 := json.Marshal(got)
	w, err2 := json.Marshal(want)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if !bytes.Equal(g, w) {
		return fmt.Errorf("%s is %s, not %s", what, g, w)
	}
	return nil
}
