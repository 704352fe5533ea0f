package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	nodetest "github.com/metacni/metacni/internal/test/node"

	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/netconf/nad"
)

var web = nad.Pod{Namespace: "ns", Name: "web", UID: "u1", Container: "c1"}

// follow runs a podQueue with this pass in a bubble, until do returns.
func follow(t *testing.T, pass func(context.Context, nad.Pod, []string) passResult, do func(*podQueue)) (logged string) {
	t.Helper()
	var log bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		r := newPodQueue(pass, slog.New(slog.NewTextHandler(&log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { r.run(ctx); close(ended) }()
		do(r)
		cancel()
		<-ended
	})
	return log.String()
}

// selects is the pod as the API has it.
func selects(networks string) kube.Pod {
	return kube.Pod{Namespace: "ns", Name: "web", UID: "u1", Annotations: map[string]string{nad.NetworksAnnotation: networks}}
}

// madePasses notes when there is a pass. Each has the same result, for all containers unless their
// records are gone.
type madePasses struct {
	mu     sync.Mutex // protects what follows
	since  time.Time
	at     []time.Duration
	result passResult
	gone   bool
}

func (p *madePasses) pass(_ context.Context, _ nad.Pod, containers []string) passResult {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at = append(p.at, time.Since(p.since))
	r := p.result
	if !p.gone {
		r.recorded = containers
	}
	return r
}

// change begins anew, with another result.
func (p *madePasses) change(r passResult) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.since, p.at, p.result = time.Now(), nil, r
}

// after returns when there were passes, after a while.
func (p *madePasses) after(d time.Duration) []time.Duration {
	time.Sleep(d)
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.at)
}

// What has failed is tried again without end, less and less often. An edit is tried at once.
func TestFailedPassIsMadeAgainFromASecondToFiveMinutes(t *testing.T) {
	t.Parallel()
	var p madePasses
	log := follow(t, p.pass, func(r *podQueue) {
		p.change(passResult{differs: true, err: errors.New("the API is away")})
		r.changed(web)
		nodetest.Equal(t, "passes", p.after(8*time.Second), []time.Duration{0, time.Second, 3 * time.Second, 7 * time.Second})
		at := p.after(24 * time.Hour)
		if n := len(at); n < 280 || at[n-1]-at[n-2] != 5*time.Minute {
			t.Errorf("%d passes in a day, the last at %v", n, at[n-2:])
		}
		p.change(passResult{differs: true, err: errors.New("no such definition")})
		r.seen(selects("blue"))
		nodetest.Equal(t, "passes after an edit", p.after(2*time.Second), []time.Duration{0, time.Second})
		nodetest.Equal(t, "pods that differ", r.differing(), 1)
	})
	if got := strings.Count(log, "level=WARN"); got != 2 || !strings.Contains(log, "pod=ns/web") {
		t.Errorf("logged %d times, want once for each reason:\n%s", got, log)
	}
}

// There is no second pass over a pod while one is running, and none is lost: what happens
// meanwhile is in the next one.
func TestPassesOverAPodAreMadeOneAfterTheOther(t *testing.T) {
	t.Parallel()
	var done []string
	running := 0
	pass := func(_ context.Context, p nad.Pod, containers []string) passResult {
		running++
		nodetest.Equal(t, "passes at once", running, 1)
		time.Sleep(time.Minute)
		running--
		done = append(done, fmt.Sprintf("%s %q", p.Name, containers))
		return passResult{recorded: containers}
	}
	follow(t, pass, func(r *podQueue) {
		r.changed(web)
		time.Sleep(time.Second)
		second := web
		second.Container = "c2"
		for range 3 {
			r.changed(second)
			r.seen(selects("a"))
			r.seen(selects("b"))
		}
		time.Sleep(3 * time.Minute)
		r.seen(selects("b")) // as before
		other := selects("b")
		other.Name = "other" // has no records
		r.seen(other)
		time.Sleep(time.Minute)
	})
	nodetest.Equal(t, "passes", done, []string{`web ["c1"]`, `web ["c2" "c1"]`})
}

// What an ADD has attached is not compared with an older picture of its pod: the next one
// comes first, or a second passes.
func TestPassAfterAnADDWaitsForTheView(t *testing.T) {
	t.Parallel()
	for edited, n := range map[bool]int{false: 0, true: 1} {
		var p madePasses
		follow(t, p.pass, func(r *podQueue) {
			r.added(web)
			p.after(time.Second / 2)
			if edited {
				r.seen(selects("blue"))
			}
			nodetest.Equal(t, fmt.Sprintf("passes, edited %t", edited), len(p.after(0)), n)
			nodetest.Equal(t, "there is one", len(p.after(time.Second)) > 0, true)
		})
	}
}

// A pod is forgotten with its last record, whoever has removed that, and counts as differing
// only until then.
func TestPodWithoutRecordsIsForgotten(t *testing.T) {
	t.Parallel()
	for _, err := range []error{nil, errors.New("busy")} {
		p := madePasses{result: passResult{differs: true, err: err}}
		follow(t, p.pass, func(r *podQueue) {
			r.changed(nad.Pod{Container: "c0"}) // outside of Kubernetes
			r.changed(web)
			p.after(0)
			nodetest.Equal(t, "pods that differ", r.differing(), 1)
			p.mu.Lock()
			p.gone = true
			p.mu.Unlock()
			nodetest.Equal(t, "passes", len(p.after(5*time.Minute)), 2)
			r.seen(selects("blue"))
			if n := len(p.after(time.Hour)); n != 2 || r.differing() != 0 || len(r.pods) != 0 {
				t.Errorf("%v: %d passes, %d pods differ, %d are known", err, n, r.differing(), len(r.pods))
			}
		})
	}
}

// A pass that cannot tell whether the pod differs leaves what is known of it.
func TestPassThatFailsSaysNothingAboutThePod(t *testing.T) {
	t.Parallel()
	var p madePasses
	follow(t, p.pass, func(r *podQueue) {
		then := func(result passResult, want int) {
			t.Helper()
			p.change(result)
			r.changed(web)
			p.after(0)
			nodetest.Equal(t, "pods that differ", r.differing(), want)
		}
		away := passResult{err: errors.New("the API is away")}
		then(away, 0)
		then(passResult{differs: true, err: errors.New("no free device")}, 1)
		then(away, 1)
		then(passResult{}, 0)
		then(away, 0)
		then(passResult{differs: true}, 1)
		p.change(passResult{}) // the pod ends
		end := selects("")
		end.Deleted = true
		r.seen(end)
		p.after(0)
		nodetest.Equal(t, "a pod that ends", r.differing(), 0)
	})
}

// Pods whose network hangs do not keep others from their turn, whether it has failed before or not.
func TestPodsThatFailLeaveTheOthersTheirTurn(t *testing.T) {
	t.Parallel()
	var last atomic.Int64
	pass := func(_ context.Context, p nad.Pod, containers []string) passResult {
		if p.Name == "web" {
			last.Store(time.Now().UnixNano())
			return passResult{recorded: containers}
		}
		time.Sleep(time.Minute)
		return passResult{recorded: containers, differs: true, err: errors.New("killed")}
	}
	follow(t, pass, func(r *podQueue) {
		for i := range 50 {
			r.changed(nad.Pod{Namespace: "ns", Name: fmt.Sprint("bad", i), Container: fmt.Sprint("b", i)})
		}
		time.Sleep(13 * time.Second) // all hang for the first time
		for range 100 {
			time.Sleep(17 * time.Second)
			now := time.Now().UnixNano()
			r.changed(web)
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if last.Load() < now {
				t.Fatal("it has to wait")
			}
		}
		nodetest.Equal(t, "pods that differ", r.differing(), 50)
	})
}

// The end waits for the pass that is being made, which undoes what it has begun. There is no
// other pass then.
func TestEndOfThePasses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var begun, ended atomic.Int32
		r := newPodQueue(func(ctx context.Context, _ nad.Pod, containers []string) passResult {
			begun.Add(1)
			<-ctx.Done()
			time.Sleep(5 * time.Second)
			ended.Add(1)
			return passResult{recorded: containers, err: ctx.Err()}
		}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 110 {
			r.changed(nad.Pod{Namespace: "ns", Name: fmt.Sprint(i), Container: fmt.Sprint(i)})
		}
		time.AfterFunc(time.Minute, cancel)
		r.run(ctx)
		nodetest.Equal(t, "passes that have ended", ended.Load(), begun.Load())
		r.changed(web)
		r.seen(selects("blue"))
		time.Sleep(time.Hour)
		nodetest.Equal(t, "passes that have begun and ended", []int32{begun.Load(), ended.Load()}, []int32{110, 110})
	})
}

// A DEL cancels the pass over its container, and holds up the next one until it has ended.
func TestDELCancelsThePassOverItsContainer(t *testing.T) {
	t.Parallel()
	r := newPodQueue(nil, slog.New(slog.DiscardHandler))
	other, endOther, _ := r.begin(t.Context(), "c2")
	defer endOther()
	ctx, end, ok := r.begin(t.Context(), "c1")
	if !ok || ctx.Err() != nil {
		t.Fatalf("%t, %v", ok, ctx.Err())
	}
	deleted, again := r.deleting("c1"), r.deleting("c1")
	if !errors.Is(context.Cause(ctx), lifecycle.ErrSuperseded) || other.Err() != nil {
		t.Errorf("%v, the other %v", context.Cause(ctx), other.Err())
	}
	end()
	for _, ends := range []func(){deleted, again} {
		_, _, ok := r.begin(t.Context(), "c1")
		nodetest.Equal(t, "a pass during a DEL", ok, false)
		ends()
	}
	if _, end, ok := r.begin(t.Context(), "c1"); !ok {
		t.Error("no pass after the DEL")
	} else {
		end()
	}
	nodetest.Equal(t, "passes and DELs that are left", []int{len(r.running), len(r.leaving)}, []int{1, 0})
}

// Without reconcile, nothing is followed and nothing is needed for it.
func TestNilPodQueueDoesNothing(t *testing.T) {
	t.Parallel()
	var r *podQueue
	r.changed(web)
	r.added(web)
	r.seen(selects("blue"))
	r.deleting("c1")()
	for _, c := range []*Cluster{New(Config{Reconcile: true}, Plugin{}, nil), New(Config{Kubeconfig: "/k"}, Plugin{}, nil)} {
		c.Reconcile(t.Context())
		c.Deleting("c1", "")()
		nodetest.Equal(t, "it reconciles", c.Reconciles(), false)
	}
}
