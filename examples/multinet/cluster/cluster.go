// Package cluster connects multinetd to Kubernetes. Package delegate/kube does the work; this
// package combines it with multinet's configuration and records:
//
//   - An ADD gets NetworkAttachmentDefinitions, and the annotations of pods, from the view of
//     the cluster (multinet.go).
//   - When a record has changed, the network-status of the pod is computed from it and
//     written (records.go, status.go).
//   - Networks that need a device get one of those that the kubelet has allocated to the pod
//     (devices.go).
//   - Running pods are attached to the networks that they select now, and detached from the
//     others (podqueue.go, follow.go), unless what they select may be older than their networks
//     (outdated.go).
//   - Pods are attached to the networks of their ResourceClaims, and the networks of the node
//     are published as devices (claims.go).
//   - Events tell users what was attached, and why an ADD has failed (events.go).
//   - The probe says whether the daemon knows the cluster, and the taint that keeps pods from a
//     new node is removed when it is ready (start.go).
//   - The metrics report the age of the view (metrics.go), and a page on the socket shows the
//     network-status in the API (status.go).
//
// The daemon starts, pods that select nothing are attached, and DELs are done, whatever
// happens to the API server.
package cluster

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/delegate/kube/dra"
	"github.com/metacni/metacni/delegate/kube/podresources"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/internal/program"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
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
	outdated  *outdated     // the same
	noUID     sync.Once     // the log says that pods have none
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

// A Plugin is multinet as the daemon runs it.
type Plugin struct {
	// Dirs returns the directories in which multinet keeps its records.
	Dirs func() []string

	// Records returns the records in all of them, in any state, and those of earlier daemons.
	// The error names each that cannot be read.
	Records func(ctx context.Context) ([]program.Record, error)

	// Last returns the configuration and CNI_PATH of the last ADD of a network with records in
	// one of them.
	Last func(dir, network string) skel.CmdArgs

	// Own is the daemon's own configuration of multinet, or that of the network that it
	// publishes.
	Own []byte

	// System returns what multinet uses to run plugins.
	System func() plugin.System
}

// An add is a running ADD. One goroutine uses it.
type add struct {
	container   string
	definitions map[nad.Ref]nad.Definition // that it has used
	claims      bool                       // the pod has claims that are prepared
	record      scratch.Key                // of the container, when it is attached
	added       []delegate.Attached        // what is attached
}

type addKey struct{}

// addOf returns the ADD that ctx is for, or nil.
func addOf(ctx context.Context) *add {
	a, _ := ctx.Value(addKey{}).(*add)
	return a
}
