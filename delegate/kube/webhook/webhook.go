// Package webhook is a validating admission webhook: it reviews
// NetworkAttachmentDefinitions and pods before the Kubernetes API server stores them, so
// that users see a mistake when they make it and not when a pod does not start.
//
//	cert, err := webhook.LoadCertificate(certFile, keyFile, logger)
//	…
//	h := webhook.Handler{Definition: func(d nad.Definition) error {
//		_, err := d.Network(rules)
//		return err
//	}}
//	err = webhook.Serve(ctx, listener, h, cert, logger)
//
// A webhook helps users and protects nothing: the API server goes on without it (with
// failurePolicy Ignore), and what is stored already stays. An ADD must check everything
// again, with the same functions.
//
// The package needs no access to the API and links no client.
package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"time"

	admissionv1 "k8s.io/api/admission/v1"

	"github.com/metacni/metacni/internal/bounds"
	"github.com/metacni/metacni/netconf/nad"
)

// maxBody is the size in bytes over which a request is refused: that of an update, which
// has two objects of the largest size that an API server takes, and what is around them.
const maxBody = 2*bounds.Object + 1<<20

// A Handler answers requests of an API server: admission.k8s.io/v1 AdmissionReviews. Where
// a function is nil, all objects of its kind are allowed. Goroutines may share a Handler if
// its functions allow it.
//
// Objects are reviewed when they are created, and when they are updated. An update that
// does not change what was reviewed is allowed, with a warning: otherwise nobody could
// change a label, or remove a finalizer, of an object that was wrong before the webhook came.
// Deletions, subresources and objects of other kinds are allowed.
type Handler struct {
	// Definition returns why d cannot be used, or nil. The text is shown to the user. For
	// a definition without spec.config it may be unknown what the network is: the user
	// then gets a warning, if Definition returns nil.
	Definition func(d nad.Definition) error

	// Pod returns why the annotations of p cannot be used, or nil. The text is shown to the
	// user. Pod is not called for pods in the network of their node, which have no
	// networks: the user gets a warning if they select some.
	Pod func(p Pod) error

	// Logger gets a line for each object that is denied, and for each request that is
	// not a review. Nil means none.
	Logger *slog.Logger

	// Observer is told of each request when its answer is known. Nil means nobody.
	Observer func(Event)
}

// A Pod is what matters of a pod.
type Pod struct {
	Namespace   string
	Annotations map[string]string // all of them
}

// An Event is a request and its answer.
type Event struct {
	// Request is what was asked, and Response the answer. Both are nil if the request
	// was not a review.
	Request  *admissionv1.AdmissionRequest
	Response *admissionv1.AdmissionResponse

	Status   int           // of HTTP
	Duration time.Duration // since the request began to arrive
}

// The outcomes of requests.
const (
	allowed = "allowed"
	warned  = "warned"
	denied  = "denied"
	failed  = "failed"
)

// Outcome returns how the request has ended: "allowed", "warned" (allowed, with a warning),
// "denied", or "failed" (not a review: for the API server the webhook is away).
func (e Event) Outcome() string {
	switch r := e.Response; {
	case r == nil:
		return failed
	case !r.Allowed:
		return denied
	case len(r.Warnings) > 0:
		return warned
	}
	return allowed
}

// orNone returns log, or a logger that discards everything.
func orNone(log *slog.Logger) *slog.Logger {
	if log != nil {
		return log
	}
	return slog.New(slog.DiscardHandler)
}

// ServeHTTP answers one request. What is no AdmissionReview gets an HTTP error, which an
// API server treats as that of a webhook that is away.
func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	request, code, err := read(w, r)
	event := Event{Request: request, Status: code}
	var answer []byte
	if err == nil {
		event.Response = h.review(request)
		review := admissionv1.AdmissionReview{Response: event.Response}
		review.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"))
		answer, _ = json.Marshal(review) //nolint:errchkjson // strings
	}
	event.Duration = time.Since(start)
	h.tell(r, event, err)
	if err != nil {
		http.Error(w, err.Error(), event.Status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(answer) // to a server that has gone
}

// tell logs an event that is worth a line, and tells the observer.
func (h Handler) tell(r *http.Request, e Event, err error) {
	switch e.Outcome() {
	case failed:
		orNone(h.Logger).WarnContext(r.Context(), "not a review", "from", r.RemoteAddr, "status", e.Status, "error", err)
	case denied:
		orNone(h.Logger).InfoContext(r.Context(), "denied", "kind", e.Request.Kind.Kind, "namespace", e.Request.Namespace, "name", e.Request.Name,
			"operation", string(e.Request.Operation), "user", e.Request.UserInfo.Username, "error", e.Response.Result.Message)
	}
	if h.Observer != nil {
		h.Observer(e)
	}
}

// read returns the request in the body of r, or an HTTP status and the reason.
func read(w http.ResponseWriter, r *http.Request) (*admissionv1.AdmissionRequest, int, error) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return nil, http.StatusMethodNotAllowed, fmt.Errorf("the method is %q, want POST", r.Method)
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return nil, http.StatusUnsupportedMediaType, errors.New("the body is not of the type application/json")
	}
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		return nil, http.StatusRequestEntityTooLarge, fmt.Errorf("the body is larger than %d bytes", maxBody)
	case errors.Is(err, errBusy):
		return nil, http.StatusServiceUnavailable, err
	case err != nil:
		return nil, http.StatusBadRequest, err
	}
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(data, &review); err != nil {
		return nil, http.StatusBadRequest, fmt.Errorf("the body is not an AdmissionReview: %w", err)
	}
	if want := admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"); review.GroupVersionKind() != want || review.Request == nil {
		return nil, http.StatusBadRequest, errors.New("the body is not a request of admission.k8s.io/v1")
	}
	return review.Request, http.StatusOK, nil
}
