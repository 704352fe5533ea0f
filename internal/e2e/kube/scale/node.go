//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/netconf/nad"
)

// A node is what multinetd has of the cluster on a node.
type node struct {
	name       string
	kubeconfig string
	pods       []nad.Pod // on the node

	view   *kube.View
	writer *kube.StatusWriter
	events *kube.Events
	stop   func()
}

// A mode is what differs between two configurations of multinetd.
type mode struct {
	watchPods bool
	policy    kube.StatusPolicy
	run       int // number of the status of each pod
}

// open opens what multinetd opens.
func (n *node) open(ctx context.Context, m mode, j *journal) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	n.view, err = kube.Open(ctx, kube.Config{
		Kubeconfig: n.kubeconfig, Node: n.name, Pods: m.watchPods, UserAgent: daemon, Observer: j.note,
	})
	if err != nil {
		cancel()
		return err
	}
	n.events = n.view.NewEvents(kube.EventsConfig{Controller: daemon})
	n.writer = n.view.NewStatusWriter(kube.StatusConfig{
		Desired: func(_ context.Context, p nad.Pod) (kube.Status, error) {
			return kube.Status{Annotation: statusText(p, m.run), Created: time.Unix(int64(m.run), 0)}, nil
		},
		Policy: m.policy, Delay: 50 * time.Millisecond, Events: n.events, // as multinetd
	})
	var running sync.WaitGroup
	running.Go(func() { n.events.Run(ctx) })
	running.Go(func() { n.writer.Run(ctx) })
	n.stop = func() {
		cancel()
		running.Wait()
		n.view.Close()
	}
	return nil
}

// openAll opens nodes at once, and returns when the last one has synced.
func openAll(ctx context.Context, nodes []*node, m mode, j *journal) error {
	for _, n := range nodes {
		if err := n.open(ctx, m, j); err != nil {
			return err
		}
	}
	return awaitAll(ctx, nodes, (*node).synced)
}

// closeAll closes nodes.
func closeAll(nodes []*node) {
	var closing sync.WaitGroup
	for _, n := range nodes {
		closing.Go(n.stop)
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

// has returns a function that reports whether a node has a version of a definition.
func has(ctx context.Context, r nad.Ref, version string) func(*node) bool {
	return func(n *node) bool {
		d, err := n.view.KnownDefinition(ctx, r)
		return err == nil && d.Version == version
	}
}

// hasPod returns a function that reports whether a node has a version of a pod.
func hasPod(p nad.Pod, version string) func(*node) bool {
	return func(n *node) bool {
		known, ok := n.view.KnownPod(p)
		return ok && known.Version == version
	}
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

// An outcome is what became of ADDs.
type outcome struct {
	failed atomic.Int64 // attempts that the runtime repeats
	mu     sync.Mutex
	took   []time.Duration // of the others
}

// add does for each pod at once what an ADD does with the cluster, and returns when the
// last one has ended. As a runtime it tries again what fails.
func (n *node) add(ctx context.Context, o *outcome) {
	var adding sync.WaitGroup
	for _, p := range n.pods {
		adding.Go(func() {
			for ctx.Err() == nil {
				start := time.Now()
				if n.addOne(ctx, p) == nil {
					o.mu.Lock()
					defer o.mu.Unlock()
					o.took = append(o.took, time.Since(start))
					return
				}
				o.failed.Add(1)
				select {
				case <-time.After(time.Second):
				case <-ctx.Done():
				}
			}
		})
	}
	adding.Wait()
}

func (n *node) addOne(ctx context.Context, p nad.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute) // as the kubelet
	defer cancel()
	if _, err := n.view.Definition(ctx, definition(0)); err != nil {
		return err
	}
	if err := n.writer.Wait(ctx, p); err != nil {
		return err
	}
	n.events.Pod(p, kube.AddedInterface, "AddInterfaces", fmt.Sprintf("Add eth0 [10.244.0.5/24] from cbr0, net1 [10.1.0.7/24] from %s", definition(0)))
	return nil
}

// settled reports whether all statuses and Events of the node are written.
func (n *node) settled() bool {
	e := n.events.Stats()
	return n.writer.Stats().Pending == 0 && int(e.Sent+e.Dropped) >= len(n.pods)
}
