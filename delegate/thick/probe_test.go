package thick

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/status"
)

func TestServerIsReadyOnlyWhileItServes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := make(gate)
		f := &fake{add: addAfter(g)}
		r := &rig{t: t, Server: local(&Server{Commands: f.commands()}), l: newInMemory(), done: make(chan struct{})}
		r.Client = clientOf(r.l.dial)
		ready := func(want string) {
			t.Helper()
			err := r.CheckReady(t.Context())
			if want == "" && err == nil {
				return
			}
			if err == nil || !strings.Contains(err.Error(), want) || status.Code(err) != 11 {
				t.Errorf("%v, want %q and code 11", err, want)
			}
		}
		ready("does not serve yet")
		r.run(r.l)
		synctest.Wait()
		ready("")
		add := r.begin(request("ADD", "c1"))
		synctest.Wait()
		r.stop()
		synctest.Wait()
		ready("is stopping")
		close(g)
		add().wantOK(t)
		<-r.done
		ready("is stopping")
	})
}

func TestCheckReadyReturnsTheErrorOfReady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sentinel := errors.New("no primary network")
		r := serve(t, &Server{Commands: (&fake{}).commands(), Ready: func(context.Context) error { return sentinel }})
		synctest.Wait()
		if err := r.CheckReady(t.Context()); !errors.Is(err, sentinel) || err.Error() != "not ready: plugin: no primary network" {
			t.Error(err)
		}
	})
}

// Whoever reaches the probes reaches nothing else.
func TestProbesServeNoCommand(t *testing.T) {
	t.Parallel()
	f := &fake{}
	other := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("Other was called") })
	s := &Server{Commands: f.commands(), Other: other, Queue: t.TempDir()}
	for _, tt := range []struct {
		method, path, body string
		status             int
		text               string
	}{
		{http.MethodGet, wire.PathHealth, "", http.StatusOK, "ok"},
		{http.MethodPut, wire.PathHealth, "", http.StatusMethodNotAllowed, ""},
		{http.MethodGet, wire.PathReady, "", http.StatusServiceUnavailable, "does not serve yet"},
		{http.MethodGet, wire.PathReady + "?verbose", "", http.StatusServiceUnavailable, `{"name":"queue","ok":true}`},
		{http.MethodPost, wire.PathCNI, string(encoded(request("ADD", "c1"))), http.StatusNotFound, wire.PathCNI},
		{http.MethodPost, wire.PathAttach, string(encoded(request("ADD", "c1"))), http.StatusNotFound, wire.PathAttach},
		{http.MethodGet, wire.PathInfo, "", http.StatusNotFound, wire.PathInfo},
		{http.MethodGet, "/metrics", "", http.StatusNotFound, "/metrics"},
	} {
		w := httptest.NewRecorder()
		s.Probes().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), tt.method, tt.path, strings.NewReader(tt.body)))
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.text) {
			t.Errorf("%s %s: %d %s, want %d and %q", tt.method, tt.path, w.Code, w.Body, tt.status, tt.text)
		}
	}
	f.want(t)
}

// A Probe that is not content makes only the readiness probe fail: STATUS, ADD and
// CheckReady do not ask it.
func TestProbeIsAskedByReadinessProbesAlone(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		probe  func(context.Context) (bool, error)
		status int
		check  string
	}{
		{"content", func(context.Context) (bool, error) { return true, nil }, 200, `{"name":"probe","ok":true}`},
		{"content for now", func(context.Context) (bool, error) { return true, errors.New("no cache") }, 200, `{"name":"probe","ok":true,"error":"no cache"}`},
		{"not content", func(context.Context) (bool, error) { return false, errors.New("no cache") }, 503, `{"name":"probe","ok":false,"error":"no cache"}`},
		{"a panic", func(context.Context) (bool, error) { panic("hunter2") }, 503, `{"name":"probe","ok":false`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := serve(t, &Server{Commands: (&fake{}).commands(), Probe: tt.probe})
				synctest.Wait()
				a := r.get(wire.PathReady + "?verbose")
				if a.status != tt.status || !strings.Contains(a.body, tt.check) {
					t.Errorf("%d %s", a.status, a.body)
				}
				if a := r.get(wire.PathReady); a.status != tt.status {
					t.Errorf("%d %s", a.status, a.body)
				}
				r.do(request("STATUS", "")).wantOK(t)
				r.do(request("ADD", "c1")).wantOK(t)
				if err := r.CheckReady(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
