package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

// A daemonless executes a DEL as the daemon would: with its records, under the lock of
// the container.
type daemonless struct {
	plugin.Plugin

	process plugin.System
}

// del executes a DEL. It reports false if only the daemon can do what is left of it.
func (d daemonless) del(ctx context.Context, args *skel.CmdArgs) (done bool, err error) {
	c, err := d.Call(d.process, delegate.CommandDel, *args)
	if err != nil {
		return true, err
	}
	// Without this a DEL would find no record in the wrong place, and succeed.
	if _, err := os.Stat(c.Manager.Dir); err != nil {
		return false, types.NewError(types.ErrIOFailure, "the records of the daemon cannot be reached", err.Error())
	}
	err = d.Do(ctx, d.process, delegate.CommandDel, *args)
	return !needsDaemon(err), err
}

// needsDaemon reports whether err, of a DEL, is about something that the daemon may
// have: a plugin that is resident or not installed, or records that this process cannot
// use.
func needsDaemon(err error) bool {
	var records *scratch.Error
	unusable := errors.As(err, &records) && !errors.Is(err, scratch.ErrCorrupt) && status.Code(records) == types.ErrIOFailure
	return unusable || errors.Is(err, delegate.ErrNotRun) || errors.Is(err, delegate.ErrPluginNotFound)
}

// recorded returns when the attachment was recorded, or zero if it is not.
func (d daemonless) recorded(ctx context.Context, args *skel.CmdArgs) (at time.Time, known bool) {
	c, err := d.Call(d.process, delegate.CommandDel, *args)
	if err != nil {
		return at, false
	}
	records, err := c.Manager.Container(ctx, args.ContainerID)
	for _, r := range records {
		if r.Key == c.Key() {
			return r.Created, true
		}
	}
	return at, err == nil
}
