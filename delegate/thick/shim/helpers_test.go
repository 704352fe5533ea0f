package shim

import (
	"bufio"
	"encoding/json"
	"errors"
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
func request(conn net.Conn) (*http.Request, wire.Request, error) {
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

// newHTTP serves with net/http, as Multus's daemon and package thick do.
func newHTTP(t testing.TB, h http.HandlerFunc) (socket string) {
	t.Helper()
	socket = filepath.Join(nodetest.ShortDir(t), "s")
	s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	l := listen(t, socket)
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		_ = s.Close()
		<-done
	})
	return socket
}

// commandOf is the command of a request that net/http has read.
func commandOf(r *http.Request) string {
	var req wire.Request
	_ = json.NewDecoder(r.Body).Decode(&req)
	_, _ = io.Copy(io.Discard, r.Body)
	return req.Env["CNI_COMMAND"]
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

// wantError checks that err has the code, and shows nothing of the
// configuration.
func wantError(t *testing.T, err error, code uint) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want code %d", code)
		return
	}
	printed := new(types.Error)
	if !errors.As(status.Error(err), &printed) || printed.Code != code {
		t.Errorf("%v: code %d, want %d", err, printed.Code, code)
	}
	for _, text := range []string{err.Error(), printed.Msg, printed.Details} {
		if strings.Contains(text, "multinet") || strings.Contains(text, "secret") || strings.Contains(text, "failed to") {
			t.Errorf("error says %q", text)
		}
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
	var all []wire.Request
	for _, name := range glob(t, dir) {
		data, err := os.ReadFile(name)
		nodetest.OK(t, err)
		var r wire.Request
		nodetest.OK(t, json.Unmarshal(data, &r))
		all = append(all, r)
	}
	return all
}

// glob lists the files that hold a DEL.
func glob(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.json"))
	nodetest.OK(t, err)
	return names
}
