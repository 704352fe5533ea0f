package status_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
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
		{"own without code", own(0, nil), 999, "own 0"},
		{"wrapped types", fmt.Errorf("network %q: %w", "blue", coded(11, "busy")), 11, `network "blue": busy`},
		{"wrapped own", fmt.Errorf("a: %w", own(4, nil)), 4, "a: own 4"},
		{"own wins over what it wraps", own(7, coded(11, "busy")), 7, "own 7: busy"},
		{"own without code lets through", own(0, coded(11, "busy")), 11, "own 0: busy"},
		{"joined: first wins", errors.Join(errPlain, coded(11, "busy"), own(7, nil)), 11, "plain; busy; own 7"},
		{"joined: plain ones do not hide it", errors.Join(errPlain, own(7, nil)), 7, "plain; own 7"},
		{"pre-order", errors.Join(fmt.Errorf("x: %w", errors.Join(errPlain, coded(5, "deep"))), coded(6, "shallow")), 5, "x: plain; deep; shallow"},
		{"two %w", fmt.Errorf("%w, %w", errPlain, coded(5, "io")), 5, "plain, io"},
		{"999 is a code", errors.Join(coded(999, "x"), coded(11, "y")), 999, "x; y"},
		{"canceled", context.Canceled, 11, "context canceled"},
		{"deadline", fmt.Errorf("add: %w", context.DeadlineExceeded), 11, "add: context deadline exceeded"},
		{"a code wins over the context", errors.Join(context.Canceled, coded(5, "io")), 5, "context canceled; io"},
		{"nil inside", lazyError{}, 999, "lazy"},
		{"other errors", fs.ErrNotExist, 999, "file does not exist"},
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
		{"50", coded(50, "down"), 50, "down"},
		{"51", coded(51, "cut off"), 51, "cut off"},
		{"another code", coded(11, "busy"), 50, "busy"},
		{"51 behind another code", errors.Join(coded(11, "busy"), &codeError{code: 51}), 51, "busy; own 51"},
		{"51 below another code", &codeError{11, coded(51, "cut off")}, 51, "own 11: cut off"},
		{"51 after 50", errors.Join(coded(50, "a"), fmt.Errorf("x: %w", coded(51, "b"))), 51, "a; x: b"},
		{"twice", status.NotReady(coded(51, "cut off")), 51, "cut off"},
		{"typed nil", error((*types.Error)(nil)), 50, "unknown error"},
		{"context", context.DeadlineExceeded, 50, "context deadline exceeded"},
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

// variants returns text with each of its values, one at a time, replaced by
// each of others; the value of "cniVersion" stays.
func variants(t testing.TB, text string, others ...string) (all [][]byte) {
	t.Helper()
	var root any
	nodetest.OK(t, json.Unmarshal([]byte(text), &root))
	keep := func() {
		data, err := json.Marshal(root)
		nodetest.OK(t, err)
		all = append(all, data)
	}
	try := func(set func(any), was any) {
		for _, other := range others {
			set(json.RawMessage(other))
			keep()
		}
		set(was)
	}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(v)) {
				if key == "cniVersion" {
					continue
				}
				was := v[key]
				try(func(other any) { v[key] = other }, was)
				walk(was)
			}
		case []any:
			for i, was := range v {
				try(func(other any) { v[i] = other }, was)
				walk(was)
			}
		}
	}
	walk(root)
	return all
}

// Every JSON type at every place of a result of every version: it is no result,
// or one whose networks can be listed.
func TestNetworksOfEveryJSONType(t *testing.T) {
	t.Parallel()
	for _, text := range whole {
		read := 0
		for _, data := range variants(t, text, `null`, `true`, `-1`, `9223372036854775807`, `1e400`, `""`, `"x"`, `[]`, `[null]`, `[[]]`, `{}`, `[{}]`, `{"x":null}`) {
			r, err := create.CreateFromBytes(data)
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
		for _, data := range variants(f, text, "null", "[null]", "-1") {
			f.Add(data, false)
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
