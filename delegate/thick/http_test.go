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
	if err := json.Unmarshal([]byte(got), &g); err != nil {
		t.Errorf("%q: %v", got, err)
	}
	nodetest.Equal(t, "got", g, w)
}

func TestMethodsOfEachPath(t *testing.T) {
	t.Parallel()
	full := func() *Server {
		return &Server{
			Plugin: (&fake{}).plugin(), Attach: func(*wire.Attributes) plugin.Plugin { return (&fake{}).plugin() },
			Attachments: func(context.Context, string) ([]Attachment, error) { return nil, nil },
		}
	}
	for path, allow := range map[string]string{
		wire.PathCNI: "POST", wire.PathAttach: "GET, POST", wire.PathHealth: "GET, HEAD, POST", wire.PathReady: "GET, HEAD, POST", pathInfo: "GET, HEAD",
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "ODD"} {
				a := post(t, full(), method, path, "")
				if strings.Contains(allow, method) {
					if a.status == http.StatusMethodNotAllowed {
						t.Errorf("%s: %d %s", method, a.status, a.body)
					}
					continue
				}
				nodetest.Equal(t, fmt.Sprintf("%s: Allow", method), a.header.Get("Allow"), allow)
				if method == "HEAD" {
					a.body = `{"code":999}`
				}
				a.want(t, http.StatusMethodNotAllowed, 999, "")
			}
		})
	}
}

func TestRequestBodies(t *testing.T) {
	t.Parallel()
	big := func(n int) string {
		return `{"env":{"CNI_COMMAND":"GC"},"pad":"` + strings.Repeat("x", n-len(`{"env":{"CNI_COMMAND":"GC"},"pad":""}`)) + `"}`
	}
	for name, tt := range map[string]struct {
		body   string
		status int
		code   uint
		text   string
	}{
		"empty":          {"", 400, 6, "unexpected end of JSON input"},
		"truncated":      {`{"env":{"CNI_COMMAND":"ADD"`, 400, 6, "unexpected end of JSON input"},
		"two":            {`{}{}`, 400, 6, "after top-level value"},
		"no object":      {`[]`, 400, 6, "an array, want an object"},
		"no base64":      {`{"config":"{}"}`, 400, 6, "illegal base64"},
		"env of numbers": {`{"env":{"CNI_COMMAND":5}}`, 400, 6, "the request: cannot decode configuration: key \"env.CNI_COMMAND\": a number, want a string"},
		"null":           {`null`, 400, 6, "null, want an object"},
		"too large":      {big(wire.MaxBody + 1), 413, 6, "more than 4194304 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			post(t, bare(), "POST", wire.PathCNI, tt.body).want(t, tt.status, tt.code, tt.text)
		})
	}
	a := post(t, bare(), "POST", wire.PathCNI, big(wire.MaxBody))
	a.wantOK(t)
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
		path   string
		args   skel.CmdArgs
		trace  []string
		answer string // a file, or none
	}{
		"multus-add.json":    {wire.PathCNI, full, []string{"TRACEPARENT=00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}, "answer-add.json"},
		"newer-add.json":     {wire.PathCNI, bare, nil, "answer-add.json"},
		"multus-del.json":    {wire.PathCNI, skel.CmdArgs{ContainerID: "8f0c", IfName: "eth0", Path: "/opt/cni/bin", Args: ifs + ";", StdinData: []byte(conf)}, nil, ""},
		"multus-status.json": {wire.PathCNI, skel.CmdArgs{Path: "/opt/cni/bin", StdinData: []byte(conf)}, nil, ""},
		"multus-delegate-add.json": {wire.PathAttach, skel.CmdArgs{
			ContainerID: "8f0c", Netns: "/var/run/netns/cni-1b1c", IfName: "net1",
			Args:      "IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=8f0c;K8S_POD_UID=5a3c",
			StdinData: []byte(`{"cniVersion":"0.3.1","name":"storage","type":"macvlan","master":"eth1"}`),
		}, nil, "answer-add.json"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got *skel.CmdArgs
			var trace []string
			take := func(_ context.Context, c *plugin.Call) error {
				got, trace = &c.CmdArgs, c.Env
				return result.PrintTo(c.Stdout)
			}
			p := plugin.Plugin{Add: take, Del: take, Status: take}
			var attrs *wire.Attributes
			a := post(t, &Server{Plugin: p, Attach: func(w *wire.Attributes) plugin.Plugin { attrs = w; return p }}, "POST", tt.path, fixture(t, name))
			a.wantOK(t)
			if got == nil {
				t.Fatal("nothing was called")
			}
			nodetest.Equal(t, "arguments", *got, tt.args)
			nodetest.Equal(t, "trace", trace, tt.trace)
			ct, want := "application/json", ""
			if tt.answer == "" {
				ct = ""
			} else {
				want = fixture(t, tt.answer)
			}
			nodetest.Equal(t, "Content-Type", a.header.Get("Content-Type"), ct)
			if want == "" {
				nodetest.Equal(t, "body", a.body, "")
				return
			}
			sameJSON(t, want, a.body)
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
	for name, tt := range map[string]struct {
		err    error
		status int
		want   string
	}{
		"its own":      {types.NewError(11, "no free address", "10.1.0.0/24"), 500, strings.TrimSpace(fixture(t, "answer-error.json"))},
		"wrapped":      {errors.Join(errors.New("net1"), types.NewError(107, "no device", "")), 500, `{"code":107,"msg":"net1; no device"}`},
		"without code": {errors.New("odd"), 500, `{"code":999,"msg":"odd"}`},
		"no cleanup":   {types.NewError(3, "unknown", ""), 500, `{"code":3,"msg":"unknown"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fake{
				add: func(context.Context, *skel.CmdArgs) error { return tt.err },
				del: func(context.Context, *skel.CmdArgs) error { return tt.err },
			}
			for _, verb := range []string{"ADD", "DEL"} {
				a := post(t, &Server{Plugin: f.plugin()}, "POST", wire.PathCNI, string(encoded(request(verb, "c1"))))
				nodetest.Equal(t, fmt.Sprintf("%s: status", verb), a.status, tt.status)
				nodetest.Equal(t, fmt.Sprintf("%s: Content-Type", verb), a.header.Get("Content-Type"), "application/json")
				sameJSON(t, tt.want, a.body)
			}
			nodetest.Equal(t, "calls", f.Taken(), []string{"ADD c1", "end ADD c1", "DEL c1", "end DEL c1"})
		})
	}
}

// Nothing of the configuration is in an answer that refuses it.
func TestRefusalsQuoteNoConfiguration(t *testing.T) {
	t.Parallel()
	for _, conf := range []string{`{"password":"hunter2"`, `["hunter2"]`, `"hunter2"`, `{"name":["hunter2"]}`, `{"name":"hunter2 "}`, `{"name":5,"hunter2":1}`} {
		for _, override := range []json.RawMessage{nil, json.RawMessage(`{"a":1}`)} {
			m := request("ADD", "c1")
			m.Config = []byte(conf)
			a := post(t, &Server{Plugin: (&fake{}).plugin(), Override: override}, "POST", wire.PathCNI, string(encoded(m)))
			if a.status != http.StatusBadRequest || strings.Contains(a.body, "hunter2") {
				t.Errorf("%s: %d %s", conf, a.status, a.body)
			}
		}
	}
}

func TestAttachCommandsAreServed(t *testing.T) {
	t.Parallel()
	f := &fake{del: func(context.Context, *skel.CmdArgs) error { return types.NewError(101, "stuck", "") }}
	attach := func(w *wire.Attributes) plugin.Plugin {
		if w == nil {
			t.Error("attributes are nil")
		}
		return f.plugin()
	}
	// The override is of the runtime's configuration, not of a network's.
	var got string
	f.check = func(_ context.Context, a *skel.CmdArgs) error {
		got = string(a.StdinData)
		return nil
	}
	s := func() *Server {
		return &Server{Plugin: (&fake{}).plugin(), Attach: attach, Override: json.RawMessage(`{"name":"x"}`)}
	}
	post(t, s(), "POST", wire.PathAttach, string(encoded(request("DEL", "c1")))).want(t, 500, 101, "stuck")
	post(t, s(), "POST", wire.PathAttach, string(encoded(request("CHECK", "c1")))).wantOK(t)
	nodetest.Equal(t, "configuration", got, podsConf)
	post(t, s(), "GET", wire.PathAttach, "").want(t, 404, 999, "does not list")
	post(t, bare(), "POST", wire.PathAttach, "{}").want(t, 404, 999, "does not attach")
	post(t, bare(), "PUT", wire.PathAttach, "{}").want(t, 404, 999, "")
}

func TestAttachmentsAreListed(t *testing.T) {
	t.Parallel()
	s := func() *Server {
		return &Server{Plugin: (&fake{}).plugin(), Attachments: func(_ context.Context, id string) ([]Attachment, error) {
			switch id {
			case "8f0c":
				return []Attachment{
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

func TestReadinessSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"GET", "HEAD", "POST"} {
		post(t, bare(), method, wire.PathReady, fixture(t, "multus-readyz.json")).wantOK(t)
	}
	unready := func() *Server {
		return &Server{Plugin: (&fake{}).plugin(), Ready: func(context.Context) error { return errors.New("no primary network") }}
	}
	post(t, unready(), "POST", wire.PathReady, "null").want(t, 503, 11, "not ready: plugin: no primary network")
	a := post(t, unready(), "GET", wire.PathReady+"?verbose", "")
	a.want(t, 503, 11, "no primary network")
	sameJSON(t, `{"code":11,"msg":"not ready: plugin: no primary network","checks":[{"name":"daemon","ok":true},{"name":"queue","ok":true},{"name":"plugin","ok":false,"error":"no primary network"}]}`, a.body)
	a = post(t, bare(), "GET", wire.PathReady+"?verbose", "")
	a.wantOK(t)
	sameJSON(t, `{"checks":[{"name":"daemon","ok":true},{"name":"queue","ok":true},{"name":"plugin","ok":true}]}`, a.body)

	// What hangs or panics is not ready, and the server goes on.
	post(t, &Server{Plugin: (&fake{}).plugin(), Ready: func(ctx context.Context) error { return untilEnd(ctx, nil) }}, "GET", wire.PathReady, "").want(t, 503, 11, "deadline")
	post(t, &Server{Plugin: (&fake{}).plugin(), Ready: func(context.Context) error { panic("hunter2") }}, "GET", wire.PathReady, "").want(t, 503, 11, "panicked")
}

func TestUnknownPathIs404(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/", "/cni/", "/CNI", "//cni", "/metrics", "/delegate/x"} {
		post(t, bare(), "POST", path, "{}").want(t, 404, 999, path)
	}
}

// Metrics have their place, on the same socket.
func TestOtherPathsAreServedOnTheSameSocket(t *testing.T) {
	t.Parallel()
	other := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte(r.URL.Path)) })
	nodetest.Equal(t, "body", post(t, &Server{Plugin: (&fake{}).plugin(), Other: other}, "GET", "/metrics", "").body, "/metrics")
}

func TestInfo(t *testing.T) {
	t.Parallel()
	a := post(t, &Server{
		Plugin: (&fake{}).plugin(), Attach: func(*wire.Attributes) plugin.Plugin { return plugin.Plugin{} }, Queue: t.TempDir(), Version: "multinetd v1",
		Attachments: func(context.Context, string) ([]Attachment, error) { return nil, nil },
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
		f := &fake{add: addAfter(g)}
		var why error
		r := newRig(t, local(&Server{Plugin: f.plugin(), Ready: func(context.Context) error { return why }}))
		ready := func(want string) {
			t.Helper()
			err := r.CheckReady(t.Context())
			if want == "" && err == nil {
				return
			}
			if err == nil || !strings.Contains(err.Error(), want) || status.Code(err) != 11 {
				t.Errorf("%v, want %q and code 11", err, want)
			}
		}
		ready("does not serve yet")
		r.run(r.l)
		synctest.Wait()
		ready("")
		why = errors.New("no primary network")
		ready("not ready: plugin: no primary network")
		nodetest.Is(t, r.CheckReady(t.Context()), why)
		add := r.begin(request("ADD", "c1"))
		synctest.Wait()
		r.stop()
		synctest.Wait()
		ready("is stopping")
		close(g)
		add().wantOK(t)
		<-r.done
		ready("is stopping")
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

// A Probe that is not content makes only the readiness probe fail: STATUS, ADD and
// CheckReady do not ask it.
func TestProbeIsAskedByReadinessProbesAlone(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		probe  func(context.Context) (bool, error)
		status int
		check  string
	}{
		{"content", func(context.Context) (bool, error) { return true, nil }, 200, `{"name":"probe","ok":true}`},
		{"content for now", func(context.Context) (bool, error) { return true, errors.New("no cache") }, 200, `{"name":"probe","ok":true,"error":"no cache"}`},
		{"not content", func(context.Context) (bool, error) { return false, errors.New("no cache") }, 503, `{"name":"probe","ok":false,"error":"no cache"}`},
		{"a panic", func(context.Context) (bool, error) { panic("hunter2") }, 503, `{"name":"probe","ok":false`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := serve(t, &Server{Plugin: (&fake{}).plugin(), Probe: tt.probe})
				synctest.Wait()
				a := r.get(wire.PathReady + "?verbose")
				if a.status != tt.status || !strings.Contains(a.body, tt.check) {
					t.Errorf("%d %s", a.status, a.body)
				}
				if a := r.get(wire.PathReady); a.status != tt.status {
					t.Errorf("%d %s", a.status, a.body)
				}
				r.do(request("STATUS", "")).wantOK(t)
				r.do(request("ADD", "c1")).wantOK(t)
				nodetest.OK(t, r.CheckReady(t.Context()))
			})
		})
	}
}

// understand is what the server makes of m.
func understand(m wire.Request) (*operation, error) { return understood(bare(), &m, nil) }

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
		nodetest.Equal(t, fmt.Sprintf("%s: network", conf), o.Network, want.network)
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
