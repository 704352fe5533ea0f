package main

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/adopt"
	"github.com/metacni/metacni/examples/internal/program"
)

// theirs is what flannel's own plugin has recorded in the same directory.
func (c *call) theirs() adopt.Flannel {
	return adopt.Flannel{Root: c.Root, Dir: c.conf.DataDir, Network: c.conf.Name}
}

// adopt takes the container over from flannel's own plugin, if that has attached
// it. The runtime brings the result with each call.
func (c *call) adopt(ctx context.Context) error {
	conf, err := program.Decode[struct {
		PrevResult json.RawMessage `json:"prevResult"`
	}](c.args.StdinData)
	if err != nil {
		return err
	}
	at := delegate.Attached{
		Attachment: delegate.Attachment{ContainerID: c.args.ContainerID, NetNS: c.args.Netns, IfName: c.args.IfName, Args: c.args.Args},
		Result:     conf.PrevResult,
	}
	a, err := c.theirs().Attachment(at)
	if errors.Is(err, delegate.ErrResult) {
		at.Result = nil // a DEL does without
		a, err = c.theirs().Attachment(at)
	}
	if errors.As(err, new(*adopt.Error)) && !errors.Is(err, fs.ErrNotExist) {
		current := c.theirs()
		current.Current, _ = c.network() // without one, the file is all there is
		a, err = current.Attachment(at)
	}
	if err == nil {
		_, err = c.life.Adopt(ctx, a)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// adoptStale takes over what flannel's own plugin has left of containers that are
// not valid, for GC to remove.
func (c *call) adoptStale(ctx context.Context, valid []types.GCAttachment) error {
	if valid == nil {
		return nil
	}
	theirs := c.theirs()
	theirs.Current, _ = c.network() // as above
	var errs []error
	for _, o := range adopt.Take(ctx, c.life, theirs.Stale(valid), false) {
		errs = append(errs, o.Err)
	}
	return errors.Join(errs...)
}
