package netconf_test

import (
	"strings"
	"testing"

	"github.com/metacni/metacni/netconf"
)

func TestParseErrors(t *testing.T) {
	t.Parallel()
	decode, invalid := netconf.ErrDecode, netconf.ErrInvalid
	tests := []struct {
		name, data string
		want       wantError
	}{
		{"empty", ``, wantError{kind: decode, text: "line 1"}},
		{"not JSON", "{\n  \"name\": blue}", wantError{kind: decode, text: "line 2, column 11"}},
		{"trailing data", `{"type":"a"} {}`, wantError{kind: decode, text: "after top-level value"}},
		{"not UTF-8", "{\"name\":\"\xff\"}", wantError{kind: decode, text: "UTF-8"}},
		{"null", `null`, wantError{kind: decode, text: "null, want an object"}},
		{"array", `[]`, wantError{kind: decode, text: "an array, want an object"}},
		{"no plugins, no type", `{"name":"n"}`, wantError{kind: invalid, network: "n", key: "plugins"}},
		{"plugins empty", `{"name":"n","plugins":[]}`, wantError{kind: invalid, network: "n", key: "plugins"}},
		{"plugins null", `{"name":"n","plugins":null}`, wantError{kind: decode, network: "n", key: "plugins"}},
		{"plugins object", `{"name":"n","plugins":{}}`, wantError{kind: decode, network: "n", key: "plugins"}},
		{"plugin not an object", `{"name":"n","plugins":[{"type":"a"},3]}`, wantError{kind: decode, network: "n", key: "plugins[1]"}},
		{"plugin without type", `{"name":"n","plugins":[{"type":"a"},{}]}`, wantError{kind: invalid, network: "n", key: "plugins[1].type"}},
		{"plugin with empty type", `{"name":"n","plugins":[{"type":""}]}`, wantError{kind: invalid, network: "n", key: "plugins[0].type"}},
		{"type of a lone plugin empty", `{"name":"n","type":""}`, wantError{kind: invalid, network: "n", key: "plugins[0].type"}},
		{"type a number", `{"name":"n","plugins":[{"type":4}]}`, wantError{kind: decode, network: "n", key: "plugins[0].type"}},
		{"type null", `{"name":"n","type":null}`, wantError{kind: decode, network: "n", key: "type"}},
		{"name a number", `{"name":4,"plugins":[{"type":"a"}]}`, wantError{kind: decode, key: "name"}},
		{"name null", `{"name":null,"plugins":[{"type":"a"}]}`, wantError{kind: decode, key: "name"}},
		{"name null in a lone plugin", `{"name":null,"type":"a"}`, wantError{kind: decode, key: "name"}},
		{"name empty", `{"name":"","plugins":[{"type":"a"}]}`, wantError{kind: invalid, key: "name", text: "empty"}},
		{"name a path", `{"name":"../x","plugins":[{"type":"a"}]}`, wantError{kind: invalid, network: "../x", key: "name"}},
		{"name a path in a lone plugin", `{"name":"a/b","type":"a"}`, wantError{kind: invalid, network: "a/b", key: "name"}},
		{"cniVersion a number", `{"name":"n","cniVersion":1,"plugins":[{"type":"a"}]}`, wantError{kind: decode, network: "n", key: "cniVersion"}},
		{"cniVersions a string", `{"name":"n","cniVersions":"1.0.0","type":"a"}`, wantError{kind: decode, network: "n", key: "cniVersions"}},
		{"cniVersions element", `{"name":"n","cniVersions":["1.0.0",1],"type":"a"}`, wantError{kind: decode, network: "n", key: "cniVersions[1]"}},
		{"cniVersions no version", `{"name":"n","cniVersions":["one"],"type":"a"}`, wantError{kind: invalid, network: "n", key: "cniVersions[0]", text: `"one"`}},
		{"cniVersion no version", `{"name":"n","cniVersion":"one","cniVersions":[],"type":"a"}`, wantError{kind: invalid, network: "n", key: "cniVersion"}},
		{"disableCheck a number", `{"name":"n","disableCheck":1,"plugins":[{"type":"a"}]}`, wantError{kind: decode, network: "n", key: "disableCheck"}},
		{"disableGC a word", `{"name":"n","disableGC":"yes","plugins":[{"type":"a"}]}`, wantError{kind: invalid, network: "n", key: "disableGC", text: "neither true nor false"}},
		{"loadOnlyInlinedPlugins null", `{"name":"n","loadOnlyInlinedPlugins":null,"plugins":[{"type":"a"}]}`, wantError{kind: decode, network: "n", key: "loadOnlyInlinedPlugins"}},
		{"loadOnlyInlinedPlugins and no plugins", `{"name":"n","loadOnlyInlinedPlugins":true}`, wantError{kind: invalid, network: "n", key: "plugins", text: "loadOnlyInlinedPlugins"}},
		{"key twice", `{"name":"n","name":"m","type":"a"}`, wantError{kind: decode, key: "name", text: "twice"}},
		{"key twice in a plugin", `{"name":"n","plugins":[{"type":"a","type":"b"}]}`, wantError{kind: decode, key: "plugins[0].type", text: "twice"}},
		{"key twice, nested and escaped", `{"name":"n","plugins":[{"type":"a","x":[1,{"y":{"k":1,"\u006b":2}}]}]}`, wantError{kind: decode, key: "plugins[0].x[1].y.k"}},
		{"empty key twice", `{"":1,"":2}`, wantError{kind: decode, key: `""`}},
		{"ipam a string", `{"name":"n","plugins":[{"type":"a","ipam":"dhcp"}]}`, wantError{kind: decode, network: "n", key: "plugins[0].ipam"}},
		{"ipam type a number", `{"name":"n","plugins":[{"type":"a","ipam":{"type":1}}]}`, wantError{kind: decode, network: "n", key: "plugins[0].ipam.type"}},
		{"dns servers a string", `{"name":"n","type":"a","dns":{"nameservers":"8.8.8.8"}}`, wantError{kind: decode, network: "n", key: "dns.nameservers"}},
		{"prevResult an array", `{"name":"n","type":"a","prevResult":[]}`, wantError{kind: decode, network: "n", key: "prevResult"}},
		{"valid attachments an object", `{"name":"n","type":"a","cni.dev/valid-attachments":{}}`, wantError{kind: decode, network: "n", key: "cni.dev/valid-attachments"}},
		{"name of a plugin in a list", `{"name":"n","plugins":[{"type":"a","name":7}]}`, wantError{kind: decode, network: "n", key: "plugins[0].name"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n, err := netconf.Parse([]byte(tt.data))
			if err == nil {
				t.Fatalf("no error, but %v", n)
			}
			if !n.IsZero() {
				t.Error("a network was returned with the error")
			}
			tt.want.check(t, err)
			// A configuration that embeds it fails the same way.
			if strings.Contains(tt.want.text, "line") || tt.data == "null" {
				return
			}
			var into netconf.Network
			err = into.UnmarshalJSON([]byte(tt.data))
			tt.want.check(t, err)
		})
	}
}

// Secrets of a configuration do not get into errors.
func TestErrorsQuoteNoValues(t *testing.T) {
	t.Parallel()
	for _, data := range []string{
		`{"name":"n","plugins":[{"type":"a","token":"hunter2","token":"hunter2"}]}`,
		`{"name":"n","plugins":[{"type":"a","token":"hunter2"},{"password":"hunter2"}]}`,
		`{"name":"n","plugins":[{"type":"a","ipam":"hunter2"}]}`,
		`{"name":"n","plugins":[{"type":"a","dns":{"domain":{"hunter2":"hunter2"}}}]}`,
		`{"name":"n","password":"hunter2","plugins":[]}`,
		`{"name":"n","disableCheck":"hunter2","plugins":[{"type":"a"}]}`,
		`{"name":"n","password":"hunter2" "plugins":[]}`,
	} {
		_, err := netconf.Parse([]byte(data))
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Parse(%s): %v", data, err)
		}
	}
}
