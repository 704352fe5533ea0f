package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"

	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// handler reviews as a plugin would: with what an ADD uses.
func handler() Handler {
	policy := nad.Policy{Isolation: true}
	return Handler{
		Definition: func(d nad.Definition) error {
			if strings.TrimSpace(d.Config) == "" {
				return nil
			}
			_, err := d.Network(nad.Rules{Own: []string{"meta"}, Allowed: []string{"macvlan", "meta"}})
			return err
		},
		Pod: func(namespace string, annotations map[string]string) error {
			selections, err := netconf.ParseSelection(annotations[nad.NetworksAnnotation])
			for _, s := range selections {
				ref, bad := policy.Ref(namespace, s, nad.Selected)
				if bad == nil {
					_, bad = policy.Decide(namespace, ref, nad.Selected)
				}
				err = errors.Join(err, bad)
			}
			return err
		},
	}
}

const (
	definitionKind = `{"group":"k8s.cni.cncf.io","version":"v1","kind":"NetworkAttachmentDefinition"}`
	podKind        = `{"group":"","version":"v1","kind":"Pod"}`
)

// definition is a NetworkAttachmentDefinition with more keys.
func definition(rest string) string {
	return `{"apiVersion":"k8s.cni.cncf.io/v1","kind":"NetworkAttachmentDefinition","metadata":{"namespace":"a","name":"blue"}` + rest + `}`
}

// config is a definition with a spec.config.
func config(text string) string {
	quoted, _ := json.Marshal(text) //nolint:errchkjson // a string
	return definition(`,"spec":{"config":` + string(quoted) + `}`)
}

// pod is a pod that selects networks.
func pod(networks, more string) string {
	quoted, _ := json.Marshal(networks) //nolint:errchkjson // a string
	return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","annotations":{"k8s.v1.cni.cncf.io/networks":` + string(quoted) + `}}` + more + `}`
}

// ask sends the body to h.
func ask(t testing.TB, h http.Handler, body string) *http.Response {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/validate?timeout=5s", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

// reviewed is the answer to a request with these keys.
func reviewed(t testing.TB, h http.Handler, keys string) string {
	t.Helper()
	resp := ask(t, h, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u1","namespace":"a","userInfo":{},`+keys+`}}`)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("%d %s, %v", resp.StatusCode, text, err)
	}
	var answer admissionv1.AdmissionReview
	nodetest.OK(t, json.Unmarshal(text, &answer))
	r := answer.Response
	if answer.APIVersion != "admission.k8s.io/v1" || answer.Kind != "AdmissionReview" || r.UID != "u1" || r.Allowed != (r.Result == nil) {
		t.Fatalf("%s", text)
	}
	switch {
	case r.Result != nil:
		return fmt.Sprintf("%d %s: %s", r.Result.Code, r.Result.Reason, r.Result.Message)
	case len(r.Warnings) > 0:
		return "warning: " + strings.Join(r.Warnings, "; ")
	}
	return "allowed"
}

func TestReviews(t *testing.T) {
	t.Parallel()
	const (
		byFile = `warning: without spec.config this is the network "blue" in the CNI configuration files of each node`
		noType = `422 Invalid: NAD a/blue: spec.config: invalid configuration: key "plugins": missing, and there is no "type" either`
		other  = `403 Forbidden: NAD b/red: not allowed: namespaceIsolation keeps pods of namespace "a" from definitions of namespace "b": define the network in the pod's namespace, or in one of globalNamespaces`
		onNode = `warning: the pod has the network of its node (hostNetwork): the networks that it selects are ignored`
	)
	good, bad := config(`{"type":"macvlan"}`), config(`{}`)
	create := func(kind, object string) string {
		return `"operation":"CREATE","kind":` + kind + `,"object":` + object
	}
	update := func(kind, old, object string) string {
		return `"operation":"UPDATE","kind":` + kind + `,"object":` + object + `,"oldObject":` + old
	}
	for name, tt := range map[string]struct{ keys, want string }{
		"a definition":                           {create(definitionKind, good), "allowed"},
		"a definition that cannot be used":       {create(definitionKind, bad), noType},
		"a definition without spec":              {create(definitionKind, definition("")), byFile},
		"a definition with an empty spec":        {create(definitionKind, definition(`,"spec":{}`)), byFile},
		"a definition with an empty config":      {create(definitionKind, config(" ")), byFile},
		"a type that is not allowed":             {create(definitionKind, config(`{"type":"bridge"}`)), `403 Forbidden: NAD a/blue: spec.config: not allowed: network "blue", key "plugins[0].type": "bridge" is not one of allowedTypes`},
		"the plugin itself":                      {create(definitionKind, config(`{"type":"meta"}`)), `422 Invalid: NAD a/blue: spec.config: invalid configuration: network "blue", key "plugins[0].type": "meta" is the meta-plugin itself, or one in its place`},
		"a config that is an object":             {create(definitionKind, definition(`,"spec":{"config":{}}`)), `422 Invalid: NAD a/blue: cannot decode configuration: key "spec.config": an object, want a string`},
		"not an object":                          {create(definitionKind, `[]`), "422 Invalid: the object cannot be decoded"},
		"changed for the better":                 {update(definitionKind, bad, good), "allowed"},
		"changed for the worse":                  {update(definitionKind, good, bad), noType},
		"changed from bad to bad":                {update(definitionKind, config(`{"type":5}`), bad), noType},
		"bad as before":                          {update(definitionKind, bad, bad), strings.Replace(noType, "422 Invalid", "warning", 1)},
		"bad as before, with a resource":         {update(definitionKind, bad, strings.Replace(bad, `"name"`, `"annotations":{"k8s.v1.cni.cncf.io/resourceName":"x/y"},"name"`, 1)), noType},
		"bad as before, with another label":      {update(definitionKind, bad, strings.Replace(bad, `"name"`, `"labels":{"x":"y"},"name"`, 1)), strings.Replace(noType, "422 Invalid", "warning", 1)},
		"a definition is deleted":                {`"operation":"DELETE","kind":` + definitionKind + `,"oldObject":` + bad, "allowed"},
		"a subresource of it":                    {create(definitionKind, bad) + `,"subResource":"status"`, "allowed"},
		"a pod":                                  {create(podKind, pod("blue,default/red", "")), "allowed"},
		"a pod that selects nothing":             {create(podKind, `{"metadata":{}}`), "allowed"},
		"a pod that selects what it may not":     {create(podKind, pod("b/red", "")), other},
		"a broken selection":                     {create(podKind, pod("[{", "")), `422 Invalid: cannot decode configuration: line 1, column 2: unexpected end of JSON input`},
		"a pod of its node's network":            {create(podKind, pod("b/red", `,"spec":{"hostNetwork":true}`)), onNode},
		"a pod of its node's network, broken":    {create(podKind, pod("[{", `,"spec":{"hostNetwork":true}`)), onNode},
		"a pod of its node's network, alone":     {create(podKind, pod("[]", `,"spec":{"hostNetwork":true}`)), "allowed"},
		"a running pod selects what it may not":  {update(podKind, pod("blue", ""), pod("b/red", "")), other},
		"a running pod selects it as before":     {update(podKind, pod("b/red", ""), pod("b/red", `,"spec":{"x":1}`)), strings.Replace(other, "403 Forbidden", "warning", 1)},
		"a running pod selects nothing any more": {update(podKind, pod("b/red", ""), pod("", "")), "allowed"},
		"a pod in the namespace of the request":  {create(podKind, pod("b/red", "")) + `,"namespace":"b"`, "allowed"},
		"another primary than before":            {update(podKind, pod("b/red", ""), strings.Replace(pod("b/red", ""), `"annotations":{`, `"annotations":{"`+nad.DefaultNetworkAnnotation+`":"b/red",`, 1)), other},
		"a primary of its node's network":        {create(podKind, strings.Replace(pod("blue", `,"spec":{"hostNetwork":true}`), nad.NetworksAnnotation, nad.DefaultNetworkAnnotation, 1)), onNode},
		"a pod is deleted":                       {`"operation":"DELETE","kind":` + podKind + `,"oldObject":` + pod("b/red", ""), "allowed"},
		"a command is executed in it":            {`"operation":"CONNECT","subResource":"exec","kind":{"version":"v1","kind":"PodExecOptions"},"object":{}`, "allowed"},
		"annotations that are none":              {create(podKind, `{"metadata":{"annotations":[]}}`), "422 Invalid: the object cannot be decoded"},
		"another kind":                           {create(`{"group":"apps","version":"v1","kind":"Deployment"}`, `{}`), "allowed"},
		"a definition of another group":          {create(strings.Replace(definitionKind, "k8s.cni.cncf.io", "x.io", 1), bad), "allowed"},
		"a pod of another group":                 {create(`{"group":"x.io","version":"v1","kind":"Pod"}`, pod("b/red", "")), "allowed"},
		"no object":                              {`"operation":"CREATE","kind":` + podKind, "422 Invalid: the object cannot be decoded"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodetest.Equal(t, "answer", reviewed(t, handler(), tt.keys), tt.want)
			nodetest.Equal(t, "without functions", reviewed(t, Handler{}, tt.keys), "allowed")
		})
	}
}

// The observer is told of each request, and how it has ended.
func TestObserverIsToldOfEachRequest(t *testing.T) {
	t.Parallel()
	h := handler()
	var got []string
	h.Observer = func(e Event) {
		if (e.Request == nil) != (e.Outcome == "failed") || e.Duration <= 0 {
			t.Errorf("%+v", e)
		}
		got = append(got, e.Outcome)
	}
	for _, object := range []string{config(`{"type":"macvlan"}`), definition(""), config(`{}`)} {
		reviewed(t, h, `"operation":"CREATE","kind":`+definitionKind+`,"object":`+object)
	}
	_ = ask(t, h, "{").Body.Close()
	nodetest.Equal(t, "events", got, []string{"allowed", "warned", "denied", "failed"})
}

// What is no review gets an HTTP error: for an API server the webhook is away then.
func TestRequestsThatAreNoReviews(t *testing.T) {
	t.Parallel()
	const review = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u"}}`
	for name, tt := range map[string]struct {
		method, kind, body string
		code               int
	}{
		"a review":                        {http.MethodPost, "application/json", review, 200},
		"a review with a charset":         {http.MethodPost, "application/json; charset=utf-8", review, 200},
		"a GET":                           {http.MethodGet, "", "", 405},
		"a form":                          {http.MethodPost, "application/x-www-form-urlencoded", "a=b", 415},
		"no type":                         {http.MethodPost, "", review, 415},
		"nothing":                         {http.MethodPost, "application/json", "", 400},
		"not JSON":                        {http.MethodPost, "application/json", "{", 400},
		"null":                            {http.MethodPost, "application/json", "null", 400},
		"another object":                  {http.MethodPost, "application/json", `{"kind":"Pod"}`, 400},
		"another version":                 {http.MethodPost, "application/json", strings.Replace(review, "/v1", "/v1beta1", 1), 400},
		"no request":                      {http.MethodPost, "application/json", `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, 400},
		"as large as it may be":           {http.MethodPost, "application/json", review + strings.Repeat(" ", maxBody-len(review)), 200},
		"a byte larger than it may be":    {http.MethodPost, "application/json", review + strings.Repeat(" ", maxBody+1-len(review)), 413},
		"ten million bytes":               {http.MethodPost, "application/json", review + strings.Repeat(" ", 10_000_000), 413},
		"much deeper than an object goes": {http.MethodPost, "application/json", strings.Repeat("[", 1<<20), 400},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequestWithContext(t.Context(), tt.method, "/validate", strings.NewReader(tt.body))
			r.Header.Set("Content-Type", tt.kind)
			w := httptest.NewRecorder()
			handler().ServeHTTP(w, r)
			if w.Code != tt.code {
				t.Errorf("got %d %s, want %d", w.Code, w.Body, tt.code)
			}
		})
	}
}

// Whatever a request says, the answer is a review with its UID, or an HTTP error.
func FuzzHandler(f *testing.F) {
	for _, object := range []string{config(`{"type":"macvlan"}`), config(`{}`), pod("b/red", ""), pod("[{", `,"spec":{"hostNetwork":true}`), "null", "5"} {
		for _, kind := range []string{definitionKind, podKind} {
			f.Add(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"UPDATE","kind":` + kind + `,"object":` + object + `,"oldObject":` + object + `}}`)
		}
	}
	f.Fuzz(func(t *testing.T, body string) {
		resp := ask(t, handler(), body)
		defer func() { _ = resp.Body.Close() }()
		var asked, answer admissionv1.AdmissionReview
		text, err := io.ReadAll(resp.Body)
		nodetest.OK(t, err)
		if resp.StatusCode != http.StatusOK {
			return
		}
		nodetest.OK(t, errors.Join(json.Unmarshal([]byte(body), &asked), json.Unmarshal(text, &answer)))
		if diff := cmp.Diff(asked.Request.UID, answer.Response.UID); diff != "" || answer.Response.Allowed != (answer.Response.Result == nil) {
			t.Errorf("%s\n%s", text, diff)
		}
	})
}
