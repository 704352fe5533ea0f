package main

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/containerd/nri/pkg/api"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf/nad"
)

// pods are the sandboxes that the runtime has, according to its events and lists, by ID. Goroutines
// may share them.
type pods struct {
	mu  sync.Mutex // guards all
	all map[string]pod
}

// A pod is a sandbox, and what the runtime has said of it.
type pod struct {
	sandbox *api.PodSandbox

	// listed says that the last Synchronize has it: it runs. Otherwise the runtime was about to
	// start it at its last event, and may have given it up without another, because a later
	// plugin failed.
	listed bool

	// owed says that attaching it has failed after the runtime had listed it, and is to be tried
	// again while it is listed.
	owed bool
}

// list takes over the pods that the runtime has listed. A list proves nothing about the others:
// what they are owed, and what is being attached, stays until an event or a sweep ends them.
func (ps *pods) list(sandboxes []*api.PodSandbox) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	all := make(map[string]pod)
	for id, known := range ps.all {
		if known.owed || !known.listed {
			all[id] = pod{sandbox: known.sandbox, owed: known.owed}
		}
	}
	for _, s := range sandboxes {
		all[s.GetId()] = pod{sandbox: s, listed: true, owed: all[s.GetId()].owed}
	}
	ps.all = all
}

// learn adds a pod that the runtime is starting.
func (ps *pods) learn(s *api.PodSandbox) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.all == nil {
		ps.all = make(map[string]pod)
	}
	if _, ok := ps.all[s.GetId()]; !ok {
		ps.all[s.GetId()] = pod{sandbox: s}
	}
}

// forget removes a pod that the runtime is giving up.
func (ps *pods) forget(id string) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	delete(ps.all, id)
}

// tried notes whether attaching a pod has failed. The runtime does not start such a pod, unless
// it has listed it meanwhile: the answer was too late, and the pod runs.
func (ps *pods) tried(id string, err error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	known, ok := ps.all[id]
	switch {
	case !ok:
	case err != nil && !known.listed && !known.owed:
		delete(ps.all, id)
	default:
		known.owed = err != nil
		ps.all[id] = known
	}
}

func (ps *pods) get(id string) (pod, bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	known, ok := ps.all[id]
	return known, ok
}

// running returns the pods that the runtime has listed, in the order of their IDs.
func (ps *pods) running() []pod {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	var running []pod
	for _, id := range slices.Sorted(maps.Keys(ps.all)) {
		if known := ps.all[id]; known.listed {
			running = append(running, known)
		}
	}
	return running
}

// networkOf returns the network namespace in a pod's event, or nil.
func networkOf(s *api.PodSandbox) *api.LinuxNamespace {
	for _, n := range s.GetLinux().GetNamespaces() {
		if n.GetType() == "network" {
			return n
		}
	}
	return nil
}

// namespace returns the path of a pod's network namespace. It is empty for the host's
// network, and if the event has none.
func namespace(s *api.PodSandbox) string { return networkOf(s).GetPath() }

// hostNetwork reports whether a pod uses the host's network, to which nothing is
// attached: its event lists namespaces, but no network namespace. An event without any
// namespace says nothing.
func hostNetwork(s *api.PodSandbox) bool {
	if path := namespace(s); path != "" {
		return plugin.Root("").OwnNetNS(path)
	}
	return len(s.GetLinux().GetNamespaces()) > 0 && networkOf(s) == nil
}

// podIn returns the pod of a sandbox.
func podIn(s *api.PodSandbox) nad.Pod {
	return nad.Pod{Namespace: s.GetNamespace(), Name: s.GetName(), UID: s.GetUid(), Container: s.GetId()}
}

// who returns the log attribute of a pod.
func who(pod nad.Pod) slog.Attr {
	return slog.Attr{Value: slog.GroupValue(slog.String("pod", pod.String()), slog.String("sandbox", pod.Container))}
}

// cniArgs returns CNI_ARGS that name the pod, as container runtimes set them.
func cniArgs(s *api.PodSandbox) (string, error) {
	pod := podIn(s)
	args := "IgnoreUnknown=1;K8S_POD_NAMESPACE=" + pod.Namespace + ";K8S_POD_NAME=" + pod.Name +
		";K8S_POD_INFRA_CONTAINER_ID=" + pod.Container + ";K8S_POD_UID=" + pod.UID
	if nad.PodOf(args) != pod {
		return "", fmt.Errorf("pod %q (%s): a name or an ID would be more than one argument", pod, pod.Container)
	}
	return args, nil
}
