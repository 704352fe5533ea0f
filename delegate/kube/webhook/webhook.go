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
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"time"

	admissionv1 "k8s.io/api/admission/v1"

	"github.com/metacni/metacni/netconf/nad"
)

// maxBody is the size in bytes over which a request is refused: that of an update, which
// has two objects of the largest size that an API server takes, 3 MiB, and what is around them.
const maxBody = 2*(3<<20) + 1<<20

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

	// Pod returns why the annotations of a pod in namespace cannot be used, or nil. The text is
	// shown to the user. Pod is not called for pods in the network of their node, which have
	// no networks: the user gets a warning if they select some.
	Pod func(namespace string, annotations map[string]string) error

	// Logger gets a line for each object that is denied, and for each request that is
	// not a review. Nil means none.
	Logger *slog.Logger

	// Observer is told of each request when its answer is known. Nil means nobody.
	Observer func(Event)
}

// An Event is a request and how it has ended.
type Event struct {
	Request *admissionv1.AdmissionRequest // what was asked, or nil if it was not a review

	// Outcome is "allowed", "warned" (allowed, with a warning), "denied", or "failed" (not a
	// review: for the API server the webhook is away).
	Outcome string

	Duration time.Duration // since the request began to arrive
}

// orNone returns log, or a logger that discards everything.
func orNone(log *slog.Logger) *slog.Logger { return cmp.Or(log, slog.New(slog.DiscardHandler)) }

// ServeHTTP answers one request. What is no AdmissionReview gets an HTTP error, which an
// API server treats as that of a webhook that is away.
func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start, event := time.Now(), Event{Outcome: "failed"}
	request, code, err := read(w, r)
	var answer []byte
	if err == nil {
		review := admissionv1.AdmissionReview{Response: h.review(request)}
		review.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"))
		answer, _ = json.Marshal(review) //nolint:errchkjson // strings
		event.Request, event.Outcome = request, h.outcome(r, request, review.Response)
	} else {
		orNone(h.Logger).WarnContext(r.Context(), "not a review", "from", r.RemoteAddr, "status", code, "error", err)
	}
	if event.Duration = time.Since(start); h.Observer != nil {
		h.Observer(event)
	}
	if err != nil {
		http.Error(w, err.Error(), code)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(answer) // to a server that has gone
}

// outcome returns how a review has ended, and logs a denial.
func (h Handler) outcome(r *http.Request, q *admissionv1.AdmissionRequest, answer *admissionv1.AdmissionResponse) string {
	switch {
	case !answer.Allowed:
		orNone(h.Logger).InfoContext(r.Context(), "denied", "kind", q.Kind.Kind, "namespace", q.Namespace, "name", q.Name,
			"operation", string(q.Operation), "user", q.UserInfo.Username, "error", answer.Result.Message)
		return "denied"
	case len(answer.Warnings) > 0:
		return "warned"
	}
	return "allowed"
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
