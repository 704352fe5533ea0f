package delegate_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/status"
)

// Wherever an ADD fails and in whatever way, what ran is undone, last first and
// the failing plugin included, and the code of the cause is kept.
func TestAddLeavesNothingWhereverItFails(t *testing.T) {
	t.Parallel()
	const networks, plugins = 3, 2
	ways := []struct {
		name string
		fail func(delegatetest.Plugin) delegatetest.Plugin
		code uint
		is   error
	}{
		{"error", func(p delegatetest.Plugin) delegatetest.Plugin {
			return delegatetest.FailOn("ADD", 107, "no free device", p)
		}, 107, nil},
		{"hang", func(p delegatetest.Plugin) delegatetest.Plugin { return delegatetest.HangOn("ADD", p) }, types.ErrTryAgainLater, context.DeadlineExceeded},
		{"noise", func(p delegatetest.Plugin) delegatetest.Plugin {
			return delegatetest.NoiseOn("ADD", "loading driver\n", p)
		}, types.ErrDecodingFailure, delegate.ErrResult},
		{"undecodable", func(delegatetest.Plugin) delegatetest.Plugin { return printing(`{"cniVersion":"1.1.0","ips":7}`) }, types.ErrDecodingFailure, delegate.ErrResult},
		{"two results", func(delegatetest.Plugin) delegatetest.Plugin {
			return printing(`{"cniVersion":"1.1.0"}{"cniVersion":"1.1.0"}`)
		}, types.ErrDecodingFailure, delegate.ErrResult},
		{"nothing printed", func(delegatetest.Plugin) delegatetest.Plugin { return printing("\n") }, types.ErrDecodingFailure, delegate.ErrResult},
	}
	for _, way := range ways {
		for i := range networks {
			for j := range plugins {
				t.Run(fmt.Sprintf("%s at %d,%d", way.name, i, j), func(t *testing.T) {
					t.Parallel()
					x := fakes()
					var as []delegate.Attachment
					var want []string
					for n := range networks {
						var types []string
						for p := range plugins {
							typ := fmt.Sprintf("p%d%d", n, p)
							types = append(types, typ)
							x.Plugins[typ] = delegatetest.Result(nil)
							if n < i || n == i && p <= j {
								want = append(want, fmt.Sprintf("%s net%d", typ, n))
							}
						}
						a := attach(network(t, "1.1.0", fmt.Sprint("blue", n), types...))
						a.IfName = fmt.Sprint("net", n)
						as = append(as, a)
					}
					failing := fmt.Sprintf("p%d%d", i, j)
					x.Plugins[failing] = way.fail(x.Plugins[failing])
					var trace []string
					for _, s := range want {
						trace = append(trace, "ADD "+s)
					}
					for _, s := range slices.Backward(want) {
						trace = append(trace, "DEL "+s)
					}

					synctest.Test(t, func(t *testing.T) {
						ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
						defer cancel()
						done, err := invoker(x).AddAll(ctx, as)
						if done != nil {
							t.Errorf("attached %v", done)
						}
						var e *delegate.Error
						if !errors.As(err, &e) || e.Plugin != failing || e.Network != fmt.Sprint("blue", i) || e.IfName != fmt.Sprint("net", i) {
							t.Errorf("the error does not say what failed: %v", err)
						}
						if got := status.Code(err); got != way.code {
							t.Errorf("code %d, want %d (%v)", got, way.code, err)
						}
						if way.is != nil && !errors.Is(err, way.is) {
							t.Errorf("%v is not %v", err, way.is)
						}
						var undo *delegate.UndoError
						if errors.As(err, &undo) {
							t.Errorf("undoing failed: %v", undo.Undo)
						}
					})
					nodetest.Equal(t, "trace", x.Trace(), trace)
					if left := x.Live(); len(left) > 0 {
						t.Errorf("left behind: %q", left)
					}
				})
			}
		}
	}
}

func TestAddReturnsTheLastResult(t *testing.T) {
	t.Parallel()
	x := fakes("bridge", "tuning")
	x.Plugins["bridge"] = delegatetest.Result(result("eth0"))
	x.Plugins["tuning"] = func(_ context.Context, c delegatetest.Call) ([]byte, error) { return stdin(t, c)["prevResult"], nil }
	done, err := invoker(x).Add(t.Context(), attach(network(t, "1.0.0", "blue", "bridge", "tuning")))
	nodetest.OK(t, err)
	r, err := done.Decode()
	if err != nil || r.Version() != "1.0.0" || !strings.Contains(string(done.Result), `"name":"eth0"`) {
		t.Errorf("result %s: %v", done.Result, err)
	}
	if done.ContainerID != "c1" || done.Network.Name() != "blue" {
		t.Errorf("attachment %+v", done.Attachment)
	}
	if _, ok := stdin(t, x.Calls()[0])["prevResult"]; ok {
		t.Error("the first plugin was given a result")
	}
}

func TestAttachedDecodeFails(t *testing.T) {
	t.Parallel()
	a := attach(network(t, "1.0.0", "blue", "bridge"))
	for name, result := range map[string]json.RawMessage{
		"none": nil, "null": json.RawMessage("null"), "not JSON": json.RawMessage("{"), "unknown version": json.RawMessage(`{"cniVersion":"9.0.0"}`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := delegate.Attached{Attachment: a, Result: result}.Decode()
			var e *delegate.Error
			if !errors.Is(err, delegate.ErrResult) || status.Code(err) != types.ErrDecodingFailure || !errors.As(err, &e) || e.Network != "blue" {
				t.Errorf("err = %v", err)
			}
		})
	}
}

// brokenPipe is where nothing can be printed.
type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// The runtime gets the result in the version it asked for, in one write.
func TestAttachedPrintTo(t *testing.T) {
	t.Parallel()
	const printed = `{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24"}],"x":1.50e2}`
	a := attach(network(t, "1.0.0", "blue", "bridge"))
	for _, tt := range []struct{ name, result, version, want string }{
		{"as it is", printed, "1.0.0", printed + "\n"},
		{"converted", printed, "0.4.0", `"version": "4"`},
	} {
		var out strings.Builder
		if err := added(a, tt.result).PrintTo(&out, tt.version); err != nil || !strings.Contains(out.String(), tt.want) || !json.Valid([]byte(out.String())) {
			t.Errorf("%s: printed %q: %v", tt.name, &out, err)
		}
	}
	for _, tt := range []struct {
		name, result, version string
		to                    io.Writer
		code                  uint
	}{
		{"no result", "null", "1.0.0", io.Discard, types.ErrDecodingFailure},
		{"inexpressible", `{"cniVersion":"1.0.0"}`, "0.2.0", io.Discard, types.ErrIncompatibleCNIVersion},
		{"unknown version", printed, "9.0.0", io.Discard, types.ErrIncompatibleCNIVersion},
		{"broken pipe", printed, "1.0.0", brokenPipe{}, types.ErrIOFailure},
	} {
		err := added(a, tt.result).PrintTo(tt.to, tt.version)
		var e *delegate.Error
		if status.Code(err) != tt.code || !errors.As(err, &e) || e.Network != "blue" {
			t.Errorf("%s: %v, want code %d", tt.name, err, tt.code)
		}
		if broken := tt.to != io.Discard; errors.Is(err, io.ErrClosedPipe) != broken {
			t.Errorf("%s: whose failure is %v?", tt.name, err)
		}
	}
}

// What cannot be attached is refused before anything is run: a missing binary,
// the plugin itself, a bad name, a container that is none.
func TestNothingIsRunForBadInput(t *testing.T) {
	t.Parallel()
	good := attach(network(t, "1.0.0", "blue", "bridge"))
	with := func(change func(*delegate.Attachment)) delegate.Attachment {
		a := good
		change(&a)
		return a
	}
	named := func(typ string) delegate.Attachment { return attach(network(t, "1.0.0", "red", "bridge", typ)) }
	tests := []struct {
		name string
		a    delegate.Attachment
		code uint
		is   error
		text string
	}{
		{"missing binary of the last plugin", named("absent"), 7, delegate.ErrPluginNotFound, `plugin "absent"`},
		{"self", named("multinet"), 7, nil, `plugin "multinet": a plugin must not delegate to itself`},
		{"type with a path", named("../bridge"), 7, delegate.ErrPluginNotFound, "CNI_PATH"},
		{"type ..", named(".."), 7, delegate.ErrPluginNotFound, "CNI_PATH"},
		{"type with NUL", named(`a\u0000b`), 7, delegate.ErrPluginNotFound, "CNI_PATH"},
		{"no container", with(func(a *delegate.Attachment) { a.ContainerID = "" }), 4, nil, "containerID"},
		{"container with a slash", with(func(a *delegate.Attachment) { a.ContainerID = "../c" }), 4, nil, "../c"},
		{"no interface", with(func(a *delegate.Attachment) { a.IfName = "" }), 4, nil, "interface"},
		{"interface of 16 bytes", with(func(a *delegate.Attachment) { a.IfName = "0123456789abcdef" }), 4, nil, "interface"},
		{"NUL in the arguments", with(func(a *delegate.Attachment) { a.Args = "A=\x00" }), 4, nil, "CNI_ARGS"},
		{"NUL in the namespace", with(func(a *delegate.Attachment) { a.NetNS = "/\x00" }), 4, nil, "CNI_NETNS"},
		{"network without a name", with(func(a *delegate.Attachment) { a.Network = parse(t, `{"plugins":[{"type":"bridge"}]}`) }), 7, nil, "name"},
		{"no network", with(func(a *delegate.Attachment) { a.Network = netconf.Network{} }), 7, nil, "name"},
		{"capability argument that is not JSON", with(func(a *delegate.Attachment) {
			a.Network = parse(t, `{"name":"blue","plugins":[{"type":"bridge"},{"type":"portmap","capabilities":{"portMappings":true}}]}`)
			a.CapabilityArgs = map[string]json.RawMessage{"portMappings": json.RawMessage("[")}
		}), 6, nil, "portMappings"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			x := fakes("bridge", "portmap", "multinet")
			iv := invoker(x)
			iv.Self = []string{"multinet"}
			_, err := iv.AddAll(t.Context(), []delegate.Attachment{good, tt.a})
			if got := status.Code(err); got != tt.code || !strings.Contains(fmt.Sprint(err), tt.text) {
				t.Errorf("code %d, want %d and %q: %v", got, tt.code, tt.text, err)
			}
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("%v is not %v", err, tt.is)
			}
			if trace := x.Trace(); trace != nil {
				t.Errorf("ran %q", trace)
			}
		})
	}
}

// The zero Invoker finds nothing, and says so.
func TestZeroInvoker(t *testing.T) {
	t.Parallel()
	_, err := new(delegate.Invoker).Add(t.Context(), attach(network(t, "1.0.0", "blue", "bridge")))
	if !errors.Is(err, delegate.ErrPluginNotFound) || status.Code(err) != 7 {
		t.Errorf("err = %v", err)
	}
}

// DEL tries every plugin of every attachment whatever fails, last first, and
// says all that went wrong in that order.
func TestDelGoesOnPastFailures(t *testing.T) {
	t.Parallel()
	x := fakes("a", "b", "c", "d")
	x.Plugins["a"] = delegatetest.FailOn("DEL", 5, "a is stuck", x.Plugins["a"])
	x.Plugins["d"] = delegatetest.FailOn("DEL", 101, "d is stuck", x.Plugins["d"])
	blue := added(attach(network(t, "1.0.0", "blue", "a", "b")), `{"cniVersion":"1.0.0"}`)
	red := added(attach(network(t, "1.0.0", "red", "c", "absent", "d")), `{"cniVersion":"1.0.0"}`)
	bad := red
	bad.IfName = ""
	err := invoker(x).DelAll(t.Context(), []delegate.Attached{blue, bad, red})
	nodetest.Equal(t, "trace", x.Trace(), []string{"DEL d eth0", "DEL c eth0", "DEL b eth0", "DEL a eth0"})
	lines := strings.Split(fmt.Sprint(err), "\n")
	for i, want := range []string{"d is stuck", `plugin "absent"`, "interface name is empty", "a is stuck"} {
		if i >= len(lines) || !strings.Contains(lines[i], want) {
			t.Errorf("line %d of the error does not say %q:\n%v", i, want, err)
		}
	}
	if got := status.Code(err); got != 101 || !errors.Is(err, delegate.ErrPluginNotFound) {
		t.Errorf("code %d: %v", got, err)
	}
	if err := invoker(fakes("a", "b")).Del(t.Context(), blue); err != nil {
		t.Errorf("a DEL that succeeds: %v", err)
	}
}

// A DEL whose context has ended does nothing and does not claim otherwise.
func TestDelAfterItsContextHasEndedIsAnError(t *testing.T) {
	t.Parallel()
	x := fakes("a", "b")
	ctx, cancel := context.WithCancelCause(t.Context())
	x.Plugins["b"] = func(context.Context, delegatetest.Call) ([]byte, error) {
		cancel(errors.New("shutting down"))
		return nil, nil
	}
	err := invoker(x).Del(ctx, added(attach(network(t, "1.0.0", "blue", "a", "b")), ""))
	if !errors.Is(err, context.Canceled) || status.Code(err) != 11 || !strings.Contains(fmt.Sprint(err), `plugin "a": context canceled: shutting down`) {
		t.Errorf("err = %v", err)
	}
	nodetest.Equal(t, "calls", x.Trace(), []string{"DEL b eth0"})
}
