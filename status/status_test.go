package status_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types020 "github.com/containernetworking/cni/pkg/types/020"
	types040 "github.com/containernetworking/cni/pkg/types/040"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/google/go-cmp/cmp"

	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/status"
)

// A codeError is somebody's own error that takes part by its method alone.
type codeError struct {
	code uint
	err  error
}

func (e *codeError) Error() string {
	if e.err != nil {
		return fmt.Sprintf("own %d: %v", e.code, e.err)
	}
	return fmt.Sprintf("own %d", e.code)
}
func (e *codeError) Unwrap() error { return e.err }
func (e *codeError) CNICode() uint { return e.code }

// A lazyError claims to wrap something, but does not.
type lazyError struct{}

func (lazyError) Error() string   { return "lazy" }
func (lazyError) Unwrap() []error { return []error{nil, errPlain} }

var errPlain = errors.New("plain")

func coded(code uint, msg string) error { return types.NewError(code, msg, "") }

// The code gets through wrapping and joining, and all of the
// text with it.
func TestCode(t *testing.T) {
	t.Parallel()
	own := func(code uint, err error) error { return &codeError{code, err} }
	for _, tt := range []struct {
		name string
		err  error
		want uint
		msg  string
	}{
		{"plain", errPlain, 999, "plain"},
		{"types", coded(11, "busy"), 11, "busy"},
		{"types without code", coded(0, "busy"), 999, "busy"},
		{"types nil", error((*types.Error)(nil)), 999, "unknown error"},
		{"own", own(107, nil), 107, "own 107"},
		{"wrapped types", fmt.Errorf("network %q: %w", "blue", coded(11, "busy")), 11, `network "blue": busy`},
		{"own wins over what it wraps", own(7, coded(11, "busy")), 7, "own 7: busy"},
		{"own without code lets through", own(0, coded(11, "busy")), 11, "own 0: busy"},
		{"joined: first wins", errors.Join(errPlain, coded(11, "busy"), own(7, nil)), 11, "plain; busy; own 7"},
		{"pre-order", errors.Join(fmt.Errorf("x: %w", errors.Join(errPlain, coded(5, "deep"))), coded(6, "shallow")), 5, "x: plain; deep; shallow"},
		{"999 is a code", errors.Join(coded(999, "x"), coded(11, "y")), 999, "x; y"},
		{"canceled", context.Canceled, 11, "context canceled"},
		{"deadline", fmt.Errorf("add: %w", context.DeadlineExceeded), 11, "add: context deadline exceeded"},
		{"a code wins over the context", errors.Join(context.Canceled, coded(5, "io")), 5, "context canceled; io"},
		{"nil inside", lazyError{}, 999, "lazy"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			nodetest.Equal(t, "Code", status.Code(tt.err), tt.want)
			var e *types.Error
			e, ok := status.Error(tt.err).(*types.Error)
			if !ok || e == nil {
				t.Fatalf("Error is %T, want *types.Error", status.Error(tt.err))
			}
			nodetest.Equal(t, "Error", e, types.NewError(tt.want, tt.msg, ""))
		})
	}
}

func TestNil(t *testing.T) {
	t.Parallel()
	nodetest.Equal(t, "Code of nil", status.Code(nil), 0)
	// Not a typed nil.
	if err := status.Error(nil); err != nil {
		t.Errorf("Error(nil) = %#v", err)
	}
	if err := status.NotReady(nil); err != nil {
		t.Errorf("NotReady(nil) = %#v", err)
	}
}

// What a delegate printed stays as it was printed.
func TestErrorKeepsDetails(t *testing.T) {
	t.Parallel()
	in := types.NewError(107, "no device", "pool a is empty")
	nodetest.Equal(t, "got", status.Error(in), error(in))
	want := types.NewError(107, "blue: no device; pool a is empty", "")
	nodetest.Equal(t, "got", status.Error(fmt.Errorf("blue: %w", in)), error(want))
	in.Code = 0
	nodetest.Equal(t, "text", status.Error(in).Error(), "no device; pool a is empty")
}

// SPEC, STATUS: 50 or 51, with the reason.
func TestNotReady(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		err  error
		want uint
		text string
	}{
		{"plain", errPlain, 50, "plain"},
		{"51", coded(51, "cut off"), 51, "cut off"},
		{"another code", coded(11, "busy"), 50, "busy"},
		{"51 behind another code", errors.Join(coded(11, "busy"), &codeError{code: 51}), 51, "busy; own 51"},
		{"51 below another code", &codeError{11, coded(51, "cut off")}, 51, "own 11: cut off"},
		{"51 after 50", errors.Join(coded(50, "a"), fmt.Errorf("x: %w", coded(51, "b"))), 51, "a; x: b"},
		{"twice", status.NotReady(coded(51, "cut off")), 51, "cut off"},
		{"typed nil", error((*types.Error)(nil)), 50, "unknown error"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := status.NotReady(tt.err)
			nodetest.Equal(t, "code", status.Code(err), tt.want)
			if err.Error() != tt.text {
				t.Errorf("text %q, want %q", err, tt.text)
			}
			nodetest.Is(t, err, tt.err)
			// As skel looks for it, also around more text.
			var e *types.Error
			if !errors.As(fmt.Errorf("x: %w", err), &e) || e.Code != tt.want || e.Msg != tt.text {
				t.Errorf("skel finds %+v", e)
			}
			nodetest.Equal(t, "through Error: code", status.Code(status.Error(err)), tt.want)
			var own *codeError
			if errors.As(tt.err, &own) != errors.As(err, &own) {
				t.Error("errors.As finds other errors than in the reason")
			}
		})
	}
}

// whole are results that have every key of their version.
var whole = []string{
	`{"cniVersion":"0.1.0","ip4":{"ip":"10.1.0.5/24","gateway":"10.1.0.1","routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1"}]},
	  "ip6":{"ip":"fd00::5/64","gateway":"fd00::1","routes":[{"dst":"::/0"}]},"dns":{"nameservers":["10.1.0.9"],"domain":"d","search":["s"],"options":["o"]}}`,
	`{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.5/24","gateway":"10.1.0.1","routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1"}]},"dns":{}}`,
	`{"cniVersion":"0.3.1","interfaces":[{"name":"host"},{"name":"eth0","mac":"02:00:00:00:00:01","sandbox":"/n"}],
	  "ips":[{"version":"4","interface":1,"address":"10.1.0.5/24","gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1"}],"dns":{"search":["s"]}}`,
	`{"cniVersion":"0.4.0","interfaces":[{"name":"eth0","sandbox":"/n"}],"ips":[{"version":"6","interface":0,"address":"fd00::5/64"}],"routes":[{"dst":"::/0"}]}`,
	`{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","mac":"02:00:00:00:00:01","sandbox":"/n"}],"ips":[{"interface":0,"address":"10.1.0.5/24","gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1"}]}`,
	`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mac":"02:00:00:00:00:01","mtu":1500,"sandbox":"/n","socketPath":"/s","pciID":"0000:03:02.1"}],
	  "ips":[{"interface":0,"address":"10.1.0.5/24","gateway":"10.1.0.1"}],
	  "routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1","mtu":1400,"advmss":1300,"priority":7,"table":100,"scope":253}],"dns":{"nameservers":["10.1.0.9"]}}`,
}

// Every JSON type at every place of a result of every version: it is no result,
// or one whose networks can be listed.
func TestNetworksOfEveryJSONType(t *testing.T) {
	t.Parallel()
	for _, text := range whole {
		read := 0
		for _, data := range nodetest.JSONVariants(t, text) {
			r, err := create.CreateFromBytes([]byte(data))
			if err != nil {
				continue
			}
			read++
			for _, def := range []bool{true, false} {
				if list, err := status.Networks("n", r, def); err != nil || len(list) == 0 {
					t.Errorf("%s: %v, %v", data, list, err)
				}
			}
		}
		if read < 10 {
			t.Errorf("only %d variants of %s are results", read, text)
		}
	}
}

// Whatever a plugin prints that is a result at all makes a list, with
// one default and bare addresses, always the same.
func FuzzNetworks(f *testing.F) {
	for _, tt := range results {
		f.Add([]byte(tt.result), true)
	}
	for _, text := range whole {
		for _, data := range nodetest.JSONVariants(f, text) {
			f.Add([]byte(data), false)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, def bool) {
		r, err := create.CreateFromBytes(data)
		if err != nil {
			return // no result
		}
		list, err := status.Networks("n", r, def)
		if err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		defaults := 0
		for _, n := range list {
			if n.Name != "n" || n.MTU < 0 {
				t.Errorf("%+v", n)
			}
			if n.Default {
				defaults++
			}
			for _, s := range slices.Concat(n.IPs, n.Gateway) {
				if a, err := netip.ParseAddr(s); err != nil || a.String() != s {
					t.Errorf("address %q", s)
				}
			}
		}
		if len(list) == 0 || def && defaults != 1 || !def && defaults != 0 {
			t.Errorf("%d interfaces, %d of them the default", len(list), defaults)
		}
		text, err := json.Marshal(list)
		nodetest.OK(t, err)
		again, err := status.Networks("n", r, def)
		if err != nil || !cmp.Equal(list, again) {
			t.Errorf("the second time %+v, %v; first %s", again, err, text)
		}
	})
}

// results are results as plugins print them, and what becomes of them.
var results = []struct {
	name, result, want string
}{
	{
		"0.1.0",
		`{"cniVersion":"0.1.0","ip4":{"ip":"10.1.0.5/24","gateway":"10.1.0.1","routes":[{"dst":"0.0.0.0/0"}]},"dns":{"nameservers":["10.1.0.1"]}}`,
		`[{"name":"n","ips":["10.1.0.5"],"default":true,"dns":{"nameservers":["10.1.0.1"]},"gateway":["10.1.0.1"]}]`,
	},
	{
		"0.1.0 without version",
		`{"ip6":{"ip":"fd00::5/64"}}`,
		`[{"name":"n","ips":["fd00::5"],"default":true}]`,
	},
	{
		"0.2.0",
		`{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.5/24"},"ip6":{"ip":"fd00::5/64","routes":[{"dst":"::/0","gw":"fd00::1"},{"dst":"fd01::/64","gw":"fd00::2"}]}}`,
		`[{"name":"n","ips":["10.1.0.5","fd00::5"],"default":true,"gateway":["fd00::1"]}]`,
	},
	{
		"0.3.1, interface not said",
		`{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.1.0.5/24"}]}`,
		`[{"name":"n","ips":["10.1.0.5"],"default":true}]`,
	},
	{
		"0.4.0, as bridge prints it",
		`{"cniVersion":"0.4.0","interfaces":[{"name":"cni0","mac":"02:00:00:00:00:01"},{"name":"veth1","mac":"02:00:00:00:00:02"},{"name":"eth0","mac":"02:00:00:00:00:03","sandbox":"/n"}],
		 "ips":[{"version":"4","interface":2,"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"version":"6","interface":2,"address":"fd00::5/64","gateway":"fd00::1"}],
		 "routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0","gw":"fd00::1"}],"dns":{"domain":"x","search":["a","b"],"options":["ndots:2"]}}`,
		`[{"name":"n","interface":"eth0","ips":["10.1.0.5","fd00::5"],"mac":"02:00:00:00:00:03","default":true,"dns":{"domain":"x","search":["a","b"],"options":["ndots:2"]},"gateway":["10.1.0.1","fd00::1"]}]`,
	},
	{
		"1.0.0, several interfaces", // the default is where the gateway is
		`{"cniVersion":"1.0.0","interfaces":[{"name":"a","sandbox":"/n"},{"name":"host"},{"name":"b","sandbox":"/n"},{"name":"c","sandbox":"/n"}],
		 "ips":[{"interface":0,"address":"10.1.0.5/24"},{"interface":2,"address":"10.2.0.5/24","gateway":"10.2.0.1"},{"interface":3,"address":"10.3.0.5/24","gateway":"10.3.0.1"},{"interface":0,"address":"10.4.0.5/24"},{"interface":1,"address":"10.9.0.1/24","gateway":"10.9.0.2"}]}`,
		`[{"name":"n","interface":"a","ips":["10.1.0.5","10.4.0.5"]},{"name":"n","interface":"b","ips":["10.2.0.5"],"default":true},{"name":"n","interface":"c","ips":["10.3.0.5"]}]`,
	},
	{
		"1.0.0, no gateway", // the default is the first
		`{"cniVersion":"1.0.0","interfaces":[{"name":"a","sandbox":"/n"},{"name":"b","sandbox":"/n"}],"ips":[{"address":"10.1.0.5/24"}]}`,
		`[{"name":"n","interface":"a","default":true},{"name":"n","interface":"b","ips":["10.1.0.5"]}]`,
	},
	{
		"1.0.0, default routes find their interface",
		`{"cniVersion":"1.0.0","interfaces":[{"name":"a","sandbox":"/n"},{"name":"b","sandbox":"/n"}],"ips":[{"interface":0,"address":"10.1.0.5/24"},{"interface":1,"address":"10.2.0.5/24"}],
		 "routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1"},{"dst":"0.0.0.0/0","gw":"169.254.1.1"},{"dst":"0.0.0.0/1","gw":"10.2.0.9"},{"dst":"10.0.0.0/8","gw":"10.2.0.9"}]}`,
		`[{"name":"n","interface":"a","ips":["10.1.0.5"],"default":true,"gateway":["10.1.0.1"]},{"name":"n","interface":"b","ips":["10.2.0.5"],"gateway":["169.254.1.1"]}]`,
	},
	{
		"1.0.0, default routes without a gateway, of one family, and of another table",
		`{"cniVersion":"1.1.0","interfaces":[{"name":"a","sandbox":"/n"},{"name":"b","sandbox":"/n"}],"ips":[{"interface":0,"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"interface":1,"address":"fd00::5/64","gateway":"fd00::1"}],
		 "routes":[{"dst":"0.0.0.0/0"},{"dst":"0.0.0.0/0","gw":"10.1.0.9","table":100},{"dst":"::/0","table":7}]}`,
		`[{"name":"n","interface":"a","ips":["10.1.0.5"],"default":true,"gateway":["10.1.0.1"]},{"name":"n","interface":"b","ips":["fd00::5"]}]`,
	},
	{
		"1.0.0, bad indices",
		`{"cniVersion":"1.0.0","interfaces":[{"name":"a","sandbox":"/n"},{"name":"b","sandbox":"/n"}],"ips":[{"interface":-1,"address":"10.1.0.5/24"},{"interface":2,"address":"10.2.0.5/24"},{"interface":9223372036854775807,"address":"10.3.0.5/24","gateway":"10.3.0.1"}]}`,
		`[{"name":"n","interface":"a"},{"name":"n","interface":"b","ips":["10.1.0.5","10.2.0.5","10.3.0.5"],"default":true}]`,
	},
	{
		"1.0.0, nothing has a sandbox",
		`{"cniVersion":"1.0.0","interfaces":[{"name":"host"},null],"ips":[{"interface":0,"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"interface":7,"address":"10.1.0.6/24"},null],"routes":[null,{"dst":"0.0.0.0/0"}]}`,
		`[{"name":"n","ips":["10.1.0.5","10.1.0.6"],"default":true,"gateway":["10.1.0.1"]}]`,
	},
	{
		"1.0.0, empty",
		`{"cniVersion":"1.0.0"}`,
		`[{"name":"n","default":true}]`,
	},
	{
		"1.0.0, the same twice",
		`{"cniVersion":"1.0.0","interfaces":[{"name":"a","sandbox":"/n"}],"ips":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"address":"10.1.0.5/16","gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"0.0.0.0/0","gw":"10.1.0.1"}]}`,
		`[{"name":"n","interface":"a","ips":["10.1.0.5"],"default":true,"gateway":["10.1.0.1"]}]`,
	},
	{
		"1.1.0",
		`{"cniVersion":"1.1.0","interfaces":[{"name":"net1","mac":"02:00:00:00:00:01","mtu":9000,"sandbox":"/n","pciID":"0000:03:02.1"},{"name":"net2","mtu":-1,"sandbox":"/n","socketPath":"/s"}],"ips":[{"interface":0,"address":"fd00::5/64"}]}`,
		`[{"name":"n","interface":"net1","ips":["fd00::5"],"mac":"02:00:00:00:00:01","mtu":9000,"default":true,"device-info":{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:03:02.1"}}},{"name":"n","interface":"net2"}]`,
	},
}

func TestNetworks(t *testing.T) {
	t.Parallel()
	for _, tt := range results {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := create.CreateFromBytes([]byte(tt.result))
			nodetest.OK(t, err)
			before := encode(t, r)
			got, err := status.Networks("n", r, true)
			nodetest.OK(t, err)
			nodetest.Equal(t, "got", encode(t, got), tt.want)
			var back []status.Network
			if err := json.Unmarshal([]byte(tt.want), &back); err != nil || !cmp.Equal(got, back) {
				t.Errorf("read back: %v\n%s", err, cmp.Diff(got, back))
			}
			// A network that is not the default says so nowhere; nothing else changes.
			others, err := status.Networks("n", r, false)
			nodetest.OK(t, err)
			for i := range got {
				got[i].Default = false
			}
			nodetest.Equal(t, "not the default", others, got)
			nodetest.Equal(t, "the result is now", encode(t, r), before)
		})
	}
}

func encode(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	nodetest.OK(t, err)
	return string(data)
}

// Results that were made in Go, not read from JSON, hold more surprises.
func TestNetworksMadeInGo(t *testing.T) {
	t.Parallel()
	ip := net.IPNet{IP: net.IPv4(10, 1, 0, 5), Mask: net.CIDRMask(24, 32)}
	gw := net.IPv4(10, 1, 0, 1)
	for _, tt := range []struct {
		name   string
		result types.Result
		want   string
	}{
		{
			"100, no version",
			&types100.Result{Interfaces: []*types100.Interface{nil, {Name: "a", Sandbox: "/n"}}, IPs: []*types100.IPConfig{nil, {Interface: types100.Int(0), Address: ip}, {Interface: types100.Int(1), Address: ip}}},
			`[{"name":"n","interface":"a","ips":["10.1.0.5"],"default":true}]`,
		},
		{
			"100 that claims to be 0.2.0", // upstream's converter panics
			&types100.Result{CNIVersion: "0.2.0", Interfaces: []*types100.Interface{{Name: "a", Sandbox: "/n"}}},
			`[{"name":"n","interface":"a","default":true}]`,
		},
		{
			"100, default route without destination",
			&types100.Result{IPs: []*types100.IPConfig{{Address: ip}}, Routes: []*types.Route{nil, {GW: gw}}},
			`[{"name":"n","ips":["10.1.0.5"],"default":true,"gateway":["10.1.0.1"]}]`,
		},
		{
			"100, no addresses at all",
			&types100.Result{IPs: []*types100.IPConfig{{}, {Address: net.IPNet{IP: net.IP{1, 2, 3}, Mask: net.IPMask{1}}, Gateway: net.IP{}}}, Routes: []*types.Route{{Dst: net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, GW: net.IP{1}}}},
			`[{"name":"n","default":true}]`,
		},
		{
			"040, nil entries",
			&types040.Result{Interfaces: []*types040.Interface{nil, {Name: "a", Sandbox: "/n"}}, IPs: []*types040.IPConfig{nil, {Interface: types040.Int(1), Address: ip, Gateway: gw}}, Routes: []*types.Route{nil}},
			`[{"name":"n","interface":"a","ips":["10.1.0.5"],"default":true}]`,
		},
		{
			"020, empty",
			&types020.Result{},
			`[{"name":"n","default":true}]`,
		},
		{
			"somebody's own kind",
			ownResult{as: &types100.Result{Interfaces: []*types100.Interface{{Name: "a", Sandbox: "/n"}}}},
			`[{"name":"n","interface":"a","default":true}]`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			version := tt.result.Version()
			got, err := status.Networks("n", tt.result, true)
			nodetest.OK(t, err)
			nodetest.Equal(t, "got", encode(t, got), tt.want)
			nodetest.Equal(t, "the result's version is now", tt.result.Version(), version)
		})
	}
}

// Some plugins list interfaces with a sandbox that is none. They count only where no interface has
// the container's namespace.
func TestInterfacesOfTheContainerAreThoseInItsNamespace(t *testing.T) {
	t.Parallel()
	r, err := create.CreateFromBytes([]byte(`{"cniVersion":"0.4.0","interfaces":[{"name":"eni"},{"name":"eth0","mac":"02:00:00:00:00:01","sandbox":"/run/netns/c1"},{"name":"dummy","mac":"0","sandbox":"0"}],
		"ips":[{"version":"4","address":"10.1.0.5/24","interface":1},{"version":"4","address":"10.1.0.6/24"},{"version":"4","address":"10.1.0.7/24","interface":2}],"routes":[{"dst":"0.0.0.0/0","gw":"169.254.1.1"}]}`))
	nodetest.OK(t, err)
	all, err := status.Networks("n", r, true)
	nodetest.OK(t, err)
	for netns, want := range map[string]string{
		"/run/netns/c1":  `[{"name":"n","interface":"eth0","ips":["10.1.0.5","10.1.0.6"],"mac":"02:00:00:00:00:01","default":true,"gateway":["169.254.1.1"]}]`,
		"":               encode(t, all),
		"/proc/7/ns/net": encode(t, all),
	} {
		got, err := status.NetworksIn(netns, "n", r, true)
		nodetest.OK(t, err)
		nodetest.Equal(t, "in "+netns, encode(t, got), want)
	}
	nodetest.Equal(t, "interfaces that have a sandbox", len(all), 2)
}

// An ownResult is a result of no known type.
type ownResult struct {
	as  types.Result
	err error
}

func (r ownResult) Version() string                           { return "own" }
func (r ownResult) GetAsVersion(string) (types.Result, error) { return r.as, r.err }
func (r ownResult) Print() error                              { return nil }
func (r ownResult) PrintTo(io.Writer) error                   { return nil }

func TestNetworksErrors(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		result types.Result
		text   string
	}{
		"nil":       {nil, `network "blue": no result`},
		"nil 100":   {(*types100.Result)(nil), `network "blue": no result`},
		"nil 040":   {(*types040.Result)(nil), `network "blue": no result`},
		"nil 020":   {(*types020.Result)(nil), `network "blue": no result`},
		"unwilling": {ownResult{err: errPlain}, `network "blue": result of version "own": plain`},
		"unknown":   {ownResult{as: ownResult{}}, `network "blue": result of version "own" is of the unknown type status_test.ownResult`},
		"nothing":   {ownResult{}, `network "blue": result of version "own" is of the unknown type status_test.ownResult`},
		"empty 100": {ownResult{as: (*types100.Result)(nil)}, `network "blue": result of version "own" is of the unknown type status_test.ownResult`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := status.Networks("blue", tt.result, true)
			if got != nil || err == nil {
				t.Fatalf("Networks = %v, %v; want an error", got, err)
			}
			if err.Error() != tt.text || status.Code(err) != 6 {
				t.Errorf("error %q, code %d; want %q, 6", err, status.Code(err), tt.text)
			}
			if r, ok := tt.result.(ownResult); ok && r.err != nil && !errors.Is(err, r.err) {
				t.Error("errors.Is does not find the cause")
			}
		})
	}
}

// What is returned can be written to without changing the result, or the other
// interfaces.
func TestNetworksShareNothing(t *testing.T) {
	t.Parallel()
	r := &types100.Result{
		Interfaces: []*types100.Interface{{Name: "a", Sandbox: "/n"}, {Name: "b", Sandbox: "/n"}},
		DNS:        types.DNS{Nameservers: []string{"10.1.0.1"}},
	}
	list, err := status.Networks("n", r, true)
	nodetest.OK(t, err)
	list[0].DNS.Nameservers[0] = "changed"
	if r.DNS.Nameservers[0] != "10.1.0.1" || list[1].DNS.Nameservers[0] != "10.1.0.1" {
		t.Errorf("result %v, other interface %v", r.DNS, list[1].DNS)
	}
}

// The JSON form of device information, all of it, as the specification and the
// files of device plugins have it.
func TestDeviceInfoJSON(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"type":"pci","version":"1.1.0","pci":{"pci-address":"a","vhost-net":"b","rdma-device":"c","pf-pci-address":"d","representor-device":"e"}}`,
		`{"type":"vdpa","version":"1.1.0","vdpa":{"parent-device":"a","driver":"b","path":"c","pci-address":"d","pf-pci-address":"e","representor-device":"f"}}`,
		`{"type":"vhost-user","version":"1.1.0","vhost-user":{"mode":"client","path":"/s"}}`,
		`{"type":"memif","version":"1.1.0","memif":{"role":"slave","path":"/s","mode":"ethernet"}}`,
	} {
		var d status.DeviceInfo
		nodetest.OK(t, json.Unmarshal([]byte(text), &d))
		nodetest.Equal(t, "got", encode(t, d), text)
	}
}

func TestAnnotationIsACompactList(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		networks []status.Network
		want     string
	}{
		{nil, `[]`},
		{[]status.Network{}, `[]`},
		{
			[]status.Network{
				{Name: "ns/blue", Interface: "eth0", IPs: []string{"10.0.0.2"}, MAC: "02:00:00:00:00:01", MTU: 1400, Default: true, Gateway: []string{"10.0.0.1"}},
				{Name: "red", DNS: types.DNS{Domain: "<a&b>"}},
			},
			`[{"name":"ns/blue","interface":"eth0","ips":["10.0.0.2"],"mac":"02:00:00:00:00:01","mtu":1400,"default":true,"gateway":["10.0.0.1"]},` +
				`{"name":"red","dns":{"domain":"<a&b>"}}]`,
		},
	} {
		text, trimmed := status.Annotation(tt.networks)
		if text != tt.want || trimmed {
			t.Errorf("%s, %v, want %s", text, trimmed, tt.want)
		}
	}
}

// Above 64 KiB the DNS of all is left out first, and only if that is not enough what is
// known of devices. Everything else stays.
func TestAnnotationLeavesOutDNSThenDevices(t *testing.T) {
	t.Parallel()
	const limit = 64 << 10
	// networks are as many as make sense, with this much DNS and of devices in all.
	networks := func(n, dns, device int) []status.Network {
		all := make([]status.Network, n)
		for i := range all {
			all[i] = status.Network{
				Name: fmt.Sprint("ns/", i), Interface: fmt.Sprint("net", i), IPs: []string{"10.0.0.2"},
				DNS:        types.DNS{Domain: strings.Repeat("d", dns/n)},
				DeviceInfo: &status.DeviceInfo{Type: "vhost-user", VhostUser: &status.VhostDevice{Path: strings.Repeat("p", device/n)}},
			}
		}
		return all
	}
	for _, tt := range []struct {
		name             string
		networks         []status.Network
		dns, device, fit bool // what the text has
	}{
		{"small", networks(2, 100, 100), true, true, true},
		{"much DNS", networks(10, limit, 100), false, true, true},
		{"large devices", networks(10, 100, limit), false, false, true},
		{"both", networks(10, limit, limit), false, false, true},
		{"too many of them", networks(2000, 2000, 2000), false, false, false},
	} {
		before, _ := json.Marshal(tt.networks) //nolint:errchkjson // compared below
		text, trimmed := status.Annotation(tt.networks)
		if dns, device := strings.Contains(text, `"dns"`), strings.Contains(text, `"device-info"`); dns != tt.dns || device != tt.device || trimmed == tt.dns {
			t.Errorf("%s: has DNS %v, devices %v, trimmed %v", tt.name, dns, device, trimmed)
		}
		nodetest.Equal(t, fmt.Sprintf("%s: %d bytes", tt.name, len(text)), (len(text) <= limit), tt.fit)
		var got []status.Network
		if err := json.Unmarshal([]byte(text), &got); err != nil || len(got) != len(tt.networks) {
			t.Fatalf("%s: %d networks, %v", tt.name, len(got), err)
		}
		for i, want := range tt.networks {
			if !tt.dns {
				want.DNS = types.DNS{}
			}
			if !tt.device {
				want.DeviceInfo = nil
			}
			if d := cmp.Diff(want, got[i]); d != "" {
				t.Fatalf("%s (-want +got):\n%s", tt.name, d)
			}
		}
		if after, _ := json.Marshal(tt.networks); string(after) != string(before) { //nolint:errchkjson // compared here
			t.Errorf("%s: the argument was changed", tt.name)
		}
	}
}

// The last byte that is allowed is allowed.
func TestAnnotationOf64KiBIsWhole(t *testing.T) {
	t.Parallel()
	network := status.Network{Name: "a", DNS: types.DNS{Domain: "x"}}
	text, _ := status.Annotation([]status.Network{network})
	network.DNS.Domain = strings.Repeat("x", 64<<10-len(text)+1)
	if text, trimmed := status.Annotation([]status.Network{network}); len(text) != 64<<10 || trimmed {
		t.Errorf("%d bytes, trimmed %v", len(text), trimmed)
	}
	network.DNS.Domain += "x"
	if text, trimmed := status.Annotation([]status.Network{network}); text != `[{"name":"a"}]` || !trimmed {
		t.Errorf("%.80s, trimmed %v", text, trimmed)
	}
}
