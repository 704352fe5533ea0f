package delegatetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/printed"
)

// A Program is a plugin that runs without a process of its own, such as the
// method Execute of a plugin.Plugin. It executes the command that env and stdin
// describe, as package skel does, runs its delegates with exec, and prints its
// result or its error object to stdout. It returns an error where a process would
// exit with status 1.
type Program func(ctx context.Context, exec delegate.Exec, env []string, stdin io.Reader, stdout, stderr io.Writer) error

// RunPlugin runs p for one call, with the plugins of exec as its delegates, and
// returns what a runtime would see. A panic in p ends p with status 2. RunPlugin
// does not touch the environment or the standard files of the process, so any
// number of plugins can run in parallel. CNI_PATH is required, see [Invocation].
func RunPlugin(ctx context.Context, p Program, exec delegate.Exec, c Invocation) (o Outcome) {
	var stdout, stderr printed.Output
	defer func() {
		o.Stdout, o.Stderr = stdout.Bytes(), stderr.Bytes()
		if r := recover(); r != nil {
			o.Status, o.Stderr = 2, fmt.Appendf(o.Stderr, "panic: %v\n\n%s", r, debug.Stack())
		}
	}()
	if p(ctx, exec, c.environ(), bytes.NewReader(c.Stdin), &stdout, &stderr) != nil {
		o.Status = 1
	}
	return o
}

// Plugin returns p as a fake plugin: it runs as in [RunPlugin], with the plugins of
// exec as its delegates. exec may be the [Exec] that the fake belongs to. If p fails,
// the fake's error is [Outcome.Err], with the code that p printed.
func (p Program) Plugin(exec delegate.Exec) Fake {
	return func(ctx context.Context, c Invocation) ([]byte, error) {
		return RunPlugin(ctx, p, exec, c).answer()
	}
}

// environ returns the environment of a plugin that is called with c.
func (c Invocation) environ() []string {
	fields := c.variables()
	env := slices.DeleteFunc(slices.Clone(c.Env), func(kv string) bool {
		key, _, _ := strings.Cut(kv, "=")
		return fields[key] != nil && *fields[key] != ""
	})
	for _, key := range []string{"CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH"} {
		if v := *fields[key]; v != "" {
			env = append(env, key+"="+v)
		}
	}
	return env
}

// An Outcome is what a runtime sees of a plugin that has ended.
type Outcome struct {
	Status         int // exit status; -1 when it was killed, or could not be run
	Stdout, Stderr []byte
}

// Result returns the result that the plugin printed. It fails as [Outcome.Err] does, and
// unless stdout is exactly one JSON document, a result.
func (o Outcome) Result() (types.Result, error) {
	if err := o.Err(); err != nil {
		return nil, err
	}
	doc, err := printed.Document(o.Stdout)
	if err != nil {
		return nil, err
	}
	if said := o.said(); said != nil {
		return nil, fmt.Errorf("stdout %q is an error object, and the exit status is 0", printed.Clip(doc))
	}
	r, err := create.CreateFromBytes(doc)
	if err != nil {
		return nil, fmt.Errorf("stdout %q is no result: %w", printed.Clip(o.Stdout), err)
	}
	return r, nil
}

// Err returns nil if the plugin exited with status 0. Otherwise it returns the
// [*types.Error] that the plugin printed or, if it printed none, an error with
// its status and the end of its stderr, or the panic there.
//
// [*types.Error]: https://pkg.go.dev/github.com/containernetworking/cni/pkg/types#Error
func (o Outcome) Err() error {
	if o.Status == 0 {
		return nil
	}
	if said := o.said(); said != nil {
		return said
	}
	return printed.Failure(fmt.Sprint("exit status ", o.Status), o.Stdout, o.Stderr)
}

// said returns the error object that the plugin printed, or nil.
func (o Outcome) said() (said *types.Error) {
	doc, err := printed.Document(o.Stdout)
	if err != nil || json.Unmarshal(doc, &said) != nil || said == nil || said.Code == 0 && said.Msg == "" {
		return nil
	}
	return said
}

// answer returns what running the plugin returns to its caller.
func (o Outcome) answer() ([]byte, error) {
	if err := o.Err(); err != nil {
		return nil, err
	}
	return o.Stdout, nil
}
