package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/metacni/metacni/delegate/kube"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
)

// moment is how long a status that no ADD waits for is held back: on a node with few
// processors it would delay the result of the ADD.
const moment = 50 * time.Millisecond

// New returns the cluster that c configures. It does not connect to it.
func New(c Config, p Plugin, log *slog.Logger) *Cluster {
	cluster := &Cluster{conf: c, log: log, plugin: p, ready: make(chan struct{})}
	cluster.requests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "multinetd_api_requests_total", Help: "Requests to the Kubernetes API. Code 0 is a request without an answer.",
	}, []string{"verb", "resource", "code"})
	if c.On() && c.Reconcile {
		cluster.follow, cluster.outdated = newPodQueue(cluster.pass, log), newOutdated(c.OutdatedDir, log)
	}
	return cluster
}

// Start opens the view of the cluster and begins to write the status of pods: first that
// of all that are recorded. It does not wait for the API server. The caller calls stop
// after the last command; Events that are not written yet then have two seconds.
func (c *Cluster) Start(ctx context.Context) (stop func(), err error) {
	if !c.conf.On() {
		return func() {}, nil
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	mirror, _ := os.ReadDir(c.conf.NADDir) // of the previous daemon, if there is one
	c.started, c.mirrored = time.Now(), len(mirror) > 0
	c.view, err = kube.Open(ctx, kube.Config{
		Kubeconfig: c.conf.Kubeconfig, Dial: c.conf.Dial, Node: c.conf.Node, Pods: c.conf.watchPods(),
		NADWait: wait(c.conf.NADWait), PodWait: wait(c.conf.PodWait), MaxViewAge: time.Duration(c.conf.MaxViewAge),
		Mirror: c.conf.NADDir, UserAgent: "multinetd", Logger: c.log, Observer: c.count,
	})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	if c.conf.Events != eventsOff {
		c.events = c.view.NewEvents(c.conf.Self)
	}
	writes := kube.StatusConfig{
		Desired: c.desired, Policy: c.conf.StatusPolicy, Timeout: time.Duration(c.conf.StatusTimeout), Delay: moment,
		Rate: c.conf.StatusRate, Events: c.events, Writing: c.writing,
	}
	if c.outdated != nil {
		writes.Outdated = c.outdated.note
		c.view.OnPod(c.outdated.seen)
	}
	c.writer = c.view.NewStatusWriter(writes)
	c.view.OnPod(c.tellIgnored)
	c.view.OnPod(c.follow.seen)
	c.kubelet = c.newKubelet(ctx)
	var others sync.WaitGroup
	if err := c.startClaims(ctx, &others); err != nil {
		cancel()
		c.view.Close()
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	c.open.Store(true)
	others.Go(func() { c.events.Run(ctx) })
	others.Go(func() { c.writer.Run(ctx) })
	for _, dir := range c.plugin.Dirs() {
		others.Go(func() { c.resume(ctx, dir) })
	}
	if c.conf.StartupTaint != "" {
		others.Go(func() { c.untaint(ctx) })
	}
	return func() {
		cancel()
		others.Wait()
		_ = c.kubelet.Close() // it only asks
		c.view.Close()
	}, nil
}

// wait returns d for a [kube.Config], in which 0 means the default.
func wait(d multinet.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return time.Duration(d)
}

// grace is how long the daemon waits for the API server before it is ready without it.
const grace = 30 * time.Second

// Probe reports whether the daemon is ready. The error names the resources that it has not read
// from the API server yet, or says why ResourceClaims are not served. Without the resources it is
// ready if there is a mirror, or after 30 seconds: pods that do not need the API server must start.
func (c *Cluster) Probe(context.Context) (ok bool, err error) {
	switch {
	case !c.conf.On():
		return true, nil
	case !c.open.Load():
		return false, errors.New("the view of the cluster is not open yet")
	}
	var missing []string
	for _, r := range c.view.Resources() {
		if !r.Synced {
			missing = append(missing, r.Name)
		}
	}
	if missing == nil {
		if err = c.driver.Err(); err != nil {
			err = fmt.Errorf("ResourceClaims: %w", err)
		}
		return true, err
	}
	return c.mirrored || time.Since(c.started) > grace, fmt.Errorf("not synced with the Kubernetes API: %s", strings.Join(missing, ", "))
}

// Ready says that the daemon serves ADDs and that its network is published. The node's
// startup taint, if one is configured, is removed from then on. It is called once.
func (c *Cluster) Ready() { close(c.ready) }

// untaint removes the startup taint of the node when the daemon is ready. It returns when
// that is done, or ctx ends. The taint is never added again: it is for nodes that are new.
func (c *Cluster) untaint(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-c.ready:
		_ = c.view.RemoveTaint(ctx, c.conf.StartupTaint) // logs what fails
	}
}
