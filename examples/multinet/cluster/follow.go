package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/internal/program"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// Reconcile keeps running pods in step with the networks that they select, until ctx ends.
// Then it returns, when the change that is being made has ended or has been undone. The
// caller has called [Cluster.Start]. It returns at once if the configuration does not ask
// for it.
func (c *Cluster) Reconcile(ctx context.Context) {
	if c.follow == nil {
		return
	}
	c.log.LogAttrs(ctx, slog.LevelInfo, "running pods follow their annotation", slog.String("annotation", nad.NetworksAnnotation), slog.String("onChange", c.conf.OnChange))
	c.follow.run(ctx)
}

// Reconciles reports whether running pods follow what they select.
func (c *Cluster) Reconciles() bool { return c.follow != nil }

// ActsLater reports whether the daemon changes running containers by itself, and so needs the
// configuration of their ADD later.
func (c *Cluster) ActsLater() bool { return c.follow != nil || c.conf.DRA != nil }

// Deleting says that a DEL of a container with these CNI_ARGS begins. Changes of the container
// that its pod asks for are cancelled, and there are none until the caller calls end.
func (c *Cluster) Deleting(container, cniArgs string) (end func()) {
	allow := c.follow.deleting(container)
	return func() {
		allow()
		c.driver.Attached(nad.PodOf(cniArgs).UID, nil)
	}
}

// pass compares what the pod p selects with the records of the newest of its containers,
// and changes what differs. It leaves alone a pod that ends, or is not known. Without a UID, which
// some runtimes do not tell, it is not known: the pod of that name may be another one.
func (c *Cluster) pass(ctx context.Context, p nad.Pod, containers []string) (done passResult) {
	var newest []program.Record
	var errs []error
	for _, id := range containers {
		records, attached, err := c.recordsOf(ctx, id)
		if attached || err != nil {
			done.recorded = append(done.recorded, id)
		}
		if err != nil {
			errs = append(errs, err)
		}
		if len(records) > 0 && (len(newest) == 0 || records[0].Created.After(newest[0].Created)) {
			newest = records
		}
	}
	if len(done.recorded) == 0 {
		c.outdated.forget(p)
	}
	if p.UID == "" {
		c.noUID.Do(func() {
			c.log.LogAttrs(ctx, slog.LevelWarn, "pods do not follow their annotation if the container runtime does not tell their UID (K8S_POD_UID)", slog.String("pod", p.String()))
		})
		return done
	}
	pod, known := c.view.KnownPod(p)
	if !known || !runs(pod) || len(errs) > 0 {
		done.err = errors.Join(errs...)
		return done
	}
	if _, err := multinet.Selected(pod.Annotations); err != nil {
		c.events.Pod(p, invalidNetwork, "AttachNetwork", status.Error(err).Error())
		done.differs, done.err = true, err
		return done
	}
	for _, r := range newest {
		if !r.State.Attached() {
			continue // an ADD or a DEL is under way
		}
		differs, err := c.step(ctx, p, r)
		done.differs = done.differs || differs
		if err != nil {
			errs = append(errs, err)
		}
	}
	done.err = errors.Join(errs...)
	return done
}

// step changes the attachments in one record as the pod p wants it. It reports whether they
// certainly still differ from what the pod selects, and why they may. A container that goes
// does not differ.
func (c *Cluster) step(ctx context.Context, p nad.Pod, r program.Record) (differs bool, err error) {
	ctx, end, ok := c.follow.begin(ctx, r.Key.ContainerID)
	defer end()
	if !ok {
		return false, nil
	}
	p.Container = r.Key.ContainerID
	asked := c.Multinet()
	asked.Annotations = c.current
	asked.Confirmed = func(ctx context.Context, _ nad.Pod) (map[string]string, error) { return c.confirmed(ctx, p) }
	done, err := multinet.Reconcile(ctx, c.plugin.System(), c.plugin.Last(r.Dir, r.Key.Network), asked, r.Key, c.conf.OnChange == onChangeReplace)
	c.tell(ctx, p, r, done)
	if slices.ContainsFunc(done, func(d lifecycle.Change) bool { return d.Command != "" }) {
		c.writer.Changed(p)
	}
	if errors.Is(err, lifecycle.ErrNotAdded) || errors.Is(err, lifecycle.ErrSuperseded) || errors.Is(err, kube.ErrGone) {
		return false, nil
	}
	outdated := errors.Is(err, kube.ErrOutdated)
	if outdated {
		c.events.Pod(p, networksIgnored, "DetachNetwork", outdatedNote)
	}
	return outdated || slices.ContainsFunc(done, func(d lifecycle.Change) bool { return d.Command == "" || d.Err != nil }), err
}

// current returns the annotations of the pod p as the view has them, if it runs.
func (c *Cluster) current(ctx context.Context, p nad.Pod) (map[string]string, error) {
	pod, known := c.view.KnownPod(p)
	if !known || !runs(pod) {
		return nil, fmt.Errorf("pod %v: %w", p, kube.ErrGone)
	}
	pod, err := c.view.Pod(ctx, p) // which may be too old
	return pod.Annotations, err
}

// confirmed returns the annotations of the pod p by which p.Container may be detached: those
// that the API server has now, unless they may be older than what the container is attached to.
// They make no request while the view shows that they are.
func (c *Cluster) confirmed(ctx context.Context, p nad.Pod) (map[string]string, error) {
	if pod, known := c.view.KnownPod(p); known && c.outdated.is(p, pod) {
		return nil, kube.ErrOutdated
	}
	pod, err := c.writer.Confirm(ctx, p)
	switch {
	case err != nil:
		return nil, err
	case !runs(pod):
		return nil, kube.ErrGone
	case c.outdated.is(p, pod):
		return nil, kube.ErrOutdated
	}
	return pod.Annotations, nil
}

// tell counts what was done to the pod p, and says it in the log and to users.
func (c *Cluster) tell(ctx context.Context, p nad.Pod, r program.Record, done []lifecycle.Change) {
	var added []delegate.Attached
	for _, d := range done {
		if d.Err != nil && (ctx.Err() != nil || errors.Is(d.Err, lifecycle.ErrSuperseded)) {
			continue // it was not the network that failed
		}
		name := d.Wanted.Network
		if a := d.Attached; name == "" && a.IfName != "" {
			name = cmp.Or(nad.ParseOrigin(a.Origin).Definition.String(), a.Network.Name())
		}
		action, reason, outcome := actionAttach, failedAddingInterface, outcomeFailed
		if d.Command == delegate.CommandDel {
			action, reason = actionDetach, failedRemovingInterface
		}
		ifname := cmp.Or(d.Attached.IfName, d.Wanted.IfName)
		switch {
		case d.Command == "":
			c.events.Pod(p, networksIgnored, ifname, fmt.Sprintf(
				"%s from %s stays as it is: what else the pod asks for has changed since it was attached", ifname, name))
			continue
		case d.Err != nil:
			if tooFew(d.Err) {
				c.exhausted.Add(1)
			}
			_, why, _ := strings.Cut(status.Error(d.Err).Error(), ": ") // after the operation and the container
			if d.Attached.IfName != "" {
				why = name + ": " + why // which knows the network by the name in its configuration
			}
			c.events.Pod(p, reason, cmp.Or(ifname, name), why)
		case d.Command == delegate.CommandDel:
			outcome = outcomeOK
			c.events.Removed(p, ifname, name)
		default:
			outcome = outcomeOK
			added = append(added, d.Attached)
		}
		c.follow.changes.WithLabelValues(action, outcome).Inc()
		if d.Err == nil {
			c.log.LogAttrs(ctx, slog.LevelInfo, "network of a running pod", slog.String("operation", action), slog.String("pod", p.String()),
				slog.String("container", p.Container), slog.String("ifname", ifname), slog.String("network", name))
		}
	}
	c.tellAdded(ctx, r.Key, p, added)
}
