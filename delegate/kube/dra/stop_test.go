package dra

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/metacni/metacni/internal/nodetest"
)

// A new node has no directory for the driver.
func TestADriverMakesTheDirectoryOfItsSocket(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	mustPrepare(t, n.kubelet(t), n.server.SetClaim(newClaim("a", nil)))
}

// After a crash the sockets are still there.
func TestADriverStartsInPlaceOfOneThatWasKilled(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	a := n.server.SetClaim(newClaim("a", nil))
	d, err := Start(t.Context(), n.config) // while the first one has its sockets
	nodetest.OK(t, err)
	t.Cleanup(d.Stop)
	mustPrepare(t, n.kubelet(t), a)
	if claims, err := d.config.Claims("pod-web"); len(claims) != 1 || err != nil {
		t.Errorf("%v, %v", claims, err)
	}
}

// When Stop has returned, the driver calls nobody and writes nothing: the next one may start.
func TestStopWaitsForTheRequestsOfTheKubelet(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(t *testing.T, n *node, c *resourcev1.ResourceClaim){
		"unprepare": func(t *testing.T, n *node, c *resourcev1.ResourceClaim) {
			t.Helper()
			if unprepareClaim(t, n.kubelet(t), c) == nil {
				t.Error("released while it stops")
			}
		},
		"prepare": func(t *testing.T, n *node, c *resourcev1.ResourceClaim) {
			t.Helper()
			c = c.DeepCopy()
			c.Status.ReservedFor[0].UID = "pod-next" // so that the driver looks for attachments
			if _, failures := prepareClaims(t, n.kubelet(t), n.server.SetClaim(c)); failures["a"] == "" {
				t.Error("prepared while it stops")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			called, stopping, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
			slow := func(ctx context.Context) error {
				close(called)
				<-ctx.Done() // Stop has begun
				<-stopping
				close(ended)
				return ctx.Err()
			}
			n := newNode(t, func(c *Config) {
				c.Records = func(ctx context.Context, _ string) ([]Record, error) { return nil, slow(ctx) }
			})
			a := n.server.SetClaim(newClaim("a", nil))
			mustPrepare(t, n.kubelet(t), a)
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				ask(t, n, a)
			}()
			<-called
			stopped := make(chan struct{})
			go func() {
				defer close(stopped)
				n.Stop()
			}()
			<-answered // the connection is closed, and the request still runs
			select {
			case <-stopped:
				t.Error("stopped while a request runs")
			default:
			}
			close(stopping)
			<-stopped
			select {
			case <-ended:
			default:
				t.Error("stopped before the request has ended")
			}
			if claims, err := n.config.Store.Pod("pod-web"); len(claims) != 1 || err != nil {
				t.Errorf("%v, %v", claims, err)
			}
			if claims, err := n.config.Store.Pod("pod-next"); len(claims) != 0 || err != nil {
				t.Errorf("%v, %v", claims, err)
			}
			if _, err := (plugin{n.Driver}).PrepareResourceClaims(t.Context(), nil); err == nil {
				t.Error("a request after the end")
			}
			if _, err := (plugin{n.Driver}).UnprepareResourceClaims(t.Context(), nil); err == nil {
				t.Error("a request after the end")
			}
		})
	}
}

// A daemon runs for months: nothing is kept in memory about claims that are released.
func TestNothingIsKeptOfClaimsThatAreReleased(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	k := n.kubelet(t)
	for name, release := range map[string]func(c *resourcev1.ResourceClaim) error{
		"a": func(c *resourcev1.ResourceClaim) error { return unprepareClaim(t, k, c) },
		"b": func(c *resourcev1.ResourceClaim) error {
			n.server.DeleteClaim(c.Namespace, c.Name)
			n.detach(string(c.UID))
			return n.sweepAll(t.Context())
		},
		"c": func(c *resourcev1.ResourceClaim) error { // the kubelet has lost the pod
			n.detach(string(c.UID))
			c = c.DeepCopy()
			c.Status.ReservedFor[0].UID = "pod-next"
			mustPrepare(t, k, n.server.SetClaim(c))
			return unprepareClaim(t, k, c)
		},
	} {
		c := n.server.SetClaim(newClaim(name, nil))
		mustPrepare(t, k, c)
		n.attach(t, "pod-web")
		n.await(t, "written", n.ready(name, "True"))
		if err := release(c); err != nil {
			t.Error(err)
		}
		n.writer.mu.Lock()
		if len(n.writer.failures) > 0 {
			t.Errorf("%s: %v", name, n.writer.failures)
		}
		n.writer.mu.Unlock()
	}
}

// The kubelet asks again when it has waited too long: requests for the same claim may run at
// once. What was asked for last is what the Store has.
func TestRequestsForAClaimMayRunAtOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	k := n.kubelet(t)
	a := n.server.SetClaim(newClaim("a", nil))
	for _, prepared := range []bool{true, false, true} {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if _, failures := prepareClaims(t, k, a); len(failures) > 0 {
					t.Error(failures)
				}
			})
			all.Go(func() {
				if err := unprepareClaim(t, k, a); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		want := 0
		if prepared {
			mustPrepare(t, k, a)
			want = 1
		} else if err := unprepareClaim(t, k, a); err != nil {
			t.Error(err)
		}
		if claims, damaged, err := n.config.Store.All(); len(claims) != want || damaged != nil || err != nil {
			t.Errorf("%v, %v, %v", claims, damaged, err)
		}
	}
}

// A claim whose record cannot be written is refused, and nothing is left of the attempt. Others
// are prepared, and so is the claim as soon as its record can be written.
func TestAClaimThatCannotBeWrittenIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	k := n.kubelet(t)
	a, b := n.server.SetClaim(newClaim("a", nil)), n.server.SetClaim(newClaim("b", nil))
	mustPrepare(t, k, a)
	blocker := filepath.Join(n.config.Store.Dir, "pod-web_claim-b")
	if err := os.Mkdir(blocker, 0o700); err != nil { // no file can take this name
		t.Fatal(err)
	}
	if _, failures := prepareClaims(t, k, b); !strings.HasPrefix(failures["b"], "claim blue/b: ") {
		t.Errorf("got %v", failures)
	}
	if _, failures := prepareClaims(t, k, a); len(failures) > 0 {
		t.Errorf("the other: %v", failures)
	}
	nodetest.OK(t, os.Remove(blocker))
	mustPrepare(t, k, b)
	if names, err := filepath.Glob(filepath.Join(n.config.Store.Dir, "*")); len(names) != 2 || err != nil {
		t.Errorf("left: %v, %v", names, err)
	}
}

// The helper tries again what it says is recoverable.
func TestErrorsOfResourceSlicesAreWarnings(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	p := plugin{&Driver{log: slog.New(slog.NewTextHandler(&log, nil))}}
	p.HandleError(t.Context(), fmt.Errorf("slices: %w", kubeletplugin.ErrRecoverable), "failed")
	if !strings.Contains(log.String(), "level=WARN ") {
		t.Errorf("got %s", log.String())
	}
}

// A driver tries again for as long as it cannot serve: every attempt must end what it began.
func TestAnAttemptThatFailsLeavesNoGoroutine(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	config := n.config
	config.KubeletDir = filepath.Join(config.KubeletDir, strings.Repeat("long", 30)) // for a socket
	nodetest.OK(t, os.MkdirAll(config.registry(), 0o750))
	label := "a driver that fails in " + config.KubeletDir
	pprof.Do(t.Context(), pprof.Labels("test", label), func(ctx context.Context) {
		d, err := Start(ctx, config)
		if err != nil || d.Err() == nil {
			t.Fatalf("%v, it serves", err)
		}
		d.Stop()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		var all strings.Builder
		nodetest.OK(t, pprof.Lookup("goroutine").WriteTo(&all, 1))
		if !strings.Contains(all.String(), label) {
			return
		}
		if ctx.Err() != nil {
			t.Fatal(all.String())
		}
		runtime.Gosched()
	}
}
