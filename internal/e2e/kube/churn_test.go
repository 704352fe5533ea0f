package kube

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/metacni/metacni/examples/lab/host"
)

// While the API server is stopped and pods come and go, no ADD of a pod that selects nothing
// or what is known fails, and no DEL does. When it is back all statuses are right, and when
// the pods have gone nothing is left. The log compares the times with those before.
func TestPodsComeAndGoDuringAnOutage(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.Deploy(t)
	n := newNode(t, s, nil)
	n.define(n.namespace, "blue", 1)
	n.ready()
	streams := make([]*stream, 2)
	for i := range streams {
		streams[i] = &stream{node: n}
		for j := range 4 {
			networks := ""
			if j%2 == 1 {
				networks = "blue"
			}
			p := n.pod(fmt.Sprintf("pod-%d-%d", i, j), networks)
			n.ok("ADD", p)
			streams[i].pods = append(streams[i].pods, p)
		}
	}
	run := func(what string, length time.Duration) {
		t.Helper()
		over := time.After(length)
		stop := make(chan struct{})
		var running sync.WaitGroup
		for _, s := range streams {
			running.Go(func() { s.run(stop) })
		}
		<-over
		close(stop)
		running.Wait()
		var adds, dels []time.Duration
		for _, s := range streams {
			adds, dels = append(adds, s.adds...), append(dels, s.dels...)
			s.adds, s.dels = nil, nil
		}
		t.Logf("%s: %d pods that select nothing: ADD %v, DEL %v in the median", what, len(adds), median(adds), median(dels))
	}
	length := time.Minute
	if !*long {
		length = 5 * time.Second
	}
	run("with the API server", length/10)
	s.Stop()
	run("without it", length)
	s.Start(t)
	for _, s := range streams {
		for _, p := range s.pods {
			if p.pod.Annotations == nil {
				n.wantRight(p, "multi")
			} else {
				n.wantRight(p, "multi", n.namespace+"/blue")
			}
			n.ok("DEL", p)
		}
	}
	n.wantNothing(slices.Concat(streams[0].pods, streams[1].pods)...)
}

// A stream replaces the sandboxes of pods one after the other.
type stream struct {
	node *node
	pods []*sandbox
	next int

	adds, dels []time.Duration // of pods that select nothing
}

// run goes on until stop is closed.
func (s *stream) run(stop <-chan struct{}) {
	for n := s.node; ; s.next = (s.next + 1) % len(s.pods) {
		select {
		case <-stop:
			return
		default:
		}
		old := s.pods[s.next]
		p := n.sandbox(old.pod)
		began := time.Now()
		n.ok("ADD", p)
		added := time.Since(began)
		n.ok("CHECK", p)
		began = time.Now()
		n.ok("DEL", old)
		if p.pod.Annotations == nil {
			s.adds, s.dels = append(s.adds, added), append(s.dels, time.Since(began))
		}
		same(n.t, "after DEL", nil, n.attached(old))
		if err := host.RemoveNS(old.netns); err != nil {
			n.t.Error(err)
		}
		s.pods[s.next] = p
	}
}

func median(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2].Round(time.Millisecond)
}

// Whatever befalls daemon and API server while pods come and go: no DEL fails for good, all
// statuses are right in the end, and nothing is left.
func TestPodsComeAndGoWhileDaemonAndAPIServerFail(t *testing.T) {
	t.Parallel()
	n := newNode(t, world(t).Server, impatient())
	n.define(n.namespace, "blue", 1)
	n.ready()
	eventually(t, func() bool { return len(glob(t, n.file("nads", n.namespace, "blue.conf*"))) == 1 })
	const streams = 3
	done := make(chan struct{}) // for each sandbox that was replaced
	stop := make(chan struct{})
	var running sync.WaitGroup
	last := make([]*sandbox, streams)
	for i := range last {
		networks := []string{"", "blue", "blue"}[i]
		last[i] = n.pod(fmt.Sprintf("pod-%d", i), networks)
		n.ok("ADD", last[i])
		running.Go(func() {
			for {
				select {
				case <-stop:
					return
				case done <- struct{}{}:
				}
				next := n.sandbox(last[i].pod)
				old := last[i]
				if err := n.cni("ADD", next); err != nil {
					t.Log(err)
					old = next
				} else {
					last[i] = next
				}
				eventually(t, func() bool { return n.cni("DEL", old) == nil })
				eventually(t, func() bool { return len(n.attached(old)) == 0 }) // a queued one is done later
				if err := host.RemoveNS(old.netns); err != nil {
					t.Error(err)
				}
			}
		})
	}
	replaced := func() { // each of them, twice in the mean
		for range 2 * streams {
			<-done
		}
	}
	restart := func() { n.kill(); n.start() }
	for _, f := range []fault{{method: "PATCH", swallow: true}, {swallow: true}, {status: 500}, {status: 401}, {method: "PATCH", status: 403}} {
		n.gate.breakIt(f)
		replaced()
		restart()
		replaced()
		n.gate.heal()
		replaced()
		restart()
		n.gate.cut(t)
		replaced()
	}
	n.gate.close()
	replaced()
	restart()
	replaced()
	n.gate.open(t)
	n.gate.silence()
	replaced()
	restart()
	n.gate.speak()
	close(stop)
	running.Wait()
	for _, p := range last {
		networks := []string{"multi", n.namespace + "/blue"}
		if p.pod.Annotations == nil {
			networks = networks[:1]
		}
		n.wantRight(p, networks...)
		n.ok("DEL", p)
	}
	n.wantNothing(last...)
}
