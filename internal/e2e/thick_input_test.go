package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/metacni/metacni/delegate/thick/wire"
)

// TestBadRequestsAreNamedAndRunNothing: the error names the mistake in a
// request and has the right code and status. Nothing runs, nothing is written,
// and the next request is served.
func TestBadRequestsAreNamedAndRunNothing(t *testing.T) {
	w := newWorld(t)
	w.daemon(daemonConf{})
	p := w.pod(w.thick("1.1.0", w.fake("a")))
	var whole wire.Request
	if err := json.Unmarshal(w.request("ADD", p, nil), &whole); err != nil {
		t.Fatal(err)
	}
	env := func(key, value string) []byte {
		m := whole
		m.Env = maps.Clone(whole.Env)
		if m.Env[key] = value; value == "-" {
			delete(m.Env, key)
		}
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	conf := func(text string) []byte {
		m := whole
		m.Config = []byte(text)
		body, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	good := env("", "")
	w.until("the daemon reads its queue", func() bool {
		_, err := os.Stat(w.file("queue/.reader"))
		return err == nil
	})
	before := w.list(w.dir)
	for _, c := range []struct {
		name         string
		method, path string
		body         []byte
		status       int
		code         uint
		words        []string
	}{
		{"GET", "GET", "/cni", nil, 405, 999, []string{"GET"}},
		{"unknown path", "POST", "/cnis", good, 404, 999, []string{"/cnis"}},
		{"empty body", "POST", "/cni", nil, 400, 6, nil},
		{"not JSON", "POST", "/cni", []byte("hello"), 400, 6, nil},
		{"truncated JSON", "POST", "/cni", good[:len(good)/2], 400, 6, nil},
		{"an array", "POST", "/cni", []byte("[]"), 400, 6, nil},
		{"null", "POST", "/cni", []byte("null"), 400, 4, []string{"CNI_COMMAND"}},
		{"env is a list", "POST", "/cni", []byte(`{"env":[]}`), 400, 6, nil},
		{"config not base64", "POST", "/cni", []byte(`{"env":{"CNI_COMMAND":"ADD"},"config":"{}"}`), 400, 6, nil},
		{"no command", "POST", "/cni", env("CNI_COMMAND", "-"), 400, 4, []string{"CNI_COMMAND"}},
		{"unknown command", "POST", "/cni", env("CNI_COMMAND", "JUMP"), 400, 4, []string{`unknown CNI_COMMAND "JUMP"`}},
		{"VERSION", "POST", "/cni", env("CNI_COMMAND", "VERSION"), 400, 4, []string{"VERSION"}},
		{"command in small letters", "POST", "/cni", env("CNI_COMMAND", "add"), 400, 4, []string{"add"}},
		{"no container", "POST", "/cni", env("CNI_CONTAINERID", "-"), 400, 4, []string{"CNI_CONTAINERID"}},
		{"container with slash", "POST", "/cni", env("CNI_CONTAINERID", "../x"), 400, 4, []string{"../x"}},
		{"no namespace", "POST", "/cni", env("CNI_NETNS", "-"), 400, 4, []string{"CNI_NETNS"}},
		{"interface with slash", "POST", "/cni", env("CNI_IFNAME", "a/b"), 400, 4, []string{"a/b"}},
		{"interface of 16 bytes", "POST", "/cni", env("CNI_IFNAME", strings.Repeat("x", 16)), 400, 4, nil},
		{"CNI_ARGS without a value", "POST", "/cni", env("CNI_ARGS", "A=b;C"), 400, 4, []string{"C"}},
		{"config not an object", "POST", "/cni", conf("[]"), 400, 6, nil},
		{"config truncated", "POST", "/cni", conf(`{"name":"x`), 400, 6, nil},
		{"name a number", "POST", "/cni", conf(`{"cniVersion":"1.1.0","name":7}`), 400, 7, []string{"name"}},
		{"name with a slash", "POST", "/cni", conf(`{"cniVersion":"1.1.0","name":"../x"}`), 400, 7, []string{"name"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := w.ask(c.method, c.path, c.body)
			if err != nil {
				t.Fatal(err)
			}
			r.says(t, c.status, c.code, c.words...)
			if c.status == 405 && r.header.Get("Allow") == "" {
				t.Error("405 without Allow")
			}
		})
	}
	same(t, "files", before, w.list(w.dir))
	w.trace()
	for _, args := range []string{"", "A=b;", ";;A=b", "A=b=c;K8S_POD_NAME=x", "-"} {
		for _, command := range []string{"ADD", "DEL"} {
			m := strings.Replace(string(env("CNI_ARGS", args)), `"CNI_COMMAND":"ADD"`, `"CNI_COMMAND":"`+command+`"`, 1)
			if r, err := w.ask("POST", "/cni", []byte(m)); err != nil || r.status != 200 {
				t.Errorf("%s with CNI_ARGS=%q: status %d, %v: %s", command, args, r.status, err, r.body)
			}
		}
	}
	w.noTrace()
}

// TestAbusiveClientsAreCutOff: clients speak no HTTP, never finish their header
// or body, or send 100 MB. Each is answered or disconnected. ADDs are served
// during that time and afterwards, and the daemon does not keep the data.
func TestAbusiveClientsAreCutOff(t *testing.T) {
	w := newWorld(t)
	d := w.daemon(daemonConf{})
	works := func() {
		t.Helper()
		p := w.pod(w.thick("1.1.0", w.fake("a")))
		w.ok("ADD", p)
		w.ok("DEL", p)
	}
	works()

	var slow sync.WaitGroup
	for name, start := range map[string]string{
		"header": "POST /cni HTTP/1.1\r\nHost: x\r\nX-Sl",
		"body":   "POST /cni HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{\"env\":{",
		"mute":   "",
	} {
		c := w.connect()
		if _, err := io.WriteString(c, start); err != nil {
			t.Fatal(err)
		}
		slow.Go(func() {
			// The daemon disconnects it, after an error or nothing.
			if text, err := io.ReadAll(c); err != nil || len(text) > 0 && !strings.HasPrefix(string(text), "HTTP/1.1 4") {
				t.Errorf("a slow %s: %v: %q", name, err, text)
			}
		})
	}
	works()

	for _, garbage := range []string{"\x16\x03\x01\x02\x00\x01\x00", "SSH-2.0-x\r\n\r\n", "{}\n\n", "GET\n\n", "POST /cni HTTP/9.9\r\n\r\n"} {
		c := w.connect()
		if _, err := io.WriteString(c, garbage); err != nil {
			t.Fatal(err)
		}
		if err := c.(*net.UnixConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(c); err != nil || len(text) > 0 && !strings.HasPrefix(string(text), "HTTP/1.1 4") && !strings.HasPrefix(string(text), "HTTP/1.1 5") {
			t.Errorf("%q: %v: %q", garbage, err, text)
		}
	}
	works()

	before := w.memory(d.cmd.Process.Pid, "VmHWM:")
	for _, head := range []string{"Content-Length: 104857600\r\n", "Transfer-Encoding: chunked\r\n"} {
		c := w.connect()
		if _, err := io.WriteString(c, "POST /cni HTTP/1.1\r\nHost: x\r\n"+head+"\r\n"); err != nil {
			t.Fatal(err)
		}
		go func() {
			part := strings.Repeat("x", 1<<20)
			if strings.HasPrefix(head, "Tr") {
				part = "100000\r\n" + part + "\r\n"
			}
			for range 100 {
				if _, err := io.WriteString(c, part); err != nil {
					return // the daemon has disconnected it
				}
			}
		}()
		a, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Errorf("100 MB (%q): %v", head, err)
			continue
		}
		text, err := io.ReadAll(a.Body)
		if err != nil {
			t.Error(err)
		}
		_ = a.Body.Close()
		reply{a.StatusCode, a.Header, text}.says(t, http.StatusRequestEntityTooLarge, 6)
		_ = c.Close()
	}
	works()
	grown := w.memory(d.cmd.Process.Pid, "VmHWM:") - before
	if grown > 64<<10 && !raced {
		t.Errorf("the daemon's memory has grown by %d kB", grown)
	}
	slow.Wait()
	works()
	w.noTrace()
	w.figures(fmt.Sprintf("clients that are slow, speak no HTTP or send 100 MB; the daemon's memory has grown by %d kB", grown), 10)
}

// connect connects to the daemon.
func (w *world) connect() net.Conn {
	w.t.Helper()
	c, err := net.Dial("unix", w.socket())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		w.t.Fatal(err)
	}
	return c
}

// TestDaemonRefusesUnsafeSocketDirectories: a daemon does not listen in a
// directory where others could put a socket of their own. It says why, exits,
// and changes nothing. The socket of a killed daemon is no obstacle.
func TestDaemonRefusesUnsafeSocketDirectories(t *testing.T) {
	for name, c := range map[string]struct {
		make func(w *world, dir string) error
		word string
	}{
		"group may write": {func(_ *world, dir string) error { return os.Chmod(dir, 0o770) }, "other users may enter"},
		"all may read":    {func(_ *world, dir string) error { return os.Chmod(dir, 0o755) }, "other users may enter"},
		"another user's":  {func(_ *world, dir string) error { return os.Chown(dir, 65534, 65534) }, "user 65534"},
		"a link": {func(w *world, dir string) error {
			if err := os.Rename(dir, w.file("real")); err != nil {
				return err
			}
			return os.Symlink(w.file("real"), dir)
		}, "symbolic link"},
		"a file": {func(_ *world, dir string) error {
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
			return os.WriteFile(dir, nil, 0o600)
		}, "not a directory"},
		"no socket": {func(_ *world, dir string) error {
			return os.WriteFile(filepath.Join(dir, wire.SocketName), []byte("mine"), 0o600)
		}, "not a socket"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for _, file := range []string{"d/kept", "d/below/kept"} {
				if err := os.MkdirAll(filepath.Dir(w.file(file)), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(w.file(file), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.make(w, w.file("d")); err != nil {
				t.Skip(err) // the user namespace has only one user
			}
			before := w.list(w.dir)
			d := w.startDaemon(daemonConf{})
			<-d.done
			if code := d.cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(d.log.String(), c.word) {
				t.Errorf("exit status %d: %s", code, d.log.String())
			}
			var after []string
			for _, f := range w.list(w.dir) {
				if f != "daemon.json" && f != "d/multus.sock.lock" && f != "d/multus.sock.next" {
					after = append(after, f)
				}
			}
			same(t, "files", before, after)
		})
	}
	t.Run("stale", func(t *testing.T) {
		w := newWorld(t)
		if err := os.MkdirAll(w.file("d", "below"), 0o700); err != nil {
			t.Fatal(err)
		}
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: w.socket(), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		p := w.pod(w.thick("1.1.0", w.fake("a")))
		for range 3 {
			d := w.daemon(daemonConf{})
			w.ok("ADD", p)
			w.ok("DEL", p)
			d.kill()
			if _, err := os.Lstat(w.socket()); err != nil {
				t.Error(err)
			}
		}
		if _, err := os.Stat(w.file("d", "below")); err != nil {
			t.Errorf("another file in the directory: %v", err)
		}
		w.noTrace()
	})
}

// TestDaemonRefusesOtherUsers: the daemon refuses another user who can open the
// socket.
func TestDaemonRefusesOtherUsers(t *testing.T) {
	w := newWorld(t)
	w.daemon(daemonConf{})
	p := w.pod(w.thick("1.1.0", w.fake("a")))
	// All directories and the socket are open to everyone, and so is the shim.
	for dir := w.file("d"); dir != "/run"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(w.socket(), 0o666); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(built("multinet-shim"))
	if err != nil {
		t.Fatal(err)
	}
	// A child that another test forks now would inherit the open file, and
	// executing it would fail with ETXTBSY.
	syscall.ForkLock.RLock()
	err = os.WriteFile(w.file("d", "shim"), text, 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	conf, err := json.Marshal(p.conf)
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"ADD", "DEL"} {
		r := &running{cmd: exec.CommandContext(t.Context(), w.file("d", "shim")), start: time.Now()}
		r.cmd.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + p.id, "CNI_NETNS=" + p.netns, "CNI_IFNAME=eth0", "CNI_PATH=" + w.bin}
		r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr = strings.NewReader(string(conf)), &r.stdout, &r.stderr
		r.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534, NoSetGroups: true}}
		if err := r.cmd.Start(); err != nil {
			t.Skipf("the user namespace has only one user: %v", err)
		}
		w.failed(w.wait(r), 999, "user 65534 may not connect")
	}
	w.trace()
	w.ok("ADD", p)
	w.ok("DEL", p)
	w.noTrace()
}
