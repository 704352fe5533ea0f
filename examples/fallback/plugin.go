package main

import (
	"context"
	"errors"
	"slices"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/status"
)

func fallback() plugin.Plugin {
	return plugin.Plugin{
		About:    "CNI meta-plugin fallback",
		StateDir: "/var/lib/cni/fallback", StateKey: "cniDir",
		Forget: "multinet forget",
		Add:    add, GC: gc, Status: ready,
	}
}

func add(ctx context.Context, c *plugin.Call) error {
	choices, err := readChoices(c)
	if err != nil {
		return err
	}
	attach := func(i int) []delegate.Attachment {
		a := c.Attachment(choices.Choices[i])
		a.CapabilityArgs = choices.RuntimeConfig
		return []delegate.Attachment{a}
	}
	var failed failures // of all choices that were tried, except the last
	err = c.Add(ctx, lifecycle.Transaction{
		Plan: lifecycle.Plan(attach(0)...),
		Next: func(_ context.Context, err error) ([]delegate.Attachment, error) {
			next := len(failed) + 1
			if next == len(choices.Choices) || errors.Is(err, lifecycle.ErrPlan) { // other choices would use the same interface name
				return nil, nil
			}
			failed = append(failed, err)
			return attach(next), nil
		},
	})
	var last *lifecycle.Error
	if len(failed) > 0 && errors.As(err, &last) {
		last.Err = append(failed, last.Err)
	}
	return err
}

// ready succeeds if one choice is ready.
func ready(ctx context.Context, c *plugin.Call) error {
	choices, err := readChoices(c)
	if err != nil {
		return err
	}
	var failed failures
	for _, n := range choices.Choices {
		err := c.Manager.Status(ctx, []netconf.Network{n})
		if err == nil {
			return nil
		}
		failed = append(failed, err)
	}
	return status.NotReady(failed)
}

// gc removes stale attachments even if the choices cannot be read. It skips choices
// with a plugin that is not installed, because they attach nothing on this node.
func gc(ctx context.Context, c *plugin.Call) error {
	choices, err := readChoices(c)
	installed := slices.DeleteFunc(choices.Choices, func(n netconf.Network) bool {
		return slices.ContainsFunc(n.Plugins(), func(p netconf.Plugin) bool {
			_, err := c.Manager.Invoker.Exec.FindInPath(p.Type(), c.Manager.Invoker.Path)
			return err != nil
		})
	})
	return errors.Join(c.GC(ctx, installed...), err)
}
