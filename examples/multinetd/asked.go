package main

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/scratch"
)

// asked is the configuration and the CNI_PATH of an ADD.
type asked struct {
	conf    []byte
	cniPath string
}

// places keeps for each directory of records what the last ADD with records there
// has asked.
type places struct {
	mu   sync.Mutex // guards what follows
	last map[string]asked
}

// note replaces what was asked for dir.
func (p *places) note(dir string, a asked) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil {
		p.last = make(map[string]asked)
	}
	p.last[dir] = a
}

// dirs returns the directories of records, in order.
func (p *places) dirs() []string { return slices.Sorted(maps.Keys(p.all())) }

func (p *places) all() map[string]asked {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.last)
}

// plugin returns multinet. Its ADD notes what was asked before it does anything else, and
// tells users of the cluster why it has failed. Its DEL cancels what the daemon changes by
// itself.
func (d *daemon) plugin() plugin.Plugin {
	p := multinet.New(d.cluster.Multinet())
	add := p.Add
	p.Add = func(ctx context.Context, c *plugin.Call) error {
		d.asked.note(c.Manager.Dir, asked{c.StdinData, c.Path})
		ctx, end := d.cluster.Adding(ctx, c.ContainerID, c.Args)
		err := add(ctx, c)
		end(err)
		return err
	}
	p.Del = func(ctx context.Context, c *plugin.Call) error {
		defer d.cluster.Deleting(c.ContainerID)()
		return c.Del(ctx)
	}
	return p
}

// change keeps a container in step with the networks that its pod selects. The
// configuration is that of the last ADD with records in dir or, before the first, the
// daemon's own.
func (d *daemon) change(ctx context.Context, dir string, k scratch.Key, c multinet.Cluster, replace bool) ([]lifecycle.Reconciled, error) {
	ctx, end := d.host.Begin(ctx)
	defer end()
	last := d.asked.all()[dir]
	return multinet.Reconcile(ctx, d.process(ctx), skel.CmdArgs{StdinData: last.conf, Path: last.cniPath}, c, k, replace)
}
