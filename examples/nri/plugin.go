// Nri is an NRI plugin that attaches pods to the networks in their annotation
// k8s.v1.cni.cncf.io/networks and in their ResourceClaims. The runtime can use any CNI plugin
// besides. See README.md.
//
// The events of the runtime are in plugin.go, its pods in pods.go, and the connection to it in
// connection.go. What a pod wants is in networks.go and claims.go, attaching and detaching in
// attach.go, and the reconciler in reconcile.go. service.go has what all of them use.
package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
)

var (
	errHost         = errors.New("the pod is on the host's network, to which nothing is attached")
	errUnconfigured = errors.New("nri: the runtime lists its pods although the plugin has not started")
	errNoNetNS      = types.NewError(types.ErrInvalidNetNS, "the event does not say where the pod's network namespace is",
		"it lists none, or one with no path: for a pod with a user namespace, the runtime may make it after the event")
)

// A Plugin answers the events of one runtime. Its fields must not change while it runs.
type Plugin struct {
	Config Config

	// Launched says that the runtime has started this process. It has then
	// chosen index and name, and passes on a connection.
	Launched bool

	Exec   delegate.Exec
	Env    []string // of the CNI plugins; see plugin.System
	Logger *slog.Logger

	// InterfaceNames is [lifecycle.Manager.InterfaceNames].
	InterfaceNames func(netns string) ([]string, error)

	// Observer, if not nil, is called after each [Pass].
	Observer func(Pass)

	dial  func(path string) (net.Conn, error) // nil means unix sockets
	clock <-chan time.Time                    // of when a request must be answered; nil means the time
	pause time.Duration                       // after a pod could not be detached, see [lifecycle.Sweeper]

	opened  atomic.Pointer[service] // nil before the first Configure
	pods    pods
	sweeper *lifecycle.Sweeper // the reconciler's

	alive   context.Context //nolint:containedctx // of Run
	news    chan struct{}   // of a Synchronize
	running sync.WaitGroup  // work for requests

	stage atomic.Int32 // of this connection: how far it has come

	mu     sync.Mutex // guards ending
	ending bool       // no work for requests is started any more
}

// Stages of a connection to the runtime.
const (
	stageConnecting int32 = iota // no configuration has come yet
	stageConfigured              // the runtime has sent its configuration, or will not send one
	stageListed                  // the runtime has listed its pods
)

// live reports whether the runtime is connected and has listed its pods on this
// connection. An older list may be out of date.
func (p *Plugin) live() bool { return p.stage.Load() == stageListed }

// Configure receives the configuration that the runtime has for plugins that it
// launches. It locks the state directory, and starts the DRA driver, before any event is
// answered.
func (p *Plugin) Configure(ctx context.Context, text, runtime, version string) (api.EventMask, error) {
	p.stage.Store(stageConfigured)
	if text == abandoned {
		return 0, errLost
	}
	conf, err := p.settle(text)
	if err == nil && p.opened.Load() == nil {
		var o *service
		if o, err = p.open(ctx, conf); err == nil {
			p.opened.Store(o)
		}
	}
	if err != nil {
		p.Logger.ErrorContext(ctx, "not started", slog.Any("err", err)) // before the runtime kills a launched plugin
		return 0, err
	}
	p.Logger.InfoContext(ctx, "connected", slog.String("runtime", runtime), slog.String("version", version))
	return 0, nil // all events that p has methods for
}

// settle returns the configuration, changed by the runtime's keys.
func (p *Plugin) settle(text string) (conf Config, err error) {
	conf = p.Config
	if text != "" {
		conf, err = conf.With([]byte(text))
	}
	if err == nil && (conf.Index != p.Config.Index || conf.Name != p.Config.Name || conf.Socket != p.Config.Socket) {
		err = errors.New("nri: configuration: index, name and socket cannot be set in the runtime's configuration")
	}
	if err == nil {
		conf, err = conf.complete()
	}
	if o := p.opened.Load(); err == nil && o != nil && !reflect.DeepEqual(conf, o.conf) {
		err = errors.New("nri: configuration has changed since the last connection: restart the plugin")
	}
	return conf, err
}

// Synchronize stores the runtime's list of pods for the reconciler. It does no work,
// because no pod can be started meanwhile.
func (p *Plugin) Synchronize(_ context.Context, sandboxes []*api.PodSandbox, _ []*api.Container) ([]*api.ContainerUpdate, error) {
	if p.opened.Load() == nil {
		return nil, errUnconfigured
	}
	p.pods.list(sandboxes)
	p.stage.Store(stageListed)
	select {
	case p.news <- struct{}{}:
	default: // the reconciler is due already
	}
	return nil, nil
}

// RunPodSandbox attaches a new pod to the networks that it selects and those of its claims. If
// it fails, or takes too long, it returns an error, and the pod is not started.
func (p *Plugin) RunPodSandbox(ctx context.Context, s *api.PodSandbox) error {
	o := p.opened.Load()
	if hostNetwork(s) {
		o.driver.Attached(s.GetUid(), errHost)
		return nil
	}
	asks, err := o.asks(ctx, s)
	switch {
	case err != nil:
	case !asks:
		return nil
	case namespace(s) == "":
		err = errNoNetNS
	default:
		p.pods.learn(s)
		err = p.attachInTime(ctx, s)
		p.pods.tried(s.GetId(), err)
	}
	o.driver.Attached(s.GetUid(), err)
	if err != nil {
		err = failed("RunPodSandbox", s, err)
		p.Logger.ErrorContext(ctx, "refused", slog.Any("err", err))
	}
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
