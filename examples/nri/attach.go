package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/ifname"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

const (
	// network is the network in the keys of records.
	network = "nri"

	// podInterface is the interface that the runtime's CNI plugin has made.
	podInterface = "eth0"

	// detachedTimeout limits work that goes on after the answer, and each job of
	// the reconciler.
	detachedTimeout = 30 * time.Second
)

var (
	errLate = types.NewError(types.ErrTryAgainLater, "not attached within the runtime's timeout",
		"if it is too short, raise plugin_request_timeout of containerd or nri_plugin_request_timeout of CRI-O")
	errNoList = types.NewError(types.ErrInvalidNetNS, "the event does not say where the pod's network namespace is", "it lists no namespaces")
	errNoPath = types.NewError(types.ErrInvalidNetNS, "the event does not say where the pod's network namespace is",
		"it lists one with no path: for a pod with a user namespace, the runtime may make it after the event")
	errGone  = errors.New("the runtime has given the pod up")
	errEnds  = types.NewError(types.ErrTryAgainLater, "the plugin is stopping", "")
	errRoute = errors.New("default-route is not supported")
)

// key returns the key of a sandbox's record. Each sandbox of a pod has its own.
func key(sandbox string) scratch.Key {
	return scratch.Key{Network: network, ContainerID: sandbox, IfName: podInterface}
}

// attachInTime attaches a pod before the runtime's deadline, or not at all.
//
// The ADD goes on if the runtime's request ends, because a runtime that has gone away may
// have started the pod. An ADD that is late is undone, with a time limit of its own.
func (p *Plugin) attachInTime(ctx context.Context, s *api.PodSandbox) error {
	at := progress{by: p.answerBy(ctx)}
	timer := time.NewTimer(time.Until(at.by))
	defer timer.Stop()
	ctx, cancel := context.WithCancelCause(context.WithValue(context.WithoutCancel(ctx), progressKey{}, &at))
	var answered atomic.Bool // whoever sets it first decides the answer
	answer := func() bool { return answered.CompareAndSwap(false, true) }
	result := make(chan error, 1)
	started := p.work.start(func() {
		defer cancel(nil)
		err := p.attach(ctx, s, namespace(s), func(context.Context, []delegate.Attached) error {
			if !answer() {
				return errLate
			}
			return nil
		})
		if err != nil && !answer() {
			p.log().WarnContext(ctx, "ADD abandoned after its timeout", slog.Any("err", failed("ADD", s, err)))
		}
		result <- err
	})
	if !started {
		cancel(nil)
		return errEnds
	}
	select {
	case err := <-result:
		return err
	case <-timer.C:
	}
	if answer() {
		cancel(errLate)
		return at.late()
	}
	return <-result // it comes now
}

// A progress holds the last plugin that was run for a request, and when the request must be
// answered. It is in the context of the request.
type progress struct {
	atomic.Pointer[delegate.Event]
	by time.Time
}

type progressKey struct{}

// observe is a [delegate.Invoker.Observer].
func observe(ctx context.Context, e delegate.Event) (context.Context, func(error)) {
	if at, ok := ctx.Value(progressKey{}).(*progress); ok {
		at.Store(&e)
	}
	return ctx, func(error) {}
}

// late returns errLate with the plugin that took the time.
func (at *progress) late() error {
	e := at.Load()
	if e == nil {
		return fmt.Errorf("no plugin was run yet, another operation on the pod is running: %w", errLate)
	}
	return fmt.Errorf("network %q (%s): plugin %q: %w", e.Network, e.IfName, e.Plugin, errLate)
}

// answerBy returns when the request with context ctx must be answered.
func (p *Plugin) answerBy(ctx context.Context) time.Time {
	_, conf := p.manager()
	return conf.answerBy(requested(ctx))
}

// requested returns the time at which the request with context ctx came, which is now, and
// its deadline.
func requested(ctx context.Context) (now, deadline time.Time) {
	now = time.Now()
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = now.Add(silentTimeout)
	}
	return now, deadline
}

// attach attaches a pod to the networks that it selects and those of its claims, to all or
// none. report, if not nil, is the last step. attach succeeds if the pod is attached already.
func (p *Plugin) attach(ctx context.Context, s *api.PodSandbox, netns string, report func(context.Context, []delegate.Attached) error) error {
	life, _ := p.manager()
	claims := p.claimed()
	wanted, err := p.wanted(ctx, s, netns)
	if err != nil {
		claims.told(s.GetUid(), err)
		return err
	}
	if len(wanted) == 0 { // its claims were released since an ADD was interrupted
		return p.detach(ctx, s.GetId(), s.GetUid(), netns)
	}
	planned := wanted
	added, err := life.Add(ctx, key(s.GetId()), lifecycle.Transaction{
		NetNS: netns,
		Plan: func(_ context.Context, taken []string) ([]delegate.Attachment, error) {
			if _, ok := p.pod(s.GetId()); !ok {
				return nil, errGone // a DEL has come first and found nothing
			}
			named, err := plan(wanted, taken)
			if err == nil {
				planned = named
			}
			return named, err
		},
		Report: func(ctx context.Context, added []delegate.Attached) error {
			claims.describe(ctx, s.GetUid())
			if report == nil {
				return nil
			}
			return report(ctx, added)
		},
	})
	if errors.Is(err, lifecycle.ErrAdded) {
		return nil
	}
	if err == nil {
		p.log().InfoContext(ctx, "attached", who(name(s), s.GetId()), slog.Any("networks", describe(added)))
	} else {
		err = aboutClaims(planned, err)
	}
	claims.told(s.GetUid(), err)
	return err
}

// asks reports whether a pod selects networks or has claims, also if the claims cannot be used.
func (p *Plugin) asks(ctx context.Context, s *api.PodSandbox) (bool, error) {
	_, conf := p.manager()
	selected, err := selections(s, conf.MaxSelections)
	if err != nil {
		return false, err
	}
	claims, err := p.claimed().of(ctx, s.GetUid())
	return err != nil || len(selected)+len(claims) > 0, err
}

// wanted returns the attachments of a pod: for the networks that it selects, and then for
// those of its claims. They have an IfName if the pod or the claim has one.
func (p *Plugin) wanted(ctx context.Context, s *api.PodSandbox, netns string) ([]delegate.Attachment, error) {
	_, conf := p.manager()
	selections, err := selections(s, conf.MaxSelections)
	if err != nil {
		return nil, err
	}
	pod := delegate.Attachment{ContainerID: s.GetId(), NetNS: netns}
	if pod.Args, err = cniArgs(s); err != nil {
		return nil, err
	}
	var wanted []delegate.Attachment
	loaded := make(map[string]netconf.Network) // equal selections share one
	for _, selection := range selections {
		a, err := selected(conf.ConfDir, loaded, selection, pod)
		if err != nil {
			return nil, fmt.Errorf("selected network %q: %w", selection.Name, err)
		}
		wanted = append(wanted, a)
	}
	if at, ok := ctx.Value(progressKey{}).(*progress); ok { // what is looked up leaves time for the plugins
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, at.by)
		defer cancel()
	}
	claimed, err := p.claimed().wanted(ctx, s.GetUid(), pod)
	return append(wanted, claimed...), err
}

// selected returns the attachment of a pod for a selection of a network in dir. It takes a
// network from loaded, or adds it there.
func selected(dir string, loaded map[string]netconf.Network, selection netconf.Selection, a delegate.Attachment) (delegate.Attachment, error) {
	if len(selection.DefaultRoute) > 0 {
		return a, &netconf.Error{Kind: netconf.ErrInvalid, Key: "default-route", Err: errRoute}
	}
	n, ok := loaded[selection.Name]
	var err error
	if !ok {
		if n, err = netconf.Load(os.DirFS(dir), selection.Name); err != nil {
			return a, fmt.Errorf("%s: %w", dir, err)
		}
		loaded[selection.Name] = n
	}
	if err := selection.ServedBy(n); err != nil {
		return a, err
	}
	a.Network, err = n.EditPlugins(selection.Edits()...)
	a.IfName, a.CapabilityArgs = selection.Interface, selection.CapabilityArgs()
	a.Origin = nad.Origin{Use: nad.Selected}.JSON()
	return a, err
}

// podOf returns the pod in the CNI_ARGS of attachments, or the zero Pod.
func podOf(as []delegate.Attached) nad.Pod {
	if len(as) == 0 {
		return nad.Pod{}
	}
	return nad.PodOf(as[0].Args)
}

// cniArgs returns CNI_ARGS that name the pod, as container runtimes set them.
func cniArgs(s *api.PodSandbox) (string, error) {
	args := []string{"IgnoreUnknown=1"}
	for _, a := range [][2]string{
		{"K8S_POD_NAMESPACE", s.GetNamespace()},
		{"K8S_POD_NAME", s.GetName()},
		{"K8S_POD_INFRA_CONTAINER_ID", s.GetId()},
		{"K8S_POD_UID", s.GetUid()},
	} {
		if strings.ContainsAny(a[1], ";=") {
			return "", fmt.Errorf("%s: %q would be more than one argument", a[0], a[1])
		}
		args = append(args, a[0]+"="+a[1])
	}
	return strings.Join(args, ";"), nil
}

// plan gives each attachment an interface name that is not in use.
func plan(wanted []delegate.Attachment, taken []string) ([]delegate.Attachment, error) {
	// The first interface of the scheme is the pod's own, so that the others are
	// net1, net2 and so on.
	taken = slices.DeleteFunc(taken, func(name string) bool { return name == podInterface })
	asked := []string{""}
	for _, a := range wanted {
		asked = append(asked, a.IfName)
	}
	chosen, err := ifname.Scheme{Primary: podInterface, Taken: taken}.Plan(asked...)
	if err != nil {
		return nil, err
	}
	plan := slices.Clone(wanted)
	for i := range plan {
		plan[i].IfName = chosen[i+1]
	}
	return plan, nil
}

// describe returns the interfaces of a pod in the form of the annotation network-status.
func describe(added []delegate.Attached) string {
	r := lifecycle.Record{State: scratch.Added, Attached: added}
	text, _ := status.Annotation(r.Status(nil))
	return text
}

// detachInTime detaches a pod. If that takes too long, it returns at the runtime's
// deadline, and the DEL goes on.
func (p *Plugin) detachInTime(ctx context.Context, op string, s *api.PodSandbox) {
	late := p.answerBy(ctx)
	p.forget(s.GetId())
	done := make(chan struct{})
	started := p.work.start(func() {
		defer close(done)
		ctx, cancel := p.work.context(ctx)
		defer cancel()
		if err := p.detach(ctx, s.GetId(), s.GetUid(), namespace(s)); err != nil {
			p.log().ErrorContext(ctx, "still attached", slog.Any("err", failed(op, s, err)))
		}
	})
	if !started {
		return // the next plugin detaches what is recorded
	}
	timer := time.NewTimer(time.Until(late))
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		p.log().WarnContext(ctx, "DEL continues after the answer", who(name(s), s.GetId()))
	}
}

// detach detaches a sandbox if it has a record. podUID is that of its pod.
func (p *Plugin) detach(ctx context.Context, id, podUID, netns string) error {
	life, _ := p.manager()
	err := life.Del(ctx, lifecycle.Removal{Key: key(id), NetNS: netns})
	p.claimed().told(podUID, err)
	return err
}
