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

	admissionv1 "k8s.io/api/admission/v1"

	"github.com/metacni/metacni/netconf/nad"
)

// MaxBody is the size in bytes over which a request is refused: that of an update, which
// has two objects of the largest size that an API server takes, and what is around them.
const MaxBody = 2*nad.MaxSize + 1<<20

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
	// none. Nil means none.
	Logger *slog.Logger
}

// A Pod is what matters of a pod.
type Pod struct {
	Namespace   string
	Annotations map[string]string // all of them
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
	request, code, err := read(w, r)
	if err != nil {
		orNone(h.Logger).WarnContext(r.Context(), "not a review", "from", r.RemoteAddr, "status", code, "error", err)
		http.Error(w, err.Error(), code)
		return
	}
	answer := admissionv1.AdmissionReview{Response: h.review(request)}
	answer.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"))
	if s := answer.Response.Result; s != nil {
		orNone(h.Logger).InfoContext(r.Context(), "denied", "kind", request.Kind.Kind, "namespace", request.Namespace, "name", request.Name,
			"operation", string(request.Operation), "user", request.UserInfo.Username, "error", s.Message)
	}
	data, err := json.Marshal(answer)
	if err != nil { // impossible
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data) // to a server that has gone
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
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		return nil, http.StatusRequestEntityTooLarge, fmt.Errorf("the body is larger than %d bytes", MaxBody)
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
	return review.Request, 0, nil
}
