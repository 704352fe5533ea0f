package cluster

import (
	"context"
	"errors"
	"slices"

	"github.com/metacni/metacni/delegate/device"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/internal/program"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// recorded says that the records of p.Container have changed.
func (c *Cluster) recorded(p nad.Pod) {
	c.writer.Changed(p)
	c.follow.changed(p)
}

// networks returns the status of the recorded attachments, with the content of their device
// information files, and an error for the files that cannot be read.
func (c *Cluster) networks(records []program.Record) ([]status.Network, error) {
	var all []status.Network
	var errs []error
	for _, r := range records {
		networks := multinet.NetworkStatus(r.AddRecord)
		errs = append(errs, device.Describe(string(c.conf.Root), networks, r.Attached...))
		all = append(all, networks...)
	}
	return all, errors.Join(errs...)
}

// recordsOf returns the records of a container, and whether one of them says that it is
// attached.
func (c *Cluster) recordsOf(ctx context.Context, id string) (all []program.Record, attached bool, err error) {
	for _, dir := range c.plugin.Dirs() {
		records, err := (&lifecycle.Manager{Dir: dir}).Container(ctx, id)
		if err != nil {
			return nil, false, err
		}
		for _, r := range records {
			all = append(all, program.Record{AddRecord: r, Dir: dir})
			attached = attached || r.State.Attached()
		}
	}
	return all, attached, nil
}

// container returns the records of an attached container, oldest first.
func (c *Cluster) container(ctx context.Context, id string) ([]program.Record, error) {
	all, _, err := c.recordsOf(ctx, id)
	all = slices.DeleteFunc(all, func(r program.Record) bool { return !r.State.Attached() })
	slices.SortStableFunc(all, func(a, b program.Record) int { return a.Created.Compare(b.Created) })
	return all, err
}
