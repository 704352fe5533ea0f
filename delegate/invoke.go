package delegate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/metacni/metacni/internal/cause"
	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/netconf"
)

// An invocation is one command for one plugin of one attachment. For GC and
// STATUS the attachment is just a network.
type invocation struct {
	Event
	at      Attachment
	index   int // of the plugin
	typ     string
	request netconf.Request
}

// invocation returns that of command for the index'th plugin of a.
func (a Attachment) invocation(command Command, index int, prev json.RawMessage) *invocation {
	e := a.event(command)
	p := a.Network.Plugins()[index]
	if e.Plugin = p.Type(); p.Step() != "" {
		e.Plugin += "/" + p.Step()
	}
	return &invocation{e, a, index, p.Type(), netconf.Request{PrevResult: prev, CapabilityArgs: a.CapabilityArgs}}
}

func (a Attachment) event(command Command) Event {
	return Event{Command: command, Network: a.Network.Name(), ContainerID: a.ContainerID, IfName: a.IfName}
}

// fail returns the error of in, which failed because of err.
func (in *invocation) fail(err error) error { return &Error{in.Event, err} }

// fail says that command failed for a because of err. It names no plugin.
func (a Attachment) fail(command Command, err error) error { return &Error{a.event(command), err} }

// valid refuses an attachment with which no plugin may be run.
func (a Attachment) valid(command Command) error {
	wrong := utils.ValidateNetworkName(a.Network.Name())
	if wrong == nil && len(a.Network.Plugins()) == 0 {
		wrong = types.NewError(types.ErrInvalidNetworkConfig, "network has no plugins", "")
	}
	if command != CommandGC && command != CommandStatus {
		container := utils.ValidateContainerID(a.ContainerID)
		if container != nil {
			container.Code = types.ErrInvalidEnvironmentVariables // it is of an environment variable here
		} else if strings.ContainsRune(a.NetNS, 0) || strings.ContainsRune(a.Args, 0) {
			container = types.NewError(types.ErrInvalidEnvironmentVariables, "CNI_NETNS or CNI_ARGS holds a NUL byte", "")
		}
		wrong = cmp.Or(container, utils.ValidateInterfaceName(a.IfName), wrong)
	}
	if wrong == nil {
		return nil
	}
	return a.fail(command, wrong)
}

// find returns the path of the executable of a plugin type.
func (iv *Invoker) find(plugin string) (string, error) {
	switch {
	case plugin == "", plugin == ".", plugin == "..", strings.ContainsAny(plugin, "/\x00"):
		return "", &markedError{errors.New("not found: a plugin's type must be the name of a file in a directory of CNI_PATH"), ErrPluginNotFound}
	}
	path, err := iv.exec().FindInPath(plugin, iv.Path)
	if err != nil && !errors.Is(err, ErrPluginNotFound) && fault.Code(err, types.ErrUnknown) == types.ErrUnknown {
		err = &markedError{err, ErrPluginNotFound}
	}
	return path, err
}

// findAndRun finds the executable of in and runs it.
func (iv *Invoker) findAndRun(ctx context.Context, in *invocation) error {
	if err := cause.Of(ctx); err != nil {
		return in.fail(err)
	}
	path, err := iv.find(in.typ)
	if err != nil {
		return in.fail(err)
	}
	_, err = iv.run(ctx, in, path)
	return err
}

// run executes a plugin; nothing else does. It returns what the plugin printed.
// For ADD that is a result that can be decoded.
func (iv *Invoker) run(ctx context.Context, in *invocation, path string) ([]byte, error) {
	if err := cause.Of(ctx); err != nil {
		return nil, in.fail(notRun(err))
	}
	stdin, err := in.at.Network.Request(in.index, in.request)
	if err != nil {
		return nil, in.fail(notRun(err))
	}
	ctx, done := iv.observed(ctx, in.Event)
	out, err := iv.exec().ExecPlugin(ctx, path, stdin, iv.environ(ctx, in))
	switch {
	case err != nil:
		err = redacted(err, stdin)
	case in.Command == CommandAdd:
		out, err = readResult(out, in.at.Network.CNIVersion(), stdin)
	}
	if err != nil {
		err = in.fail(cause.Add(ctx, err))
	}
	done(err)
	return out, err
}

// observed tells the observer of e, which begins. The function that it returns tells
// the observer and the logger how e ended.
func (iv *Invoker) observed(ctx context.Context, e Event) (context.Context, func(error)) {
	start := time.Now()
	ended := func(error) {}
	if iv.Observer != nil {
		ctx, ended = iv.Observer(ctx, e)
	}
	return ctx, func(err error) {
		if iv.Logger != nil {
			iv.Logger.LogAttrs(ctx, slog.LevelDebug, "invoked plugin",
				slog.String("command", string(e.Command)), slog.String("plugin", e.Plugin), slog.String("network", e.Network),
				slog.String("container", e.ContainerID), slog.String("ifname", e.IfName),
				slog.Duration("took", time.Since(start)), slog.Any("err", err))
		}
		ended(err)
	}
}

// environ returns the environment of in, sorted by key.
func (iv *Invoker) environ(ctx context.Context, in *invocation) []string {
	more := optionsOf(ctx).Env
	env := append(append(make([]string, 0, len(iv.Env)+len(more)+6), iv.Env...), more...)
	env = slices.DeleteFunc(env, func(kv string) bool {
		return !strings.Contains(kv, "=") || slices.Contains(parameters, envKey(kv))
	})
	env = append(env, "CNI_COMMAND="+string(in.Command), "CNI_PATH="+strings.Join(iv.Path, string(filepath.ListSeparator)))
	if in.ContainerID != "" {
		env = append(env, "CNI_CONTAINERID="+in.ContainerID, "CNI_NETNS="+in.at.NetNS, "CNI_IFNAME="+in.IfName, "CNI_ARGS="+in.at.Args)
	}
	slices.SortStableFunc(env, func(a, b string) int { return strings.Compare(envKey(a), envKey(b)) })
	slices.Reverse(env) // the last of a key counts
	env = slices.CompactFunc(env, func(a, b string) bool { return envKey(a) == envKey(b) })
	slices.Reverse(env)
	return env
}

// parameters are the variables of the specification (section 2, "Parameters").
var parameters = []string{"CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH"} //nolint:gochecknoglobals // never written

func envKey(kv string) string { key, _, _ := strings.Cut(kv, "="); return key }
