package tool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"path/filepath"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/multinet/multinet"
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
func (t *tool) gc(flags *flag.FlagSet) runner {
	dryRun := flags.Bool("dry-run", false, "list what would be tried, and change nothing")
	keys := make(map[string]*string) // of the configuration: a DEL that fails is tried with what they say now
	for key, name := range map[string]string{"binDir": "bin-dir", "confDir": "conf-dir", "nadDir": "nad-dir"} {
		keys[key] = flags.String(name, "", "`directory` "+key+" of the present configuration")
	}
	privileges := flags.String("delegate-privileges", "keep", "`value` of delegatePrivileges: keep or noNew")
	keys["delegatePrivileges"] = privileges
	return t.onRecords(flags, func(ctx context.Context, _ []string) error {
		if *privileges != "keep" && *privileges != "noNew" {
			return fmt.Errorf("--delegate-privileges %s: want keep or noNew", *privileges)
		}
		if *dryRun {
			stale, err := t.records(ctx, func(r lifecycle.Record) bool { return r.Stale() || r.NetNSGone() })
			return errors.Join(t.printRecords(stale, false), err)
		}
		dir, err := filepath.Abs(t.life.Dir)
		if err != nil {
			return err
		}
		name := "multinet"
		keys["name"], keys["type"], keys["cniDir"] = &name, &name, &dir
		conf, err := json.Marshal(keys)
		if err != nil {
			return err
		}
		return t.sweep(ctx, conf)
	})
}

// sweep detaches stale attachments once, with the configuration conf of multinet.
func (t *tool) sweep(ctx context.Context, conf []byte) error {
	out := newOutput("CONTAINER INTERFACE NETWORK OUTCOME WHY")
	s := &lifecycle.Sweeper{Ended: lifecycle.Record.NetNSGone, Tell: func(swept lifecycle.Swept) {
		v := sweptView{keyView: viewKey(swept.Key), Removed: swept.Err == nil}
		outcome := "removed"
		if swept.Err != nil {
			outcome, v.Error = "failed", swept.Err.Error()
		}
		out.add(v, v.Container, v.Interface, v.Network, outcome, v.Error)
	}}
	if err := multinet.PrepareSweep(ctx, s, t.process, multinet.Cluster{}, conf, ""); err != nil {
		return err
	}
	swept, err := s.Sweep(ctx)
	if err = cmp.Or(err, t.print(out)); err != nil {
		return err
	}
	if left := swept.Failed + swept.Unreadable; left > 0 {
		return fmt.Errorf("%d of %d could not be removed", left, left+swept.Removed)
	}
	if swept.Waiting > 0 {
		t.say("%d left alone: an operation on the container is running", swept.Waiting)
	}
	return nil
}
