package tool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"time"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/internal/program"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
)

// A sweptView is what -o json prints of one attachment that gc has tried. Programs
// rely on it.
type sweptView struct {
	keyView
	Removed bool   `json:"removed"`
	Error   string `json:"error,omitempty"`
}

// A staleView is what -o json prints of one record that gc would try. Programs rely on it.
type staleView struct {
	recordView
	Reason string `json:"reason"`
}

// gc detaches stale attachments, and prints which it detached and which not. With --dry-run it
// lists those that it would try.
func (t *tool) gc(flags *flag.FlagSet) runner {
	dryRun := flags.Bool("dry-run", false, "list what would be tried, and change nothing")
	unknown := flags.Bool("unknown", false, "also detach if nobody knows whether it lives")
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
			return t.printStale(ctx, *unknown)
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
		return t.sweep(ctx, conf, *unknown)
	})
}

// printStale prints what a sweep would try, and why. What a second pass would prove is not known.
func (t *tool) printStale(ctx context.Context, unknown bool) error {
	all, err := t.records(ctx, attachments)
	out := newOutput("CONTAINER INTERFACE NETWORK STATE LIFE WHY")
	left := 0
	for i, j := range t.life.Judge(all) {
		r := all[i]
		v := staleView{t.view(r, j, false), j.Why}
		switch {
		case j.Life == lifecycle.Dead, v.Todo != "" && unknown:
		case r.Unfinished():
			v.Reason = cmp.Or(r.Why, "an operation was interrupted, or could not do everything")
		default:
			if v.Todo != "" {
				left++
			}
			continue
		}
		out.add(v, v.Container, v.Interface, v.Network, v.State, v.Life, v.Reason)
	}
	t.sayUnknown(left)
	return errors.Join(t.print(out), err)
}

// sayUnknown says how many attachments are left because nobody knows whether they live.
func (t *tool) sayUnknown(n int) {
	if n > 0 && t.form != "json" {
		t.say("%d of containers of which it is not known whether they live: see multinet list", n)
	}
}

// sweep detaches stale attachments, with the configuration conf of multinet.
func (t *tool) sweep(ctx context.Context, conf []byte, unknown bool) error {
	out := newOutput("CONTAINER INTERFACE NETWORK OUTCOME WHY")
	s := &lifecycle.Sweeper{Tell: func(swept lifecycle.SweepResult) {
		v := sweptView{keyView: viewKey(swept.Key), Removed: swept.Err == nil}
		outcome := "removed"
		if swept.Err != nil {
			outcome, v.Error = "failed", swept.Err.Error()
		}
		out.add(v, v.Container, v.Interface, v.Network, outcome, v.Error)
	}}
	if unknown {
		s.Unknown = func(lifecycle.AddRecord) bool { return true }
	}
	if err := multinet.PrepareSweep(ctx, s, t.process, multinet.Cluster{}, conf, ""); err != nil {
		return err
	}
	swept, err := sweepUntilKnown(ctx, s.Sweep)
	if err = errors.Join(err, t.print(out)); err != nil {
		return err
	}
	t.sayUnknown(swept.Unknown)
	var errs []error
	if left := swept.Failed + swept.Unreadable; left > 0 {
		errs = append(errs, fmt.Errorf("%d of %d could not be removed", left, left+swept.Removed))
	}
	if swept.Waiting > 0 {
		errs = append(errs, fmt.Errorf("%d left alone: an operation on the container is running", swept.Waiting))
	}
	return errors.Join(errs...)
}

// Between two passes gc waits for lookAgain. Two passes prove what looks at the whole machine can
// prove.
const (
	lookAgain = time.Second
	mostLooks = 2
)

// sweepUntilKnown makes passes until none may know more of some container, but not more than
// mostLooks. It returns what they have done, and what is left.
func sweepUntilKnown(ctx context.Context, sweep func(context.Context) (lifecycle.SweepStats, error)) (all lifecycle.SweepStats, err error) {
	for looks := 1; ; looks++ {
		swept, err := sweep(ctx)
		swept.Removed += all.Removed
		swept.Waiting = max(0, swept.Waiting-all.Failed) // it does not try these again so soon
		swept.Failed += all.Failed
		if all = swept; err != nil || all.Pending == 0 || looks == mostLooks {
			return all, err
		}
		if !program.Pause(ctx, lookAgain) {
			return all, ctx.Err()
		}
	}
}
