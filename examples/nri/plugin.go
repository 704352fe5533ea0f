// Nri is an NRI plugin that attaches pods to the networks their annotation
// k8s.v1.cni.cncf.io/networks names, beside whatever CNI plugin the runtime is
// configured with. See README.md.
//
// The runtime's events are in plugin.go, the attachments they lead to in
// attach.go, what makes up for lost events in reconcile.go, and the connection
// to the runtime in run.go.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

// networksAnnotation selects a pod's networks.
const networksAnnotation = "k8s.v1.cni.cncf.io/networks"

// A Plugin answers the events of one runtime. Its fields must not change once
// it runs.
type Plugin struct {
	Config Config

	// Launched says that the runtime has started this process, and so chosen
	// its index and name and handed down its connection.
	Launched bool

	Exec   invoke.Exec
	Env    []string     // of the CNI plugins
	Logger *slog.Logger // nil discards

	// InterfaceNames is [lifecycle.Manager.InterfaceNames].
	InterfaceNames func(netns string) ([]string, error)

	// Observer, when not nil, is called after each [Pass].
	Observer func(Pass)

	dial  dialer        // nil is that of unix sockets
	pause time.Duration // after a pod could not be detached; see [lifecycle.Sweeper]

	work    work
	sweeper *lifecycle.Sweeper // the reconciler's

	mu   sync.Mutex    // guards what follows
	conf Config        // Config, completed by the runtime's
	held *scratch.Lock // on conf.StateDir, until Run returns
	life *lifecycle.Manager
	pods map[string]pod // by sandbox ID
	news chan struct{}  // of a Synchronize

	configured, synchronized bool  // on this connection
	taken                    error // why Run cannot go on: the state directory is another's
}

// A pod is a sandbox that the runtime is known to have, as far as its events
// say.
type pod struct {
	sandbox *api.PodSandbox

	// listed says that the runtime has named it in its last Synchronize. The
	// others are those that it asked us to attach since: it may have given one
	// up without telling, because a plugin after us failed.
	listed bool

	// owed says that its networks have been tried, and are to be tried again.
	owed bool
}

// Configure takes over the configuration that the runtime keeps for plugins it
// launches.
//
// Not before that is it known where the records are, and not before the state
// directory is its own does a Plugin answer events.
func (p *Plugin) Configure(ctx context.Context, text, runtime, version string) (api.EventMask, error) {
	conf, err := p.settle(text)
	if err == nil {
		err = p.claim(ctx, conf)
	}
	if err != nil {
		p.log().ErrorContext(ctx, "not started", slog.Any("err", err)) // a runtime kills what it has launched
		return 0, err
	}
	p.log().InfoContext(ctx, "connected", slog.String("runtime", runtime), slog.String("version", version))
	return 0, nil // all events there is a method for
}

// settle returns the configuration with the runtime's keys in place of ours.
func (p *Plugin) settle(text string) (Config, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.configured = true
	if text == abandoned {
		return Config{}, errLost
	}
	conf, err := p.Config, error(nil)
	if text != "" {
		conf, err = conf.With([]byte(text))
	}
	if err == nil && (conf.Index != p.Config.Index || conf.Name != p.Config.Name || conf.Socket != p.Config.Socket) {
		err = errors.New("nri: configuration: index, name and socket are settled before the runtime sends its configuration")
	}
	if err == nil {
		conf, err = conf.complete()
	}
	if err == nil && p.life != nil && conf != p.conf {
		err = errors.New("nri: configuration: changed since the last connection: start the plugin anew")
	}
	return conf, err
}

// claim makes the state directory ours, until Run returns. Two plugins with one
// would detach each other's pods: none knows those of the other. It waits for a
// plugin that is about to end, as long as the runtime waits for us.
func (p *Plugin) claim(ctx context.Context, conf Config) error {
	p.mu.Lock()
	claimed := p.held != nil
	p.mu.Unlock()
	if claimed {
		return nil
	}
	late := conf.answerBy(requested(ctx))
	waiting, cancel := context.WithDeadline(ctx, late)
	defer cancel()
	held, err := scratch.Store[struct{}]{Dir: conf.StateDir}.Lock(waiting, network)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil && waiting.Err() != nil {
			err = fmt.Errorf("nri: stateDir %q is in use by another nri, of this runtime or another: each needs one of its own", conf.StateDir)
			p.taken = err
		}
		return err
	}
	p.conf, p.held = conf, held
	p.life = &lifecycle.Manager{
		Dir:            conf.StateDir,
		InterfaceNames: p.InterfaceNames,
		Invoker:        &delegate.Invoker{Exec: p.Exec, Path: []string{conf.BinDir}, Env: p.Env, Logger: p.Logger, Observer: observe},
	}
	return nil
}

// yield lets another plugin have the state directory.
func (p *Plugin) yield() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held == nil {
		return
	}
	if err := p.held.Unlock(); err != nil {
		p.log().Warn("leaving the state directory", slog.Any("err", err))
	}
	p.held = nil
}

// Synchronize takes note of the pods that the runtime has, and leaves all work
// to the reconciler: no pod can be started meanwhile.
func (p *Plugin) Synchronize(_ context.Context, sandboxes []*api.PodSandbox, _ []*api.Container) ([]*api.ContainerUpdate, error) {
	pods := make(map[string]pod)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range sandboxes {
		pods[s.GetId()] = pod{sandbox: s, listed: true, owed: p.pods[s.GetId()].owed}
	}
	p.pods, p.synchronized = pods, true
	select {
	case p.newsLocked() <- struct{}{}:
	default: // the reconciler has not yet taken up the last ones
	}
	return nil, nil
}

// RunPodSandbox attaches a new pod to the networks that it selects. When it
// fails, or has not succeeded in time, the pod must not be started.
func (p *Plugin) RunPodSandbox(ctx context.Context, s *api.PodSandbox) error {
	if hostNetwork(s) {
		return nil
	}
	selections, err := selections(s)
	switch {
	case err != nil:
	case len(selections) == 0:
		return nil
	case len(s.GetLinux().GetNamespaces()) == 0:
		err = errNoList
	case namespace(s) == "":
		err = errNoPath
	default:
		p.learn(s)
		if err = p.attachInTime(ctx, s); err == nil {
			return nil
		}
		p.giveUp(s.GetId())
	}
	err = failed("RunPodSandbox", s, err)
	p.log().ErrorContext(ctx, "refused", slog.Any("err", err))
	return err
}

// StopPodSandbox detaches a pod. It never fails: later plugins would not be
// told of the event, and runtimes only log it. What could not be detached stays
// recorded, for RemovePodSandbox and the reconciler.
func (p *Plugin) StopPodSandbox(ctx context.Context, s *api.PodSandbox) error {
	p.detachInTime(ctx, "StopPodSandbox", s)
	return nil
}

// RemovePodSandbox does what StopPodSandbox does, once more.
func (p *Plugin) RemovePodSandbox(ctx context.Context, s *api.PodSandbox) error {
	p.detachInTime(ctx, "RemovePodSandbox", s)
	return nil
}

// learn takes note of a pod that the runtime is starting.
func (p *Plugin) learn(s *api.PodSandbox) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pods == nil {
		p.pods = make(map[string]pod)
	}
	if _, ok := p.pods[s.GetId()]; !ok {
		p.pods[s.GetId()] = pod{sandbox: s}
	}
}

// forget takes note of a pod that the runtime is giving up.
func (p *Plugin) forget(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pods, id)
}

// giveUp takes note of a pod that could not be attached: the runtime does not
// start it. One that it has listed since it has started all the same: the answer
// was too late for it.
func (p *Plugin) giveUp(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.pods[id]; known.listed {
		known.owed = true
		p.pods[id] = known
		return
	}
	delete(p.pods, id)
}

// owe takes note of a pod that runs without its networks, if it still runs.
func (p *Plugin) owe(id string, owed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known, ok := p.pods[id]; ok {
		known.owed = owed
		p.pods[id] = known
	}
}

func (p *Plugin) pod(id string) (pod, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, ok := p.pods[id]
	return known, ok
}

// live reports whether the runtime is connected and has listed its pods on this
// connection. A list of before says nothing of what the runtime has done since.
func (p *Plugin) live() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.synchronized
}

// manager returns what Configure has made of the configuration.
func (p *Plugin) manager() (*lifecycle.Manager, Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.life, p.conf
}

func (p *Plugin) newsLocked() chan struct{} {
	if p.news == nil {
		p.news = make(chan struct{}, 1)
	}
	return p.news
}

func (p *Plugin) log() *slog.Logger {
	if p.Logger != nil {
		return p.Logger
	}
	return slog.New(slog.DiscardHandler)
}

// selections reads what a pod selects.
func selections(s *api.PodSandbox) ([]netconf.Selection, error) {
	all, err := netconf.ParseSelection(s.GetAnnotations()[networksAnnotation])
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", networksAnnotation, err)
	}
	return all, nil
}

// namespace is the path of a pod's network namespace, or empty for the host's
// and where the event does not say.
func namespace(s *api.PodSandbox) string {
	listed := s.GetLinux().GetNamespaces()
	if i := slices.IndexFunc(listed, ofNetwork); i >= 0 {
		return listed[i].GetPath()
	}
	return ""
}

// hostNetwork reports whether a pod uses the host's network: nothing is ever
// attached to that. It does if the event lists its namespaces and none is of the
// network. An event that lists none says nothing.
func hostNetwork(s *api.PodSandbox) bool {
	if path := namespace(s); path != "" {
		return plugin.Root("").OwnNetNS(path)
	}
	listed := s.GetLinux().GetNamespaces()
	return len(listed) > 0 && !slices.ContainsFunc(listed, ofNetwork)
}

func ofNetwork(n *api.LinuxNamespace) bool { return n.GetType() == "network" }

// who names a pod in the log.
func who(pod, sandbox string) slog.Attr {
	return slog.Attr{Value: slog.GroupValue(slog.String("pod", pod), slog.String("sandbox", sandbox))}
}

// name is a pod's name, with its namespace.
func name(s *api.PodSandbox) string { return s.GetNamespace() + "/" + s.GetName() }

// failed says which pod an operation failed for. The code is in the text, which
// is all that reaches the runtime.
func failed(op string, s *api.PodSandbox, err error) error {
	return fmt.Errorf("nri: %s pod %q (%s): %w (CNI code %d)", op, name(s), s.GetId(), err, status.Code(err))
}
