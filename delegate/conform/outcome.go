package conform

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

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

// An outcome is what a runtime sees of a plugin that has ended.
type outcome struct {
	delegatetest.Outcome

	late bool   // whether it was killed because its time was up
	how  string // how it ended, if not by itself
}

// Err is that of Outcome, and says how the plugin ended.
func (o outcome) Err() error {
	err := o.Outcome.Err()
	if text, ok := strings.CutPrefix(fmt.Sprint(err), "exit status -1"); ok && o.how != "" {
		return errors.New(o.how + text)
	}
	return err
}

// Result is that of Outcome.
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

// environ returns the environment of a process that is called with c.
func environ(c delegatetest.Invocation) []string {
	env := c.Env
	for _, v := range [][2]string{
		{"CNI_COMMAND", c.Command},
		{"CNI_CONTAINERID", c.ContainerID},
		{"CNI_NETNS", c.NetNS},
		{"CNI_IFNAME", c.IfName},
		{"CNI_ARGS", c.Args},
		{"CNI_PATH", c.Path},
	} {
		if v[1] != "" {
			env = append(env, v[0]+"="+v[1])
		}
	}
	return env
}

// attachment returns that of a call, as [delegatetest.Exec.Live] lists it.
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
