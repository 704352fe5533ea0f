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
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

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
	stdin := []byte(testConfig)
	tests := []struct {
		name, path, command string
		env                 []string
		args                skel.CmdArgs
		with                *wire.Attributes
	}{
		{
			name: "add", path: wire.PathCNI, command: "ADD", env: trace,
			args: skel.CmdArgs{ContainerID: "c1", Netns: "/run/netns/c1", IfName: "eth0", Args: "K8S_POD_NAME=p;K8S_POD_NAMESPACE=n", Path: "/opt/cni/bin"},
		},
		{name: "del", path: wire.PathCNI, command: "DEL", args: skel.CmdArgs{ContainerID: "c1", IfName: "eth0", Path: "/opt/cni/bin"}},
		{name: "gc", path: wire.PathCNI, command: "GC", args: skel.CmdArgs{Path: "/opt/cni/bin"}},
		{name: "status", path: wire.PathCNI, command: "STATUS", args: skel.CmdArgs{Path: "/opt/cni/bin"}},
		{
			name: "delegate-add", path: wire.PathAttach, command: "ADD",
			args: skel.CmdArgs{ContainerID: "c1", Netns: "/run/netns/c1", Path: "/opt/cni/bin"},
			with: &wire.Attributes{
				IPs: []string{"10.0.0.9/24"}, MAC: "02:00:00:00:00:09",
				CNIArgs: map[string]json.RawMessage{"vlan": json.RawMessage("3")},
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			type sent struct {
				head *http.Request
				body wire.Request
			}
			got := make(chan sent, 1)
			d := newDaemon(t, func(_ int, conn *net.UnixConn) {
				h, r, err := request(conn)
				if err != nil {
					t.Error(err)
				}
				got <- sent{h, r}
				_, _ = conn.Write([]byte(okAdd))
			})
			c := &Client{Socket: d.socket, Env: append(tt.env, environ...)}
			tt.args.StdinData = stdin
			_, err := c.Do(t.Context(), tt.command, &tt.args, tt.with)
			nodetest.OK(t, err)
			s := <-got
			if s.head.Method != "POST" || s.head.URL.Path != tt.path || s.head.Proto != "HTTP/1.0" || s.head.Host != "dummy" || !s.head.Close {
				t.Errorf("%+v", s.head)
			}
			nodetest.Equal(t, "got", s.head.Header, http.Header{
				"Content-Type": {"application/json"}, "Content-Length": s.head.Header["Content-Length"],
			})
			most := (115 * time.Second).Milliseconds()
			if tt.command == "STATUS" {
				most = 2000
			}
			if s.body.DeadlineMs < 1 || s.body.DeadlineMs > most {
				t.Errorf("deadline of %d ms", s.body.DeadlineMs)
			}
			s.body.DeadlineMs = 0
			body, err := json.Marshal(s.body)
			nodetest.OK(t, err)
			want, err := os.ReadFile(filepath.Join("testdata", "requests", tt.name+".json"))
			nodetest.OK(t, err)
			nodetest.Equal(t, "got", decoded(t, body), decoded(t, want))
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
	for _, socket := range []string{"", "s", "./s", "@s"} {
		c := &Client{Socket: socket, Stdout: new(strings.Builder), Queue: newQueue(t), QueueWait: -1}
		for _, command := range []string{"ADD", "CHECK", "DEL", "GC", "STATUS"} {
			a := args()
			a.StdinData = []byte(`{"cniVersion":"1.1.0","name":"net","daemonSocketDir":"/run/multus"}`)
			err := c.Execute(t.Context(), command, a)
			if wantError(t, err, 7); err == nil || !strings.Contains(err.Error(), "not absolute") {
				t.Errorf("%q: %v", socket, err)
			}
		}
		if all := queued(t, c.Queue); len(all) > 0 {
			t.Errorf("queued %v", all)
		}
	}
}

// Nothing is sent that the daemon would not read, and no command that it does
// not have.
func TestRefusedBeforeSending(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, replies(okEmpty))
	c := &Client{Socket: d.socket, Queue: newQueue(t)}
	for _, command := range []string{"", "VERSION", "add", "FETCH"} {
		_, err := c.Do(t.Context(), command, args(), nil)
		wantError(t, err, 4)
		_, err = c.Do(t.Context(), command, args(), &wire.Attributes{})
		wantError(t, err, 4)
	}
	for _, command := range []string{"GC", "STATUS"} {
		_, err := c.Do(t.Context(), command, args(), &wire.Attributes{})
		wantError(t, err, 4)
	}
	wantError(t, (&Client{Socket: d.socket}).Execute(t.Context(), "ADD", args()), 999) // no Stdout
	noJSON := args()
	noJSON.StdinData = []byte(`secret`)
	wantError(t, (&Client{Socket: d.socket, Stdout: new(strings.Builder)}).Execute(t.Context(), "ADD", noJSON), 6)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, command := range commands {
		_, err := c.Do(ended, command, args(), nil)
		wantError(t, err, map[bool]uint{true: 50, false: 11}[command == "STATUS"])
	}
	if n := d.count(); n != 0 {
		t.Errorf("%d connections", n)
	}
	large := args()
	large.StdinData = []byte(`{"name":"` + strings.Repeat("x", wire.MaxBody) + `"}`)
	_, err := c.Do(t.Context(), "ADD", large, nil)
	wantError(t, err, 6)
}

// What daemons of Multus and of this module answer, as bytes on the wire.
func TestAnswersOfDaemons(t *testing.T) {
	t.Parallel()
	tests := []struct {
		file, command string
		code          uint // 0 is success
		says          string
	}{
		{"multus-add", "ADD", 0, ""},
		{"multus-empty", "DEL", 0, ""},
		{"multus-empty", "CHECK", 0, ""},
		{"multus-empty", "GC", 0, ""},
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
		{"thick-draining", "DEL", 11, "the daemon is draining"},
		{"thick-draining", "STATUS", 50, "the daemon is draining"}, // whatever the code
		{"thick-draining-status", "STATUS", 50, "the daemon is draining"},
		{"thick-draining-status", "GC", 11, "the daemon is draining"},
		{"thick-too-large", "ADD", 6, "request body over 4194304 bytes"},
		{"thick-peer", "STATUS", 999, "user 1000 may not connect"},
		{"thick-limited", "STATUS", 51, "red: uplink lost"},
	}
	for _, tt := range tests {
		t.Run(tt.file+" "+tt.command, func(t *testing.T) {
			t.Parallel()
			d := newDaemon(t, replies(recorded(t, tt.file)))
			c := &Client{Socket: d.socket, Wait: -1}
			result, err := c.Do(t.Context(), tt.command, args(), nil)
			if (result != nil) != (tt.code == 0 && tt.command == "ADD") {
				t.Errorf("result %v", result)
			}
			if tt.code == 0 {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantError(t, err, tt.code)
			if !strings.HasSuffix(err.Error(), tt.says) {
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
		{Code: 7, Msg: "config"},
		{Code: 11, Msg: "later", Details: "pool \"blue\" is full"},
		{Code: 50, Msg: "not ready", Details: "x"},
		{Code: 51, Msg: "limited"},
		{Code: 107, Msg: "own", Details: "[1 2] {}"},
		{Code: 999, Msg: "internal", Details: "y"},
	} {
		text, err := json.Marshal(said)
		nodetest.OK(t, err)
		d := newDaemon(t, replies(answer("400 X", string(text)), answer("500 X", string(text))))
		for _, command := range commands {
			err := (&Client{Socket: d.socket, Stdout: new(bytes.Buffer)}).run(t, command)
			var got *types.Error
			if !errors.As(err, &got) || *got != said {
				t.Errorf("%s: %#v, want %#v", command, err, said)
			}
		}
	}
	// A code is never 0: that would be success.
	d := newDaemon(t, replies(answer("500 X", `{"code":0,"msg":"odd"}`)))
	wantError(t, (&Client{Socket: d.socket}).run(t, "DEL"), 999)
}

// run does the command as a main does.
func (c *Client) run(t *testing.T, command string) error {
	t.Helper()
	return c.Execute(t.Context(), command, args())
}

// The result is printed as the configuration's version has it.
func TestResultIsConvertedToTheConfigurationsVersion(t *testing.T) {
	t.Parallel()
	const result = `{"Result":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mtu":1450,"sandbox":"/n"}],
		"ips":[{"interface":0,"address":"10.1.0.5/24","gateway":"10.1.0.1"}]}}`
	const eth0 = `"interfaces":[{"name":"eth0","sandbox":"/n"}]`
	const ip = `"interface":0,"address":"10.1.0.5/24","gateway":"10.1.0.1"`
	const mtu = `"interfaces":[{"name":"eth0","mtu":1450,"sandbox":"/n"}]`
	for version, want := range map[string]string{
		"":      `{"cniVersion":"1.1.0",` + mtu + `,"ips":[{` + ip + `}]}`, // the plugin has chosen it
		"0.1.0": `{"cniVersion":"0.1.0","ip4":{"ip":"10.1.0.5/24","gateway":"10.1.0.1"},"dns":{}}`,
		"0.2.0": `{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.5/24","gateway":"10.1.0.1"},"dns":{}}`,
		"0.3.0": `{"cniVersion":"0.3.0",` + eth0 + `,"ips":[{"version":"4",` + ip + `}],"dns":{}}`,
		"0.3.1": `{"cniVersion":"0.3.1",` + eth0 + `,"ips":[{"version":"4",` + ip + `}],"dns":{}}`,
		"0.4.0": `{"cniVersion":"0.4.0",` + eth0 + `,"ips":[{"version":"4",` + ip + `}],"dns":{}}`,
		"1.0.0": `{"cniVersion":"1.0.0",` + mtu + `,"ips":[{` + ip + `}]}`,
		"1.1.0": `{"cniVersion":"1.1.0",` + mtu + `,"ips":[{` + ip + `}]}`,
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			d := newDaemon(t, replies(answer("200 OK", result)))
			var out bytes.Buffer
			a := args()
			a.StdinData = []byte(`{"name":"net","cniVersion":"` + version + `"}`)
			nodetest.OK(t, (&Client{Socket: d.socket, Stdout: &out}).Execute(t.Context(), "ADD", a))
			nodetest.Equal(t, "result", decoded(t, out.Bytes()), decoded(t, []byte(want)))
		})
	}
}

// A failing writer fails, after a call of itself.
type failing func()

func (f failing) Write([]byte) (int, error) {
	f()
	return 0, io.ErrClosedPipe
}

// An ADD whose result the runtime cannot be told is undone, if need be by
// way of the queue, and is an error of its own code.
func TestResultThatCannotBePrintedIsUndone(t *testing.T) {
	t.Parallel()
	broken := failing(func() {})
	tests := []struct {
		name, version, result string
		stdout                io.Writer
		del                   string // the answer
		code                  uint
	}{
		{"no addresses in 0.2.0", "0.2.0", `{"cniVersion":"1.1.0"}`, new(bytes.Buffer), okEmpty, 1},
		{"no such version", "9.9.9", `{"cniVersion":"1.1.0"}`, new(bytes.Buffer), okEmpty, 1},
		{"a null that converters trip over", "0.4.0", `{"cniVersion":"1.1.0","interfaces":[null],"ips":[null]}`, new(bytes.Buffer), okEmpty, 1},
		{"stdout", "1.1.0", `{"cniVersion":"1.1.0"}`, broken, okEmpty, 5},
		{"stdout, and DEL", "1.1.0", `{"cniVersion":"1.1.0"}`, broken, answer("500 X", `{"code":107,"msg":"stuck"}`), 5},
		{"stdout, and the daemon is lost", "1.1.0", `{"cniVersion":"1.1.0"}`, broken, "", 5},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := newDaemon(t, replies(answer("200 OK", `{"Result":`+tt.result+`}`), tt.del, okEmpty))
			a := args()
			a.StdinData = []byte(`{"name":"net","cniVersion":"` + tt.version + `"}`)
			c := &Client{Socket: d.socket, Stdout: tt.stdout}
			wantError(t, c.Execute(t.Context(), "ADD", a), tt.code)
			if d.count() < 2 {
				t.Error("no DEL was sent")
			}
			if out, ok := tt.stdout.(*bytes.Buffer); ok && out.Len() > 0 {
				t.Errorf("printed %s", out)
			}
		})
	}
	t.Run("there is no daemon any more", func(t *testing.T) {
		t.Parallel()
		queue := newQueue(t)
		d := newDaemon(t, replies(okAdd))
		c := &Client{Socket: d.socket, Stdout: failing(func() { _ = d.l.Close() }), Queue: queue, QueueWait: -1}
		wantError(t, c.Execute(t.Context(), "ADD", args()), 5)
		if all := queued(t, queue); len(all) != 1 || all[0].Env["CNI_COMMAND"] != "DEL" {
			t.Errorf("queued %v", all)
		}
	})
}

// Neither does the end of the context keep an ADD from being undone.
func TestUndoOutlivesTheContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	d := newDaemon(t, replies(okAdd, okEmpty))
	c := &Client{Socket: d.socket, Stdout: failing(cancel)}
	err := c.Execute(ctx, "ADD", args())
	wantError(t, err, 5)
	if d.count() != 2 || strings.Contains(err.Error(), "DEL") {
		t.Errorf("%d commands, %v", d.count(), err)
	}
}

// Each version's result of a daemon is understood, and what is none is an
// error.
func TestResultOfTheDaemon(t *testing.T) {
	t.Parallel()
	for result, code := range map[string]uint{
		`{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24"}}`: 0,
		`{"cniVersion":"0.4.0"}`:                            0,
		`{"cniVersion":"1.0.0"}`:                            0,
		`{"ip4":{"ip":"10.0.0.2/24"}}`:                      0, // 0.1.0
		`{"cniVersion":"2.0.0"}`:                            6,
		`{"cniVersion":3}`:                                  6,
		`{"cniVersion":"1.1.0","ips":[{"address":"x"}]}`:    6,
		`[]`:   6,
		`"x"`:  6,
		`null`: 6,
	} {
		d := newDaemon(t, replies(answer("200 OK", `{"result":`+result+`}`)))
		r, err := (&Client{Socket: d.socket}).Do(t.Context(), "ADD", args(), nil)
		if code != 0 {
			wantError(t, err, code)
		} else if err != nil || r == nil {
			t.Errorf("%s: %v", result, err)
		}
	}
}

// Nothing of the configuration is in an error, in whatever form a daemon
// repeats it.
func TestErrorsQuoteNoConfiguration(t *testing.T) {
	t.Parallel()
	conf := []byte("\n" + `{"cniVersion":"1.1.0","name":"net","token":"secret-1","type":"x"}` + "\n")
	object := func(text string) string {
		data, _ := json.Marshal(types.Error{Code: 107, Msg: "own: " + text, Details: text})
		return string(data)
	}
	numbers := fmt.Sprintf("%d", conf)
	encoded, _ := json.Marshal(conf)
	bodies := []string{
		string(conf), "bad " + string(conf), "bad " + numbers, "&{StdinData:" + numbers + "} ERRORED: it is " + numbers, "x " + string(encoded),
		fmt.Sprintf("stdin %q", conf), strings.Repeat("a", 1000), "x\x00\xff\nline",
		object(string(conf)), object(numbers), object(fmt.Sprintf("%+v", struct{ StdinData []byte }{conf})), object(string(encoded)),
		object(strings.TrimSpace(fmt.Sprintf("%q", conf))),
		"bad token secret-1", object("bad token secret-1"),
	}
	for i, body := range bodies {
		for _, head := range []string{"400 Bad Request", "503 Service Unavailable"} {
			d := newDaemon(t, replies(answer(head, body)))
			a := args()
			a.StdinData = conf
			_, err := (&Client{Socket: d.socket, Wait: -1}).Do(t.Context(), "CHECK", a, nil)
			text := fmt.Sprintf("%v %+v", err, status.Error(err))
			for _, secret := range []string{"secret-1", "115 101 99 114 101 116", string(encoded[1:20])} {
				if err == nil || strings.Contains(text, secret) {
					t.Errorf("%d: %s", i, text)
				}
			}
			if !strings.HasPrefix(body, "{\"code") && len(text) > 3*maxText {
				t.Errorf("%d: %d bytes", i, len(text))
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
	{"length twice", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nhi", 200, "hi", nil},
	{"up to the end", "HTTP/1.0 200 OK\r\n\r\nhi", 200, "hi", nil},
	{"no content", "HTTP/1.1 204 No Content\r\n\r\n", 204, "", nil},
	{"no content, and more", "HTTP/1.1 204 No Content\r\n\r\n0", 204, "", nil},
	{"not modified, with a length", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, "", nil},

	{"nothing", "", 0, "", io.ErrUnexpectedEOF},
	{"no end of the header", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n", 0, "", io.ErrUnexpectedEOF},
	{"half a body", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi", 0, "", io.ErrUnexpectedEOF},

	{"half a status", "HTTP/1.1 20", 0, "", errMalformed},
	{"half a header", "HTTP/1.1 200 OK\r\nContent-Le", 0, "", errMalformed},
	{"not HTTP", "SSH-2.0-OpenSSH_9.6\r\n\r\n", 0, "", errMalformed},
	{"HTTP/2", "HTTP/2.0 200 OK\r\n\r\n", 0, "", errMalformed},
	{"a status of two digits", "HTTP/1.1 20 OK\r\n\r\n", 0, "", errMalformed},
	{"an interim status", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 0, "", errMalformed},
	{"a negative status", "HTTP/1.1 -20 OK\r\n\r\n", 0, "", errMalformed},
	{"no header line", "HTTP/1.1 200 OK\r\nhello\r\n\r\n", 0, "", errMalformed},
	{"a negative length", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", 0, "", errMalformed},
	{"chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", 0, "", errMalformed},
	{"a long line", "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("b", maxResponse) + "\r\n\r\n", 0, "", errMalformed},
	{"many lines", "HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", maxResponse/6) + "\r\n", 0, "", errMalformed},
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
			if tt.err != nil || err != nil {
				if !errors.Is(err, tt.err) {
					t.Errorf("%v, want %v", err, tt.err)
				}
				return
			}
			if r.status != tt.status || string(r.body) != tt.body {
				t.Errorf("%d %q, want %d %q", r.status, r.body, tt.status, tt.body)
			}
		})
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]time.Duration{
		"0": 0, "7": 7 * time.Second, "-1": -1, "99999999999": -1, "Fri, 31 Dec 1999 23:59:59 GMT": -1, "": -1,
	} {
		r, err := readResponse(strings.NewReader("HTTP/1.1 503 X\r\nretry-after: " + value + "\r\n\r\n"))
		if err != nil || r.retryAfter != want {
			t.Errorf("%q: %v, %v", value, r, err)
		}
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
