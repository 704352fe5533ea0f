package thick

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/thick/wire"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/status"
)

// post sends body to path as the one request of a server of its own.
func post(t *testing.T, s *Server, method, path, body string) (a answer) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := serve(t, s)
		a = exchange(t.Context(), r.Client, method, path, []byte(body))
	})
	if a.err != nil {
		t.Fatal(a.err)
	}
	nodetest.Equal(t, fmt.Sprintf("%s %s: %s", method, path, wire.VersionHeader), a.header.Get(wire.VersionHeader), "1")
	return a
}

func fixture(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	nodetest.OK(t, err)
	return string(data)
}

// sameJSON compares JSON by what it means.
func sameJSON(t *testing.T, want, got string) {
	t.Helper()
	var w, g any
	nodetest.OK(t, json.Unmarshal([]byte(want), &w))
	nodetest.OK(t, json.Unmarshal([]byte(got), &g))
	nodetest.Equal(t, "got", g, w)
}

func TestMethodsOfEachPath(t *testing.T) {
	t.Parallel()
	for path, allow := range map[string]string{
		wire.PathCNI: "POST", wire.PathAttach: "GET, POST", wire.PathHealth: "GET, HEAD, POST", wire.PathReady: "GET, HEAD, POST", pathInfo: "GET, HEAD",
	} {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "ODD"} {
			a := post(t, &Server{
				Plugin: (&fake{}).plugin(), Attach: func(*wire.Attributes) plugin.Plugin { return (&fake{}).plugin() },
				Attachments: func(context.Context, string) ([]Listed, error) { return nil, nil },
			}, method, path, "")
			nodetest.Equal(t, method+" "+path, a.status != http.StatusMethodNotAllowed, strings.Contains(allow, method))
			if a.status == http.StatusMethodNotAllowed {
				nodetest.Equal(t, method+" "+path, a.header.Get("Allow"), allow)
			}
			if a.status == http.StatusMethodNotAllowed && method != "HEAD" {
				a.want(t, http.StatusMethodNotAllowed, 999, "")
			}
		}
	}
	// Any other path is unknown, unless Other has it, such as metrics.
	for _, path := range []string{"/", "/cni/", "/CNI", "//cni", "/metrics"} {
		post(t, bare(), "POST", path, "{}").want(t, 404, 999, path)
	}
	other := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte(r.URL.Path)) })
	nodetest.Equal(t, "body", post(t, &Server{Plugin: (&fake{}).plugin(), Other: other}, "GET", "/metrics", "").body, "/metrics")
}

func TestRequestBodies(t *testing.T) {
	t.Parallel()
	big := func(n int) string {
		return `{"env":{"CNI_COMMAND":"GC"},"pad":"` + strings.Repeat("x", n-len(`{"env":{"CNI_COMMAND":"GC"},"pad":""}`)) + `"}`
	}
	for body, want := range map[string]string{
		`{"env":{"CNI_COMMAND":"ADD"`: "unexpected end of JSON input",
		`{"config":"{}"}`:             "illegal base64",
		`{"env":{"CNI_COMMAND":5}}`:   "the request: cannot decode configuration: key \"env.CNI_COMMAND\": a number, want a string",
		`null`:                        "null, want an object",
	} {
		post(t, bare(), "POST", wire.PathCNI, body).want(t, 400, 6, want)
	}
	post(t, bare(), "POST", wire.PathCNI, `{"env":{"CNI_COMMAND":"UP"}}`).want(t, 400, 4, `unknown CNI_COMMAND "UP"`)
	post(t, bare(), "POST", wire.PathCNI, big(wire.MaxBody+1)).want(t, 413, 6, "more than 4194304 bytes")
	post(t, bare(), "POST", wire.PathCNI, big(wire.MaxBody)).wantOK(t)
}

// What Multus's shim sends is understood, and it understands the
// answers. The messages are in testdata.
func TestMessagesOfMultus(t *testing.T) {
	t.Parallel()
	result := &types100.Result{
		CNIVersion: "1.1.0",
		Interfaces: []*types100.Interface{{Name: "eth0", Mac: "02:42:0a:01:00:05", Sandbox: "/var/run/netns/cni-1b1c"}},
		IPs:        []*types100.IPConfig{{Interface: types100.Int(0), Address: cidr("10.1.0.5/24"), Gateway: net.ParseIP("10.1.0.1")}},
		Routes:     []*types.Route{{Dst: cidr("0.0.0.0/0")}},
	}
	ifs := "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0"
	conf := `{"cniVersion":"1.0.0","name":"multus-cni-network","type":"multus-shim","logToStderr":true,"clusterNetwork":"/host/etc/cni/net.d/10-flannel.conflist"}`
	full := skel.CmdArgs{
		ContainerID: "8f0c", Netns: "/var/run/netns/cni-1b1c", IfName: "eth0", Path: "/opt/cni/bin",
		Args: ifs + ";K8S_POD_INFRA_CONTAINER_ID=8f0c;K8S_POD_UID=5a3c", StdinData: []byte(conf),
	}
	bare := full
	bare.Args, bare.Path = "", ""
	for name, tt := range map[string]struct {
		path  string
		args  skel.CmdArgs
		trace []string
	}{
		"multus-add.json":    {wire.PathCNI, full, []string{"TRACEPARENT=00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}},
		"newer-add.json":     {wire.PathCNI, bare, nil},
		"multus-del.json":    {wire.PathCNI, skel.CmdArgs{ContainerID: "8f0c", IfName: "eth0", Path: "/opt/cni/bin", Args: ifs + ";", StdinData: []byte(conf)}, nil},
		"multus-status.json": {wire.PathCNI, skel.CmdArgs{Path: "/opt/cni/bin", StdinData: []byte(conf)}, nil},
		"multus-delegate-add.json": {wire.PathAttach, skel.CmdArgs{
			ContainerID: "8f0c", Netns: "/var/run/netns/cni-1b1c", IfName: "net1",
			Args:      "IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=8f0c;K8S_POD_UID=5a3c",
			StdinData: []byte(`{"cniVersion":"0.3.1","name":"storage","type":"macvlan","master":"eth1"}`),
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got skel.CmdArgs
			var trace []string
			take := func(_ context.Context, c *plugin.Call) error {
				got, trace = *c.CmdArgs(), c.System.Env
				return result.PrintTo(c.System.Stdout)
			}
			p := plugin.Plugin{Add: take, Del: take, Status: take}
			var attrs *wire.Attributes
			a := post(t, &Server{Plugin: p, Attach: func(w *wire.Attributes) plugin.Plugin { attrs = w; return p }}, "POST", tt.path, fixture(t, name))
			a.wantOK(t)
			nodetest.Equal(t, "arguments", got, tt.args)
			nodetest.Equal(t, "trace", trace, tt.trace)
			if !strings.Contains(name, "add") {
				nodetest.Equal(t, "answer", a.body+a.header.Get("Content-Type"), "")
				return
			}
			nodetest.Equal(t, "Content-Type", a.header.Get("Content-Type"), "application/json")
			sameJSON(t, fixture(t, "answer-add.json"), a.body)
			// As Multus's shim reads it.
			var res struct{ Result *types100.Result }
			if err := json.Unmarshal([]byte(a.body), &res); err != nil || res.Result == nil {
				t.Errorf("%+v, %v", res, err)
			}
			if tt.path == wire.PathAttach {
				nodetest.Equal(t, "attributes", attrs, &wire.Attributes{IPs: []string{"10.1.0.9/24"}, MAC: "02:42:0a:01:00:09"})
			}
		})
	}
}

func cidr(s string) net.IPNet {
	ip, n, err := net.ParseCIDR(s)
	if err != nil {
		panic(err)
	}
	n.IP = ip
	return *n
}

// Every error is the specification's object, with the code of its cause.
func TestErrorsKeepTheirCode(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		strings.TrimSpace(fixture(t, "answer-error.json")): types.NewError(11, "no free address", "10.1.0.0/24"),
		`{"code":107,"msg":"net1; no device"}`:             errors.Join(errors.New("net1"), types.NewError(107, "no device", "")),
		`{"code":999,"msg":"odd"}`:                         errors.New("odd"),
	} {
		fails := func(context.Context, *skel.CmdArgs) error { return err }
		f := &fake{add: fails, del: fails}
		for _, verb := range []string{"ADD", "DEL"} {
			a := post(t, &Server{Plugin: f.plugin()}, "POST", wire.PathCNI, string(encoded(request(verb, "c1"))))
			a.want(t, 500, a.said().Code, "")
			sameJSON(t, want, a.body)
		}
		f.want(t, "ADD c1", "end ADD c1", "DEL c1", "end DEL c1")
	}
}

func TestAttachCommandsAreServed(t *testing.T) {
	t.Parallel()
	var got string
	f := &fake{
		del: func(context.Context, *skel.CmdArgs) error { return types.NewError(101, "stuck", "") },
		check: func(_ context.Context, a *skel.CmdArgs) error {
			got = string(a.StdinData)
			return nil
		},
	}
	// The override is of the runtime's configuration, not of a network's.
	s := func() *Server {
		return &Server{Plugin: f.plugin(), Attach: func(*wire.Attributes) plugin.Plugin { return f.plugin() }, Override: json.RawMessage(`{"binDir":"/host/bin","NAME":"x"}`)}
	}
	post(t, s(), "POST", wire.PathAttach, string(encoded(request("DEL", "c1")))).want(t, 500, 101, "stuck")
	post(t, s(), "POST", wire.PathAttach, string(encoded(request("CHECK", "c1")))).wantOK(t)
	nodetest.Equal(t, "configuration", got, podsConf)
	post(t, s(), "POST", wire.PathCNI, string(encoded(request("CHECK", "c1")))).wantOK(t)
	nodetest.Equal(t, "configuration", got, `{"NAME":"x","binDir":"/host/bin","cniVersion":"1.1.0","type":"multinet"}`)
	post(t, s(), "GET", wire.PathAttach, "").want(t, 404, 999, "does not list")
	post(t, bare(), "POST", wire.PathAttach, "{}").want(t, 404, 999, "does not attach")
	post(t, bare(), "PUT", wire.PathAttach, "{}").want(t, 404, 999, "")
}

func TestAttachmentsAreListed(t *testing.T) {
	t.Parallel()
	s := func() *Server {
		return &Server{Plugin: (&fake{}).plugin(), Attachments: func(_ context.Context, id string) ([]Listed, error) {
			switch id {
			case "8f0c":
				return []Listed{
					{ContainerID: id, IfName: "eth0", Network: "pods", State: "added", Result: json.RawMessage(`{"cniVersion":"1.1.0"}`)},
					{ContainerID: id, IfName: "net1", Network: "storage", State: "deleting"},
				}, nil
			case "":
				return nil, nil
			case "odd":
				panic("hunter2")
			}
			return nil, types.NewError(5, "unreadable", "")
		}}
	}
	get := func(query string) answer { return post(t, s(), "GET", wire.PathAttach+query, "") }
	a := get("?container=8f0c")
	a.wantOK(t)
	sameJSON(t, fixture(t, "answer-attachments.json"), a.body)
	sameJSON(t, "[]", get("").body)
	get("?container=c2").want(t, 500, 5, "unreadable")
	get("?container=odd").want(t, 500, 999, "panicked")
	get("?container=..%2Fx").want(t, 400, 4, `"../x"`)
	post(t, s(), "POST", wire.PathAttach, "{}").want(t, 404, 999, "")
}

// What Ready and Probe say decides about readiness. Whatever hangs or panics is not ready. STATUS says
// what Ready does, without a word to the handler. No command asks Probe, and an ADD is served.
func TestReadinessSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	ready := func(err error) func(context.Context) error { return func(context.Context) error { return err } }
	probe := func(ok bool, err error) func(context.Context) (bool, error) {
		return func(context.Context) (bool, error) { return ok, err }
	}
	const good = `{"checks":[{"name":"daemon","ok":true},{"name":"queue","ok":true},{"name":"plugin","ok":true}`
	const bad = `{"code":11,"msg":"not ready: plugin: no primary network","checks":[{"name":"daemon","ok":true},{"name":"queue","ok":true},{"name":"plugin","ok":false,"error":"no primary network"}]}`
	for name, tt := range map[string]struct {
		ready  func(context.Context) error
		probe  func(context.Context) (bool, error)
		status int
		page   string // in its verbose answer
		code   uint   // of STATUS
		says   string // in its error
	}{
		"both":            {nil, nil, 200, good + "]}", 0, ""},
		"not ready":       {ready(errors.New("no primary network")), nil, 503, bad, 50, "STATUS: not ready: plugin: no primary network"},
		"half ready":      {ready(types.NewError(51, "half of it", "")), nil, 503, "half of it", 51, "half of it"},
		"hangs":           {func(ctx context.Context) error { return untilEnd(ctx, nil) }, nil, 503, "deadline", 50, "timed out"},
		"panics":          {func(context.Context) error { panic("hunter2") }, nil, 503, "panicked", 50, "panicked"},
		"content":         {nil, probe(true, nil), 200, good + `,{"name":"probe","ok":true}]}`, 0, ""},
		"content for now": {nil, probe(true, errors.New("no cache")), 200, `{"name":"probe","ok":true,"error":"no cache"}`, 0, ""},
		"not content":     {nil, probe(false, errors.New("no cache")), 503, `{"name":"probe","ok":false,"error":"no cache"}`, 0, ""},
		"probe panics":    {nil, func(context.Context) (bool, error) { panic("hunter2") }, 503, `{"name":"probe","ok":false`, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := &fake{}
				r := serve(t, &Server{Plugin: f.plugin(), Ready: tt.ready, Probe: tt.probe})
				plain, verbose := r.get(wire.PathReady), r.get(wire.PathReady+"?verbose")
				nodetest.Equal(t, "status", []int{plain.status, verbose.status}, []int{tt.status, tt.status})
				if tt.status != 200 {
					plain.want(t, 503, 11, "not ready: ")
				}
				if !strings.Contains(verbose.body, tt.page) || strings.Contains(verbose.body, "hunter2") {
					t.Errorf("%s", verbose.body)
				}
				r.do(request("ADD", "c1")).wantOK(t)
				m := request("STATUS", "")
				m.DeadlineMs = 1000
				if a := r.do(m); tt.code == 0 {
					a.wantOK(t)
					nodetest.OK(t, r.CheckReady(t.Context()))
					f.want(t, "ADD c1", "STATUS")
				} else {
					a.want(t, 500, tt.code, tt.says)
					f.want(t, "ADD c1")
				}
			})
		})
	}
	post(t, bare(), "POST", wire.PathReady, fixture(t, "multus-readyz.json")).wantOK(t)
}

func TestInfo(t *testing.T) {
	t.Parallel()
	a := post(t, &Server{
		Plugin: (&fake{}).plugin(), Attach: func(*wire.Attributes) plugin.Plugin { return plugin.Plugin{} }, Queue: t.TempDir(), Version: "multinetd v1",
		Attachments: func(context.Context, string) ([]Listed, error) { return nil, nil },
	}, "GET", pathInfo, "")
	a.wantOK(t)
	sameJSON(t, fixture(t, "answer-info.json"), a.body)
	a = post(t, bare(), "GET", pathInfo, "")
	if !strings.Contains(a.body, `"features":[]`) {
		t.Error(a.body)
	}
}

func TestServerIsReadyOnlyWhileItServes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := make(gate)
		f := &fake{add: g.wait}
		var why error
		r := newRig(t, &Server{Plugin: f.plugin(), Ready: func(context.Context) error { return why }})
		not := func(want string) {
			t.Helper()
			nodetest.Fails(t, r.CheckReady(t.Context()), 11, want)
		}
		not("does not serve yet")
		r.run(r.l)
		synctest.Wait()
		nodetest.OK(t, r.CheckReady(t.Context()))
		why = errors.New("no primary network")
		not("not ready: plugin: no primary network")
		nodetest.Is(t, r.CheckReady(t.Context()), why)
		add := r.begin(request("ADD", "c1"))
		r.stop()
		synctest.Wait()
		not("is stopping")
		close(g)
		add().wantOK(t)
		<-r.done
		not("is stopping")
	})
}

// Whoever reaches the probes reaches nothing else.
func TestProbesServeNoCommand(t *testing.T) {
	t.Parallel()
	f := &fake{}
	other := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("Other was called") })
	s := &Server{Plugin: f.plugin(), Other: other, Queue: t.TempDir()}
	for _, tt := range []struct {
		method, path, body string
		status             int
		text               string
	}{
		{http.MethodGet, wire.PathHealth, "", http.StatusOK, "ok"},
		{http.MethodPut, wire.PathHealth, "", http.StatusMethodNotAllowed, ""},
		{http.MethodGet, wire.PathReady, "", http.StatusServiceUnavailable, "does not serve yet"},
		{http.MethodGet, wire.PathReady + "?verbose", "", http.StatusServiceUnavailable, `{"name":"queue","ok":true}`},
		{http.MethodPost, wire.PathCNI, string(encoded(request("ADD", "c1"))), http.StatusNotFound, wire.PathCNI},
		{http.MethodPost, wire.PathAttach, string(encoded(request("ADD", "c1"))), http.StatusNotFound, wire.PathAttach},
		{http.MethodGet, pathInfo, "", http.StatusNotFound, pathInfo},
		{http.MethodGet, "/metrics", "", http.StatusNotFound, "/metrics"},
	} {
		w := httptest.NewRecorder()
		s.Probes().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), tt.method, tt.path, strings.NewReader(tt.body)))
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.text) {
			t.Errorf("%s %s: %d %s, want %d and %q", tt.method, tt.path, w.Code, w.Body, tt.status, tt.text)
		}
	}
	f.want(t)
}

// understand is what the server makes of m.
func understand(m wire.Request) (*operation, error) { return understood(bare(), &m, nil) }

func refused(t *testing.T, err error, code uint, text string) {
	t.Helper()
	if err == nil || httpStatus(err) != http.StatusBadRequest || status.Code(err) != code || !strings.Contains(err.Error(), text) || len(err.Error()) > 300 {
		t.Errorf("err %v (status %d, code %d), want 400, code %d, %q", err, httpStatus(err), status.Code(err), code, text)
	}
}

// What a command needs is there, and is what package skel takes.
func TestEnvironmentIsCheckedAsSkelDoes(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"ADD", "CHECK", "DEL", "GC", "STATUS"} {
		full := request(verb, "c1")
		taken := func(kv ...string) skel.CmdArgs {
			t.Helper()
			o, err := understand(with(full, kv...))
			nodetest.OK(t, err)
			return o.args
		}
		ofContainer := verb != "GC" && verb != "STATUS"
		want := skel.CmdArgs{Path: "/opt/cni/bin", StdinData: []byte(podsConf)}
		if ofContainer {
			want.ContainerID, want.Netns, want.IfName = "c1", "/run/netns/c1", "eth0"
			nodetest.Equal(t, "without CNI_IFNAME", taken("CNI_IFNAME", "").IfName, "eth0")
			nodetest.Equal(t, "CNI_NETNS_OVERRIDE", taken("CNI_NETNS_OVERRIDE", "1").NetnsOverride, "1")
		}
		nodetest.Equal(t, verb, taken(), want)
		taken("CNI_PATH", "", "CNI_ARGS", "") // nobody needs these
		for _, tt := range []struct {
			name, value, text string
			odd               bool // whatever the command
		}{
			{"CNI_CONTAINERID", "", "missing CNI_CONTAINERID", false},
			{"CNI_CONTAINERID", "../../etc", "invalid characters in containerID", false},
			{"CNI_CONTAINERID", strings.Repeat("/", 5000), "invalid characters in containerID", false},
			{"CNI_IFNAME", "a/b", "interface name contains", false},
			{"CNI_IFNAME", strings.Repeat("e", 16), "interface name is too long", false},
			{"CNI_IFNAME", "eth0\x00", "CNI_IFNAME has a zero byte", true},
			{"CNI_NETNS", "/run/netns/c1\x00x", "CNI_NETNS has a zero byte", true},
			{"CNI_PATH", "\x00", "CNI_PATH has a zero byte", true},
			{"CNI_ARGS", "a=\x00", "CNI_ARGS has a zero byte", true},
			{"CNI_NETNS_OVERRIDE", "\x00", "CNI_NETNS_OVERRIDE has a zero byte", true},
		} {
			if !tt.odd && !ofContainer {
				taken(tt.name, tt.value)
				continue
			}
			o, err := understand(with(full, tt.name, tt.value))
			refused(t, err, 4, verb+": "+tt.text)
			if tt.name == "CNI_CONTAINERID" && o.args.ContainerID != "" {
				t.Errorf("kept %q", o.args.ContainerID)
			}
		}
		if verb == "ADD" || verb == "CHECK" {
			_, err := understand(with(full, "CNI_NETNS", ""))
			refused(t, err, 4, "missing CNI_NETNS")
		} else {
			nodetest.Equal(t, "netns", taken("CNI_NETNS", "").Netns, "")
		}
	}
	// VERSION is the shim's to answer.
	for verb, want := range map[string]string{"VERSION": "unknown CNI_COMMAND ", "add": "unknown CNI_COMMAND ", "": "missing CNI_COMMAND"} {
		_, err := understand(request(verb, "c1"))
		refused(t, err, 4, want)
	}
}

// CNI_ARGS is split at the first "=", and empty parts are nothing. It
// reaches the plugin as it came.
func TestArgsReachThePluginUnchanged(t *testing.T) {
	t.Parallel()
	for args, valid := range map[string]bool{
		"": true, ";;a=b": true, "a=b=c": true, "=b": true, "a=b;;c=d;": true, "a": false, "a=b; ": false, strings.Repeat("x", 1<<20): false,
	} {
		o, err := understand(with(request("ADD", "c1"), "CNI_ARGS", args))
		if valid {
			nodetest.OK(t, err)
			nodetest.Equal(t, "CNI_ARGS", o.args.Args, args)
		} else {
			refused(t, err, 4, "invalid CNI_ARG")
		}
	}
}

// A configuration that is refused is not quoted, with and without an Override.
func TestConfiguration(t *testing.T) {
	t.Parallel()
	for conf, want := range map[string]struct {
		network string
		code    uint
	}{
		"":                         {"", 0}, // for the plugin to say
		` {"NAME": "a"}`:           {"a", 0},
		`{"name": null}`:           {"", 0},
		`{"name": "../hunter2"}`:   {"", 7},
		`{"name": ["hunter2"]}`:    {"", 7},
		`{"password":"hunter2"`:    {"", 6},
		`null`:                     {"", 6},
		`["hunter2"]`:              {"", 6},
		` `:                        {"", 6},
		"{\"name\":\"a\"}\x00":     {"", 6},
		"\xef\xbb\xbf{}":           {"", 6},
		`{"name":"a"}{"hunter":2}`: {"", 6},
	} {
		m := request("ADD", "c1")
		m.Config = []byte(conf)
		o, err := understand(m)
		if want.code != 0 {
			refused(t, err, want.code, "the configuration")
			_, over := understood(&Server{Override: json.RawMessage(`{"a":1}`)}, &m, nil)
			refused(t, over, want.code, "the configuration")
			nodetest.Equal(t, conf+" is quoted", strings.Contains(err.Error()+over.Error(), "hunter"), false)
		} else {
			nodetest.OK(t, err)
			nodetest.Equal(t, "configuration", string(o.args.StdinData), conf)
		}
		nodetest.Equal(t, conf, o.Network, want.network)
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
	sv := (&Server{Override: json.RawMessage(`{"logLevel":"debug"}`)}).service()
	f.Fuzz(func(t *testing.T, data []byte, trace string) {
		m, err := read(nil, &http.Request{Body: io.NopCloser(bytes.NewReader(data))})
		if err != nil {
			refused(t, err, 6, "")
			return
		}
		o, err := understood(sv.Server, m, http.Header{"Traceparent": {trace}})
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
		if o.Network != "" && utils.ValidateNetworkName(o.Network) != nil {
			t.Errorf("network %q", o.Network)
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
