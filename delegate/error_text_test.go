package delegate_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/status"
)

// The runtime, and so the operator, reads one line that names the command, the
// network, the interface and the plugin once, and no package.
func TestErrorNamesEachThingOnce(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	blue := attach(network(t, "1.1.0", "blue", "bridge", "tuning"))
	dead, end := context.WithCancelCause(ctx)
	end(errors.New("the node is going down"))
	for name, tt := range map[string]struct {
		fail string // the command that the tuning plugin fails
		do   func(*delegate.Invoker) error
		want string
	}{
		"a plugin": {
			"ADD", func(iv *delegate.Invoker) error { _, err := iv.Add(ctx, blue); return err },
			`ADD network "blue" (eth0): plugin "tuning": no; not today`,
		},
		"several plugins": {
			"DEL", func(iv *delegate.Invoker) error {
				return iv.DelAll(ctx, []delegate.Attached{{Attachment: blue}, {Attachment: blue}})
			},
			`DEL network "blue" (eth0): plugin "tuning": no; not today; DEL network "blue" (eth0): plugin "tuning": no; not today`,
		},
		"a network": {
			"STATUS", func(iv *delegate.Invoker) error { return iv.Status(ctx, blue.Network) },
			`STATUS network "blue": plugin "tuning": no; not today`,
		},
		"an undo that fails": {
			"DEL", func(iv *delegate.Invoker) error {
				return iv.Undo(ctx, []delegate.Attached{{Attachment: blue}}, errors.New("no\n disk "))
			},
			`no; disk; undoing it failed as well: DEL network "blue" (eth0): plugin "tuning": no; not today`,
		},
		"a plugin that is not installed": {
			"", func(iv *delegate.Invoker) error {
				iv.Exec = nil
				iv.Path = []string{"/absent/bin", "/absent/bin", "", "/absent/more"}
				_, err := iv.Add(ctx, blue)
				return err
			},
			`ADD network "blue" (eth0): plugin "bridge": not found in /absent/bin::/absent/more; relative directories are skipped`,
		},
		"no path": {
			"", func(*delegate.Invoker) error { return new(delegate.Invoker).Status(ctx, blue.Network) },
			`STATUS network "blue": plugin "bridge": not found in an empty path`,
		},
		"a plugin that is the asking one": {
			"", func(iv *delegate.Invoker) error {
				iv.Self = []string{"tuning"}
				_, err := iv.Add(ctx, blue)
				return err
			},
			`ADD network "blue" (eth0): plugin "tuning": a plugin must not delegate to itself: remove it from the network's plugins`,
		},
		"CHECK without a result": {
			"", func(iv *delegate.Invoker) error { return iv.Check(ctx, delegate.Attached{Attachment: blue}) },
			`CHECK network "blue" (eth0): no result to compare with`,
		},
		"what is no result": {
			"", func(iv *delegate.Invoker) error {
				iv.Exec.(*delegatetest.Exec).Plugins["bridge"] = printing(`{"cniVersion":"1.1.0","ips":[null]}`)
				_, err := iv.Add(ctx, blue)
				return err
			},
			`ADD network "blue" (eth0): plugin "bridge": cannot decode result: ips[0] is null`,
		},
		"a context that has ended": {
			"", func(iv *delegate.Invoker) error { return iv.Status(dead, blue.Network) },
			`STATUS network "blue": plugin "bridge": context canceled: the node is going down`,
		},
		"a configuration that cannot be used": {
			"", func(iv *delegate.Invoker) error {
				a := attach(parse(t, `{"cniVersion":"1.1.0","name":"blue","type":"bridge","capabilities":{"mac":true}}`))
				a.CapabilityArgs = map[string]json.RawMessage{"mac": json.RawMessage("{")}
				_, err := iv.Add(ctx, a)
				return err
			},
			`ADD network "blue" (eth0): ` + (&netconf.Error{Kind: netconf.ErrDecode, Key: "plugins[0].runtimeConfig.mac", Err: errors.New("line 1, column 1: unexpected end of JSON input")}).Error(),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := fakes("bridge", "tuning")
			x.Plugins["tuning"] = failing(tt.fail, types.NewError(107, "no", "not today"))
			if got := fmt.Sprint(status.Error(tt.do(invoker(x)))); got != tt.want {
				t.Errorf("the runtime reads\n\t%s, want\n\t%s", got, tt.want)
			}
		})
	}
}

// Fields that are empty leave no gap in the text.
func TestErrorLeavesOutEmptyFields(t *testing.T) {
	t.Parallel()
	why := errors.New("why")
	other := &netconf.Error{Kind: netconf.ErrInvalid, Network: "red"}
	for want, err := range map[string]*delegate.Error{
		"why":                              {Err: why},
		"ADD: why":                         {Command: "ADD", Err: why},
		`network "blue": why`:              {Network: "blue", Err: why},
		`(eth0): plugin "p": why`:          {IfName: "eth0", Plugin: "p", Err: why},
		`plugin "p": why`:                  {Plugin: "p", Err: why},
		`network "blue": ` + other.Error(): {Network: "blue", Err: other},
	} {
		if got := err.Error(); got != want {
			t.Errorf("text %q, want %q", got, want)
		}
	}
}
