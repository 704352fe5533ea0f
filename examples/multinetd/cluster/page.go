package cluster

import (
	"errors"
	"io"
	"net/http"

	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/netconf/nad"
)

// ServeHTTP answers a GET of multinet.NetworkStatusPath with the annotation network-status
// that the API server has, for people who compare it with the records. An error is a line
// of text: 404 if the pod is gone, 501 if there is no cluster, 503 if the API server is away
// or does not allow it.
func (c *Cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	p := nad.Pod{Namespace: q.Get("namespace"), Name: q.Get("name"), UID: q.Get("uid")}
	code, text := http.StatusOK, ""
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		code, text = http.StatusMethodNotAllowed, "only GET is served"
	case c == nil:
		code, text = http.StatusNotImplemented, "the daemon has no Kubernetes cluster"
	case !p.Valid():
		code, text = http.StatusBadRequest, "the query names no pod: want namespace, name and uid"
	default:
		var err error
		text, err = c.view.NetworkStatus(r.Context(), p)
		switch {
		case errors.Is(err, kube.ErrGone):
			code, text = http.StatusNotFound, err.Error()
		case err != nil:
			code, text = http.StatusServiceUnavailable, err.Error()
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text+"\n")
}
