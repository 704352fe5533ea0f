package kubetest

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// A call is a request to be answered.
type call struct {
	Request
	kind   kind
	status bool // the subresource
	http   *http.Request
}

// serve counts the request and answers it, unless a fault does.
func (s *Server) serve(w http.ResponseWriter, q *http.Request) {
	body, _ := io.ReadAll(q.Body)
	c, known := parse(q, string(body))
	s.mu.Lock()
	s.requests = append(s.requests, c.Request)
	token := s.token
	s.change()
	s.mu.Unlock()
	var answer *object
	var f *failure
	switch {
	case s.fails(w, c):
		return
	case token != "" && q.Header.Get("Authorization") != "Bearer "+token:
		f = failf(http.StatusUnauthorized, "Unauthorized")
	case !known:
		http.NotFound(w, q)
		return
	case c.Verb == "watch":
		if f = s.watch(w, c); f == nil {
			return
		}
	case c.Verb == "list":
		answer, f = s.listed(c)
	default:
		answer, f = s.one(c)
	}
	if f != nil {
		c.fail(w, f)
		return
	}
	if strings.Contains(q.Header.Get("Accept"), "as=PartialObjectMetadata;g=meta.k8s.io;v=v1") {
		answer = newObject("PartialObjectMetadata", "meta.k8s.io/v1", answer.meta)
	}
	code := http.StatusOK
	if c.Verb == "create" {
		code = http.StatusCreated
	}
	write(w, code, answer)
}

// parse reads the path and the method. It reports whether the server has the resource.
func parse(q *http.Request, body string) (c call, known bool) {
	c = call{http: q, Request: Request{Resource: q.URL.Path, Query: q.URL.RawQuery, UserAgent: q.UserAgent(), Body: body}}
	parts := strings.Split(strings.Trim(q.URL.Path, "/"), "/")
	prefix := map[string]int{"api": 2, "apis": 3}[parts[0]]
	if prefix == 0 || len(parts) <= prefix {
		return c, false
	}
	group, parts := strings.Join(parts[1:prefix], "/"), parts[prefix:]
	if parts[0] == "namespaces" && len(parts) > 2 {
		c.Namespace, parts = parts[1], parts[2:]
	}
	resource := parts[0]
	c.Resource = resource
	if len(parts) > 1 {
		c.Name = parts[1]
		c.Resource = strings.Join(slices.Delete(parts, 1, 2), "/")
	}
	c.Verb = map[string]string{http.MethodGet: "get", http.MethodPost: "create", http.MethodPut: "update"}[q.Method]
	switch {
	case c.Verb == "":
		c.Verb = strings.ToLower(q.Method)
	case c.Verb == "get" && c.Name == "" && q.URL.Query().Has("watch"):
		c.Verb = "watch"
	case c.Verb == "get" && c.Name == "":
		c.Verb = "list"
	}
	all := kinds()
	i := slices.IndexFunc(all, func(k kind) bool { return k.group == group && k.resource == resource })
	if i < 0 {
		return c, false
	}
	c.kind, c.status = all[i], c.Resource == resource+"/status"
	return c, c.status || c.Resource == resource
}

// one serves the verbs that concern one object, and returns it.
func (s *Server) one(c call) (*object, *failure) {
	var o *object
	var f *failure
	if c.Verb == "create" || c.Verb == "update" {
		if o, f = s.body(c); f != nil {
			return nil, f
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.change()
	at := key{c.kind.resource, c.Namespace, c.Name}
	old := s.objects[at]
	switch {
	case c.Verb == "create":
		return s.create(c, o)
	case old == nil:
		return nil, failf(http.StatusNotFound, "%s %q not found", c.kind.resource, c.Name)
	case c.Verb == "get":
		return old, nil
	case c.Verb == "delete":
		s.remove(c.kind, at)
		return old, nil
	case c.Verb == "patch":
		if o, f = patch(old, c.mediaType(), []byte(c.Body)); f != nil {
			return nil, f
		}
	}
	if f := admit(c, o, old); f != nil {
		return nil, f
	}
	if o.same(old) {
		return old, nil
	}
	s.put(c.kind, o)
	return o, nil
}

func (c call) mediaType() string {
	t, _, _ := mime.ParseMediaType(c.http.Header.Get("Content-Type"))
	return t
}

// body returns the object in the body.
func (s *Server) body(c call) (*object, *failure) {
	text := []byte(c.Body)
	switch c.mediaType() {
	case "application/json":
	case "application/vnd.kubernetes.protobuf":
		typed, err := s.decode(text)
		if err != nil {
			return nil, failf(http.StatusBadRequest, "%v", err)
		}
		text = mustMarshal(typed)
	default:
		return nil, unsupported(c.mediaType())
	}
	o := new(object)
	if err := json.Unmarshal(text, o); err != nil {
		return nil, failf(http.StatusBadRequest, "%v", err)
	}
	return o, nil
}

// create stores a new object, without a status. Called with mu held.
func (s *Server) create(c call, o *object) (*object, *failure) {
	o.meta.Namespace, o.meta.UID = c.Namespace, ""
	if o.meta.Name == "" {
		o.meta.Name = o.meta.GenerateName + strings.ToLower(rand.Text()[:5])
	}
	delete(o.other, "status")
	if c.kind.name == "Event" {
		if causes := incomplete(o); len(causes) > 0 {
			return nil, invalid(causes...)
		}
	}
	if s.objects[key{c.kind.resource, c.Namespace, o.meta.Name}] != nil {
		f := failf(http.StatusConflict, "%s %q already exists", c.kind.resource, o.meta.Name)
		f.reason = "AlreadyExists"
		return nil, f
	}
	s.put(c.kind, o)
	return o, nil
}

// incomplete says what is wrong with an Event. The real server names the fields as the core
// group does: the note is its message.
func incomplete(o *object) []cause {
	event := mustRead[struct {
		EventTime, ReportingController, ReportingInstance, Action, Reason, Note, Type string
	}](o.text())
	var causes []cause
	if event.Type != "Normal" && event.Type != "Warning" {
		causes = append(causes, wrong("type", "has invalid value: "+event.Type))
	}
	for _, f := range []struct {
		name, value string
		least, most int
	}{
		{"eventTime", event.EventTime, 1, 30},
		{"reportingController", event.ReportingController, 1, 317}, // of a qualified name
		{"reportingInstance", event.ReportingInstance, 1, 128},
		{"action", event.Action, 1, 128},
		{"reason", event.Reason, 1, 128},
		{"message", event.Note, 0, 1024},
	} {
		if len(f.value) < f.least || len(f.value) > f.most {
			causes = append(causes, wrong(f.name, fmt.Sprintf("must have %d to %d bytes", f.least, f.most)))
		}
	}
	return causes
}

// listed returns the list of the matching objects.
func (s *Server) listed(c call) (*object, *failure) {
	match, f := matcher(c)
	if f != nil {
		return nil, f
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	list := newObject(c.kind.name+"List", c.kind.group, metadata{ResourceVersion: fmt.Sprint(s.version)})
	list.other["items"] = mustMarshal(append([]*object{}, s.list(c.kind.resource, match)...))
	return list, nil
}

// A failure is an answer that is a Status object.
type failure struct {
	code       int
	reason     string // empty: that of the code
	message    string
	causes     []cause
	retryAfter int
}

type cause struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Field   string `json:"field,omitempty"`
}

func failf(code int, format string, args ...any) *failure {
	return &failure{code: code, message: fmt.Sprintf(format, args...)}
}

// invalid says what is wrong with an object.
func invalid(causes ...cause) *failure {
	return &failure{code: http.StatusUnprocessableEntity, message: fmt.Sprintf("invalid: %v", causes), causes: causes}
}

func wrong(field, message string) cause { return cause{"FieldValueInvalid", message, field} }

func unsupported(mediaType string) *failure {
	return failf(http.StatusUnsupportedMediaType, "the body of the request was in an unknown format: %s", mediaType)
}

// reasons are those of the Status object, by the code.
func reasons() map[int]string {
	return map[int]string{
		400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired",
		415: "UnsupportedMediaType", 422: "Invalid", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable",
	}
}

// failed returns the Status object that answers the call.
func (c call) failed(f *failure) *object {
	group, _, _ := strings.Cut(c.kind.group, "/")
	o := newObject("Status", "v1", metadata{})
	for key, value := range map[string]any{
		"status": "Failure", "message": f.message, "reason": cmp.Or(f.reason, reasons()[f.code]), "code": f.code,
		"details": map[string]any{"name": c.Name, "group": group, "kind": c.kind.resource, "causes": f.causes, "retryAfterSeconds": f.retryAfter},
	} {
		o.other[key] = mustMarshal(value)
	}
	return o
}

// fail answers with a failure.
func (c call) fail(w http.ResponseWriter, f *failure) {
	if f.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(f.retryAfter))
	}
	write(w, f.code, c.failed(f))
}

// write answers with JSON, or with the text of a fault.
func write(w http.ResponseWriter, code int, v any) {
	text, ok := v.(json.RawMessage)
	if !ok {
		text = mustMarshal(v)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(text)
}
