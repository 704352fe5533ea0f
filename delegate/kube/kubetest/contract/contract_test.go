package contract_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/metacni/metacni/delegate/kube/kubetest"
	"github.com/metacni/metacni/delegate/kube/kubetest/contract"
)

// A wrong transport answers one request with 418.
type wrong struct {
	http.RoundTripper

	left   atomic.Int64 // requests before that one
	change atomic.Value // what was changed
}

func (w *wrong) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := w.RoundTripper.RoundTrip(r)
	if err == nil && r.Method != http.MethodDelete && w.left.Add(-1) == -1 { // a case ends with DELETEs that may fail
		w.change.Store(r.Method + " " + r.URL.RequestURI())
		_ = resp.Body.Close()
		resp.StatusCode, resp.Body = http.StatusTeapot, http.NoBody
	}
	return resp, err
}

// Each answer counts: a case fails if one of its requests is answered otherwise.
func TestACaseFailsIfOneAnswerIsAnother(t *testing.T) {
	t.Parallel()
	s := kubetest.NewServer()
	t.Cleanup(s.Close)
	s.SetToken("known")
	for _, c := range contract.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			for n := int64(0); ; n++ {
				w := &wrong{}
				w.left.Store(n)
				config := rest.CopyConfig(s.Config())
				config.Wrap(func(next http.RoundTripper) http.RoundTripper {
					w.RoundTripper = next
					return w
				})
				err := c.Run(ctx, config)
				change, _ := w.change.Load().(string)
				if change == "" {
					return // it has no such request
				}
				if err == nil {
					t.Errorf("the case does not notice another answer to %s", change)
				}
			}
		})
	}
}
