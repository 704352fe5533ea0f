// Nri is an NRI plugin that attaches pods to the networks in their annotation
// k8s.v1.cni.cncf.io/networks and in their ResourceClaims. The runtime can use any CNI plugin
// besides. See README.md.
//
// The events of the runtime are in plugin.go, attaching and detaching in attach.go,
// ResourceClaims in claims.go, the reconciler in reconcile.go, and the connection to the
// runtime in run.go.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

// networksAnnotation is the annotation that selects a pod's networks.
const networksAnnotation = "k8s.v1.cni.cncf.io/networks"

// A Plugin answers the events of one runtime. Its fields must not change while it runs.
type Plugin struct {
	Config Config

	// Launched says that the runtime has started this process. It has then
	// chosen index and name, and passes on a connection.
	Launched bool

	Exec   invoke.Exec
	Env    []string     // of the CNI plugins
	Logger *slog.Logger // nil discards the log

	// InterfaceNames is [lifecycle.Manager.InterfaceNames].
	InterfaceNames func(netns string) ([]string, error)

	// Observer, if not nil, is called after each [Pass].
	Observer func(Pass)

	dial  dialer        // nil means unix sockets
	pause time.Duration // after a pod could not be detached, see [lifecycle.Sweeper]

	longestWait time.Duration // before connecting again; 0 means the constant

	work    work
	sweeper *lifecycle.Sweeper // the reconciler's

	mu   sync.Mutex    // guards the fields below
	conf Config        // Config with the keys of the runtime
	held *scratch.Lock // on conf.StateDir, until Run returns
	life *lifecycle.Manager
	dra  *claims        // until Run returns
	pods map[string]pod // by sandbox ID
	news chan struct{}  // of a Synchronize

	stage stage // of this connection
	taken error // why Run must end: another plugin has the state directory
}

// A stage is how far a connection to the runtime has come.
type stage int

const (
	stageConnecting stage = iota // no configuration has come yet
	stageConfigured              // the runtime has sent its configuration, or will not send one
	stageListed                  // the runtime has listed its pods
)

// A pod is a sandbox that the runtime has, according to its events.
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

// Configure receives the configuration that the runtime has for plugins that it
// launches. It locks the state directory, and starts the DRA driver, before any event is
// answered.
func (p *Plugin) Configure(ctx context.Context, text, runtime, version string) (api.EventMask, error) {
	conf, err := p.settle(text)
	if err == nil {
		err = p.hold(ctx, conf)
	}
	if err != nil {
		p.log().ErrorContext(ctx, "not started", slog.Any("err", err)) // before the runtime kills a launched plugin
		return 0, err
	}
	p.log().InfoContext(ctx, "connected", slog.String("runtime", runtime), slog.String("version", version))
	return 0, nil // all events that p has methods for
}

// settle returns the configuration, changed by the runtime's keys.
func (p *Plugin) settle(text string) (Config, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stage = stageConfigured
	if text == abandoned {
		return Config{}, errLost
	}
	conf, err := p.Config, error(nil)
	if text != "" {
		conf, err = conf.With([]byte(text))
	}
	if err == nil && (conf.Index != p.Config.Index || conf.Name != p.Config.Name || conf.Socket != p.Config.Socket) {
		err = errors.New("nri: configuration: index, name and socket cannot be set in the runtime's configuration")
	}
	if err == nil {
		conf, err = conf.complete()
	}
	if err == nil && p.life != nil && !reflect.DeepEqual(conf, p.conf) {
		err = errors.New("nri: configuration has changed since the last connection: restart the plugin")
	}
	return conf, err
}

// hold locks the state directory until Run returns, and then starts the DRA driver. Two
// plugins with the same directory would detach each other's pods. If another plugin has it,
// hold waits as long as the runtime waits for an answer, because that plugin may be about to
// end.
func (p *Plugin) hold(ctx context.Context, conf Config) error {
	p.mu.Lock()
	holds := p.held != nil
	p.mu.Unlock()
	if holds {
		return nil
	}
	waiting, cancel := context.WithDeadline(ctx, conf.answerBy(requested(ctx)))
	defer cancel()
	held, err := scratch.Store[struct{}]{Dir: conf.StateDir}.Lock(waiting, network)
	if err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if ctx.Err() == nil && waiting.Err() != nil {
			err = fmt.Errorf("nri: stateDir %q is %w", conf.StateDir, errTaken)
			p.taken = err
		}
		return err
	}
	life := &lifecycle.Manager{
		Dir:            conf.StateDir,
		InterfaceNames: p.InterfaceNames,
		Invoker:        &delegate.Invoker{Exec: p.Exec, Path: []string{conf.BinDir}, Env: p.Env, Logger: p.Logger, Observer: observe},
	}
	claims, err := openClaims(ctx, conf, life, p.log())
	if err != nil {
		return errors.Join(err, held.Unlock())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conf, p.held, p.life, p.dra = conf, held, life, claims
	return nil
}

// yield stops the DRA driver and unlocks the state directory.
func (p *Plugin) yield() {
	p.claimed().close()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held == nil {
		return
	}
	if err := p.held.Unlock(); err != nil {
		p.log().Warn("unlocking the state directory failed", slog.Any("err", err))
	}
	p.held = nil
}

// Synchronize stores the runtime's list of pods for the reconciler. It does no work,
// because no pod can be started meanwhile.
func (p *Plugin) Synchronize(_ context.Context, sandboxes []*api.PodSandbox, _ []*api.Container) ([]*api.ContainerUpdate, error) {
	pods := make(map[string]pod)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range sandboxes {
		pods[s.GetId()] = pod{s, max(listed, p.pods[s.GetId()].state)}
	}
	p.pods, p.stage = pods, stageListed
	select {
	case p.newsLocked() <- struct{}{}:
	default: // the reconciler is due already
	}
	return nil, nil
}

// RunPodSandbox attaches a new pod to the networks that it selects and those of its claims. If
// it fails, or takes too long, it returns an error, and the pod is not started.
func (p *Plugin) RunPodSandbox(ctx context.Context, s *api.PodSandbox) error {
	if hostNetwork(s) {
		p.claimed().told(s.GetUid(), errHost)
		return nil
	}
	asks, err := p.asks(ctx, s)
	switch {
	case err != nil:
	case !asks:
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
	p.claimed().told(s.GetUid(), err)
	err = failed("RunPodSandbox", s, err)
	p.log().ErrorContext(ctx, "refused", slog.Any("err", err))
	return err
}

// StopPodSandbox detaches a pod. It does not fail: runtimes would only log the error and
// not call later plugins. What cannot be detached stays recorded, for RemovePodSandbox and
// the reconciler.
func (p *Plugin) StopPodSandbox(ctx context.Context, s *api.PodSandbox) error {
	p.detachInTime(ctx, "StopPodSandbox", s)
	return nil
}

// RemovePodSandbox does what StopPodSandbox does.
func (p *Plugin) RemovePodSandbox(ctx context.Context, s *api.PodSandbox) error {
	p.detachInTime(ctx, "RemovePodSandbox", s)
	return nil
}

// learn adds a pod that the runtime is starting.
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

// forget removes a pod that the runtime is giving up.
func (p *Plugin) forget(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pods, id)
}

// giveUp removes a pod that could not be attached, because the runtime does not start it.
// If the runtime has listed it meanwhile, the answer was too late and the pod runs.
func (p *Plugin) giveUp(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.pods[id]; known.state != starting {
		p.pods[id] = pod{known.sandbox, owed}
		return
	}
	delete(p.pods, id)
}

// tried notes whether attaching a listed pod has failed, if it is still known.
func (p *Plugin) tried(id string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, ok := p.pods[id]
	if !ok {
		return
	}
	if known.state = listed; err != nil {
		known.state = owed
	}
	p.pods[id] = known
}

func (p *Plugin) pod(id string) (pod, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, ok := p.pods[id]
	return known, ok
}

// live reports whether the runtime is connected and has listed its pods on this
// connection. An older list may be out of date.
func (p *Plugin) live() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stage == stageListed
}

// manager returns the Manager that Configure has made, and its configuration.
func (p *Plugin) manager() (*lifecycle.Manager, Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.life, p.conf
}

// claimed returns the claims of the node's pods, nil if there is no DRA driver.
func (p *Plugin) claimed() *claims {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dra
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

// selections returns the networks that a pod selects. It fails if there are more than most.
func selections(s *api.PodSandbox, most maxSelections) ([]netconf.Selection, error) {
	all, err := netconf.ParseSelectionN(s.GetAnnotations()[networksAnnotation], int(most))
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", networksAnnotation, err)
	}
	return all, nil
}

// namespace returns the path of a pod's network namespace. It is empty for the host's
// network, and if the event has none.
func namespace(s *api.PodSandbox) string {
	listed := s.GetLinux().GetNamespaces()
	if i := slices.IndexFunc(listed, ofNetwork); i >= 0 {
		return listed[i].GetPath()
	}
	return ""
}

// hostNetwork reports whether a pod uses the host's network, to which nothing is
// attached: its event lists namespaces, but no network namespace. An event without any
// namespace says nothing.
func hostNetwork(s *api.PodSandbox) bool {
	if path := namespace(s); path != "" {
		return plugin.Root("").OwnNetNS(path)
	}
	listed := s.GetLinux().GetNamespaces()
	return len(listed) > 0 && !slices.ContainsFunc(listed, ofNetwork)
}

func ofNetwork(n *api.LinuxNamespace) bool { return n.GetType() == "network" }

// who returns the log attribute of a pod.
func who(pod, sandbox string) slog.Attr {
	return slog.Attr{Value: slog.GroupValue(slog.String("pod", pod), slog.String("sandbox", sandbox))}
}

// name returns a pod's namespace and name.
func name(s *api.PodSandbox) string { return s.GetNamespace() + "/" + s.GetName() }

// podIn returns the pod of a sandbox.
func podIn(s *api.PodSandbox) nad.Pod {
	return nad.Pod{Namespace: s.GetNamespace(), Name: s.GetName(), UID: s.GetUid(), Container: s.GetId()}
}

// failed returns err with the operation and the pod. The code is in the text, because the
// runtime receives nothing else.
func failed(op string, s *api.PodSandbox, err error) error {
	return fmt.Errorf("nri: %s pod %q (%s): %w (CNI code %d)", op, name(s), s.GetId(), err, status.Code(err))
}
