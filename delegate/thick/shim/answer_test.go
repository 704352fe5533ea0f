package shim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/status"
)

// What daemons of Multus and of this module answer, as bytes on the wire.
func TestAnswersOfDaemons(t *testing.T) {
	t.Parallel()
	tests := []struct {
		file, command string
		code          uint // 0 is success
		says          string
	}{
		{"multus-add", "ADD", 0, ""},
		{"multus-add-chunked", "ADD", 0, ""},
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
			result, err := c.Do(t.Context(), tt.command, args())
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
	text := strings.ReplaceAll(head, "\n", "\r\n") + "\r\n\r\n"
	if strings.Contains(strings.ToLower(head), "chunked") {
		body = strings.ReplaceAll(body, "\n", "\r\n")
	}
	return text + body
}

// What the daemon says of an error reaches the runtime unchanged, code
// and details, from a server of net/http.
func TestErrorsKeepCodeAndDetails(t *testing.T) {
	t.Parallel()
	for _, said := range []types.Error{
		{Code: 1, Msg: "version"},
		{Code: 3, Msg: "no such container"},
		{Code: 4, Msg: "env"},
		{Code: 5, Msg: "i/o"},
		{Code: 6, Msg: "json"},
		{Code: 7, Msg: "config"},
		{Code: 11, Msg: "later", Details: "pool \"blue\" is full"},
		{Code: 50, Msg: "not ready", Details: "x"},
		{Code: 51, Msg: "limited"},
		{Code: 107, Msg: "own", Details: "[1 2] {}"},
		{Code: 999, Msg: "internal", Details: "y"},
	} {
		for _, httpStatus := range []int{400, 403, 413, 500} {
			for _, command := range commands {
				t.Run(fmt.Sprintf("%d %d %s", said.Code, httpStatus, command), func(t *testing.T) {
					t.Parallel()
					socket := newHTTP(t, func(w http.ResponseWriter, r *http.Request) {
						commandOf(r)
						w.Header().Set("Content-Type", "application/json")
						w.WriteHeader(httpStatus)
						_ = json.NewEncoder(w).Encode(said)
					})
					c := &Client{Socket: socket, Stdout: new(bytes.Buffer)}
					err := c.run(t, command)
					var got *types.Error
					if !errors.As(err, &got) || *got != said {
						t.Errorf("%#v, want %#v", err, said)
					}
				})
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
		"":      `{"cniVersion":"0.1.0","ip4":{"ip":"10.1.0.5/24","gateway":"10.1.0.1"},"dns":{}}`,
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
			var got, expected any
			if err := json.Unmarshal(out.Bytes(), &got); err != nil {
				t.Fatalf("%v: %s", err, out.Bytes())
			}
			nodetest.OK(t, json.Unmarshal([]byte(want), &expected))
			if diff := cmp.Diff(expected, got); diff != "" {
				t.Errorf("%s: %s", out.Bytes(), diff)
			}
		})
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// An ADD whose result the runtime cannot be told is undone, if need be by
// way of the queue, and is an error of its own code.
func TestResultThatCannotBePrintedIsUndone(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, version, result string
		stdout                io.Writer
		del                   string // the answer
		code                  uint
	}{
		{"no addresses in 0.2.0", "0.2.0", `{"cniVersion":"1.1.0"}`, new(bytes.Buffer), okEmpty, 1},
		{"no such version", "9.9.9", `{"cniVersion":"1.1.0"}`, new(bytes.Buffer), okEmpty, 1},
		{"a null that converters trip over", "0.4.0", `{"cniVersion":"1.1.0","interfaces":[null],"ips":[null]}`, new(bytes.Buffer), okEmpty, 1},
		{"stdout", "1.1.0", `{"cniVersion":"1.1.0"}`, brokenWriter{}, okEmpty, 5},
		{"stdout, and DEL", "1.1.0", `{"cniVersion":"1.1.0"}`, brokenWriter{}, answer("500 X", `{"code":107,"msg":"stuck"}`), 5},
		{"stdout, and the daemon is lost", "1.1.0", `{"cniVersion":"1.1.0"}`, brokenWriter{}, "", 5},
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
		var l io.Closer
		queue := newQueue(t)
		d := newDaemon(t, replies(okAdd))
		l = d.l
		c := &Client{Socket: d.socket, Stdout: closing{l}, Queue: queue, QueueWait: -1}
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
	c := &Client{Socket: d.socket, Stdout: ending{cancel}}
	err := c.Execute(ctx, "ADD", args())
	wantError(t, err, 5)
	if d.count() != 2 || strings.Contains(err.Error(), "DEL") {
		t.Errorf("%d commands, %v", d.count(), err)
	}
}

// An ending writer fails, and ends a context first.
type ending struct{ end func() }

func (e ending) Write([]byte) (int, error) {
	e.end()
	return 0, io.ErrClosedPipe
}

// A closing writer fails, and closes something first.
type closing struct{ c io.Closer }

func (c closing) Write([]byte) (int, error) {
	_ = c.c.Close()
	return 0, io.ErrClosedPipe
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
		r, err := (&Client{Socket: d.socket}).Do(t.Context(), "ADD", args())
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
			_, err := (&Client{Socket: d.socket, Wait: -1}).Do(t.Context(), "CHECK", a)
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

// FuzzRefusal: whatever a daemon answers is an error with a code, and shows no
// configuration that is repeated in it.
func FuzzRefusal(f *testing.F) {
	f.Add(400, []byte(`{"code":11,"msg":"x"}`))
	f.Add(503, []byte(`{"code":0,"details":"x"}`))
	f.Add(404, []byte(`&{StdinData:[123 34 115]} ERRORED: x`))
	f.Add(500, []byte("\xff{"))
	f.Fuzz(func(t *testing.T, code int, body []byte) {
		const conf = `{"secret":"s3cr3t"}`
		if bytes.Contains(body, []byte("s3cr3t")) {
			t.Skip() // a daemon's own words that happen to be those
		}
		a := args()
		a.StdinData = []byte(conf)
		for _, command := range []string{"ADD", "STATUS"} {
			k := (&Client{}).call(wire.PathCNI, command, a)
			err := k.outcome(k.refusal(&response{status: code, body: append(body, conf...)}))
			if c := status.Code(err); c == 0 || err.Error() == "" {
				t.Errorf("code %d, %v", c, err)
			}
			if strings.Contains(err.Error(), "s3cr3t") {
				t.Errorf("%v", err)
			}
		}
	})
}
