package scale

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// A node is what multinetd has of the cluster on a node.
type node struct {
	*cluster
	name       string
	kubeconfig string
	pods       []nad.Pod // on the node

	view   *kube.View
	writer *kube.StatusWriter
	events *kube.Events
	stop   func()
}

// open opens what multinetd opens.
func (n *node) open(ctx context.Context, watchPods bool, policy kube.StatusPolicy) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	n.view, err = kube.Open(ctx, kube.Config{Kubeconfig: n.kubeconfig, Node: n.name, Pods: watchPods, UserAgent: daemon, Observer: n.note})
	if err != nil {
		cancel()
		return err
	}
	n.events = n.view.NewEvents(nad.Pod{})
	run := n.run
	n.writer = n.view.NewStatusWriter(kube.StatusConfig{
		Desired: func(_ context.Context, p nad.Pod) (kube.Status, error) {
			return kube.Status{Annotation: statusText(p, run), Created: time.Unix(int64(run), 0)}, nil
		},
		Policy: policy, Delay: 50 * time.Millisecond, Events: n.events, // as multinetd
	})
	var running sync.WaitGroup
	running.Go(func() { n.events.Run(ctx) })
	running.Go(func() { n.writer.Run(ctx) })
	n.stop = func() {
		cancel()
		running.Wait()
		n.view.Close()
		n.stop = func() {}
	}
	return nil
}

// openAll opens all nodes at once, again if they are open, and waits until the last one has
// synced.
func (c *cluster) openAll(watchPods bool, policy kube.StatusPolicy) {
	c.t.Helper()
	c.closeAll()
	c.run++
	for _, n := range c.nodes {
		if err := n.open(c.t.Context(), watchPods, policy); err != nil {
			c.t.Fatal(err)
		}
	}
	if err := awaitAll(c.t.Context(), c.nodes, (*node).synced); err != nil {
		c.t.Fatal(err)
	}
}

// closeAll closes the nodes that are open.
func (c *cluster) closeAll() {
	var closing sync.WaitGroup
	for _, n := range c.nodes {
		if n != nil && n.stop != nil {
			closing.Go(n.stop)
		}
	}
	closing.Wait()
}

// synced reports whether the node has all that it watches.
func (n *node) synced() bool {
	for _, r := range n.view.Resources() {
		if !r.Synced {
			return false
		}
	}
	return true
}

// awaitAll waits until all nodes are as wanted. It asks one after the other: each question
// takes processor time that the API server could use.
func awaitAll(ctx context.Context, nodes []*node, wanted func(*node) bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Minute, errors.New("a node is not as wanted after ten minutes"))
	defer cancel()
	pause := time.NewTicker(time.Millisecond)
	defer pause.Stop()
	for _, n := range nodes {
		for !wanted(n) {
			select {
			case <-pause.C:
			case <-ctx.Done():
				return fmt.Errorf("%s: %w", n.name, context.Cause(ctx))
			}
		}
	}
	return nil
}

// add does for each pod at once what an ADD does with the cluster, and waits until all
// statuses and Events are written.
func (n *node) add(ctx context.Context) error {
	errs := make([]error, len(n.pods))
	var adding sync.WaitGroup
	for i, p := range n.pods {
		adding.Go(func() {
			if _, errs[i] = n.view.Definition(ctx, definition(0)); errs[i] != nil {
				return
			}
			if errs[i] = n.writer.Wait(ctx, p); errs[i] == nil {
				n.events.Added(p, []status.Network{{Name: definition(0).String(), Interface: "net1"}})
			}
		})
	}
	adding.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return awaitAll(ctx, []*node{n}, func(n *node) bool {
		sent, dropped := n.events.Stats()
		return n.writer.Stats().Pending == 0 && int(sent+dropped) >= len(n.pods)
	})
}

// statusText returns the network-status of a pod.
func statusText(p nad.Pod, run int) string {
	return fmt.Sprintf(`[{"name":%q,"interface":"net1","ips":["10.1.%d.7"],"default":false,"dns":{}}]`, definition(0), run)
}
