package tool

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/netconf"
)

// sweptView is what -o json prints of one attachment that gc has tried. Programs
// rely on it.
type sweptView struct {
	keyView
	Removed bool   `json:"removed"`
	Error   string `json:"error,omitempty"`
}

// gc detaches stale attachments, and prints which it detached and which not. With --dry-run it
// lists those that it would try.
func (t *tool) gc(ctx context.Context, _ []string) error {
	if t.dryRun {
		return t.list(ctx, func(r lifecycle.Record) bool { return r.Stale() || r.NetNSGone() })
	}
	dir, err := filepath.Abs(t.life.Dir)
	if err != nil {
		return err
	}
	conf, err := json.Marshal(map[string]string{
		"name": "multinet", "type": "multinet", "cniDir": dir, "binDir": t.binDir, "confDir": t.confDir, "nadDir": t.nadDir,
	})
	if err != nil {
		return err
	}
	all := []sweptView{}
	var rows [][]string
	s := &lifecycle.Sweeper{Batch: math.MaxInt, Unseen: true, Tell: func(swept lifecycle.Swept) {
		v := sweptView{keyView: viewKey(swept.Key), Removed: swept.Err == nil}
		outcome, why := "removed", "-"
		if swept.Err != nil {
			outcome, v.Error = "failed", swept.Err.Error()
			why = v.Error
		}
		all = append(all, v)
		rows = append(rows, []string{cmp.Or(v.Container, "-"), cmp.Or(v.Interface, "-"), cmp.Or(v.Network, "-"), outcome, why})
	}}
	if err := multinet.PrepareSweep(ctx, s, t.process, multinet.Cluster{}, conf, ""); err != nil {
		return err
	}
	swept, err := s.Sweep(ctx)
	if printErr := t.print(all, "CONTAINER INTERFACE NETWORK OUTCOME WHY", rows); err == nil {
		err = printErr
	}
	switch left := swept.Failed + swept.Unreadable; {
	case err != nil:
	case left > 0:
		err = fmt.Errorf("%d of %d could not be removed", left, left+swept.Removed)
	case swept.Waiting > 0:
		fmt.Fprintf(t.ask, "multinet: %d left alone: an operation on the container is running\n", swept.Waiting)
	}
	return err
}

// sweeper returns a Sweeper for the records of the published plugin. It reports to
// stderr.
func (i *installer) sweeper(ctx context.Context, published netconf.Plugin) (*lifecycle.Sweeper, error) {
	conf, err := json.Marshal(published)
	if err != nil {
		return nil, err
	}
	s := &lifecycle.Sweeper{Wait: i.sweepInterval, MaxWait: 10 * i.sweepInterval, Tell: func(swept lifecycle.Swept) {
		if swept.Err == nil {
			i.say("%s %s was stale, and has been removed", swept.Key.ContainerID, swept.Key.IfName)
		} else {
			i.say("%v", swept.Err)
		}
	}}
	// The runtime's plugins are in the directory of the program.
	process := i.process
	process.Root = plugin.Root(i.root)
	return s, multinet.PrepareSweep(ctx, s, process, multinet.Cluster{}, conf, i.binDir)
}
