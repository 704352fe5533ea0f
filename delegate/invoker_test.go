package delegate_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/status"
)

// Wherever an ADD fails and in whatever way, what ran is undone, last first and
// the failing plugin included, and the code of the cause is kept.
func TestAddLeavesNothingWhereverItFails(t *testing.T) {
	t.Parallel()
	prints := func(text string) func(delegatetest.Fake) delegatetest.Fake {
		return func(delegatetest.Fake) delegatetest.Fake { return printing(text) }
	}
	for name, way := range map[string]struct {
		fail func(delegatetest.Fake) delegatetest.Fake
		code uint
		is   error
	}{
		"error": {func(p delegatetest.Fake) delegatetest.Fake {
			return delegatetest.FailOn("ADD", 107, "no free device", p)
		}, 107, nil},
		"hang": {func(p delegatetest.Fake) delegatetest.Fake { return delegatetest.HangOn("ADD", p) }, types.ErrTryAgainLater, context.DeadlineExceeded},
		"noise": {func(p delegatetest.Fake) delegatetest.Fake {
			return delegatetest.NoiseOn("ADD", "loading driver\n", p)
		}, 6, delegate.ErrResult},
		"undecodable":     {prints(`{"cniVersion":"1.1.0","ips":7}`), 6, delegate.ErrResult},
		"two results":     {prints(`{"cniVersion":"1.1.0"}{"cniVersion":"1.1.0"}`), 6, delegate.ErrResult},
		"nothing printed": {prints("\n"), 6, delegate.ErrResult},
	} {
		for at, failing := range slices.Concat(crew...) {
			t.Run(name+" at "+failing, func(t *testing.T) {
				t.Parallel()
				as, x := crewed(t)
				x.Plugins[failing] = way.fail(x.Plugins[failing])
				synctest.Test(t, func(t *testing.T) {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					done, err := invoker(x).AddAll(ctx, as)
					var e *delegate.Error
					if done != nil || !errors.As(err, &e) || e.Plugin != failing || e.Network != "blue"+e.IfName[len("net"):] {
						t.Errorf("attached %v, and the error does not say what failed: %v", done, err)
					}
					nodetest.Code(t, err, way.code)
					if way.is != nil && !errors.Is(err, way.is) || errors.Is(err, delegate.ErrNotUndone) {
						t.Errorf("err = %v", err)
					}
				})
				var added, undone []string
				for i, plugins := range crew {
					for _, p := range plugins {
						added = append(added, fmt.Sprintf("ADD %s net%d", p, i))
					}
				}
				for _, call := range slices.Backward(added[:at+1]) {
					undone = append(undone, strings.Replace(call, "ADD", "DEL", 1))
				}
				nodetest.Equal(t, "trace", x.Trace(), slices.Concat(added[:at+1], undone))
				nodetest.Equal(t, "left behind", x.Live(), nil)
			})
		}
	}
}

// A plugin gets the result of the one before as it was printed, to the digit.
func TestAddReturnsTheLastResult(t *testing.T) {
	t.Parallel()
	const printed = `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0"}],"x":9007199254740993}`
	x := fakes("bridge", "tuning")
	x.Plugins["bridge"] = printing(printed)
	x.Plugins["tuning"] = func(_ context.Context, c delegatetest.Invocation) ([]byte, error) {
		return stdin(t, c)["prevResult"], nil
	}
	done, err := invoker(x).Add(t.Context(), attach(network(t, "1.0.0", "blue", "bridge", "tuning")))
	nodetest.OK(t, err)
	r, err := done.ParsedResult()
	nodetest.OK(t, err)
	nodetest.Equal(t, "version", r.Version(), "1.0.0")
	nodetest.Equal(t, "result", string(done.Result), printed)
	nodetest.Equal(t, "attachment", []string{done.ContainerID, done.Network.Name()}, []string{"c1", "blue"})
	nodetest.Equal(t, "the first plugin was given", stdin(t, x.Calls()[0])["prevResult"], nil)
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
		{"in its own version", printed, "", printed + "\n"},
		{"converted", printed, "0.4.0", `"version":"4"`},
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
	_, err := delegate.Attached{Attachment: a}.ParsedResult() // nobody has kept it
	nodetest.Is(t, err, delegate.ErrResult)
	nodetest.Fails(t, err, types.ErrDecodingFailure, "no result")
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
		{"self", named("multinet"), 7, nil, `plugin "multinet": not this one`},
		{"type with a path", named("../bridge"), 7, delegate.ErrPluginNotFound, "CNI_PATH"},
		{"no container", with(func(a *delegate.Attachment) { a.ContainerID = "" }), 4, nil, "containerID"},
		{"container with a slash", with(func(a *delegate.Attachment) { a.ContainerID = "../c" }), 4, nil, "../c"},
		{"no interface", with(func(a *delegate.Attachment) { a.IfName = "" }), 4, nil, "interface"},
		{"interface of 16 bytes", with(func(a *delegate.Attachment) { a.IfName = "0123456789abcdef" }), 4, nil, "interface"},
		{"NUL in the arguments", with(func(a *delegate.Attachment) { a.Args = "A=\x00" }), 4, nil, "CNI_ARGS"},
		{"NUL in the namespace", with(func(a *delegate.Attachment) { a.NetNS = "/\x00" }), 4, nil, "CNI_NETNS"},
		{"network without a name", with(func(a *delegate.Attachment) { a.Network = nodetest.Parse(`{"plugins":[{"type":"bridge"}]}`) }), 7, nil, "name"},
		{"no network", with(func(a *delegate.Attachment) { a.Network = netconf.Network{} }), 7, nil, "name"},
		{"capability argument that is not JSON", with(func(a *delegate.Attachment) {
			a.Network = nodetest.Parse(`{"name":"blue","plugins":[{"type":"bridge"},{"type":"portmap","capabilities":{"portMappings":true}}]}`)
			a.CapabilityArgs = map[string]json.RawMessage{"portMappings": json.RawMessage("[")}
		}), 6, nil, "portMappings"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			x := fakes("bridge", "portmap", "multinet")
			iv := invoker(x)
			iv.Refuse = refusing("multinet")
			_, err := iv.AddAll(t.Context(), []delegate.Attachment{good, tt.a})
			nodetest.Fails(t, err, tt.code, tt.text)
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("%v is not %v", err, tt.is)
			}
			nodetest.Equal(t, "ran", x.Trace(), nil)
		})
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
	nodetest.Code(t, err, 101)
	nodetest.Is(t, err, delegate.ErrPluginNotFound)
}

// A DEL whose context has ended does nothing and does not claim otherwise.
func TestDelAfterItsContextHasEndedIsAnError(t *testing.T) {
	t.Parallel()
	x := fakes("a", "b")
	ctx, cancel := context.WithCancelCause(t.Context())
	x.Plugins["b"] = func(context.Context, delegatetest.Invocation) ([]byte, error) {
		cancel(errors.New("shutting down"))
		return nil, nil
	}
	err := invoker(x).Del(ctx, added(attach(network(t, "1.0.0", "blue", "a", "b")), ""))
	nodetest.Is(t, err, context.Canceled)
	nodetest.Fails(t, err, 11, `plugin "a": context canceled: shutting down`)
	nodetest.Equal(t, "calls", x.Trace(), []string{"DEL b eth0"})
}

// The environment is sorted, the same for the same input, and has none of the
// caller's CNI_ variables.
func TestEnvironmentIsSortedAndTheCallersOwn(t *testing.T) {
	t.Parallel()
	env := []string{
		"PATH=/bin", "CNI_COMMAND=STATUS", "CNI_IFNAME=other", "CNI_NETNS=/other", "CNI_ARGS=X=1", "CNI_CONTAINERID=other", "CNI_PATH=/other",
		"HOME=/first", "garbage", "HOME=/root", "CNI_NETNS_OVERRIDE=1", "EMPTY=", "LIST=a=b",
	}
	run := func(change func(*delegate.Invoker)) []delegatetest.Invocation {
		x := fakes("p")
		iv := invoker(x)
		iv.Env = env
		if change != nil {
			change(iv)
		}
		a := attach(network(t, "1.1.0", "blue", "p"))
		a.Args = "A=1;B=2"
		done, err := iv.Add(t.Context(), a)
		nodetest.OK(t, err)
		done.NetNS = ""
		nodetest.OK(t, errors.Join(iv.Del(t.Context(), done), iv.Status(t.Context(), a.Network), iv.GC(t.Context(), a.Network, nil)))
		return x.Calls()
	}
	calls := run(nil)
	same := []string{"CNI_NETNS_OVERRIDE=1", "CNI_PATH=/opt/cni/bin:/usr/lib/cni", "EMPTY=", "HOME=/root", "LIST=a=b", "PATH=/bin"}
	for i, want := range [][]string{
		{"CNI_ARGS=A=1;B=2", "CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS=/no-such-directory/c1"},
		{"CNI_ARGS=A=1;B=2", "CNI_COMMAND=DEL", "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS="},
		{"CNI_COMMAND=STATUS"},
		{"CNI_COMMAND=GC"},
	} {
		nodetest.Equal(t, calls[i].String(), calls[i].Env, slices.Concat(want, same))
	}
	for range 20 {
		nodetest.Equal(t, "calls with the same input", run(nil), calls)
	}
	none := run(func(iv *delegate.Invoker) { iv.Env = nil })
	nodetest.Equal(t, "an Invoker without Env passes something on", none[2].Env, []string{"CNI_COMMAND=STATUS", "CNI_PATH=/opt/cni/bin:/usr/lib/cni"})
}

// Any number of invokers work side by side.
func TestInvokersShareNothing(t *testing.T) {
	t.Parallel()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			x := fakes("p", "q")
			iv := &delegate.Invoker{Exec: x, Path: []string{fmt.Sprint("/bin", i)}, Env: []string{fmt.Sprint("WHO=", i)}}
			a := attach(network(t, "1.1.0", fmt.Sprint("n", i), "p", "q"))
			for range 20 {
				done, err := iv.Add(t.Context(), a)
				if err == nil {
					err = iv.Del(t.Context(), done)
				}
				if err != nil {
					t.Error(err)
				}
			}
			for _, c := range x.Calls() {
				if env := environ(c); env["WHO"] != fmt.Sprint(i) || env["CNI_PATH"] != fmt.Sprint("/bin", i) {
					t.Errorf("invoker %d ran %s with %q", i, c, c.Env)
				}
			}
		})
	}
	wg.Wait()
}

// prevResult is what ADD printed, in the network's version, from 0.4.0 on.
func TestPrevResultOfDelAndCheck(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, version, result string
		del, check            string // "" for no prevResult, "-" for not run, "none" for ErrResult
	}{
		{"0.1.0", "0.1.0", `{"cniVersion":"0.1.0"}`, "", "-"},
		{"0.3.1", "0.3.1", `{"cniVersion":"0.3.1"}`, "", "-"},
		{"0.4.0", "0.4.0", `{"cniVersion":"0.4.0","x":1e3}`, `{"cniVersion":"0.4.0","x":1e3}`, `{"cniVersion":"0.4.0","x":1e3}`},
		{"1.0.0", "1.0.0", `{"cniVersion":"1.0.0"}`, `{"cniVersion":"1.0.0"}`, `{"cniVersion":"1.0.0"}`},
		{"none", "1.1.0", ``, "", "none"},
		{
			"of another version", "1.0.0", `{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.0.0.2/24"}]}`,
			`{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24"}]}`, `{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24"}]}`,
		},
		{"of no known version", "1.0.0", `{"cniVersion":"7.0.0"}`, "", "none"},
		{"not convertible", "0.4.0", `{"cniVersion":"0.4.0","ips":7,"ips":8}`, "", "none"},
		{"with a key twice", "1.0.0", `{"cniVersion":"1.0.0","x":1,"x":2}`, `{"cniVersion":"1.0.0"}`, `{"cniVersion":"1.0.0"}`},
		{"null", "1.0.0", `null`, "", "none"},
		{"broken", "1.0.0", `{"cniVersion":"1.0.0"`, "", "none"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := added(attach(network(t, tt.version, "blue", "p")), tt.result)
			if tt.result == "" {
				a.Result = nil
			}
			for command, want := range map[string]string{"DEL": tt.del, "CHECK": tt.check} {
				x := fakes("p")
				run := map[string]func(context.Context, delegate.Attached) error{"DEL": invoker(x).Del, "CHECK": invoker(x).Check}[command]
				got := "-"
				if err := run(t.Context(), a); errors.Is(err, delegate.ErrResult) && status.Code(err) == 6 {
					got = "none"
				} else if err != nil {
					t.Errorf("%s: %v", command, err)
				}
				for _, c := range x.Calls() {
					got = string(stdin(t, c)["prevResult"])
				}
				nodetest.Equal(t, fmt.Sprintf("%s was given", command), got, want)
			}
		})
	}
}

func TestCheckStopsAtTheFirstFailure(t *testing.T) {
	t.Parallel()
	x := fakes("a", "b", "c")
	x.Plugins["b"] = delegatetest.FailOn("CHECK", 110, "address is gone", x.Plugins["b"])
	iv := invoker(x)
	old := added(attach(network(t, "0.3.1", "old", "a")), `{"cniVersion":"0.3.1"}`)
	blue := added(attach(network(t, "1.0.0", "blue", "a", "b", "c")), `{"cniVersion":"1.0.0"}`)
	red := added(attach(network(t, "1.0.0", "red", "c")), `{"cniVersion":"1.0.0"}`)
	off := added(attach(nodetest.Parse(`{"cniVersion":"1.0.0","name":"off","disableCheck":true,"plugins":[{"type":"a"}]}`)), `{"cniVersion":"1.0.0"}`)

	// One that is too old is passed over, and does not fail.
	for _, a := range []delegate.Attached{old, off, red} {
		nodetest.OK(t, iv.Check(t.Context(), a))
	}
	nodetest.Code(t, iv.Check(t.Context(), blue), 110)
	nodetest.Equal(t, "trace", x.Trace(), []string{"CHECK c eth0", "CHECK a eth0", "CHECK b eth0"})
	nodetest.Equal(t, "CHECK of nothing", status.Code(iv.Check(t.Context(), delegate.Attached{})), 4)
}

func TestStatusStopsAtTheFirstFailure(t *testing.T) {
	t.Parallel()
	x := fakes("a", "b", "c")
	x.Plugins["b"] = delegatetest.FailOn("STATUS", 50, "no daemon", x.Plugins["b"])
	iv := invoker(x)
	nodetest.Equal(t, "code of STATUS", status.Code(iv.Status(t.Context(), network(t, "1.1.0", "blue", "a", "b", "c"))), 50)
	nodetest.OK(t, iv.Status(t.Context(), network(t, "1.0.0", "old", "absent")))
	nodetest.OK(t, iv.Status(t.Context(), network(t, "1.1.0", "red", "a")))
	nodetest.Equal(t, "trace", x.Trace(), []string{"STATUS a", "STATUS b", "STATUS a"})
	nodetest.Is(t, iv.Status(t.Context(), network(t, "1.1.0", "red", "absent")), delegate.ErrPluginNotFound)
	nodetest.Equal(t, "STATUS of nothing", status.Code(iv.Status(t.Context(), netconf.Network{})), 7)
}

// Every plugin is told, with the list under both keys.
func TestGCTellsEveryPlugin(t *testing.T) {
	t.Parallel()
	x := fakes("a", "b", "c")
	x.Plugins["a"] = delegatetest.FailOn("GC", 101, "a is busy", x.Plugins["a"])
	x.Plugins["c"] = delegatetest.FailOn("GC", 102, "c is busy", x.Plugins["c"])
	iv := invoker(x)
	valid := []types.GCAttachment{{ContainerID: "c1", IfName: "net1"}}
	err := iv.GC(t.Context(), network(t, "1.1.0", "blue", "a", "b", "c"), valid)
	if text := fmt.Sprint(err); status.Code(err) != 101 || strings.Index(text, "a is busy") > strings.Index(text, "c is busy") {
		t.Errorf("err = %v", err)
	}
	nodetest.OK(t, iv.GC(t.Context(), network(t, "1.1.0", "red", "b"), nil))
	for _, conf := range []netconf.Network{
		network(t, "1.0.0", "old", "a"),
		nodetest.Parse(`{"cniVersion":"1.1.0","name":"off","disableGC":true,"plugins":[{"type":"a"}]}`),
	} {
		nodetest.OK(t, iv.GC(t.Context(), conf, valid))
	}
	nodetest.Equal(t, "GC of nothing", status.Code(iv.GC(t.Context(), netconf.Network{}, valid)), 7)
	nodetest.Equal(t, "trace", x.Trace(), []string{"GC a", "GC b", "GC c", "GC b"})
	for i, want := range []string{`[{"containerID":"c1","ifname":"net1"}]`, "", "", `[]`} {
		keys := stdin(t, x.Calls()[i])
		for _, key := range []string{"cni.dev/valid-attachments", "cni.dev/attachments"} {
			if want != "" && string(keys[key]) != want {
				t.Errorf("call %d: %s is %s, want %s", i, key, keys[key], want)
			}
		}
	}
}

// No command runs a plugin once its context has ended.
func TestNothingStartsAfterTheContextHasEnded(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	x := fakes("p")
	iv := invoker(x)
	n := network(t, "1.1.0", "blue", "p")
	_, add := iv.Add(ctx, attach(n))
	for command, err := range map[string]error{
		"ADD": add, "DEL": iv.Del(ctx, added(attach(n), "")), "CHECK": iv.Check(ctx, added(attach(n), `{"cniVersion":"1.1.0"}`)),
		"STATUS": iv.Status(ctx, n), "GC": iv.GC(ctx, n, nil),
	} {
		if !errors.Is(err, context.Canceled) || status.Code(err) != 11 {
			t.Errorf("%s: %v", command, err)
		}
	}
	nodetest.Equal(t, "ran", x.Trace(), nil)
}

func TestUndoReturnsTheCause(t *testing.T) {
	t.Parallel()
	cause := errors.New("cannot write")
	as := []delegate.Attached{added(attach(network(t, "1.0.0", "blue", "a")), `{"cniVersion":"1.0.0"}`), added(attach(network(t, "1.0.0", "red", "b")), `{"cniVersion":"1.0.0"}`)}
	x := fakes("a", "b")
	nodetest.Is(t, invoker(x).Undo(t.Context(), as, cause), cause)
	nodetest.Equal(t, "calls", x.Trace(), []string{"DEL b eth0", "DEL a eth0"})
	nodetest.OK(t, invoker(x).Undo(t.Context(), as, nil))
	x.Plugins["a"] = delegatetest.FailOn("DEL", 5, "stuck", x.Plugins["a"])
	nodetest.Fails(t, invoker(x).Undo(t.Context(), as, nil), 5, "stuck")
}

// A plugin that was never started has done nothing, so there is nothing to undo.
func TestPluginThatNeverRanIsNotUndone(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	x := fakes("a", "b")
	x.Plugins["a"] = func(ctx context.Context, c delegatetest.Invocation) ([]byte, error) {
		cancel() // after the work is done: the ADD of a has succeeded
		return delegatetest.Result(nil)(ctx, c)
	}
	_, err := invoker(x).Add(ctx, attach(network(t, "1.0.0", "blue", "a", "b")))
	nodetest.Is(t, err, context.Canceled)
	nodetest.Code(t, err, 11)
	nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a eth0", "DEL a eth0"})
}

// slow is a DEL that takes d of its turn.
func slow(d time.Duration) delegatetest.Fake {
	return func(ctx context.Context, c delegatetest.Invocation) ([]byte, error) {
		if c.Command != "DEL" {
			return delegatetest.Result(nil)(ctx, c)
		}
		select {
		case <-time.After(d):
			return nil, nil
		case <-ctx.Done():
			return nil, errors.New("signal: killed")
		}
	}
}

// Undoing has a budget of its own once the caller's context has ended. It is shared: no
// hanging plugin uses up the others' part, and when several are undone at once each has a
// longer turn than it would have one after another. In a bubble: the times are exact and
// nobody waits for them.
func TestUndoBudgetIsShared(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	hang := delegatetest.HangOn("DEL", delegatetest.Result(nil))
	// Each has the same part of 3 s, half of which is for killing, but at most a second.
	for _, tt := range []struct {
		name     string
		parallel int  // networks of one plugin each, or 0: one network of all
		alive    bool // the caller's context, while undoing
		del      []delegatetest.Fake
		took     time.Duration
		left     []string
	}{
		{"one hangs", 0, false, []delegatetest.Fake{slow(0), slow(200 * ms), slow(200 * ms), slow(0), slow(0), hang}, 650 * ms, []string{"p5"}},
		{"two hang", 0, false, []delegatetest.Fake{slow(0), slow(200 * ms), slow(200 * ms), slow(0), hang, hang}, 925 * ms, []string{"p4", "p5"}},
		{"all hang", 0, false, slices.Repeat([]delegatetest.Fake{hang}, 6), 2323 * ms, []string{"p0", "p1", "p2", "p3", "p4", "p5"}},
		{"slow ones have longer while the caller waits", 0, true, []delegatetest.Fake{slow(0), slow(0), slow(0), slow(3000 * ms), slow(0), slow(3000 * ms)}, 6000 * ms, nil},
		{"but not forever", 0, true, []delegatetest.Fake{slow(0), hang, slow(0), slow(0), slow(0), slow(0)}, 14 * time.Second, []string{"p1"}},
		{"slow ones beside each other", 8, false, slices.Repeat([]delegatetest.Fake{slow(700 * ms)}, 9), 1400 * ms, nil},
		// It has half of the time, less the half for killing, and the first takes longer meanwhile.
		{"one hangs beside others", 8, false, []delegatetest.Fake{slow(900 * ms), slow(0), slow(0), slow(0), hang, slow(0), slow(0), slow(0), slow(0)}, 900 * ms, []string{"p4"}},
		{"all hang beside each other", 8, false, slices.Repeat([]delegatetest.Fake{hang}, 9), 2 * time.Second, []string{"p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8"}},
		// It has a fifth, less the half for killing. In the other place five go by, and in its
		// own the three that are left.
		{"one of two places is blocked", 2, false, append(slices.Repeat([]delegatetest.Fake{slow(250 * ms)}, 8), hang), 1250 * ms, []string{"p8"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			x := fakes()
			names := make([]string, len(tt.del))
			var as []delegate.Attachment
			for i, p := range tt.del {
				names[i] = fmt.Sprint("p", i)
				x.Plugins[names[i]] = p
				a := attach(network(t, "1.0.0", fmt.Sprint("blue", i), names[i]))
				a.IfName = fmt.Sprint("net", i)
				as = append(as, a)
			}
			if tt.parallel == 0 {
				as = []delegate.Attachment{attach(network(t, "1.0.0", "blue", names...))}
			}
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				iv := invoker(x)
				iv.Parallel, iv.UndoTimeout = tt.parallel, 3*time.Second
				done, err := iv.AddAll(ctx, as)
				nodetest.OK(t, err)
				if !tt.alive {
					cancel()
				}
				start := time.Now()
				err = iv.Undo(ctx, done, types.NewError(105, "no device", ""))
				nodetest.Equal(t, "took", time.Since(start).Round(ms), tt.took)
				nodetest.Code(t, err, 105)
				for _, want := range []error{delegate.ErrNotUndone, context.DeadlineExceeded} {
					if errors.Is(err, want) != (tt.left != nil) {
						t.Errorf("err = %v", err)
					}
				}
			})
			var left []string
			for _, alive := range x.Live() {
				left = append(left, strings.Fields(alive)[0])
			}
			nodetest.Equal(t, "left behind", left, tt.left)
			wantUndone(t, x.Trace())
		})
	}
}

// A caller that gives up while undoing goes on shortens what is left of it.
func TestUndoIsShortenedByTheCallersEnd(t *testing.T) {
	t.Parallel()
	x := fakes("a", "b", "c")
	x.Plugins["c"] = delegatetest.HangOn("DEL", delegatetest.Result(nil))
	as := []delegate.Attached{added(attach(network(t, "1.0.0", "blue", "a", "b", "c")), "")}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		start := time.Now()
		err := invoker(x).Undo(ctx, as, errors.New("no"))
		// 4 s until the caller's end, then a third of 10 s but for the last
		// second, which is for killing.
		if took, want := time.Since(start), 4*time.Second+10*time.Second/3-time.Second; took != want {
			t.Errorf("took %v, want %v (%v)", took, want, err)
		}
		if !strings.Contains(fmt.Sprint(err), "its share of the undo timeout has passed") || strings.Contains(fmt.Sprint(err), "\n") {
			t.Errorf("err = %v", err)
		}
	})
	nodetest.Equal(t, "calls", x.Trace(), []string{"DEL c eth0", "DEL b eth0", "DEL a eth0"})
}

// A plugin that an Exec says it has not run is not asked to undo anything, with
// whatever code that comes; those before it are. The Exec's words stay.
func TestNotRunIsNotUndone(t *testing.T) {
	t.Parallel()
	x := fakes("a", "b", "c")
	away := types.NewError(11, "b is away", "")
	x.Plugins["b"] = failing("ADD", fmt.Errorf("%w: %w", delegate.ErrNotRun, away))
	_, err := invoker(x).Add(t.Context(), attach(network(t, "1.1.0", "blue", "a", "b", "c")))
	nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a eth0", "ADD b eth0", "DEL a eth0"})
	if status.Code(err) != 11 || !errors.Is(err, away) || !errors.Is(err, delegate.ErrNotRun) || errors.Is(err, delegate.ErrNotUndone) {
		t.Errorf("err = %v", err)
	}
}

// marked returns a plugin that says in its result that it has run.
func marked(name string) delegatetest.Fake {
	return func(ctx context.Context, c delegatetest.Invocation) ([]byte, error) {
		if c.Command == "ADD" {
			return []byte(`{"cniVersion":"1.1.0","last":"` + name + `"}`), nil
		}
		return delegatetest.Result(nil)(ctx, c)
	}
}

func crewOf(names ...string) *delegatetest.Exec {
	x := fakes()
	for _, name := range names {
		x.Plugins[name] = marked(name)
	}
	return x
}

// notes collects what a note is told, a line each.
type noted []string

func (n *noted) note(i int, a delegate.Attached) error {
	var last struct {
		Last string `json:"last"`
	}
	_ = json.Unmarshal(a.Result, &last)
	line := fmt.Sprintf("%d %s %v", i, last.Last, a.Gone)
	if a.Added {
		line += " added"
	}
	*n = append(*n, line)
	return nil
}

// A note hears of every plugin that has been added, undone and removed, before
// the next one runs, with the last result. An attachment is added once the last
// plugin has succeeded.
func TestNotesTellEveryStep(t *testing.T) {
	t.Parallel()
	as := []delegate.Attachment{attach(network(t, "1.1.0", "blue", "a", "b")), attach(network(t, "1.1.0", "red", "c"))}
	x := crewOf("a", "b", "c")
	iv := invoker(x)
	var got noted
	done, err := iv.AddAll(t.Context(), as, got.note)
	nodetest.OK(t, err)
	nodetest.OK(t, iv.DelAll(t.Context(), done, got.note))
	x.Plugins["c"] = delegatetest.FailOn("ADD", 100, "no device", x.Plugins["c"])
	if left, err := iv.AddAll(t.Context(), as, got.note); left != nil || status.Code(err) != 100 {
		t.Fatalf("%v, %v", left, err)
	}
	want := noted{
		"0 a []", "0 b [] added", "1 c [] added",
		"1 c [0] added", "0 b [1] added", "0 b [0 1] added",
		"0 a []", "0 b [] added",
		"1  [0]", "0 b [1] added", "0 b [0 1] added",
	}
	nodetest.Equal(t, "calls", got, want)
}

// A DEL goes on past a note that fails, and says so.
func TestFailedNoteOfADelIsSaid(t *testing.T) {
	t.Parallel()
	full := errors.New("disk full")
	x := crewOf("a", "b")
	as := []delegate.Attached{added(attach(network(t, "1.1.0", "blue", "a", "b")), `{"cniVersion":"1.1.0"}`)}
	err := invoker(x).DelAll(t.Context(), as, func(int, delegate.Attached) error { return full })
	nodetest.Is(t, err, full)
	nodetest.Equal(t, "calls", x.Trace(), []string{"DEL b eth0", "DEL a eth0"})
}

// Notes of attachments that are worked on at once do not overlap.
func TestNotesDoNotOverlap(t *testing.T) {
	t.Parallel()
	iv := invoker(crewOf("a", "b"))
	iv.Parallel = 8
	var as []delegate.Attachment
	for i := range 16 {
		as = append(as, attach(network(t, "1.1.0", fmt.Sprint("net", i), "a", "b")))
	}
	total := 0 // the race detector looks at it as well
	var busy atomic.Bool
	count := func(int, delegate.Attached) error {
		if !busy.CompareAndSwap(false, true) {
			t.Error("two at once")
		}
		total++
		runtime.Gosched()
		busy.Store(false)
		return nil
	}
	done, err := iv.AddAll(t.Context(), as, count)
	if err := errors.Join(err, iv.DelAll(t.Context(), done, count)); err != nil || total != 64 {
		t.Errorf("%d notes, %v", total, err)
	}
}

// What a caller hands in to be removed is not changed: its notes are told what
// is gone.
func TestDelAllLeavesItsArgumentAlone(t *testing.T) {
	t.Parallel()
	iv := invoker(crewOf("a", "b"))
	as := []delegate.Attached{added(attach(network(t, "1.1.0", "blue", "a", "b")), `{"cniVersion":"1.1.0"}`)}
	as[0].Gone = make([]int, 0, 8)
	all := as[0].Gone[:cap(as[0].Gone)]
	for name, do := range map[string]func() error{
		"Del":    func() error { return iv.Del(t.Context(), as[0]) },
		"DelAll": func() error { return iv.DelAll(t.Context(), as) },
		"Undo":   func() error { return iv.Undo(t.Context(), as, nil) },
	} {
		nodetest.OK(t, do())
		if len(as[0].Gone) > 0 || all[0] != 0 || all[1] != 0 {
			t.Errorf("%s: gone %v of %v", name, as[0].Gone, all)
		}
	}
}

// What cannot be written down must not be there: a note that fails, fails the
// ADD, and what ran is undone with the results it had.
func TestFailedNoteIsUndone(t *testing.T) {
	t.Parallel()
	full := errors.New("disk full")
	for at := range 3 {
		x := crewOf("a", "b", "c")
		n := 0
		left, err := invoker(x).AddAll(t.Context(), []delegate.Attachment{attach(network(t, "1.1.0", "blue", "a", "b", "c"))},
			func(int, delegate.Attached) error {
				if n++; n == at+1 {
					return full
				}
				return nil
			})
		if !errors.Is(err, full) || left != nil || len(x.Live()) > 0 {
			t.Errorf("at %d: left %v, alive %q, %v", at, left, x.Live(), err)
		}
	}
}

// Undoing goes on past failures, and says both what failed and what is left. That is returned, and
// DEL of it runs what is left, with the last result, and nothing else.
func TestFailedUndoReturnsWhatIsLeft(t *testing.T) {
	t.Parallel()
	x := crewOf("a", "b", "c", "d", "e")
	good := x.Plugins["b"]
	x.Plugins["b"] = delegatetest.FailOn("DEL", 11, "b is stuck", good)
	x.Plugins["d"] = delegatetest.FailOn("ADD", 105, "no device", delegatetest.FailOn("DEL", 5, "d is stuck", x.Plugins["d"]))
	iv := invoker(x)
	left, err := iv.AddAll(t.Context(), []delegate.Attachment{
		attach(network(t, "1.1.0", "blue", "a", "b", "c")), attach(network(t, "1.1.0", "red", "d", "e")),
	})
	nodetest.Is(t, err, delegate.ErrNotUndone)
	nodetest.Code(t, err, 105)
	text := fmt.Sprint(err)
	if d, b := strings.Index(text, "d is stuck"), strings.Index(text, "b is stuck"); d < 0 || b < d || strings.Index(text, "no device") > d {
		t.Errorf("not in the order of the work: %v", err)
	}
	nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a eth0", "ADD b eth0", "ADD c eth0", "ADD d eth0", "DEL d eth0", "DEL c eth0", "DEL b eth0", "DEL a eth0"})
	nodetest.Equal(t, "networks left", []string{left[0].Network.Name(), left[1].Network.Name()}, []string{"blue", "red"})
	nodetest.Equal(t, "gone", left[0].Gone, []int{0, 2})
	x.Plugins["b"], x.Plugins["d"] = good, delegatetest.Result(nil)
	before := len(x.Calls())
	nodetest.OK(t, iv.DelAll(t.Context(), left))
	nodetest.Equal(t, "attachments", x.Live(), nil)
	nodetest.Equal(t, "later calls", x.Trace()[before:], []string{"DEL d eth0", "DEL b eth0"})
	nodetest.Equal(t, "prevResult", string(stdin(t, x.Calls()[before+1])["prevResult"]), `{"cniVersion":"1.1.0","last":"c"}`)
}

// A panic of an Exec, one after another or on a goroutine, is an error like any
// other: the ADD is undone, the DEL goes on.
func TestPanicIsAnError(t *testing.T) {
	t.Parallel()
	for _, parallel := range []int{0, 4} {
		for _, command := range []string{"ADD", "DEL"} {
			x := crewOf("a", "b", "c")
			good := x.Plugins["c"]
			x.Plugins["c"] = func(ctx context.Context, c delegatetest.Invocation) ([]byte, error) {
				if c.Command == command {
					panic("index out of range")
				}
				return good(ctx, c)
			}
			iv := invoker(x)
			iv.Parallel = parallel
			as := []delegate.Attachment{attach(network(t, "1.1.0", "blue", "a")), attach(network(t, "1.1.0", "green", "b")), attach(network(t, "1.1.0", "red", "c"))}
			done, err := iv.AddAll(t.Context(), as)
			if command == "DEL" {
				err = iv.DelAll(t.Context(), done)
			}
			if err == nil || !strings.Contains(err.Error(), "panic: index out of range") {
				t.Errorf("%s with %d at once: %v", command, parallel, err)
			}
			for _, alive := range x.Live() {
				if !strings.HasPrefix(alive, "c ") {
					t.Errorf("%s with %d at once: left %q", command, parallel, alive)
				}
			}
		}
	}
}

// Variables for one invocation come after those of the Invoker, and before those of CNI.
func TestObserverGivesAnInvocationVariables(t *testing.T) {
	t.Parallel()
	x := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{"p": delegatetest.Result(nil)}}
	iv := &delegate.Invoker{Exec: x, Env: []string{"A=1", "B=1", "C=1"}, Observer: func(ctx context.Context, e delegate.Event) (context.Context, func(error)) {
		ctx = delegate.WithOptions(ctx, delegate.ProcessOptions{Env: []string{"B=2", "C=2"}})
		ctx = delegate.WithOptions(ctx, delegate.ProcessOptions{Env: []string{"C=" + e.Plugin, "CNI_COMMAND=DEL", "no variable"}})
		return ctx, func(error) {}
	}}
	nodetest.OK(t, iv.Status(t.Context(), nodetest.Network("n", "p")))
	nodetest.Equal(t, "environment", x.Calls()[0].Env, []string{"A=1", "B=2", "C=p", "CNI_COMMAND=STATUS", "CNI_PATH="})
}

// Whoever adds an observer replaces none: each is called, inside those before it, and its context is
// derived from theirs. The first may be the second as well.
func TestObserversAreAdded(t *testing.T) {
	t.Parallel()
	type key struct{}
	var log []string
	observe := func(name string) func(ctx context.Context) (context.Context, func(error)) {
		return func(ctx context.Context) (context.Context, func(error)) {
			outer, _ := ctx.Value(key{}).(string)
			log = append(log, outer+name+" begins")
			return context.WithValue(ctx, key{}, outer+name), func(err error) { log = append(log, fmt.Sprint(outer, name, " ends ", err != nil)) }
		}
	}
	for _, before := range []bool{true, false} {
		x := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{"p": delegatetest.FailOn("ADD", 107, "no", delegatetest.Result(nil))}}
		iv := &delegate.Invoker{Exec: x}
		names := []string{"b", "c"}
		if before {
			names = names[1:]
			iv.Observer = func(ctx context.Context, _ delegate.Event) (context.Context, func(error)) { return observe("b")(ctx) }
			iv.Stages = func(ctx context.Context, s delegate.Stage, _ delegate.Event) (context.Context, func(error)) {
				return observe(string(s) + "-b")(ctx)
			}
		}
		for _, name := range names {
			iv.Observe(func(ctx context.Context, _ delegate.Event) (context.Context, func(error)) { return observe(name)(ctx) })
			iv.ObserveStages(func(ctx context.Context, s delegate.Stage, _ delegate.Event) (context.Context, func(error)) {
				return observe(string(s) + "-" + name)(ctx)
			})
		}
		log = nil
		_, err := iv.Add(t.Context(), delegate.Attachment{Network: nodetest.Network("n", "p"), ContainerID: "c1", IfName: "eth0"})
		nodetest.Code(t, err, 107)
		u := "undo-bundo-c"
		nodetest.Equal(t, "observed", log, []string{
			"b begins", "bc begins", "bc ends true", "b ends true", "undo-b begins", "undo-bundo-c begins",
			u + "b begins", u + "bc begins", u + "bc ends false", u + "b ends false", "undo-bundo-c ends false", "undo-b ends false",
		})
	}
}

// wholeResult returns a result with something at every place of its version.
func wholeResult(version string) string {
	switch version {
	case "0.1.0", "0.2.0":
		return `{"cniVersion":"` + version + `",
			"ip4":{"ip":"10.0.0.2/24","gateway":"10.0.0.1","routes":[{"dst":"0.0.0.0/0","gw":"10.0.0.1"}]},
			"ip6":{"ip":"fd00::2/64","gateway":"fd00::1","routes":[{"dst":"::/0","gw":"fd00::1"}]},
			"dns":{"nameservers":["10.0.0.1"],"domain":"x","search":["x"],"options":["y"]}}`
	}
	return `{"cniVersion":"` + version + `",
		"interfaces":[{"name":"eth0","mac":"02:00:00:00:00:01","sandbox":"/run/netns/c1"}],
		"ips":[{"version":"4","interface":0,"address":"10.0.0.2/24","gateway":"10.0.0.1"}],
		"routes":[{"dst":"0.0.0.0/0","gw":"10.0.0.1"}],
		"dns":{"nameservers":["10.0.0.1"],"domain":"x","search":["x"],"options":["y"]}}`
}

// Whatever a plugin prints, ADD attaches or leaves nothing, and what it attached
// can be printed or not, checked and removed.
func TestEveryTypeAtEveryPlaceOfAResult(t *testing.T) {
	t.Parallel()
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			for i, text := range nodetest.JSONVariants(t, wholeResult(version)) {
				x := fakes("last")
				x.Plugins["p"] = printing(text)
				iv := invoker(x)
				confVersion := []string{"0.1.0", "0.4.0", "1.1.0"}[i%3]
				a, err := iv.Add(t.Context(), attach(network(t, confVersion, "blue", "p", "last")))
				if err != nil {
					if !errors.Is(err, delegate.ErrResult) || len(x.Live()) > 0 {
						t.Errorf("%s: %v, left %q", text, err, x.Live())
					}
					continue
				}
				a.Result = json.RawMessage(text) // also where the last plugin printed another
				for _, to := range append([]string{"", "9.9.9"}, versions...) {
					_ = a.PrintTo(new(bytes.Buffer), to) // does not panic
				}
				if err := iv.Check(t.Context(), a); err != nil && !errors.Is(err, delegate.ErrResult) {
					t.Errorf("CHECK after %s: %v", text, err)
				}
				if err := iv.Del(t.Context(), a); err != nil || len(x.Live()) > 0 {
					t.Errorf("DEL after %s: %v, left %q", text, err, x.Live())
				}
			}
		})
	}
}

// A list with null in it is no result: the error says where, and the ADD is
// undone. As a result on disk, from an earlier version, it keeps no DEL from
// running.
func TestNullInAListIsNoResult(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ result, where string }{
		{`{"cniVersion":"1.0.0","interfaces":[null]}`, "interfaces[0]"},
		{`{"cniVersion":"1.1.0","interfaces":[{"name":"a"},null]}`, "interfaces[1]"},
		{`{"cniVersion":"0.4.0","ips":[null]}`, "ips[0]"},
		{`{"cniVersion":"0.3.1","routes":[null]}`, "routes[0]"},
		{`{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24","routes":[null]}}`, "ip4.routes[0]"},
		{`{"cniVersion":"0.1.0","ip6":{"ip":"fd00::2/64","routes":[null]}}`, "ip6.routes[0]"},
		{`{"cniVersion":"1.0.0","dns":{"nameservers":[null]}}`, "dns.nameservers[0]"},
	} {
		for _, confVersion := range []string{"0.2.0", "0.4.0", "1.0.0", "1.1.0"} {
			x := fakes("first")
			x.Plugins["p"] = printing(tt.result)
			a := attach(network(t, confVersion, "blue", "first", "p"))
			_, err := invoker(x).Add(t.Context(), a)
			nodetest.Is(t, err, delegate.ErrResult)
			nodetest.Fails(t, err, 6, tt.where+" is null")
			if got := strings.Join(x.Trace(), ", "); !strings.HasSuffix(got, "DEL p eth0, DEL first eth0") {
				t.Errorf("%s: %s", tt.result, got)
			}
			old := added(a, tt.result)
			nodetest.OK(t, invoker(x).Del(t.Context(), old))
		}
	}
}

// A plugin that prints an error object has failed, even if it exits with status 0: the
// error has its code and its words, and the ADD is undone.
func TestErrorObjectIsNoResult(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ printed, says string }{
		{`{"cniVersion":"1.0.0","code":107,"msg":"no free address","details":"of 8"}`, "no free address; of 8"},
		{"loading\n" + `{"code":107,"msg":"no free address"}`, "no free address"},
		{`{"cniVersion":"1.0.0","ips":[],"code":107,"msg":"no free address"}` + "\n", "no free address"},
		{`{"cniVersion":"1.0.0"}` + "\n" + `{"code":107,"msg":"no free address"}`, "no free address"},
		{`{"code":107,"msg":"no token hunter2-hunter2"}`, "no token (hidden)"},
	} {
		for _, last := range []bool{false, true} {
			x := fakes("first", "last")
			x.Plugins["p"] = printing(tt.printed)
			chain := `{"type":"first"},{"type":"p","token":"hunter2-hunter2"}`
			if !last {
				chain += `,{"type":"last"}`
			}
			_, err := invoker(x).Add(t.Context(), attach(nodetest.Parse(`{"cniVersion":"1.0.0","name":"blue","plugins":[`+chain+`]}`)))
			if status.Code(err) != 107 || errors.Is(err, delegate.ErrResult) || !strings.HasSuffix(fmt.Sprint(err), tt.says) {
				t.Errorf("%s: code %d, %v", tt.printed, status.Code(err), err)
			}
			nodetest.Equal(t, tt.printed, strings.Join(x.Trace(), ", "), "ADD first eth0, ADD p eth0, DEL p eth0, DEL first eth0")
		}
	}
	x := fakes("p")
	x.Plugins["p"] = printing(`{"cniVersion":"1.0.0","code":107,"note":"a key of the plugin's own"}`)
	_, err := invoker(x).Add(t.Context(), attach(network(t, "1.0.0", "blue", "p")))
	nodetest.OK(t, err)
}

// A version that has one place for each family expresses no second address.
func TestSecondAddressOfAFamilyIsNotDropped(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		ips  string
		code uint
	}{
		{`{"address":"10.0.0.2/24"}`, 0},
		{`{"address":"10.0.0.2/24"},{"address":"fd00::2/64"}`, 0},
		{`{"address":"10.0.0.2/24"},{"address":"10.0.1.2/24"}`, 1},
		{`{"address":"fd00::2/64"},{"address":"fd00::3/64"}`, 1},
	} {
		a := added(attach(network(t, "1.0.0", "blue", "p")), `{"cniVersion":"1.0.0","ips":[`+tt.ips+`]}`)
		for _, version := range []string{"0.1.0", "0.2.0"} {
			nodetest.Equal(t, fmt.Sprintf("%s in %s", tt.ips, version), status.Code(a.PrintTo(new(bytes.Buffer), version)), tt.code)
		}
		nodetest.OK(t, a.PrintTo(new(bytes.Buffer), "0.4.0"))
	}
}

// What another version would make nonsense of is not printed in it, and is not
// the prevResult of a DEL.
func TestNonsenseIsNotPrinted(t *testing.T) {
	t.Parallel()
	a := added(attach(network(t, "1.1.0", "blue", "p")), `{"cniVersion":"1.0.0","ips":[{}]}`)
	var out bytes.Buffer
	if err := a.PrintTo(&out, "0.4.0"); status.Code(err) != 1 || out.Len() > 0 {
		t.Errorf("printed %s, %v", &out, err)
	}
	x := fakes("p")
	nodetest.OK(t, invoker(x).Del(t.Context(), a))
	nodetest.Equal(t, "prevResult", stdin(t, x.Calls()[0])["prevResult"], nil)
	nodetest.Is(t, invoker(x).Check(t.Context(), a), delegate.ErrResult)
}

// libcni decodes null into an empty result. We give it the version of its network.
func TestNullIsAnEmptyResult(t *testing.T) {
	t.Parallel()
	for _, version := range versions {
		x := fakes("last")
		x.Plugins["p"] = printing(" null\n")
		iv := invoker(x)
		a, err := iv.Add(t.Context(), attach(network(t, version, "blue", "p")))
		if want := `{"cniVersion":"` + cmp.Or(version, "0.1.0") + `"}`; err != nil || string(a.Result) != want {
			t.Errorf("%s: %s, %v, want %s", version, a.Result, err, want)
		}
		nodetest.OK(t, errors.Join(iv.Check(t.Context(), a), iv.Del(t.Context(), a)))
		nodetest.Equal(t, "left", x.Live(), nil)
	}
}

func TestErrorSaysWhatCameInsteadOfAResult(t *testing.T) {
	t.Parallel()
	for printed, says := range map[string]string{
		`[]`:                       "stdout is an array, want an object",
		` [{"a":1}]`:               "stdout is an array, want an object",
		"[INFO] adding\n{}":        `stdout starts with "["`,
		"null null":                `stdout starts with "null null"`,
		strings.Repeat("x", 100):   `stdout starts with "` + strings.Repeat("x", 64) + `"`,
		`{"cniVersion":"1.0.0"}[]`: "after it stdout goes on with more JSON",
	} {
		x := fakes("last")
		x.Plugins["p"] = printing(printed)
		_, err := invoker(x).Add(t.Context(), attach(network(t, "1.0.0", "blue", "p")))
		nodetest.Is(t, err, delegate.ErrResult)
		nodetest.Fails(t, err, 6, says)
	}
}

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
	x := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{}}
	for _, typ := range types {
		x.Plugins[typ] = delegatetest.Result(nil)
	}
	return x
}

func invoker(x *delegatetest.Exec) *delegate.Invoker {
	return &delegate.Invoker{Exec: x, Path: []string{"/opt/cni/bin", "/usr/lib/cni"}}
}

// printing returns a plugin that prints text on ADD and does the rest well.
func printing(text string) delegatetest.Fake {
	return func(ctx context.Context, c delegatetest.Invocation) ([]byte, error) {
		if c.Command == "ADD" {
			return []byte(text), nil
		}
		return delegatetest.Result(nil)(ctx, c)
	}
}

// failing returns a plugin whose command returns err.
func failing(command string, err error) delegatetest.Fake {
	return func(ctx context.Context, c delegatetest.Invocation) ([]byte, error) {
		if c.Command == command {
			return nil, err
		}
		return delegatetest.Result(nil)(ctx, c)
	}
}

// stdin decodes what a plugin was given.
func stdin(tb testing.TB, c delegatetest.Invocation) map[string]json.RawMessage {
	tb.Helper()
	var keys map[string]json.RawMessage
	nodetest.OK(tb, json.Unmarshal(c.Stdin, &keys))
	return keys
}

func environ(c delegatetest.Invocation) map[string]string {
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
