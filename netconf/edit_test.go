package netconf_test

import (
	"encoding/json"
	"errors"
	"math"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
)

func TestEdits(t *testing.T) {
	t.Parallel()
	const start = `{"type":"a","mtu":1,"ipam":{"type":"host-local"},"n":null,"list":[]}`
	own := func(keys map[string]json.RawMessage) error {
		keys["own"] = nil
		keys["spaced"] = json.RawMessage(" [ 1 ] ")
		return nil
	}
	tests := []struct {
		name  string
		edits []netconf.Edit
		want  string // the object, or
		err   wantError
	}{
		{"none", nil, `{"ipam":{"type":"host-local"},"list":[],"mtu":1,"n":null,"type":"a"}`, wantError{}},
		{"set", []netconf.Edit{netconf.Remove("ipam", "list", "n", "absent"), netconf.Set("mtu", 2), netconf.Set("<", "<&>")}, `{"<":"<&>","mtu":2,"type":"a"}`, wantError{}},
		{"default", []netconf.Edit{netconf.Remove("ipam", "list"), netconf.Default("mtu", 2), netconf.Default("n", 2), netconf.Default("m", 2)}, `{"m":2,"mtu":1,"n":null,"type":"a"}`, wantError{}},
		{"own", []netconf.Edit{netconf.Remove("ipam", "list", "mtu", "n"), own, nil}, `{"own":null,"spaced":[1],"type":"a"}`, wantError{}},
		{"in", []netconf.Edit{
			netconf.Remove("list", "mtu"),
			netconf.In("ipam", netconf.Set("x", 1), netconf.In("y", netconf.Set("z", json.RawMessage("1.0")))),
			netconf.In("n", netconf.Set("made", true)),
			netconf.In("new", netconf.Set("made", true)),
			netconf.In("not", netconf.Remove("x"), netconf.Forbid("x")),
		}, `{"ipam":{"type":"host-local","x":1,"y":{"z":1.0}},"n":{"made":true},"new":{"made":true},"type":"a"}`, wantError{}},
		{"in empties", []netconf.Edit{netconf.Remove("list", "mtu", "n"), netconf.In("ipam", netconf.Remove("type"))}, `{"ipam":{},"type":"a"}`, wantError{}},
		{"forbid", []netconf.Edit{netconf.Forbid("name", "ipam")}, "", wantError{kind: netconf.ErrInvalid, key: "ipam"}},
		{"forbid, spelled otherwise", []netconf.Edit{netconf.Set("IpAm", 1), netconf.Set("IPam", 1), netconf.Remove("ipam"), netconf.Forbid("name", "ipam")}, "", wantError{kind: netconf.ErrInvalid, key: "IPam"}},
		{"forbid passes", []netconf.Edit{netconf.Remove("ipam", "list", "n", "mtu"), netconf.Forbid("name", "x")}, `{"type":"a"}`, wantError{}},
		{"forbid deep", []netconf.Edit{netconf.In("ipam", netconf.Forbid("type"))}, "", wantError{kind: netconf.ErrInvalid, key: "ipam.type"}},
		{"in a number", []netconf.Edit{netconf.In("mtu", netconf.Set("x", 1))}, "", wantError{kind: netconf.ErrDecode, key: "mtu"}},
		{"in an array", []netconf.Edit{netconf.In("list")}, "", wantError{kind: netconf.ErrDecode, key: "list"}},
		{"in no key", []netconf.Edit{netconf.In("")}, "", wantError{kind: netconf.ErrInvalid}},
		{"set no key", []netconf.Edit{netconf.Set("", 1)}, "", wantError{kind: netconf.ErrInvalid}},
		{"set nothing", []netconf.Edit{netconf.Set("x", nil)}, "", wantError{kind: netconf.ErrInvalid, key: "x"}},
		{"set what is not JSON", []netconf.Edit{netconf.Set("x", math.Inf(1))}, "", wantError{kind: netconf.ErrInvalid, key: "x"}},
		{"default deep", []netconf.Edit{netconf.In("ipam", netconf.Default("x", func() {}))}, "", wantError{kind: netconf.ErrInvalid, key: "ipam.x"}},
		{"own makes no JSON", []netconf.Edit{func(keys map[string]json.RawMessage) error { keys["x"] = json.RawMessage("{"); return nil }}, "", wantError{kind: netconf.ErrDecode, key: "x"}},
		{"own makes no JSON for In", []netconf.Edit{func(keys map[string]json.RawMessage) error { keys["ipam"] = json.RawMessage("{"); return nil }, netconf.In("ipam")}, "", wantError{kind: netconf.ErrDecode, key: "ipam"}},
		{"own gives a key twice", []netconf.Edit{netconf.Set("x", json.RawMessage(`{"a":1,"a":2}`))}, "", wantError{kind: netconf.ErrDecode, key: "x.a"}},
		{"own key not UTF-8", []netconf.Edit{netconf.Set("\xff", 1)}, "", wantError{kind: netconf.ErrDecode, key: "\xff"}},
		{"own error", []netconf.Edit{func(map[string]json.RawMessage) error { return errors.New("no room") }}, "", wantError{kind: netconf.ErrInvalid, text: "no room"}},
		{"own error with a code", []netconf.Edit{netconf.In("ipam", func(map[string]json.RawMessage) error { return codeError(11) })}, "", wantError{kind: netconf.ErrInvalid, code: 11, key: "ipam"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := mustPlugin(t, start)
			got, err := p.Edit(tt.edits...)
			if !p.Equal(mustPlugin(t, start)) {
				t.Errorf("the plugin changed to %v", p)
			}
			if tt.err.kind != nil {
				tt.err.check(t, err)
				return
			}
			nodetest.OK(t, err)
			if data, _ := got.MarshalJSON(); string(data) != tt.want {
				t.Errorf("got %s, want %s", data, tt.want)
			}
		})
	}
}

// An Edit that keeps what it was given cannot change the result.
func TestEditKeepsHold(t *testing.T) {
	t.Parallel()
	var kept map[string]json.RawMessage
	mine := json.RawMessage(`"mine"`)
	p, err := mustPlugin(t, `{"type":"a"}`).Edit(func(keys map[string]json.RawMessage) error {
		keys["x"] = mine
		kept = keys
		return nil
	})
	nodetest.OK(t, err)
	clear(mine)
	clear(kept["type"])
	kept["y"] = nil
	if data, _ := p.MarshalJSON(); string(data) != `{"type":"a","x":"mine"}` {
		t.Errorf("plugin is %s", data)
	}
}
