package conform

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/printed"
)

// A Program is a plugin that runs without a process of its own; see [delegatetest.Program].
type Program delegatetest.Program

func (p Program) serve(_ context.Context, b *bench) (served, error) {
	return served{
		path: "/conform",
		run: func(ctx context.Context, c delegatetest.Invocation) outcome {
			return outcome{Outcome: delegatetest.RunPlugin(ctx, delegatetest.Program(p), b.exec, c)}
		},
	}, nil
}

func (Program) name() string            { return "" }
func (Program) hide(text string) string { return text }

// An outcome is the Outcome of a plugin, with the way in which its process ended.
type outcome struct {
	delegatetest.Outcome

	late bool   // whether it was killed because its time was up
	how  string // how it ended, if not by itself
}

// Err returns the error of the Outcome. It says how the plugin ended, unless the plugin has said
// why it failed.
func (o outcome) Err() error {
	err, said := o.Outcome.Err(), (*types.Error)(nil)
	if o.how == "" || errors.As(err, &said) {
		return err
	}
	return printed.Failure(o.how, o.Stdout, o.Stderr)
}

// Result returns the result of the Outcome, and fails as Err does.
func (o outcome) Result() (types.Result, error) {
	if err := o.Err(); err != nil {
		return nil, err
	}
	return o.Outcome.Result()
}

// current returns the result in the newest format.
func (o outcome) current() (*types100.Result, error) {
	r, err := o.Result()
	if err != nil {
		return nil, err
	}
	return types100.NewResultFromResult(r)
}

// failure is Err with a text of limited length.
func (o outcome) failure() error { return bounded(o.Err()) }

// bounded returns err, or an error with the first part of its text.
func bounded(err error) error {
	said := (*types.Error)(nil)
	if !errors.As(err, &said) {
		return err
	}
	return fmt.Errorf("code %d, %q", said.Code, printed.Clip([]byte(said.Error())))
}

// attachment returns the attachment that a call is about, as [delegatetest.Exec.Live] lists it.
func attachment(c delegatetest.Invocation) string {
	return c.Plugin + " " + c.ContainerID + " " + c.IfName
}

// twice returns p, except that it prints its output twice: two documents instead of one.
func twice(_ string, p delegatetest.Fake) delegatetest.Fake {
	return printing(p, func(out []byte) []byte {
		out = append(bytes.TrimSpace(out), '\n')
		return slices.Concat(out, out)
	})
}

// silent returns p, except that it prints nothing.
func silent(_ string, p delegatetest.Fake) delegatetest.Fake {
	return printing(p, func([]byte) []byte { return nil })
}

// printing returns p, except that it prints what change makes of its output when it succeeds.
func printing(p delegatetest.Fake, change func(out []byte) []byte) delegatetest.Fake {
	return func(ctx context.Context, c delegatetest.Invocation) ([]byte, error) {
		out, err := p(ctx, c)
		if err != nil {
			return out, err
		}
		return change(out), nil
	}
}
