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

// pods are the sandboxes that the runtime has, according to its events, by ID. Goroutines
// may share them.
type pods struct {
	mu  sync.Mutex // guards all
	all map[string]pod
}

// A pod is a sandbox, and what the runtime has said of it.
type pod struct {
	sandbox *api.PodSandbox
	state   podState
}

// A podState is what the runtime has said of a pod.
type podState int

const (
	starting podState = iota // an event. The runtime may have given the pod up without another, because a later plugin failed
	listed                   // the last Synchronize has it
	owed                     // listed, and attaching it has failed and is to be tried again
)

// list replaces all pods by those that the runtime has listed.
func (ps *pods) list(sandboxes []*api.PodSandbox) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	all := make(map[string]pod)
	for _, s := range sandboxes {
		all[s.GetId()] = pod{s, max(listed, ps.all[s.GetId()].state)}
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
	case known.state == starting && err != nil:
		delete(ps.all, id)
	case known.state != starting && err != nil:
		ps.all[id] = pod{known.sandbox, owed}
	case known.state != starting:
		ps.all[id] = pod{known.sandbox, listed}
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
		if known := ps.all[id]; known.state != starting {
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
