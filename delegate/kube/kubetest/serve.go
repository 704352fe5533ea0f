package kubetest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/scheme"
)

// maxBody is the limit for the body of a request, that of the real server.
const maxBody = 3 << 20

// A handler serves requests until the server stops.
type handler struct {
	s    *Server
	down chan struct{}
}

// ServeHTTP counts the request and answers it, unless a fault does.
func (h handler) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, q.Body, maxBody))
	if err != nil {
		fail(w, apierrors.NewRequestEntityTooLargeError(err.Error()))
		return
	}
	r, res := parse(q)
	r.Body = string(body)
	h.s.mu.Lock()
	h.s.requests = append(h.s.requests, r)
	token := h.s.token
	h.s.change()
	h.s.mu.Unlock()
	switch {
	case h.fails(w, q, r):
	case token != "" && q.Header.Get("Authorization") != "Bearer "+token:
		fail(w, apierrors.NewUnauthorized("Unauthorized"))
	case res == nil:
		http.NotFound(w, q)
	case r.Verb == "watch":
		h.watch(w, q, r, *res)
	default:
		o, err := h.answer(q, r, *res)
		if err != nil {
			fail(w, err)
			return
		}
		code := http.StatusOK
		if r.Verb == "create" {
			code = http.StatusCreated
		}
		write(w, q, *res, code, o)
	}
}

// parse returns the request and its resource, nil if the server does not have it.
func parse(q *http.Request) (Request, *resource) {
	r := Request{
		Resource: q.URL.Path, Query: q.URL.RawQuery, UserAgent: q.UserAgent(),
	}
	path, group := strings.Trim(q.URL.Path, "/"), schema.GroupVersion{}
	switch parts := strings.SplitN(path, "/", 4); {
	case parts[0] == "api" && len(parts) > 2:
		group.Version, path = parts[1], strings.Join(parts[2:], "/")
	case parts[0] == "apis" && len(parts) > 3:
		group.Group, group.Version, path = parts[1], parts[2], parts[3]
	default:
		return r, nil
	}
	parts := strings.Split(path, "/")
	if parts[0] == "namespaces" && len(parts) > 2 {
		r.Namespace, parts = parts[1], parts[2:]
	}
	r.Resource = parts[0]
	if len(parts) > 1 {
		r.Name = parts[1]
	}
	if len(parts) > 2 {
		r.Resource += "/" + strings.Join(parts[2:], "/")
	}
	r.Verb = verb(q, r.Name)
	all := resources()
	i := slices.IndexFunc(all, func(res resource) bool {
		return res.GroupVersion() == group && res.Resource == parts[0] &&
			(len(parts) < 3 || r.Resource == "pods/status" || r.Resource == "resourceclaims/status") &&
			(r.Name == "" || (r.Namespace == "") == res.clusterScoped())
	})
	if i < 0 {
		return r, nil
	}
	return r, &all[i]
}

func verb(q *http.Request, name string) string {
	switch q.Method {
	case http.MethodGet:
		watch := q.URL.Query().Get("watch")
		switch {
		case name != "":
			return "get"
		case watch == "true" || watch == "1":
			return "watch"
		}
		return "list"
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	}
	return strings.ToLower(q.Method)
}

// group names the resource of the request in errors.
func (h handler) group(r Request) schema.GroupResource {
	name, _, _ := strings.Cut(r.Resource, "/")
	for _, res := range resources() {
		if res.Resource == name {
			return res.GroupResource()
		}
	}
	return schema.GroupResource{Resource: name}
}

// answer serves all verbs but watch.
func (h handler) answer(q *http.Request, r Request, res resource) (runtime.Object, error) {
	k := key{res.Resource, r.Namespace, r.Name}
	status := strings.HasSuffix(r.Resource, "/status")
	switch {
	case r.Verb == "list":
		return h.list(q, r, res)
	case r.Verb == "create" && r.Name == "" && (r.Namespace == "") == res.clusterScoped() && res.Resource != "nodes":
		return h.create(q, r, res)
	case r.Verb == "update" && res.updatable(status):
	case r.Verb == "patch" && !res.patchable(status), r.Verb != "get" && r.Verb != "patch" && (r.Verb != "delete" || status):
		return nil, apierrors.NewMethodNotSupported(res.GroupResource(), r.Verb)
	}
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	o := h.s.objects[k]
	if o == nil {
		return nil, apierrors.NewNotFound(res.GroupResource(), r.Name)
	}
	switch r.Verb {
	case "patch", "update":
		changed, made := false, res.make()
		var err error
		if r.Verb == "patch" {
			changed, err = patch(made, o, types.PatchType(mediaType(q)), []byte(r.Body), res, status)
		} else {
			changed, err = update(made, o, mediaType(q), []byte(r.Body), res, status)
		}
		if err != nil {
			return nil, err
		}
		if changed {
			o = made
			h.s.put(res, o)
			h.s.change()
		}
	case "delete":
		h.s.remove(k)
		h.s.change()
	}
	return o, nil
}

func (h handler) list(q *http.Request, r Request, res resource) (runtime.Object, error) {
	opts, err := listOptions(q, true)
	if err != nil {
		return nil, err
	}
	match, err := matcher(res, r, opts)
	if err != nil {
		return nil, err
	}
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if _, err := h.s.check(opts.ResourceVersion); err != nil {
		return nil, err
	}
	list, err := newList(res)
	if err != nil {
		return nil, err
	}
	objects := []runtime.Object{}
	for _, o := range h.s.list(match, res.Resource) {
		objects = append(objects, o)
	}
	if err := meta.SetList(list, objects); err != nil {
		return nil, err
	}
	if m, err := meta.ListAccessor(list); err == nil {
		m.SetResourceVersion(fmt.Sprint(h.s.version))
	}
	return list, nil
}

func newList(res resource) (runtime.Object, error) {
	kind := res.GroupVersion().WithKind(res.kind + "List")
	if !res.typed() {
		u := new(unstructured.UnstructuredList)
		u.SetGroupVersionKind(kind)
		return u, nil
	}
	list, err := scheme.Scheme.New(kind)
	if err == nil {
		list.GetObjectKind().SetGroupVersionKind(kind)
	}
	return list, err
}

func (h handler) create(q *http.Request, r Request, res resource) (runtime.Object, error) {
	o := res.make()
	if err := decode(o, mediaType(q), []byte(r.Body), res); err != nil {
		return nil, err
	}
	if o.GetName() == "" && o.GetGenerateName() != "" {
		o.SetName(o.GetGenerateName() + rand.String(5))
	}
	o.SetNamespace(r.Namespace)
	o.SetUID("")
	o.SetCreationTimestamp(metav1.Time{})
	errs := apivalidation.ValidateObjectMetaAccessor(o, !res.clusterScoped(), apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
	switch o := o.(type) {
	case *corev1.Pod:
		o.Status = corev1.PodStatus{Phase: corev1.PodPending}
	case *resourcev1.ResourceClaim:
		o.Status = resourcev1.ResourceClaimStatus{}
	case *eventsv1.Event:
		errs = append(errs, eventErrors(o)...)
	}
	if len(errs) > 0 {
		return nil, apierrors.NewInvalid(res.gvk().GroupKind(), o.GetName(), errs)
	}
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if h.s.objects[key{res.Resource, r.Namespace, o.GetName()}] != nil {
		return nil, apierrors.NewAlreadyExists(res.GroupResource(), o.GetName())
	}
	h.s.put(res, o)
	h.s.change()
	return o, nil
}

func mediaType(q *http.Request) string {
	t, _, err := mime.ParseMediaType(q.Header.Get("Content-Type"))
	if err != nil {
		return runtime.ContentTypeJSON
	}
	return t
}

// accepted returns the first media type of the Accept header that the resource has. partial
// says that it is for the metadata alone, which every resource has.
func accepted(q *http.Request, res resource) (info runtime.SerializerInfo, partial, ok bool) {
	all := scheme.Codecs.SupportedMediaTypes()
	header := q.Header.Get("Accept")
	if header == "" {
		header = runtime.ContentTypeJSON
	}
	for want := range strings.SplitSeq(header, ",") {
		t, params, err := mime.ParseMediaType(want)
		if err != nil {
			continue
		}
		if partial = params["as"] != ""; partial && (params["as"] != "PartialObjectMetadata" || params["g"] != metav1.GroupName || params["v"] != "v1") {
			continue // a table, for example
		}
		info, ok := runtime.SerializerInfoForMediaType(all, t)
		if ok && info.StreamSerializer != nil && (info.MediaType == runtime.ContentTypeJSON || res.typed() || partial) {
			return info, partial, true
		}
	}
	return runtime.SerializerInfo{}, false, false
}

// write answers with the object, in a media type that the client accepts.
func write(w http.ResponseWriter, q *http.Request, res resource, code int, o runtime.Object) {
	info, partial, ok := accepted(q, res)
	m, single := o.(metav1.Object)
	if !ok || partial && !single {
		fail(w, apierrors.NewGenericServerResponse(http.StatusNotAcceptable, "", schema.GroupResource{}, "", "", 0, true))
		return
	}
	if partial {
		p := meta.AsPartialObjectMetadata(m)
		p.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata"))
		o = p
	}
	var b bytes.Buffer
	if err := info.Serializer.Encode(o, &b); err != nil {
		fail(w, apierrors.NewInternalError(err))
		return
	}
	w.Header().Set("Content-Type", info.MediaType)
	w.WriteHeader(code)
	_, _ = w.Write(b.Bytes())
}

// fail answers with the Status object of err, in JSON.
func fail(w http.ResponseWriter, err error) {
	s := statusOf(err)
	if s.Details != nil && s.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", fmt.Sprint(s.Details.RetryAfterSeconds))
	}
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	w.WriteHeader(int(s.Code))
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	_ = info.Serializer.Encode(s, w)
}

func statusOf(err error) *metav1.Status {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		known = apierrors.NewInternalError(err)
	}
	s := known.Status()
	s.Kind, s.APIVersion = "Status", "v1"
	return &s
}

func unsupported(mediaType string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnsupportedMediaType, Reason: metav1.StatusReasonUnsupportedMediaType,
		Message: "the body of the request was in an unknown format: " + mediaType,
	}}
}
