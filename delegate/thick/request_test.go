package thick

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/thick/internal/override"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/status"
)

// understand is what the server makes of m.
func understand(m wire.Request) (order, error) { return decode(wire.PathCNI, &m, nil, nil) }

func refused(t *testing.T, err error, code uint, text string) {
	t.Helper()
	if err == nil || httpStatus(err) != http.StatusBadRequest || status.Code(err) != code || !strings.Contains(err.Error(), text) {
		t.Errorf("err %v (status %d, code %d), want 400, code %d, %q", err, httpStatus(err), status.Code(err), code, text)
	}
}

// What a command needs is there, and is what package skel takes.
func TestEnvironmentIsCheckedAsSkelDoes(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"ADD", "CHECK", "DEL", "GC", "STATUS"} {
		full := request(verb, "c1")
		ofContainer := verb != "GC" && verb != "STATUS"
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			o, err := understand(full)
			nodetest.OK(t, err)
			want := skel.CmdArgs{Path: "/opt/cni/bin", StdinData: []byte(podsConf)}
			if ofContainer {
				want.ContainerID, want.Netns, want.IfName = "c1", "/run/netns/c1", "eth0"
			}
			nodetest.Equal(t, "got", o.args, want)

			// Nobody needs these.
			if _, err := understand(with(full, "CNI_PATH", "", "CNI_ARGS", "")); err != nil {
				t.Error(err)
			}
			// What only operations of a container need.
			for _, tt := range []struct {
				name, value, text string
				odd               bool // whatever the command
			}{
				{"CNI_CONTAINERID", "", "missing CNI_CONTAINERID", false},
				{"CNI_CONTAINERID", "../../etc", "invalid characters in containerID", false},
				{"CNI_CONTAINERID", "-c", "invalid characters in containerID", false},
				{"CNI_CONTAINERID", strings.Repeat("/", 5000), "invalid characters in containerID", false},
				{"CNI_IFNAME", "a/b", "interface name contains", false},
				{"CNI_IFNAME", "..", "interface name is . or ..", false},
				{"CNI_IFNAME", strings.Repeat("e", 16), "interface name is too long", false},
				{"CNI_IFNAME", "a b", "interface name contains", false},
				{"CNI_IFNAME", "eth0\x00", "CNI_IFNAME has a zero byte", true},
				{"CNI_NETNS", "/run/netns/c1\x00x", "CNI_NETNS has a zero byte", true},
				{"CNI_PATH", "\x00", "CNI_PATH has a zero byte", true},
				{"CNI_ARGS", "a=\x00", "CNI_ARGS has a zero byte", true},
				{"CNI_NETNS_OVERRIDE", "\x00", "CNI_NETNS_OVERRIDE has a zero byte", true},
			} {
				o, err := understand(with(full, tt.name, tt.value))
				if !tt.odd && !ofContainer {
					if err != nil {
						t.Errorf("%s=%q: %v", tt.name, tt.value, err)
					}
					continue
				}
				refused(t, err, 4, verb+": "+tt.text)
				if len(err.Error()) > 300 {
					t.Errorf("an error of %d bytes", len(err.Error()))
				}
				if tt.name == "CNI_CONTAINERID" && o.args.ContainerID != "" {
					t.Errorf("kept %q", o.args.ContainerID)
				}
			}
			o, err = understand(with(full, "CNI_NETNS", ""))
			if verb == "ADD" || verb == "CHECK" {
				refused(t, err, 4, "missing CNI_NETNS")
			} else if err != nil {
				t.Error(err)
			}
			if ofContainer && verb == "DEL" && o.args.Netns != "" {
				t.Errorf("netns %q", o.args.Netns)
			}
			if o, err := understand(with(full, "CNI_IFNAME", "")); ofContainer && (err != nil || o.args.IfName != "eth0") {
				t.Errorf("without CNI_IFNAME: %+v, %v", o, err)
			}
			if o, err := understand(with(full, "CNI_NETNS_OVERRIDE", "1")); ofContainer && (err != nil || o.args.NetnsOverride != "1") {
				t.Errorf("with CNI_NETNS_OVERRIDE: %+v, %v", o, err)
			}
		})
	}
}

// CNI_ARGS is split at the first "=", and empty parts are nothing. It
// reaches the plugin as it came.
func TestArgsReachThePluginUnchanged(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"", ";", "a=b;", ";;a=b", "a=b=c", "a=", "=b", "IgnoreUnknown=1;K8S_POD_NAME=x", "a=b;;c=d;"} {
		o, err := understand(with(request("ADD", "c1"), "CNI_ARGS", args))
		if err != nil || o.args.Args != args {
			t.Errorf("%q: %+v, %v", args, o, err)
		}
	}
	for _, args := range []string{"a", "a=b;c", "a=b; ", "c;a=b"} {
		_, err := understand(with(request("ADD", "c1"), "CNI_ARGS", args))
		refused(t, err, 4, "invalid CNI_ARG")
	}
	_, err := understand(with(request("ADD", "c1"), "CNI_ARGS", strings.Repeat("x", 1<<20)))
	refused(t, err, 4, "invalid CNI_ARG")
	if len(err.Error()) > 200 {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
}

// A command that is none of the specification's, and VERSION, which is the
// shim's to answer, is code 4.
func TestUnknownCommandIsCode4(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"VERSION", "add", "ADD ", "UPDATE", "A\x00"} {
		_, err := understand(request(verb, "c1"))
		refused(t, err, 4, "unknown CNI_COMMAND ")
	}
	_, err := understand(request("", "c1"))
	refused(t, err, 4, "missing CNI_COMMAND")
	a := post(t, bare(), "POST", wire.PathCNI, string(encoded(request("UPDATE", "c1"))))
	a.want(t, 400, 4, `unknown CNI_COMMAND "UPDATE"`)
}

func TestConfiguration(t *testing.T) {
	t.Parallel()
	for conf, want := range map[string]struct {
		network string
		code    uint
	}{
		"":                       {"", 0}, // for the plugin to say
		"{}":                     {"", 0},
		` {"name": "a"}`:         {"a", 0},
		`{"NAME": "a"}`:          {"a", 0},
		`{"name": null}`:         {"", 0},
		`{"name": "a/b"}`:        {"", 7},
		`{"name": "../x"}`:       {"", 7},
		`{"name": ["a"]}`:        {"", 7},
		`{`:                      {"", 6},
		`null`:                   {"", 6},
		`[{"name":"a"}]`:         {"", 6},
		`"a"`:                    {"", 6},
		` `:                      {"", 6},
		"{\"name\":\"a\"}\x00":   {"", 6},
		"\xef\xbb\xbf{}":         {"", 6},
		`{"name":"a"}{"name":1}`: {"", 6},
	} {
		m := request("ADD", "c1")
		m.Config = []byte(conf)
		o, err := understand(m)
		if want.code != 0 {
			refused(t, err, want.code, "the configuration")
		} else if err != nil || string(o.args.StdinData) != conf {
			t.Errorf("%s: %q, %v", conf, o.args.StdinData, err)
		}
		if o.network != want.network {
			t.Errorf("%s: network %q", conf, o.network)
		}
	}
}

// Whatever a message says, what reaches the plugin is what skel would let
// through, or the answer is the client's fault.
func FuzzRequest(f *testing.F) {
	for _, verb := range []string{"ADD", "CHECK", "DEL", "GC", "STATUS", "VERSION", ""} {
		f.Add(encoded(request(verb, "c1")), "00-1-2-3")
	}
	f.Add(encoded(with(request("ADD", "../c"), "CNI_IFNAME", "a/b", "CNI_ARGS", "a=b;c")), "")
	f.Add([]byte(`{"env":null,"config":"e30=","interfaceAttributes":{"cni-args":null},"deadlineMs":9223372036854775807}`), "x")
	f.Add([]byte(`null`), "")
	over := override.Override{"logLevel": json.RawMessage(`"debug"`)}
	f.Fuzz(func(t *testing.T, data []byte, trace string) {
		m, err := read(nil, &http.Request{Body: io.NopCloser(bytes.NewReader(data))})
		if err != nil {
			refused(t, err, 6, "")
			return
		}
		o, err := decode(wire.PathCNI, m, http.Header{"Traceparent": {trace}}, over)
		if err != nil {
			code := status.Code(err)
			if httpStatus(err) != 400 || code != 4 && code != 6 && code != 7 {
				t.Fatalf("%v: status %d, code %d", err, httpStatus(err), code)
			}
			if len(err.Error()) > 1000 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		if o.with == nil {
			t.Errorf("%+v", o)
		}
		if o.ofContainer() && (utils.ValidateContainerID(o.args.ContainerID) != nil || utils.ValidateInterfaceName(o.args.IfName) != nil) {
			t.Errorf("arguments %+v", o.args)
		}
		if o.network != "" && utils.ValidateNetworkName(o.network) != nil {
			t.Errorf("network %q", o.network)
		}
		for _, v := range append(o.trace, o.args.Netns, o.args.IfName, o.args.Args, o.args.Path) {
			if strings.ContainsRune(v, 0) {
				t.Errorf("%q has a zero byte", v)
			}
		}
		if !json.Valid(o.args.StdinData) {
			t.Errorf("configuration %q", o.args.StdinData)
		}
	})
}

// A plugin runs in the daemon as it runs in a process.
func TestResultsOfAPlugin(t *testing.T) {
	t.Parallel()
	type printed struct {
		text string
		err  error
	}
	for name, tt := range map[string]struct {
		printed printed
		want    string
		code    uint
		undone  bool
	}{
		"1.1.0":   {printed{"{\"cniVersion\":\"1.1.0\"}\n", nil}, `{"cniVersion":"1.1.0"}`, 0, false},
		"0.3.1":   {printed{`{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.1.0.5/24"}]}`, nil}, `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.5/24"}]}`, 0, false},
		"fails":   {printed{"", types.NewError(101, "no", "")}, "", 101, false},
		"nothing": {printed{" \n", nil}, "", 6, true},
		"null":    {printed{"null\n", nil}, "", 6, true},
		"noise":   {printed{"hello\n{}", nil}, "", 6, true},
		"list":    {printed{"[]", nil}, "", 6, true},
		"version": {printed{`{"cniVersion":"7.0"}`, nil}, "", 6, true},
		"flood":   {printed{strings.Repeat(" ", wire.MaxBody+1), nil}, "", 6, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			undone := false
			p := plugin.Plugin{
				Add: func(ctx context.Context, c *plugin.Call) error {
					if ctx.Err() != nil {
						return ctx.Err()
					}
					_, err := io.WriteString(c.Stdout, tt.printed.text)
					return errors.Join(err, tt.printed.err)
				},
				Del: func(_ context.Context, c *plugin.Call) error {
					undone = true
					_, err := io.WriteString(c.Stdout, "noise")
					return err
				},
			}
			h := CommandsOf(p, func(context.Context) plugin.Process { return plugin.Process{} })
			a := post(t, &Server{Commands: h}, "POST", wire.PathCNI, string(encoded(request("ADD", "c1"))))
			if tt.code != 0 {
				a.want(t, 500, tt.code, "")
			} else {
				a.wantOK(t)
				sameJSON(t, `{"Result":`+tt.want+`}`, a.body)
			}
			if undone != tt.undone {
				t.Errorf("undone: %v", undone)
			}
		})
	}
}
