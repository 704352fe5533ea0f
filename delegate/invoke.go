package delegate

import (
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
	"github.com/metacni/metacni/netconf"
)

// An invocation is one command for one plugin of one attachment. For GC and
// STATUS the attachment is just a network.
type invocation struct {
	command Command
	Attachment
	index  int
	plugin string // type of the index'th plugin
}

func (iv *Invoker) invocation(command Command, a Attachment, index int) *invocation {
	return &invocation{command: command, Attachment: a, index: index, plugin: a.Network.Plugins()[index].Type()}
}

// fail returns the error of in, which failed because of err.
func (in *invocation) fail(err error) error {
	return &Error{
		Command: in.command, Plugin: in.plugin, Network: in.Network.Name(),
		ContainerID: in.ContainerID, IfName: in.IfName, Err: err,
	}
}

// checkAttachment refuses an attachment with which no plugin may be run.
func checkAttachment(command Command, a Attachment) error {
	err := validate(a)
	if err == nil {
		return nil
	}
	return a.fail(command, err)
}

// checkNetwork refuses a network with which no plugin may be run.
func checkNetwork(command Command, n netconf.Network) error {
	if err := validateNetwork(n); err != nil {
		return &Error{Command: command, Network: n.Name(), Err: err}
	}
	return nil
}

func validate(a Attachment) error {
	if err := utils.ValidateContainerID(a.ContainerID); err != nil {
		return types.NewError(types.ErrInvalidEnvironmentVariables, err.Msg, err.Details)
	}
	if err := utils.ValidateInterfaceName(a.IfName); err != nil {
		return err
	}
	if strings.ContainsRune(a.NetNS, 0) || strings.ContainsRune(a.Args, 0) {
		return types.NewError(types.ErrInvalidEnvironmentVariables, "CNI_NETNS or CNI_ARGS holds a NUL byte", "")
	}
	return validateNetwork(a.Network)
}

func validateNetwork(n netconf.Network) error {
	if err := utils.ValidateNetworkName(n.Name()); err != nil {
		return err
	}
	if len(n.Plugins()) == 0 {
		return types.NewError(types.ErrInvalidNetworkConfig, "network has no plugins", "")
	}
	return nil
}

// find returns the path of the executable of a plugin type.
func (iv *Invoker) find(plugin string) (string, error) {
	switch {
	case slices.Contains(iv.Self, plugin):
		return "", types.NewError(types.ErrInvalidNetworkConfig, "a plugin must not delegate to itself: remove it from the network's plugins", "")
	case plugin == "", plugin == ".", plugin == "..", strings.ContainsAny(plugin, "/\x00"):
		return "", &markedError{errors.New("not found: a plugin's type must be the name of a file in a directory of CNI_PATH"), ErrPluginNotFound}
	}
	path, err := iv.exec().FindInPath(plugin, iv.Path)
	if err != nil && !errors.Is(err, ErrPluginNotFound) && codeIn(err) == types.ErrUnknown {
		err = &markedError{err, ErrPluginNotFound}
	}
	return path, err
}

// findAndRun finds the executable of in and runs it.
func (iv *Invoker) findAndRun(ctx context.Context, in *invocation, prev json.RawMessage, valid []types.GCAttachment) ([]byte, error) {
	if err := cause.Of(ctx); err != nil {
		return nil, in.fail(err)
	}
	path, err := iv.find(in.plugin)
	if err != nil {
		return nil, in.fail(err)
	}
	return iv.run(ctx, in, path, prev, valid)
}

// run executes a plugin; nothing else does. It returns what the plugin printed.
// For ADD that is a result that can be decoded.
func (iv *Invoker) run(ctx context.Context, in *invocation, path string, prev json.RawMessage, valid []types.GCAttachment) ([]byte, error) {
	if err := cause.Of(ctx); err != nil {
		return nil, in.fail(notRun(err))
	}
	stdin, err := in.Network.Request(in.index, netconf.Request{PrevResult: prev, CapabilityArgs: in.CapabilityArgs, ValidAttachments: valid})
	if err != nil {
		return nil, in.fail(notRun(err))
	}
	ctx, done := iv.observed(ctx, in)
	out, err := iv.exec().ExecPlugin(ctx, path, stdin, iv.environ(in))
	switch {
	case err != nil:
		err = redacted(err, stdin)
	case in.command == CommandAdd:
		out, err = readResult(out, in.Network.CNIVersion(), stdin)
	}
	if err != nil {
		err = in.fail(cause.Add(ctx, err))
	}
	done(err)
	return out, err
}

// observed tells the observer that in begins. The function that it returns tells
// the observer and the logger how in ended.
func (iv *Invoker) observed(ctx context.Context, in *invocation) (context.Context, func(error)) {
	start := time.Now()
	ended := func(error) {}
	if iv.Observer != nil {
		ctx, ended = iv.Observer(ctx, Event{
			Command: in.command, Plugin: in.plugin, Network: in.Network.Name(), ContainerID: in.ContainerID, IfName: in.IfName,
		})
	}
	return ctx, func(err error) {
		iv.logger().LogAttrs(ctx, slog.LevelDebug, "invoked plugin",
			slog.String("command", string(in.command)), slog.String("plugin", in.plugin), slog.String("network", in.Network.Name()),
			slog.String("container", in.ContainerID), slog.String("ifname", in.IfName),
			slog.Duration("took", time.Since(start)), slog.Any("err", err))
		ended(err)
	}
}

// environ returns the environment of in, sorted by key.
func (iv *Invoker) environ(in *invocation) []string {
	env := make([]string, 0, len(iv.Env)+6)
	for _, kv := range iv.Env {
		if strings.Contains(kv, "=") && !slices.Contains(parameters, envKey(kv)) {
			env = append(env, kv)
		}
	}
	env = append(env, "CNI_COMMAND="+string(in.command), "CNI_PATH="+strings.Join(iv.Path, string(filepath.ListSeparator)))
	if in.ContainerID != "" {
		env = append(env, "CNI_CONTAINERID="+in.ContainerID, "CNI_NETNS="+in.NetNS, "CNI_IFNAME="+in.IfName, "CNI_ARGS="+in.Args)
	}
	slices.SortStableFunc(env, func(a, b string) int { return strings.Compare(envKey(a), envKey(b)) })
	unique := env[:0]
	for i, kv := range env {
		if i+1 == len(env) || envKey(env[i+1]) != envKey(kv) { // the last of a key counts
			unique = append(unique, kv)
		}
	}
	return unique
}

// parameters are the variables of the specification (section 2, "Parameters").
var parameters = []string{"CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH"} //nolint:gochecknoglobals // never written

func envKey(kv string) string { key, _, _ := strings.Cut(kv, "="); return key }
