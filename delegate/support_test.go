package delegate_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
)

// network returns a network of plugins of the given types.
func network(tb testing.TB, version, name string, plugins ...string) netconf.Network {
	tb.Helper()
	var list []string
	for _, typ := range plugins {
		list = append(list, `{"type":"`+typ+`"}`)
	}
	return nodetest.Parse(fmt.Sprintf(`{"cniVersion":%q,"name":%q,"plugins":[%s]}`, version, name, strings.Join(list, ",")))
}

// attach returns the attachment of n to eth0 of container c1.
func attach(n netconf.Network) delegate.Attachment {
	return delegate.Attachment{Network: n, ContainerID: "c1", NetNS: "/no-such-directory/c1", IfName: "eth0"}
}

// added returns a as it is once result was printed.
func added(a delegate.Attachment, result string) delegate.Attached {
	return delegate.Attached{Attachment: a, Result: json.RawMessage(result)}
}

// fakes returns an Exec with the plugins of the given types, which succeed.
func fakes(types ...string) *delegatetest.Exec {
	x := &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{}}
	for _, typ := range types {
		x.Plugins[typ] = delegatetest.Result(nil)
	}
	return x
}

func invoker(x *delegatetest.Exec) *delegate.Invoker {
	return &delegate.Invoker{Exec: x, Path: []string{"/opt/cni/bin", "/usr/lib/cni"}}
}

// printing returns a plugin that prints text on ADD and does the rest well.
func printing(text string) delegatetest.Plugin {
	return func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
		if c.Command == "ADD" {
			return []byte(text), nil
		}
		return delegatetest.Result(nil)(ctx, c)
	}
}

// failing returns a plugin whose command returns err.
func failing(command string, err error) delegatetest.Plugin {
	return func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
		if c.Command == command {
			return nil, err
		}
		return delegatetest.Result(nil)(ctx, c)
	}
}

// coded returns an error object.
func coded(code uint, msg string) error { return types.NewError(code, msg, "") }

// stdin decodes what a plugin was given.
func stdin(tb testing.TB, c delegatetest.Call) map[string]json.RawMessage {
	tb.Helper()
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(c.Stdin, &keys); err != nil {
		tb.Fatalf("stdin of %s: %v", c, err)
	}
	return keys
}

func environ(c delegatetest.Call) map[string]string {
	env := map[string]string{}
	for _, kv := range c.Env {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	return env
}

func result(ifname string) types.Result {
	return &types100.Result{CNIVersion: "1.1.0", Interfaces: []*types100.Interface{{Name: ifname, Sandbox: "/no-such-directory/c1"}}}
}

// mustCIDR returns an address with its prefix, which must be valid.
func mustCIDR(s string) net.IPNet {
	ip, network, err := net.ParseCIDR(s)
	if err != nil {
		panic(err)
	}
	return net.IPNet{IP: ip, Mask: network.Mask}
}

// observe returns an observer that calls ended with each invocation that has
// ended.
func observe(ended func(delegate.Error)) func(context.Context, delegate.Event) (context.Context, func(error)) {
	return func(ctx context.Context, e delegate.Event) (context.Context, func(error)) {
		return ctx, func(err error) { ended(delegate.Error{Event: e, Err: err}) }
	}
}

// refusing returns an [delegate.Invoker.Refuse] that refuses plugins of a type.
func refusing(typ string) func(netconf.Plugin) error {
	return func(p netconf.Plugin) error {
		if p.Type() == typ {
			return types.NewError(types.ErrInvalidNetworkConfig, "not this one", "")
		}
		return nil
	}
}
