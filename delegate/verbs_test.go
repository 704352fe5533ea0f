package delegate_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/status"
)

// prevResult is what ADD printed, in the network's version, from 0.4.0 on.
func TestPrevResultOfDelAndCheck(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, version, result string
		del, check            string // "" for no prevResult, "-" for not run, "none" for ErrResult
	}{
		{"0.1.0", "0.1.0", `{"cniVersion":"0.1.0"}`, "", "-"},
		{"0.2.0", "0.2.0", `{"cniVersion":"0.2.0"}`, "", "-"},
		{"0.3.0", "0.3.0", `{"cniVersion":"0.3.0"}`, "", "-"},
		{"0.3.1", "0.3.1", `{"cniVersion":"0.3.1"}`, "", "-"},
		{"0.4.0", "0.4.0", `{"cniVersion":"0.4.0","x":1e3}`, `{"cniVersion":"0.4.0","x":1e3}`, `{"cniVersion":"0.4.0","x":1e3}`},
		{"1.0.0", "1.0.0", `{"cniVersion":"1.0.0"}`, `{"cniVersion":"1.0.0"}`, `{"cniVersion":"1.0.0"}`},
		{"1.1.0", "1.1.0", `{"cniVersion":"1.1.0"}`, `{"cniVersion":"1.1.0"}`, `{"cniVersion":"1.1.0"}`},
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
				if got != want {
					t.Errorf("%s was given %s, want %s", command, got, want)
				}
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
	off := added(attach(parse(t, `{"cniVersion":"1.0.0","name":"off","disableCheck":true,"plugins":[{"type":"a"}]}`)), `{"cniVersion":"1.0.0"}`)

	// One that is too old is passed over, and does not fail.
	if err := iv.CheckAll(t.Context(), []delegate.Attached{old, off, red}); err != nil {
		t.Error(err)
	}
	if err := iv.CheckAll(t.Context(), []delegate.Attached{blue, red}); status.Code(err) != 110 {
		t.Errorf("err = %v", err)
	}
	nodetest.Equal(t, "trace", x.Trace(), []string{"CHECK c eth0", "CHECK a eth0", "CHECK b eth0"})
	if err := iv.Check(t.Context(), delegate.Attached{}); status.Code(err) != 4 {
		t.Errorf("CHECK of nothing: %v", err)
	}
}

func TestStatusStopsAtTheFirstFailure(t *testing.T) {
	t.Parallel()
	x := fakes("a", "b", "c")
	x.Plugins["b"] = delegatetest.FailOn("STATUS", 50, "no daemon", x.Plugins["b"])
	iv := invoker(x)
	if err := iv.Status(t.Context(), network(t, "1.1.0", "blue", "a", "b", "c")); status.Code(err) != 50 {
		t.Errorf("err = %v", err)
	}
	if err := iv.Status(t.Context(), network(t, "1.0.0", "old", "absent")); err != nil {
		t.Errorf("a network without STATUS: %v", err)
	}
	if err := iv.Status(t.Context(), network(t, "1.1.0", "red", "a")); err != nil {
		t.Error(err)
	}
	nodetest.Equal(t, "trace", x.Trace(), []string{"STATUS a", "STATUS b", "STATUS a"})
	if err := iv.Status(t.Context(), network(t, "1.1.0", "red", "absent")); !errors.Is(err, delegate.ErrPluginNotFound) {
		t.Errorf("err = %v", err)
	}
	if err := iv.Status(t.Context(), netconf.Network{}); status.Code(err) != 7 {
		t.Errorf("STATUS of nothing: %v", err)
	}
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
	if err := iv.GC(t.Context(), network(t, "1.1.0", "red", "b"), nil); err != nil {
		t.Error(err)
	}
	for _, conf := range []netconf.Network{
		network(t, "1.0.0", "old", "a"),
		parse(t, `{"cniVersion":"1.1.0","name":"off","disableGC":true,"plugins":[{"type":"a"}]}`),
	} {
		if err := iv.GC(t.Context(), conf, valid); err != nil {
			t.Error(err)
		}
	}
	if err := iv.GC(t.Context(), netconf.Network{}, valid); status.Code(err) != 7 {
		t.Errorf("GC of nothing: %v", err)
	}
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
	if trace := x.Trace(); trace != nil {
		t.Errorf("ran %q", trace)
	}
}
