package shim

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/nodetest"
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
			var err error
			if tt.path == wire.PathCNI {
				_, err = c.Do(t.Context(), tt.command, &tt.args)
			} else {
				_, err = c.Attach(t.Context(), tt.command, &tt.args, tt.with)
			}
			nodetest.OK(t, err)
			s := <-got
			if s.head.Method != "POST" || s.head.URL.Path != tt.path || s.head.Proto != "HTTP/1.1" || s.head.Host != "dummy" || !s.head.Close {
				t.Errorf("%+v", s.head)
			}
			wantHeader := http.Header{
				"Connection": {"close"}, "Content-Type": {"application/json"}, "Content-Length": s.head.Header["Content-Length"],
			}
			if tt.env != nil {
				wantHeader["Traceparent"] = []string{"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
				wantHeader["Tracestate"] = []string{"k=v"}
				wantHeader["Baggage"] = []string{"a=b"}
			}
			nodetest.Equal(t, "got", s.head.Header, wantHeader)
			most := (115 * time.Second).Milliseconds()
			if tt.command == "STATUS" {
				most = 2000
			}
			if s.body.DeadlineMs < 1 || s.body.DeadlineMs > most {
				t.Errorf("deadline of %d ms", s.body.DeadlineMs)
			}
			s.body.DeadlineMs = 0
			nodetest.Equal(t, "got", tree(t, s.body), fixture(t, tt.name))
		})
	}
}

func fixture(t *testing.T, name string) (v any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "requests", name+".json"))
	nodetest.OK(t, err)
	nodetest.OK(t, json.Unmarshal(data, &v))
	return v
}

func tree(t *testing.T, r wire.Request) (v any) {
	t.Helper()
	data, err := json.Marshal(r)
	nodetest.OK(t, err)
	nodetest.OK(t, json.Unmarshal(data, &v))
	return v
}

// A trace cannot add lines to the header, and one that is too long for it goes
// by the environment alone.
func TestTraceStaysInItsHeader(t *testing.T) {
	t.Parallel()
	for value, header := range map[string]bool{
		"00-ab": true, "a\r\nX-Evil: 1": false, "a\x00": false, "ä": false, strings.Repeat("x", maxTrace): true, strings.Repeat("x", maxTrace+1): false,
	} {
		text, err := message(t.Context(), wire.PathCNI, wire.Request{Env: map[string]string{"BAGGAGE": value}})
		nodetest.OK(t, err)
		head, body, _ := strings.Cut(string(text), "\r\n\r\n")
		if strings.Contains(head, "\r\nBAGGAGE: "+value+"\r\n") != header || strings.Contains(head, "Evil") {
			t.Errorf("%.20q: %.200q", value, head)
		}
		if !strings.Contains(body, "BAGGAGE") {
			t.Errorf("%.20q is not in the environment", value)
		}
	}
}

// The socket is the Client's, or that of the configuration's directory. The
// configuration of one more network does not choose it. Without a socket a command
// fails: it is not sent to Multus.
func TestSocketIsFoundInClientThenConfiguration(t *testing.T) {
	t.Parallel()
	tests := []struct{ set, config, path, want string }{
		{"/a/b", `{"daemonSocketDir":"/c"}`, wire.PathCNI, "/a/b"},
		{"", `{"daemonSocketDir":"/c/"}`, wire.PathCNI, "/c/multus.sock"},
		{"", `{"daemonSocketDir":"/c/"}`, wire.PathAttach, ""},
		{"", `{}`, wire.PathCNI, ""},
		{"", `{"daemonSocketDir":3}`, wire.PathCNI, ""},
	}
	for _, tt := range tests {
		c := &Client{Socket: tt.set}
		if got := c.socket(tt.path, &skel.CmdArgs{StdinData: []byte(tt.config)}); got != tt.want {
			t.Errorf("%+v: %s", tt, got)
		}
	}
	zero := &Client{Stdout: new(strings.Builder), Queue: newQueue(t)}
	for _, command := range []string{"ADD", "CHECK", "DEL", "GC", "STATUS"} {
		wantError(t, zero.Execute(t.Context(), command, args()), 7)
	}
}

// Nothing is sent that the daemon would not read, and no command that it does
// not have.
func TestRefusedBeforeSending(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, replies(okEmpty))
	c := &Client{Socket: d.socket, Queue: newQueue(t)}
	for _, command := range []string{"", "VERSION", "add", "FETCH"} {
		_, err := c.Do(t.Context(), command, args())
		wantError(t, err, 4)
		_, err = c.Attach(t.Context(), command, args(), nil)
		wantError(t, err, 4)
	}
	for _, command := range []string{"GC", "STATUS"} {
		_, err := c.Attach(t.Context(), command, args(), nil)
		wantError(t, err, 4)
	}
	wantError(t, (&Client{Socket: d.socket}).Execute(t.Context(), "ADD", args()), 999) // no Stdout
	noJSON := args()
	noJSON.StdinData = []byte(`secret`)
	wantError(t, (&Client{Socket: d.socket, Stdout: new(strings.Builder)}).Execute(t.Context(), "ADD", noJSON), 6)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, command := range commands {
		_, err := c.Do(ended, command, args())
		wantError(t, err, map[bool]uint{true: 50, false: 11}[command == "STATUS"])
	}
	if n := d.count(); n != 0 {
		t.Errorf("%d connections", n)
	}
	large := args()
	large.StdinData = []byte(`{"name":"` + strings.Repeat("x", wire.MaxBody) + `"}`)
	_, err := c.Do(t.Context(), "ADD", large)
	wantError(t, err, 6)
}
