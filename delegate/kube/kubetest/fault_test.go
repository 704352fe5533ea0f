package kubetest_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/metacni/metacni/delegate/kube/kubetest"
)

func TestAWatchThatWasSilentSendsWhatItHasMissed(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	heal := s.Break(kubetest.Fault{Silent: true, Resource: "pods"})
	w := open(t, s, s.SetPod(pod("first", "n1")).ResourceVersion)
	p := s.SetPod(pod("p", "n1"))
	s.Bookmark()
	select {
	case e := <-w.ResultChan():
		t.Errorf("%v from a silent watch", e)
	default:
	}
	heal()
	a, b := <-w.ResultChan(), <-w.ResultChan()
	if got, ok := b.Object.(*corev1.Pod); a.Type != watch.Added || b.Type != watch.Bookmark || !ok || got.ResourceVersion != p.ResourceVersion {
		t.Errorf("%v, %v", a, b)
	}
}

func TestAVersionFromBeforeCompactIsTooOldForAWatch(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := s.SetPod(pod("p", "n1"))
	before := open(t, s, p.ResourceVersion)
	s.Compact()
	if e := <-open(t, s, p.ResourceVersion).ResultChan(); e.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) {
		t.Error(e)
	}
	s.DeletePod("ns", "p")
	if e := <-before.ResultChan(); e.Type != watch.Modified {
		t.Error(e)
	}
}

func TestCloseEndsWhatTheServerHolds(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]kubetest.Fault{
		"requests":      {BlackHole: true, Verb: "get"},
		"late requests": {Delay: time.Hour},
		"watches":       {},
		"connections":   {BlackHole: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.SetPod(pod("p", "n1"))
			w := open(t, s, "")
			s.Break(fault)
			c, ended := client(t, s, true), make(chan error, 1)
			go func() {
				get := c.RESTClient().Get().Namespace("ns").Resource("pods").Name("p").MaxRetries(0)
				ended <- get.Do(t.Context()).Error()
			}()
			if name != "connections" {
				if err := s.Wait(t.Context(), func() bool { return s.Count("get", "pods") == 1 }); err != nil {
					t.Fatal(err)
				}
			}
			s.Close()
			if err := <-ended; err == nil && name != "watches" {
				t.Error("no error")
			}
			for range w.ResultChan() { // until it ends
			}
		})
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	short := func(t *testing.T) context.Context {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	for name, c := range map[string]struct {
		fault kubetest.Fault
		short bool
		is    func(error) bool
	}{
		"401":                        {fault: kubetest.Fault{Status: http.StatusUnauthorized}, is: apierrors.IsUnauthorized},
		"403":                        {fault: kubetest.Fault{Status: http.StatusForbidden}, is: apierrors.IsForbidden},
		"410":                        {fault: kubetest.Fault{Status: http.StatusGone}, is: apierrors.IsResourceExpired},
		"429":                        {fault: kubetest.Fault{Status: http.StatusTooManyRequests, RetryAfter: time.Hour}, short: true},
		"429 without a time":         {fault: kubetest.Fault{Status: http.StatusTooManyRequests}, is: apierrors.IsTooManyRequests},
		"500":                        {fault: kubetest.Fault{Status: http.StatusInternalServerError}, is: apierrors.IsInternalError},
		"rubbish":                    {fault: kubetest.Fault{Body: "<html>"}},
		"a connection cut":           {fault: kubetest.Fault{Cut: true}},
		"a delay":                    {fault: kubetest.Fault{Delay: time.Hour}, short: true},
		"a black hole":               {fault: kubetest.Fault{BlackHole: true}, short: true},
		"a black hole for one thing": {fault: kubetest.Fault{BlackHole: true, Verb: "get", Resource: "pods"}, short: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.SetPod(pod("p", "n1"))
			client := client(t, s, true)
			heal := s.Break(c.fault)
			ctx := t.Context()
			if c.short {
				ctx = short(t)
			}
			if _, err := client.Pods("ns").Get(ctx, "p", metav1.GetOptions{}); err == nil || c.is != nil && !c.is(err) {
				t.Errorf("error %v", err)
			}
			heal()
			heal()
			if _, err := client.Pods("ns").Get(t.Context(), "p", metav1.GetOptions{}); err != nil {
				t.Errorf("healed: %v", err)
			}
		})
	}
}

func TestAFaultConcernsItsRequestsAlone(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.SetPod(pod("p", "n1"))
	c := client(t, s, false)
	s.Break(kubetest.Fault{Verb: "list", Status: 500})
	s.Break(kubetest.Fault{Resource: "events", Status: 500})
	s.Break(kubetest.Fault{Resource: "pods", Status: 500, Times: 1})
	for i, want := range []bool{true, false} {
		if _, err := c.Pods("ns").Get(t.Context(), "p", metav1.GetOptions{}); (err != nil) != want {
			t.Errorf("request %d: %v", i, err)
		}
	}
	if _, err := c.Pods("ns").List(t.Context(), metav1.ListOptions{}); !apierrors.IsInternalError(err) {
		t.Error(err)
	}
}

func TestAHealedFaultServesTheRequestsThatItHolds(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]kubetest.Fault{
		"black hole": {BlackHole: true, Resource: "pods"},
		"late error": {Delay: time.Hour, Status: 500},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.SetPod(pod("p", "n1"))
			heal := s.Break(fault)
			c, ended := client(t, s, true), make(chan error, 1)
			go func() {
				_, err := c.Pods("ns").Get(t.Context(), "p", metav1.GetOptions{})
				ended <- err
			}()
			if err := s.Wait(t.Context(), func() bool { return s.Count("get", "pods") == 1 }); err != nil {
				t.Fatal(err)
			}
			heal()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestTimesCountsOnlyRequestsThatFail(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.SetPod(pod("p", "n1"))
	c := client(t, s, false)
	s.Break(kubetest.Fault{Status: 403, Times: 1})
	s.Break(kubetest.Fault{Status: 500, Times: 1})
	s.Break(kubetest.Fault{Verb: "list", Status: 500, Times: 1})
	for i, is := range []func(error) bool{apierrors.IsForbidden, apierrors.IsInternalError, func(err error) bool { return err == nil }} {
		if _, err := c.Pods("ns").Get(t.Context(), "p", metav1.GetOptions{}); !is(err) {
			t.Errorf("request %d: %v", i, err)
		}
	}
}

func TestAStoppedServerRefusesConnectionsAndKeepsItsObjects(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.SetPod(pod("p", "n1"))
	c, url := client(t, s, false), s.URL
	s.Stop()
	s.Stop()
	if _, err := c.Pods("ns").Get(t.Context(), "p", metav1.GetOptions{}); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Error(err)
	}
	s.Start()
	s.Start()
	if _, err := c.Pods("ns").Get(t.Context(), "p", metav1.GetOptions{}); err != nil || s.URL != url {
		t.Error(err, s.URL, url)
	}
}
