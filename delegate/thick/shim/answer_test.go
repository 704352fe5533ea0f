package shim

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/thick/internal/queue"
	"github.com/metacni/metacni/delegate/thick/wire"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/status"
)

// environ is a shim's environment, most of which is nobody's business.
var environ = []string{
	"PATH=/bin", "KUBERNETES_SERVICE_HOST=10.0.0.1", "TOKEN=secret", "odd", "=odd",
	"CNI_COMMAND=DEL", "CNI_CONTAINERID=other", "CNI_NETNS=/other", "CNI_IFNAME=other", "CNI_ARGS=A=other", "CNI_PATH=/other",
}

// What is sent is what Multus's daemon reads and no more, and of the
// environment only what is the runtime's or the trace's. The arguments are the
// command's own, whatever the environment says.
func TestRequestsCarryTheRuntimesEnvironmentOnly(t *testing.T) {
	t.Parallel()
	trace := []string{
		"CNI_NETNS_OVERRIDE=1", "TRACESTATE=k=v", "BAGGAGE=a=b",
		"TRACEPARENT=00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "TRACEPARENT=again",
	}
	for name, tt := range map[string]struct {
		env  []string
		args skel.CmdArgs
		with *wire.Attributes
	}{
		"add":    {env: trace, args: skel.CmdArgs{ContainerID: "c1", Netns: "/run/netns/c1", IfName: "eth0", Args: "K8S_POD_NAME=p;K8S_POD_NAMESPACE=n", Path: "/opt/cni/bin"}},
		"del":    {args: skel.CmdArgs{ContainerID: "c1", IfName: "eth0", Path: "/opt/cni/bin"}},
		"gc":     {args: skel.CmdArgs{Path: "/opt/cni/bin"}},
		"status": {args: skel.CmdArgs{Path: "/opt/cni/bin"}},
		"delegate-add": {args: skel.CmdArgs{ContainerID: "c1", Netns: "/run/netns/c1", Path: "/opt/cni/bin"}, with: &wire.Attributes{
			IPs: []string{"10.0.0.9/24"}, MAC: "02:00:00:00:00:09", CNIArgs: map[string]json.RawMessage{"vlan": json.RawMessage("3")},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var head *http.Request
			var body wire.Request
			d := newDaemon(t, func(_ int, conn *net.UnixConn) {
				var err error
				if head, body, err = request(conn); err != nil {
					t.Error(err)
				}
				_, _ = conn.Write([]byte(okAdd))
			})
			c := &Client{Socket: d.socket, Env: append(tt.env, environ...)}
			tt.args.StdinData = []byte(testConfig)
			command := strings.ToUpper(strings.TrimPrefix(name, "delegate-"))
			_, err := c.Do(t.Context(), command, &tt.args, tt.with)
			nodetest.OK(t, err)
			path, most := wire.PathCNI, (115 * time.Second).Milliseconds()
			if tt.with != nil {
				path = wire.PathAttach
			}
			if command == "STATUS" {
				most = 2000
			}
			nodetest.Equal(t, "request", []any{head.Method, head.URL.Path, head.Proto, head.Host, head.Close}, []any{"POST", path, "HTTP/1.0", "dummy", true})
			nodetest.Equal(t, "header", head.Header, http.Header{
				"Content-Type": {"application/json"}, "Content-Length": head.Header["Content-Length"],
			})
			if body.DeadlineMs < 1 || body.DeadlineMs > most {
				t.Errorf("deadline of %d ms", body.DeadlineMs)
			}
			body.DeadlineMs = 0
			got, err := json.Marshal(body)
			nodetest.OK(t, err)
			want, err := os.ReadFile(filepath.Join("testdata", "requests", name+".json"))
			nodetest.OK(t, err)
			nodetest.Equal(t, "body", decoded(t, got), decoded(t, want))
		})
	}
}

func decoded(t *testing.T, data []byte) (v any) {
	t.Helper()
	nodetest.OK(t, json.Unmarshal(data, &v))
	return v
}

// Without the absolute path of a socket a command fails, and no DEL is queued: nothing is
// sent to a daemon that the configuration names, such as Multus's.
func TestSocketMustBeAbsolute(t *testing.T) {
	t.Parallel()
	for _, socket := range []string{"", "./s", "@s"} {
		c := newClient(t, socket)
		for _, command := range commands {
			a := args()
			a.StdinData = []byte(`{"cniVersion":"1.1.0","name":"net","daemonSocketDir":"/run/multus"}`)
			err := c.Execute(t.Context(), command, a)
			wantError(t, err, 7)
			nodetest.Says(t, err, "not absolute")
		}
		c.wantQueued(t, 0)
	}
}

// Nothing is sent that the daemon would not read, and no command that it does
// not have.
func TestRefusedBeforeSending(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, replies(okEmpty))
	c := newClient(t, d.socket)
	for _, command := range []string{"", "VERSION", "add"} {
		_, err := c.Do(t.Context(), command, args(), nil)
		wantError(t, err, 4)
	}
	for _, command := range []string{"VERSION", "GC", "STATUS"} {
		_, err := c.Do(t.Context(), command, args(), &wire.Attributes{})
		wantError(t, err, 4)
	}
	wantError(t, (&Client{Socket: d.socket}).Execute(t.Context(), "ADD", args()), 999) // no Stdout
	a := args()
	a.StdinData = []byte(`secret`)
	wantError(t, c.Execute(t.Context(), "ADD", a), 6)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, command := range commands {
		_, err := c.Do(ended, command, args(), nil)
		wantError(t, err, later(command))
	}
	nodetest.Equal(t, "connections", d.count(), 0)
	a.StdinData = []byte(`{"name":"` + strings.Repeat("x", wire.MaxBody) + `"}`)
	_, err := c.Do(t.Context(), "ADD", a, nil)
	wantError(t, err, 6)
}

// What daemons of Multus and of this module answer, as bytes on the wire.
func TestAnswersOfDaemons(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		file, command string
		code          uint // 0 is success
		says          string
	}{
		{"multus-add", "ADD", 0, ""},
		{"multus-empty", "DEL", 0, ""},
		{"multus-empty", "STATUS", 0, ""},
		{"multus-empty", "ADD", 6, "no valid result in the daemon's answer"},
		{"multus-no-result", "ADD", 6, "no valid result in the daemon's answer"},
		{"multus-error-text", "ADD", 999, `the daemon answered 400: "error adding container to network \"blue\": no free address"`},
		{"multus-error-dump", "DEL", 999, "the daemon answered 400"},
		{"multus-error-json", "ADD", 11, "no free address; pool \"blue\""},
		{"multus-unknown-path", "ADD", 999, "the daemon answered 404: it does not serve /cni"},
		{"multus-method", "CHECK", 999, `the daemon answered 405: "Method not allowed"`},
		{"multus-unknown-command", "STATUS", 999, `the daemon answered 400: "unknown cmd type: STATUS"`},
		{"thick-draining", "ADD", 11, "the daemon is draining"},
		{"thick-draining", "STATUS", 50, "the daemon is draining"}, // whatever the code
		{"thick-draining-status", "STATUS", 50, "the daemon is draining"},
		{"thick-draining-status", "GC", 11, "the daemon is draining"},
		{"thick-too-large", "ADD", 6, "request body over 4194304 bytes"},
		{"thick-peer", "STATUS", 999, "user 1000 may not connect"},
		{"thick-limited", "STATUS", 51, "red: uplink lost"},
	} {
		t.Run(tt.file+" "+tt.command, func(t *testing.T) {
			t.Parallel()
			d := newDaemon(t, replies(recorded(t, tt.file)))
			result, err := (&Client{Socket: d.socket, Wait: -1}).Do(t.Context(), tt.command, args(), nil)
			nodetest.Equal(t, "a result", result != nil, tt.code == 0 && tt.command == "ADD")
			wantError(t, err, tt.code)
			if err != nil && !strings.HasSuffix(err.Error(), tt.says) {
				t.Errorf("%v, want %q", err, tt.says)
			}
		})
	}
}

// recorded is a response from testdata, with the line ends of HTTP.
func recorded(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "responses", name+".http"))
	nodetest.OK(t, err)
	head, body, _ := strings.Cut(string(data), "\n\n")
	return strings.ReplaceAll(head, "\n", "\r\n") + "\r\n\r\n" + body
}

// What the daemon says of an error reaches the runtime unchanged, code and details.
func TestErrorsKeepCodeAndDetails(t *testing.T) {
	t.Parallel()
	for _, said := range []types.Error{
		{Code: 1, Msg: "version"},
		{Code: 11, Msg: "later", Details: "pool \"blue\" is full"},
		{Code: 50, Msg: "not ready", Details: "x"},
		{Code: 107, Msg: "own", Details: "[1 2] {}"},
		{Code: 999, Msg: "internal", Details: "y"},
	} {
		text, err := json.Marshal(said)
		nodetest.OK(t, err)
		d := newDaemon(t, replies(answer("400 X", string(text)), answer("500 X", string(text))))
		for _, command := range commands {
			err := newClient(t, d.socket).Execute(t.Context(), command, args())
			nodetest.Equal(t, command, err, error(&said))
		}
	}
	// A code is never 0: that would be success.
	d := newDaemon(t, replies(answer("500 X", `{"code":0,"msg":"odd"}`)))
	wantError(t, newClient(t, d.socket).Execute(t.Context(), "DEL", args()), 999)
}

// The result is printed as the configuration's version has it, whatever the version of the daemon's.
// What is no result is an error.
func TestResultIsConvertedToTheConfigurationsVersion(t *testing.T) {
	t.Parallel()
	const result = `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mtu":1450,"sandbox":"/n"}],
		"ips":[{"interface":0,"address":"10.1.0.5/24","gateway":"10.1.0.1"}]}`
	const eth0 = `"interfaces":[{"name":"eth0","sandbox":"/n"}]`
	const ip = `"interface":0,"address":"10.1.0.5/24","gateway":"10.1.0.1"`
	const mtu = `"interfaces":[{"name":"eth0","mtu":1450,"sandbox":"/n"}]`
	for _, tt := range []struct{ version, result, want string }{
		{"", result, `{"cniVersion":"1.1.0",` + mtu + `,"ips":[{` + ip + `}]}`}, // the plugin has chosen it
		{"0.2.0", result, `{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.5/24","gateway":"10.1.0.1"},"dns":{}}`},
		{"0.4.0", result, `{"cniVersion":"0.4.0",` + eth0 + `,"ips":[{"version":"4",` + ip + `}],"dns":{}}`},
		{"1.0.0", result, `{"cniVersion":"1.0.0",` + mtu + `,"ips":[{` + ip + `}]}`},
		{"1.0.0", `{"cniVersion":"0.4.0"}`, `{"cniVersion":"1.0.0"}`},
		{"0.2.0", `{"ip4":{"ip":"10.0.0.2/24"}}`, `{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24"},"dns":{}}`}, // of 0.1.0
		{"1.0.0", `{"cniVersion":"2.0.0"}`, ""},
		{"1.0.0", `{"cniVersion":3}`, ""},
		{"1.0.0", `{"cniVersion":"1.1.0","ips":[{"address":"x"}]}`, ""},
		{"1.0.0", `"x"`, ""},
		{"1.0.0", `null`, ""},
	} {
		t.Run(tt.version+tt.result, func(t *testing.T) {
			t.Parallel()
			d := newDaemon(t, replies(answer("200 OK", `{"Result":`+tt.result+`}`)))
			var out bytes.Buffer
			a := args()
			a.StdinData = []byte(`{"name":"net","cniVersion":"` + tt.version + `"}`)
			err := (&Client{Socket: d.socket, Stdout: &out}).Execute(t.Context(), "ADD", a)
			if tt.want == "" {
				wantError(t, err, 6)
				return
			}
			nodetest.OK(t, err)
			nodetest.Equal(t, "result", decoded(t, out.Bytes()), decoded(t, []byte(tt.want)))
		})
	}
}

// A failing writer fails, after a call of itself.
type failing func()

// Write fails.
func (f failing) Write([]byte) (int, error) {
	f()
	return 0, io.ErrClosedPipe
}

// An ADD whose result the runtime cannot be told is undone, if need be by
// way of the queue, also when its context has ended, and is an error of its own code.
func TestResultThatCannotBePrintedIsUndone(t *testing.T) {
	t.Parallel()
	const result = `{"cniVersion":"1.1.0"}`
	for name, tt := range map[string]struct {
		version, result string
		broken          bool   // stdout
		del             string // the answer
		code            uint
		says            string
	}{
		"no addresses in 0.2.0":              {"0.2.0", result, false, okEmpty, 1, ""},
		"no such version":                    {"9.9.9", result, false, okEmpty, 1, ""},
		"a null that converters trip over":   {"0.4.0", `{"cniVersion":"1.1.0","interfaces":[null],"ips":[null]}`, false, okEmpty, 1, ""},
		"stdout and the end of the context":  {"1.1.0", result, true, okEmpty, 5, ""},
		"stdout, and DEL":                    {"1.1.0", result, true, answer("500 X", `{"code":107,"msg":"stuck"}`), 5, "then DEL: stuck"},
		"stdout, and the daemon is lost":     {"1.1.0", result, true, "", 5, ""},
		"stdout, and there is no daemon now": {"1.1.0", result, true, "none", 5, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDaemon(t, replies(answer("200 OK", `{"Result":`+tt.result+`}`), tt.del, okEmpty))
			a := args()
			a.StdinData = []byte(`{"name":"net","cniVersion":"` + tt.version + `"}`)
			c := newClient(t, d.socket)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var out bytes.Buffer
			if c.Stdout = &out; tt.broken {
				c.Stdout = failing(func() {
					switch tt.del {
					case "none":
						_ = d.l.Close()
					case okEmpty:
						cancel()
					}
				})
			}
			err := c.Execute(ctx, "ADD", a)
			wantError(t, err, tt.code)
			nodetest.Says(t, err, tt.says)
			nodetest.Equal(t, "printed", out.String(), "")
			if tt.del == "none" {
				nodetest.Equal(t, "queued", queued(t, c.Queue)[0].Env["CNI_COMMAND"], "DEL")
			} else if d.count() < 2 || tt.del == okEmpty && strings.Contains(err.Error(), "DEL") {
				t.Errorf("%d commands, %v", d.count(), err)
			}
		})
	}
}

// Nothing of the configuration is in an error, in whatever form a daemon
// repeats it.
func TestErrorsQuoteNoConfiguration(t *testing.T) {
	t.Parallel()
	conf := []byte("\n" + `{"cniVersion":"1.1.0","name":"net","token":"secret-1","type":"x"}` + "\n")
	numbers := fmt.Sprintf("%d", conf)
	encoded, _ := json.Marshal(conf)
	a := args()
	a.StdinData = conf
	for i, said := range []string{
		string(conf), numbers, fmt.Sprintf("&{StdinData:%s} ERRORED: it is %s", numbers, numbers), string(encoded),
		strings.TrimSpace(fmt.Sprintf("%q", conf)), strings.Repeat("a", 1000), "x\x00\xff\nline", "token secret-1",
	} {
		object, err := json.Marshal(types.Error{Code: 107, Msg: "own: " + said, Details: said})
		nodetest.OK(t, err)
		for _, body := range []string{said, "bad " + said, string(object)} {
			for _, head := range []string{"400 Bad Request", "503 Service Unavailable"} {
				d := newDaemon(t, replies(answer(head, body)))
				_, err := (&Client{Socket: d.socket, Wait: -1}).Do(t.Context(), "CHECK", a, nil)
				text := fmt.Sprintf("%v %+v", err, status.Error(err))
				for _, secret := range []string{"secret-1", "115 101 99 114 101 116", string(encoded[1:20])} {
					if err == nil || strings.Contains(text, secret) {
						t.Errorf("%d: %s", i, text)
					}
				}
				if body != string(object) && len(text) > 3*maxText {
					t.Errorf("%d: %d bytes", i, len(text))
				}
			}
		}
	}
}

// responses are texts, and what they are read as. An empty body with a zero
// status is an error, which is errMalformed or io.ErrUnexpectedEOF.
var responses = []struct {
	name, text string
	status     int
	body       string
	err        error
}{
	{"length", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", 200, "hi", nil},
	{"odd case, no reason, bare line feeds", "HTTP/1.1 500\ncOnTeNt-LENGTH:2\n\nhi", 500, "hi", nil},
	{"more than the length", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi there", 200, "hi", nil},
	{"up to the end", "HTTP/1.0 200 OK\r\n\r\nhi", 200, "hi", nil},
	{"no content", "HTTP/1.1 204 No Content\r\n\r\n", 204, "", nil},
	{"not modified, with a length", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, "", nil},

	{"nothing", "", 0, "", io.ErrUnexpectedEOF},
	{"no end of the header", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n", 0, "", io.ErrUnexpectedEOF},
	{"half a body", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi", 0, "", io.ErrUnexpectedEOF},

	{"half a status", "HTTP/1.1 20", 0, "", errMalformed},
	{"not HTTP", "SSH-2.0-OpenSSH_9.6\r\n\r\n", 0, "", errMalformed},
	{"HTTP/2", "HTTP/2.0 200 OK\r\n\r\n", 0, "", errMalformed},
	{"an interim status", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 0, "", errMalformed},
	{"no header line", "HTTP/1.1 200 OK\r\nhello\r\n\r\n", 0, "", errMalformed},
	{"chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", 0, "", errMalformed},
	{"a long line", "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("b", maxResponse) + "\r\n\r\n", 0, "", errMalformed},
	{"a long body", "HTTP/1.1 200 OK\r\nContent-Length: 4194305\r\n\r\n", 0, "", errMalformed},
	{"a length beyond numbers", "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", 0, "", errMalformed},
	{"a long body up to the end", "HTTP/1.1 200 OK\r\n\r\n" + strings.Repeat("x", maxResponse), 0, "", errMalformed},
}

func TestResponse(t *testing.T) {
	t.Parallel()
	for _, tt := range responses {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := readResponse(strings.NewReader(tt.text))
			nodetest.Is(t, err, tt.err)
			if err == nil {
				nodetest.Equal(t, "response", fmt.Sprintf("%d %s", r.status, r.body), fmt.Sprintf("%d %s", tt.status, tt.body))
			}
		})
	}
	for value, want := range map[string]time.Duration{"0": 0, "7": 7 * time.Second, "-1": -1, "99999999999": -1, "": -1} {
		r, err := readResponse(strings.NewReader("HTTP/1.1 503 X\r\nretry-after: " + value + "\r\n\r\n"))
		nodetest.OK(t, err)
		nodetest.Equal(t, "Retry-After: "+value, r.retryAfter, want)
	}
}

// FuzzResponse: what is read as a response net/http reads the same way, within
// the limits, and one that was cut is never read as one that has a frame.
func FuzzResponse(f *testing.F) {
	for _, tt := range responses {
		if len(tt.text) < 1<<10 {
			f.Add([]byte(tt.text))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := readResponse(bytes.NewReader(data))
		if err != nil {
			if r != nil || !errors.Is(err, errMalformed) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("%v, %v", r, err)
			}
			return
		}
		if len(r.body) > wire.MaxBody || r.status < 200 || r.status > 999 {
			t.Fatalf("%+v", r)
		}
		std, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(data)), nil)
		if err != nil {
			return // it is stricter in places
		}
		body, err := io.ReadAll(std.Body)
		if err != nil {
			return
		}
		if std.StatusCode != r.status || !bytes.Equal(body, r.body) {
			t.Errorf("%d %q, net/http has %d %q", r.status, r.body, std.StatusCode, body)
		}
	})
}

// later is the code of a command that may succeed later.
func later(command string) uint {
	if command == "STATUS" {
		return 50
	}
	return 11
}

const (
	testConfig = `{"cniVersion":"1.1.0","name":"net","type":"multinet"}`
	testResult = `{"Result":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/run/netns/c1"}]}}`
)

func listen(t testing.TB, socket string) *net.UnixListener {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	nodetest.OK(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// A daemon is a socket where each connection is served by serve.
type daemon struct {
	socket string
	l      *net.UnixListener
	n      atomic.Int64 // connections so far
}

func (d *daemon) count() int { return int(d.n.Load()) }

// newDaemon has serve serve the n-th connection, from 0.
func newDaemon(t testing.TB, serve func(n int, conn *net.UnixConn)) *daemon {
	t.Helper()
	d := &daemon{socket: filepath.Join(nodetest.ShortDir(t), "s")}
	d.l = listen(t, d.socket)
	go func() {
		for {
			conn, err := d.l.AcceptUnix()
			if err != nil {
				return
			}
			n := int(d.n.Add(1)) - 1
			go func() {
				defer conn.Close()
				serve(n, conn)
			}()
		}
	}()
	return d
}

// request reads a whole request.
func request(conn io.Reader) (*http.Request, wire.Request, error) {
	var r wire.Request
	h, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		return nil, r, err
	}
	body, err := io.ReadAll(h.Body)
	if err == nil && len(body) > 0 {
		err = json.Unmarshal(body, &r)
	}
	return h, r, err
}

// replies answers each request with the next of texts, and the last for ever.
// An empty one is none: the connection is closed.
func replies(texts ...string) func(int, *net.UnixConn) {
	return func(n int, conn *net.UnixConn) {
		if _, _, err := request(conn); err != nil {
			return
		}
		_, _ = io.WriteString(conn, texts[min(n, len(texts)-1)])
	}
}

func args() *skel.CmdArgs {
	return &skel.CmdArgs{
		ContainerID: "c1", Netns: "/run/netns/c1", IfName: "eth0", Path: "/opt/cni/bin",
		StdinData: []byte(testConfig),
	}
}

// answer is a whole response with a length.
func answer(status, body string) string {
	return "HTTP/1.1 " + status + "\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body
}

var (
	okEmpty  = answer("200 OK", "")
	okAdd    = answer("200 OK", testResult)
	busy     = strings.Replace(answer("503 Service Unavailable", `{"code":11,"msg":"busy"}`), "\r\n", "\r\nRetry-After: 0\r\n", 1)
	commands = []string{"ADD", "CHECK", "DEL", "GC", "STATUS"}
)

// wantError wants an error with the code, which shows nothing of the configuration; 0 wants none.
func wantError(t *testing.T, err error, code uint) {
	t.Helper()
	nodetest.Code(t, err, code)
	if err == nil {
		return
	}
	said := fmt.Sprintf("%v %+v", err, status.Error(err))
	if strings.Contains(said, "multinet") || strings.Contains(said, "secret") || strings.Contains(said, "failed to") {
		t.Errorf("error says %q", said)
	}
}

// newQueue returns the directory of a queue that a daemon has marked.
func newQueue(t testing.TB) (dir string) {
	t.Helper()
	return newQueueOf(t, "{}")
}

// newQueueOf returns the directory of a queue of a daemon with the Override.
func newQueueOf(t testing.TB, override string) (dir string) {
	t.Helper()
	dir = filepath.Join(nodetest.ShortDir(t), "q")
	daemon := &queue.Reader{Queue: queue.In(dir), Override: json.RawMessage(override)}
	defer daemon.Close()
	if _, odd, err := daemon.List(t.Context()); odd != nil || err != nil {
		t.Fatal(odd, err)
	}
	return dir
}

// queued lists what is in a queue.
func queued(t *testing.T, dir string) []wire.Request {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.json"))
	nodetest.OK(t, err)
	all := make([]wire.Request, len(names))
	for i, name := range names {
		data, err := os.ReadFile(name)
		nodetest.OK(t, err)
		nodetest.OK(t, json.Unmarshal(data, &all[i]))
	}
	return all
}

// away returns the path of a socket where no daemon is.
func away(t testing.TB) string {
	t.Helper()
	return filepath.Join(nodetest.ShortDir(t), "s")
}

// newClient returns a client with a queue, which has no patience for a daemon that is away.
func newClient(t testing.TB, socket string) *Client {
	t.Helper()
	return &Client{Socket: socket, Stdout: io.Discard, Queue: newQueue(t), QueueWait: -1}
}

// wantQueued wants that many DELs in the queue of c.
func (c *Client) wantQueued(t *testing.T, n int) {
	t.Helper()
	nodetest.Equal(t, "queued", len(queued(t, c.Queue)), n)
}
