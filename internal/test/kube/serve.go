package kubetest

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

// A call is a request to be answered.
type call struct {
	Request
	kind   kind
	status bool // the subresource
	http   *http.Request
}

// ServeHTTP counts the request and answers it, unless a fault does.
func (s *Server) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	var body []byte
	if q.Body != nil {
		body, _ = io.ReadAll(q.Body)
	}
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
		answer = s.listed(c)
	default:
		answer, f = s.one(c)
	}
	if f != nil {
		write(w, f.code, c.failed(f))
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
	is, group := parsePath(q.Method, q.URL)
	is.Query, is.UserAgent, is.Body, is.Time = q.URL.RawQuery, q.UserAgent(), body, time.Now()
	resource, sub, _ := strings.Cut(is.Resource, "/")
	if group == "" {
		is.Verb, is.Resource = "", q.URL.Path
	}
	c = call{http: q, Request: is}
	all := kinds()
	i := slices.IndexFunc(all, func(k kind) bool { return k.group == group && k.resource == resource })
	if i < 0 {
		return c, false
	}
	c.kind, c.status = all[i], sub == "status"
	return c, c.status || sub == ""
}

// one serves the verbs that concern one object, and returns it.
func (s *Server) one(c call) (*object, *failure) {
	var o *object
	if c.Verb == "create" || c.Verb == "update" {
		o = s.body(c)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.change()
	at := key{c.kind.resource, c.Namespace, c.Name}
	old := s.objects[at]
	switch {
	case c.Verb == "create":
		return s.create(c, o), nil
	case old == nil:
		return nil, failf(http.StatusNotFound, "%s %q not found", c.kind.resource, c.Name)
	case c.Verb == "get":
		return old, nil
	case c.Verb == "delete":
		s.remove(c.kind, at)
		return old, nil
	case c.Verb == "patch":
		o = mustRead[*object](merge(old.text(), []byte(c.Body)))
	}
	if f := admit(c, o, old); f != nil {
		return nil, f
	}
	if bytes.Equal(o.text(), old.text()) {
		return old, nil
	}
	s.put(c.kind, o)
	return o, nil
}

// body returns the object in the body.
func (s *Server) body(c call) *object {
	text := []byte(c.Body)
	if strings.HasPrefix(c.http.Header.Get("Content-Type"), "application/vnd.kubernetes.protobuf") {
		typed, err := s.decode(text)
		if err != nil {
			panic("kubetest: " + err.Error())
		}
		text = mustMarshal(typed)
	}
	return mustRead[*object](text)
}

// create stores a new object, without a status. Called with mu held.
func (s *Server) create(c call, o *object) *object {
	o.meta.Namespace, o.meta.UID = c.Namespace, ""
	if o.meta.Name == "" {
		o.meta.Name = o.meta.GenerateName + strings.ToLower(rand.Text()[:5])
	}
	delete(o.other, "status")
	s.put(c.kind, o)
	return o
}

// listed returns the list of the matching objects.
func (s *Server) listed(c call) *object {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := newObject(c.kind.name+"List", c.kind.group, metadata{ResourceVersion: fmt.Sprint(s.version)})
	list.other["items"] = mustMarshal(append([]*object{}, s.list(c.kind.resource, matcher(c))...))
	return list
}

// A failure is an answer that is a Status object.
type failure struct {
	code    int
	reason  string // empty: clients know it by the code
	message string
	causes  []cause
}

// A cause says what is wrong with a field of an object.
type cause struct {
	Field   string `json:"field"`
	Message string `json:"message"`
}

func failf(code int, format string, args ...any) *failure {
	return &failure{code: code, message: fmt.Sprintf(format, args...)}
}

// invalid says what is wrong with an object.
func invalid(field, why string) *failure {
	return &failure{code: http.StatusUnprocessableEntity, message: field + ": " + why, causes: []cause{{field, why}}}
}

// failed returns the Status object that answers the call.
func (c call) failed(f *failure) *object {
	group, _, _ := strings.Cut(c.kind.group, "/")
	o := newObject("Status", "v1", metadata{})
	for key, value := range map[string]any{
		"status": "Failure", "message": f.message, "reason": f.reason, "code": f.code,
		"details": map[string]any{"name": c.Name, "group": group, "kind": c.kind.resource, "causes": f.causes},
	} {
		o.other[key] = mustMarshal(value)
	}
	return o
}

// write answers with an object.
func write(w http.ResponseWriter, code int, o *object) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(o.text())
}
