package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/metacni/metacni/delegate/thick/wire"
)

// TestDaemonServesTheShimOfMultus: the shim of Multus sends its whole
// environment, the container's keys even if they are empty, and no version. It
// gets answers it can read: a result in JSON, an empty body, or an error
// object. Plugins get nothing of its environment.
func TestDaemonServesTheShimOfMultus(t *testing.T) {
	w := newWorld(t)
	w.daemon(daemonConf{})
	p := w.pod(w.thick("1.0.0", w.fake("a")))
	send := func(path, command string) reply {
		t.Helper()
		env := object{
			"CNI_COMMAND": command, "CNI_CONTAINERID": p.id, "CNI_NETNS": p.netns, "CNI_IFNAME": p.ifname, "CNI_PATH": w.bin,
			"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=8f0c;K8S_POD_UID=",
			"HOME":     "/root", "INVOCATION_ID": "0a1b", "NOTIFY_SOCKET": "/run/systemd/notify", "PATH": "/none", "LD_PRELOAD": "/none.so",
		}
		if command == "GC" || command == "STATUS" {
			env["CNI_CONTAINERID"], env["CNI_NETNS"], env["CNI_IFNAME"], env["CNI_ARGS"] = "", "", "", ""
		}
		conf, err := json.Marshal(w.with(p.conf, object{"cni.dev/valid-attachments": []object{{"containerID": p.id, "ifname": p.ifname}}}))
		if err != nil {
			t.Fatal(err)
		}
		body, err := json.Marshal(object{"env": env, "config": conf})
		if err != nil {
			t.Fatal(err)
		}
		r, err := w.ask(http.MethodPost, path, body)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	// Its readiness request has the body "null".
	for _, path := range []string{wire.PathReady, wire.PathHealth} {
		if r, err := w.ask(http.MethodPost, path, []byte("null")); err != nil || r.status != http.StatusOK {
			t.Errorf("%s: status %d, %v", path, r.status, err)
		}
	}
	w.isResult(send(wire.PathCNI, "ADD"))
	for _, command := range []string{"CHECK", "STATUS", "GC", "DEL", "DEL"} {
		if r := send(wire.PathCNI, command); r.status != http.StatusOK || len(r.body) > 0 {
			t.Errorf("%s: status %d: %s", command, r.status, r.body)
		}
	}
	w.noTrace()
	for _, c := range w.calls() {
		if c.Command == "ADD" && !strings.Contains(c.Args, "K8S_POD_NAME=web-0") {
			t.Errorf("CNI_ARGS %q", c.Args)
		}
	}
	p.conf = w.thick("1.0.0", w.fake("a", "ADD", "fail"))
	send(wire.PathCNI, "ADD").says(t, http.StatusInternalServerError, 111, "no free device")
	w.noTrace()
}

// isResult fails the test unless r is an answer to ADD that the shim of Multus
// can decode.
func (w *world) isResult(r reply) {
	w.t.Helper()
	var answer struct{ Result *types100.Result }
	if err := json.Unmarshal(r.body, &answer); err != nil || r.status != http.StatusOK || answer.Result == nil {
		w.t.Fatalf("status %d, %v: %s", r.status, err, r.body)
	}
	if len(answer.Result.IPs) == 0 || answer.Result.CNIVersion != types100.ImplementedSpecVersion {
		w.t.Errorf("result %s", r.body)
	}
	same(w.t, "Content-Type", "application/json", r.header.Get("Content-Type"))
}

// TestDaemonServesANewerShim: a shim of a later version says so, and sends keys
// that the daemon does not know.
func TestDaemonServesANewerShim(t *testing.T) {
	w := newWorld(t)
	w.daemon(daemonConf{})
	p := w.pod(w.thick("1.1.0", w.fake("a")))
	more := object{"apiVersion": 2, "priority": "high", "fds": []int{3}, "interfaceAttributes": object{"ips": nil, "vf": 7}}
	for _, command := range []string{"ADD", "CHECK", "DEL"} {
		r, err := w.ask(http.MethodPost, wire.PathCNI, w.request(command, p, more))
		if err != nil {
			t.Fatal(err)
		}
		if command == "ADD" {
			w.isResult(r)
		} else if r.status != http.StatusOK || len(r.body) > 0 {
			t.Errorf("%s: status %d: %s", command, r.status, r.body)
		}
		same(t, wire.VersionHeader, fmt.Sprint(wire.Version), r.header.Get(wire.VersionHeader))
	}
	w.noTrace()
}

// TestShimWorksWithOtherDaemons: the shim works with the daemon of Multus, and
// with one of a later version.
func TestShimWorksWithOtherDaemons(t *testing.T) {
	result := object{
		"cniVersion": "1.1.0", "interfaces": []object{{"name": "eth0", "sandbox": "/run/netns/x"}},
		"ips": []object{{"address": "192.0.2.2/24", "interface": 0}}, "dns": object{},
	}
	for _, c := range []struct {
		name   string
		header string
		answer object
		// The answer to an ADD that fails.
		status int
		text   string
		code   uint
	}{
		{
			name: "older", answer: object{"Result": result}, status: http.StatusBadRequest, code: 999,
			text: `&{ContainerID:c Netns:/n IfName:eth0 StdinData:[%d]} ERRORED: error configuring pod: no free device`,
		},
		{
			name: "newer", header: "2", answer: object{"Result": result, "warnings": []string{"slow"}, "took": object{"ms": 7}},
			status: http.StatusConflict, code: 107,
			text: `{"code":107,"msg":"no free device","details":"","retryable":false,"causes":[{"code":3}]}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			s := &scripted{header: c.header, answer: c.answer}
			w.serve(s)
			p := w.pod(w.thick("0.4.0", w.with(w.fake("a"), object{"password": "hunter2"})))
			w.ok("ADD", p)
			if r := decode(t, p, "0.4.0"); len(r.IPs) != 1 {
				t.Errorf("result %s", p.result)
			}
			w.ok("CHECK", p)
			w.ok("DEL", p)
			same(t, "asked for", []string{"ADD", "CHECK", "DEL"}, s.seen())

			s.fail(c.status, c.text)
			a := w.fails(c.code, "ADD", p, []string{"no free device"})
			if strings.Contains(string(a.stdout)+a.stderr, "hunter2") || strings.Contains(string(a.stdout), "123 34") {
				t.Errorf("the configuration was printed: %s", a.stdout)
			}
			w.fails(c.code, "DEL", p, []string{"no free device"})
			same(t, "queued", nil, w.queued())
		})
	}
}

// A scripted daemon answers every POST in the same way.
type scripted struct {
	header string
	answer object

	mu       sync.Mutex
	commands []string
	status   int // if not 0, requests fail with text
	text     string
}

func (s *scripted) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commands
}

func (s *scripted) fail(status int, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status, s.text = status, text
}

func (s *scripted) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.header != "" {
		rw.Header().Set(wire.VersionHeader, s.header)
	}
	var m wire.Request
	if err := json.NewDecoder(r.Body).Decode(&m); r.URL.Path != wire.PathCNI || err != nil {
		http.NotFound(rw, r) // the daemon of Multus has neither /readyz nor /info
		return
	}
	s.commands = append(s.commands, m.Env["CNI_COMMAND"])
	if s.status != 0 {
		rw.WriteHeader(s.status)
		text := s.text
		if strings.Contains(text, "%d") {
			text = fmt.Sprintf(text, m.Config)
		}
		_, _ = rw.Write([]byte(text)) // an error shows in the shim's answer
		return
	}
	if m.Env["CNI_COMMAND"] == "ADD" {
		_ = json.NewEncoder(rw).Encode(s.answer) // same
	}
}

// serve lets h answer on the daemon's socket.
func (w *world) serve(h http.Handler) {
	w.t.Helper()
	if err := os.MkdirAll(w.file("d"), 0o700); err != nil {
		w.t.Fatal(err)
	}
	l, err := net.Listen("unix", w.socket())
	if err != nil {
		w.t.Fatal(err)
	}
	s := &http.Server{Handler: h}
	go func() { _ = s.Serve(l) }()
	w.t.Cleanup(func() { _ = s.Close() })
}
