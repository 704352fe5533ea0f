package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/device"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
)

// ErrNoOrigin means that a record does not say why each of its networks is attached,
// because another program or an older version has made it: code 7. [Reconcile] leaves
// such a container alone until it is attached again.
var ErrNoOrigin error = types.NewError(types.ErrInvalidNetworkConfig, "the record does not say which networks the pod has selected", "")

// changeTimeout bounds each change of a running container.
const changeTimeout = time.Minute

// Reconcile keeps a running container in step with the networks that its pod selects: it
// detaches those in the record k that are not selected any more, and attaches those that
// are selected now. See [lifecycle.Manager.Reconcile] for how selections are compared
// with the record, for the order, for failures, and for what is returned.
//
// The configuration and the Path of asked are used as in an ADD, except that a pod cannot
// select a network with default-route while it runs. A network that needs a device gets
// one that the pod has and that nothing in the container's records uses: none is allocated
// to a running pod. Each change has a minute, so that a plugin that hangs does not keep the
// other networks from their turn.
//
// cluster.Annotations must not be nil. It returns the annotations of the pod, whatever the
// runtime has passed, and is called before each change. If it fails, or if the annotation of
// networks cannot be parsed, nothing changes. cluster.Confirmed is called where something would
// be detached, and decides: if it fails, nothing is detached. A selection that the pod may not
// have is not attached. A container whose runtime has not told the UID of its pod is left alone:
// the pod of that name may be another one.
//
// The primary, the networks of the configuration, and those that others have attached to
// the container stay. If replace is true, a network whose interface the pod names is
// attached again when anything else in the selection changes.
func Reconcile(ctx context.Context, process plugin.System, asked skel.CmdArgs, cluster Cluster, k scratch.Key, replace bool) ([]lifecycle.Change, error) {
	own, err := New(cluster).Call(process, delegate.CommandAdd, skel.CmdArgs{StdinData: asked.StdinData, Path: asked.Path})
	if err != nil {
		return nil, err
	}
	var c *config // of the container, as in its record now
	wanted := func(annotations func(context.Context, nad.Pod) (map[string]string, error)) func(context.Context, lifecycle.AddRecord) ([]lifecycle.Wanted, error) {
		return func(ctx context.Context, r lifecycle.AddRecord) ([]lifecycle.Wanted, error) {
			var err error
			if c, err = running(own, cluster, r); err != nil {
				return nil, err
			}
			found, err := annotations(ctx, c.pod)
			if err != nil {
				return nil, fmt.Errorf("annotations of pod %s: %w", c.pod, err)
			}
			return c.selected(found, r)
		}
	}
	asks := lifecycle.ReconcileRequest{
		Recorded: selectedFor,
		Replace:  replace,
		Timeout:  changeTimeout,
		Prepare:  func(ctx context.Context, plan []delegate.Attachment) error { return c.fill(ctx, plan) },
		Wanted:   wanted(cluster.Annotations),
	}
	if cluster.Confirmed != nil {
		asks.Confirmed = wanted(cluster.Confirmed)
	}
	return own.Manager.Reconcile(ctx, k, asks)
}

// running returns the configuration for a running container, with what the runtime has
// passed in its ADD.
func running(own *plugin.Call, cluster Cluster, r lifecycle.AddRecord) (*config, error) {
	var primary delegate.Attached
	for _, a := range r.Attached {
		use := nad.ParseOrigin(a.Origin).Use
		_, known := selectedFor(a)
		switch {
		case a.IfName == r.Key.IfName:
			primary = a
		case use == "" || use == nad.UseSelected && !known:
			return nil, fmt.Errorf("network %q (%s): %w", a.Network.Name(), a.IfName, ErrNoOrigin)
		}
	}
	call := *own
	call.Name, call.CNIVersion = r.Key.Network, primary.Network.CNIVersion()
	call.ContainerID, call.IfName, call.NetNS, call.Args = r.Key.ContainerID, r.Key.IfName, primary.NetNS, plugin.SharedArgs(primary.Args)
	c, err := readConfig(&call, cluster)
	if err != nil {
		return nil, err
	}
	if !c.inKubernetes() || c.pod.Name == "" || c.pod.UID == "" {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "the record names no pod with a UID", "")
	}
	c.RuntimeConfig = plugin.Shared(primary.CapabilityArgs)
	return c, nil
}

// selected returns the networks that the pod with the record r selects. It looks up none.
func (c *config) selected(annotations map[string]string, r lifecycle.AddRecord) ([]lifecycle.Wanted, error) {
	selections, err := parseSelections(annotations, c.most)
	if err != nil {
		return nil, err
	}
	var all []lifecycle.Wanted
	for i, s := range selections {
		ch := selectionToCompare(c.pod.Namespace, s)
		ch.Plan = func(ctx context.Context, taken []string) (delegate.Attachment, error) {
			if err := c.newest(ctx, r); err != nil {
				return delegate.Attachment{}, err
			}
			return c.later(ctx, selections, i, taken, annotations[nad.SourceAnnotation])
		}
		all = append(all, ch)
	}
	return all, nil
}

// newest fails if the pod with the record r has another container, which was attached
// after r: the container of r is about to go.
func (c *config) newest(ctx context.Context, r lifecycle.AddRecord) error {
	for other, err := range c.call.Manager.Records(ctx) {
		if err != nil || len(other.Attached) == 0 || other.Key.ContainerID == r.Key.ContainerID || !other.Created.After(r.Created) {
			continue
		}
		if of := PodOf(other); of.UID == c.pod.UID && of.String() == c.pod.String() {
			return types.NewError(types.ErrTryAgainLater, fmt.Sprintf("the pod has a newer container, %s", other.Key.ContainerID), "")
		}
	}
	return nil
}

// later returns the attachment that the pod selects with the i'th selection while it runs.
func (c *config) later(ctx context.Context, selections []netconf.Selection, i int, taken []string, podSource string) (delegate.Attachment, error) {
	s := selections[i]
	ch, err := c.allow(s, nad.UseSelected)
	if err != nil {
		return delegate.Attachment{}, err
	}
	fail := func(err error) (delegate.Attachment, error) { return delegate.Attachment{}, c.about(ch, err) }
	if len(s.DefaultRoute) > 0 {
		why := errors.New("a running container keeps its default route: restart the pod")
		return fail(&netconf.Error{Kind: netconf.ErrInvalid, Network: s.Name, Key: "default-route", Err: why})
	}
	one := []choice{ch}
	replaced := func(_ scratch.Key, a delegate.Attached) bool { return a.IfName == s.Interface }
	if err = c.findAll(ctx, one); err == nil {
		err = c.findDevices(ctx, one, replaced, others(selections, i)...)
	}
	if err != nil {
		return delegate.Attachment{}, err
	}
	ch = one[0]
	a, err := c.attachment(ch, c.RuntimeConfig, c.call.Args)
	if err == nil {
		a.IfName, err = freeName(c.call.IfName, s.Interface, taken)
	}
	if err != nil {
		return fail(err)
	}
	a.Origin = ch.origin(podSource)
	return c.deviceInfo().Assign(a), nil
}

// others returns the devices that other selections than the i'th name, unless that names one
// itself.
func others(selections []netconf.Selection, i int) (named []device.Device) {
	for j, s := range selections {
		if j != i && selections[i].DeviceID == "" && s.DeviceID != "" {
			named = append(named, device.Device{ID: s.DeviceID})
		}
	}
	return named
}

// selectedFor returns what a pod has selected a with, if a pod has selected it.
func selectedFor(a delegate.Attached) (ch lifecycle.Wanted, mine bool) {
	o := nad.ParseOrigin(a.Origin)
	s, err := recordedSelection(o)
	if o.Use != nad.UseSelected || err != nil {
		return ch, false
	}
	return selectionToCompare(nad.PodOf(a.Args).Namespace, s), true
}

// recordedSelection returns the selection in an origin. It is not checked: an earlier release may have
// accepted more.
func recordedSelection(o nad.Origin) (s netconf.Selection, err error) {
	type unchecked netconf.Selection
	return s, json.Unmarshal(o.Selection, (*unchecked)(&s))
}
