// Package cluster connects multinetd to Kubernetes. Package delegate/kube does the work; this
// package combines it with multinet's configuration and records:
//
//   - An ADD gets NetworkAttachmentDefinitions, and the annotations of pods, from the view of
//     the cluster (cluster.go).
//   - When a record has changed, the network-status of the pod is computed from it and
//     written (status.go).
//   - Networks that need a device get one of those that the kubelet has allocated to the pod
//     (devices.go).
//   - Running pods are attached to the networks that they select now, and detached from the
//     others (podqueue.go, follow.go).
//   - Pods are attached to the networks of their ResourceClaims, and the networks of the node
//     are published as devices (claims.go).
//   - Events tell users what was attached, and why an ADD has failed (events.go).
//   - The probe says whether the daemon knows the cluster, and the taint that keeps pods from a
//     new node is removed when it is ready (cluster.go).
//   - The metrics report the age of the view (metrics.go), and a page on the socket shows the
//     network-status in the API (status.go).
//
// The daemon starts, pods that select nothing are attached, and DELs are done, whatever
// happens to the API server.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/delegate/kube/dra"
	"github.com/metacni/metacni/delegate/kube/podresources"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/netconf/nad"
)

// A Cluster is the Kubernetes cluster that a daemon works for. If its configuration is not
// [Config.On] there is none, and its methods do nothing. Make one with [New]. Goroutines may
// share it.
type Cluster struct {
	conf      Config
	log       *slog.Logger
	plugin    Plugin
	requests  *prometheus.CounterVec
	exhausted atomic.Uint64 // how often [tooFew] was so
	follow    *podQueue     // nil unless Config.Reconcile
	ready     chan struct{} // closed by Ready

	// Set by Start, and used while open is true. Commands come later than that; probes
	// and scrapes may not.
	open     atomic.Bool
	view     *kube.View
	writer   *kube.StatusWriter
	events   *kube.Events
	kubelet  *podresources.Client
	driver   *dra.Driver // nil unless Config.DRA
	started  time.Time
	mirrored bool // the mirror had definitions at the start
}

// moment is how long a status that no ADD waits for is held back: on a node with few
// processors it would delay the result of the ADD.
const moment = 50 * time.Millisecond

// A Plugin is multinet as the daemon runs it.
type Plugin struct {
	// Dirs returns the directories in which multinet keeps its records.
	Dirs func() []string

	// Last returns the configuration and CNI_PATH of the last ADD of a network with records in
	// one of them.
	Last func(dir, network string) skel.CmdArgs

	// Own is the daemon's own configuration of multinet, or that of the network that it
	// publishes.
	Own []byte

	// Process returns what multinet uses to run plugins.
	Process func() plugin.Process
}

// New returns the cluster that c configures. It does not connect to it.
func New(c Config, p Plugin, log *slog.Logger) *Cluster {
	cluster := &Cluster{conf: c, log: log, plugin: p, requests: newRequests(), ready: make(chan struct{})}
	if c.On() && c.Reconcile {
		cluster.follow = newPodQueue(cluster.pass, log)
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
	c.started, c.mirrored = time.Now(), c.hasMirror()
	c.view, err = kube.Open(ctx, kube.Config{
		Kubeconfig: c.conf.Kubeconfig, Node: c.conf.Node, Pods: c.conf.watchPods(),
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
	c.writer = c.view.NewStatusWriter(kube.StatusConfig{
		Desired: c.desired, Policy: c.conf.StatusPolicy, Timeout: time.Duration(c.conf.StatusTimeout), Delay: moment,
		Rate: c.conf.StatusRate, Events: c.events,
	})
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
	others.Go(func() { c.resume(ctx) })
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

// Multinet returns what multinet asks about the cluster. The zero value asks nothing.
func (c *Cluster) Multinet() multinet.Cluster {
	if !c.conf.On() {
		return multinet.Cluster{}
	}
	m := multinet.Cluster{Definition: c.definition, Annotations: c.annotations, Attached: c.attached, Devices: c.devices, Warn: c.warn}
	m.Claims = c.noClaims
	if c.conf.DRA != nil {
		m.Claims = c.claimed
	}
	return m
}

// definition returns the definition r, and notes in the ADD of ctx that it was used. A
// name in the configuration is often that of a file: no ADD waits for such a definition.
func (c *Cluster) definition(ctx context.Context, r nad.Ref, use nad.Use) (nad.Definition, error) {
	find := c.view.Definition
	if use == nad.Cluster || use == nad.Default {
		find = c.view.KnownDefinition
	}
	d, err := find(ctx, r)
	if a := addOf(ctx); a != nil && err == nil {
		a.definitions[r] = d
	}
	return d, err
}

// annotations returns the annotations of the pod p, for which the runtime passes none. With
// the first of them the daemon begins to watch the pods of its node.
func (c *Cluster) annotations(ctx context.Context, p nad.Pod) (map[string]string, error) {
	if c.conf.Node == "" {
		return nil, types.NewError(types.ErrTryAgainLater,
			"the container runtime passes none, and without nodeName the daemon cannot ask the API server for them", "")
	}
	pod, err := c.view.Pod(ctx, p)
	return pod.Annotations, err
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

// hasMirror reports whether a previous daemon has left a mirror.
func (c *Cluster) hasMirror() bool {
	entries, err := os.ReadDir(c.conf.NADDir)
	return err == nil && len(entries) > 0
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
