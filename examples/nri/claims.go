package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/kube/dra"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/internal/program"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
)

var errDevice = &netconf.Error{Kind: netconf.ErrInvalid, Key: nad.ResourceAnnotation, Err: errors.New("nri knows no devices of the kubelet")}

// claimed returns the attachment of a pod for a network of a claim, which the kubelet has prepared
// before the runtime starts the pod.
func (o *service) claimed(ctx context.Context, n dra.Network, a delegate.Attachment) (_ delegate.Attachment, err error) {
	origin := nad.Origin{Use: nad.UseClaimed, Claim: n.Claim}
	if n.Config != "" {
		a.Network, err = n.Network(o.rules)
	} else {
		var d nad.Definition
		a.Network, d, err = o.definition(o.view.Definition(ctx, n.Definition))
		origin.Definition, origin.UID, origin.Version = d.Ref, d.UID, d.Version
	}
	a.IfName, a.Origin = n.IfName, origin.JSON()
	return a, err
}

// definition returns the network of the definition d, unless there is an err.
func (o *service) definition(d nad.Definition, err error) (netconf.Network, nad.Definition, error) {
	if err != nil {
		return netconf.Network{}, d, err
	}
	n, err := d.Network(o.rules)
	if err == nil && d.Resource != "" {
		err = fmt.Errorf("NAD %s: %w", d.Ref, errDevice) // it would be attached without its device
	}
	return n, d, err
}

// records is [dra.Config.Records]. A pod has stopped before the kubelet releases its claims, so
// that there is something to detach only if that has failed, or if its event was lost.
func (o *service) records(ctx context.Context, podUID string) (all []dra.Detachable, err error) {
	late := time.Now().Add(detachedTimeout) // for all of them
	var records []program.Record
	if podUID == "" {
		records, err = program.All(ctx, o.conf.StateDir)
	} else {
		records, err = program.OfPod(ctx, podUID, o.conf.StateDir)
	}
	for _, r := range records {
		var tried bool // once for all networks of the record
		var failed error
		all = append(all, dra.Detachable{AddRecord: r.AddRecord, Detach: func(ctx context.Context, ifname string) error {
			ctx, cancel := context.WithDeadline(ctx, late)
			defer cancel()
			if r.State == scratch.Deleting || r.State == scratch.Leftover { // the pod's DEL has failed
				if !tried {
					tried, failed = true, o.life.Del(ctx, r.Key, lifecycle.DelRequest{})
				}
				return failed
			}
			return o.life.Detach(ctx, r.Key, ifname)
		}})
	}
	return all, err
}

// offered is [dra.Config.Network].
func (o *service) offered(ctx context.Context, name string) (n netconf.Network, err error) {
	if ref, notADefinition := nad.ParseRef(name, ""); notADefinition == nil {
		n, _, err = o.definition(o.view.KnownDefinition(ctx, ref))
	} else {
		n, err = netconf.Load(os.DirFS(o.conf.ConfDir), name)
	}
	if err == nil {
		err = o.life.Status(ctx, []netconf.Network{n})
	}
	return n, err
}
