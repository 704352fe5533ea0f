package kube

import (
	"fmt"
	"sync"
	"testing"

	"github.com/metacni/metacni/examples/lab/host"
)

// Whatever befalls daemon and API server while pods come and go: no DEL fails for good, all
// statuses are right in the end, and nothing is left.
func TestPodsComeAndGoWhileDaemonAndAPIServerFail(t *testing.T) {
	t.Parallel()
	n := readyNode(t, impatient())
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
