package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/resident"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/status"
)

// withResidents are the keys of a world with delegates that stay, static for one.
const withResidents = `,"relaySocket":"$DIR/run/relay.sock","relayTypes":["static"]`

// two is a network of a process and one of a delegate that stays.
const two = `"delegates":[{"type":"bridge"},{"name":"steady","type":"static"}]`

// A resident is a delegate in this process that serves static as fakes do.
type served struct {
	*resident.Plugin
	fake  *delegatetest.Exec
	known chan []resident.Known // what it has been told, each time it registered
}

func newResident(index string) *served {
	r := &served{
		fake:  &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{"static": delegatetest.Result(result("10.7.0.2/24"))}},
		known: make(chan []resident.Known, 10),
	}
	r.Plugin = &resident.Plugin{
		Index: index, Name: "static", Types: []string{"static"}, MaxPause: 50 * time.Millisecond,
		Funcs: func(ctx context.Context, stdout io.Writer) skel.CNIFuncs {
			do := func(a *skel.CmdArgs) error {
				var env []string
				for k, v := range resident.CallOf(ctx).Env {
					env = append(env, k+"="+v)
				}
				path, err := invoke.Exec(r.fake).FindInPath("static", nil)
				if err != nil {
					return err
				}
				out, err := r.fake.ExecPlugin(ctx, path, a.StdinData, env)
				if err == nil {
					_, err = stdout.Write(out)
				}
				return err
			}
			return skel.CNIFuncs{Add: do, Check: do, Del: do, GC: do, Status: do}
		},
		Synchronize: func(_ context.Context, known []resident.Known) error {
			r.known <- known
			return nil
		},
	}
	return r
}

// run has the delegate register, as long as the test runs, or until stop.
func (r *served) run(t *testing.T, socket string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx, socket) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func (r *served) clean(t *testing.T) {
	t.Helper()
	if live := r.fake.Live(); len(live) > 0 {
		t.Errorf("left: %q", live)
	}
}

// A type that is reserved fails before its delegate has come, is served by it
// afterwards, and what is not its goes on as ever. What the delegate asks for is
// in the container's record.
func TestResidentLife(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withResidents).start(t)
	if err := w.run(t, "ADD", two); status.Code(err) != 11 || !strings.Contains(err.Error(), "the resident is not there") {
		t.Errorf("ADD before it has come: code %d: %v", status.Code(err), err)
	}
	if err := w.run(t, "STATUS", two); status.Code(err) != 50 {
		t.Errorf("STATUS before it has come: code %d: %v", status.Code(err), err)
	}
	w.wantTrace(t, "ADD bridge eth0", "DEL bridge eth0", "STATUS bridge")
	w.clean(t)

	r := newResident("10")
	r.run(t, w.conf.resident.Socket)
	if known := <-r.known; len(known) > 0 {
		t.Errorf("it is told %+v", known)
	}
	w.mustRun(t, "ADD", two)
	w.mustRun(t, "CHECK", two)
	w.wantTrace(t, "ADD bridge eth0", "CHECK bridge eth0")
	green, err := netconf.Parse([]byte(`{"cniVersion":"1.1.0","name":"green","type":"macvlan","capabilities":{"ips":true}}`))
	if err != nil {
		t.Fatal(err)
	}
	attach := resident.Update{Op: resident.Attach, ContainerID: "c1", Network: green, CapabilityArgs: map[string]json.RawMessage{"ips": json.RawMessage(`["10.9.1.7/24"]`)}}
	stranger := attach
	stranger.ContainerID = "c2"
	failed, err := r.Request(t.Context(), attach, stranger)
	if err != nil || len(failed) != 1 || failed[0].ContainerID != "c2" || failed[0].Err.Code != 7 {
		t.Errorf("attaching: %+v: %v", failed, err)
	}
	if code, body := w.get(t, "/delegate?container=c1"); code != 200 || !strings.Contains(body, `"net2"`) {
		t.Errorf("attachments: %d %s", code, body)
	}
	if failed, err := r.Request(t.Context(), resident.Update{Op: resident.Detach, ContainerID: "c1", IfName: "net2"}); err != nil || len(failed) > 0 {
		t.Errorf("detaching: %+v: %v", failed, err)
	}
	w.mustRun(t, "DEL", two)
	w.wantTrace(t, "ADD macvlan net2", "DEL macvlan net2", "DEL bridge eth0")
	if diff := cmp.Diff([]string{"ADD static net1", "CHECK static net1", "DEL static net1"}, r.fake.Trace()); diff != "" {
		t.Errorf("the delegate's calls (-want +got):\n%s", diff)
	}
	w.clean(t)
	r.clean(t)

	_, text := w.get(t, "/metrics")
	for name, want := range map[string]float64{
		`multinetd_resident_delegates{state="ready"}`:                                     1,
		`multinetd_resident_calls_total{command="ADD",outcome="ok",type="static"}`:        1,
		`multinetd_resident_calls_total{command="ADD",outcome="failed",type="static"}`:    1,
		`multinetd_resident_calls_total{command="DEL",outcome="ok",type="static"}`:        1,
		`multinetd_delegate_executions_total{command="ADD",outcome="ok",type="bridge"}`:   2,
		`multinetd_resident_calls_total{command="STATUS",outcome="failed",type="static"}`: 1,
	} {
		if got := series(t, text)[name]; got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if strings.Contains(text, `resident_calls_total{command="ADD",outcome="ok",type="bridge"}`) {
		t.Error("what was run is counted as what stays")
	}
	if err := w.stop(); err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{
		`"msg":"delegates may register"`, `"state":"ready","source":"external","delegate":"10-static"`,
		`"msg":"request of a delegate","update":"attach","delegate":"10-static","container":"c1"`, `"state":"gone"`,
	} {
		if log := w.logged.String(); !strings.Contains(log, words) {
			t.Errorf("no %s in the log:\n%s", words, log)
		}
	}
}

// A daemon that comes after another tells delegates that come back what is
// recorded, and they remove what they made for the one before.
func TestResidentRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withResidents).start(t)
	r := newResident("10")
	r.run(t, w.conf.resident.Socket)
	<-r.known
	w.mustRun(t, "ADD", two)
	if err := w.stop(); err != nil {
		t.Fatal(err)
	}
	damaged := filepath.Join(w.dir, "state", "c9")
	if err := errors.Join(os.Mkdir(damaged, 0o700), os.WriteFile(filepath.Join(damaged, "multi@eth0.json"), []byte("{"), 0o600)); err != nil {
		t.Fatal(err)
	}

	next := newWorld(t, "")
	next.conf.resident = w.conf.resident
	d, err := newDaemon(t.Context(), w.conf, "/daemon/bin", "v0", newLogger(next.logged, w.conf))
	if err != nil {
		t.Fatal(err)
	}
	next.daemon, next.fake, next.dir, next.client, next.seen = d, w.fake, w.dir, w.client, len(w.fake.Trace())
	next.exec, next.interfaceNames = w.exec, w.interfaceNames
	next.start(t)
	known := <-r.known
	if len(known) != 1 || known[0].ContainerID != "c1" || known[0].IfName != "net1" || !known[0].Added {
		t.Errorf("it is told %+v", known)
	}
	next.mustRun(t, "DEL", two)
	next.wantTrace(t, "DEL bridge eth0")
	r.clean(t)
	if log := next.logged.String(); !strings.Contains(log, `"msg":"record that no delegate is told of","container":"c9"`) {
		t.Errorf("log:\n%s", log)
	}
}

// A delegate that registers in the middle of an operation that has not called it
// yet joins at once, and is called by the operation: it has been told of what was
// attached before, and has no gap to fill.
func TestResidentNoGap(t *testing.T) {
	t.Parallel()
	for command, tt := range map[string]struct {
		plugins string   // bridge is the first to be called
		blocks  string   // the command of bridge that is in the middle
		keys    string   // more of them
		told    []string // who is attached then
		calls   []string // of the delegate, by the operation
	}{
		"ADD":   {`{"type":"bridge"},{"type":"static"}`, "ADD", "", []string{"c1 net1 false"}, []string{"ADD static net1"}},
		"CHECK": {`{"type":"bridge"},{"type":"static"}`, "CHECK", "", []string{"c1 net1 true"}, []string{"CHECK static net1"}},
		"DEL":   {`{"type":"static"},{"type":"bridge"}`, "DEL", "", []string{"c1 eth0 true"}, []string{"DEL static eth0"}},
		"GC": {
			`{"type":"static"},{"type":"bridge"}`, "DEL", `,"cni.dev/valid-attachments":[]`,
			[]string{"c1 eth0 true"},
			[]string{"DEL static eth0", "GC static"},
		},
	} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, withResidents)
			begun, goOn, inMiddle := make(chan struct{}), make(chan struct{}), sync.Once{}
			plugin := w.fake.Plugins["bridge"]
			w.fake.Plugins["bridge"] = func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
				if c.Command == tt.blocks {
					inMiddle.Do(func() { close(begun); <-goOn })
				}
				return plugin(ctx, c)
			}
			w.start(t)
			r := newResident("10")
			stop := r.run(t, w.conf.resident.Socket)
			<-r.known
			conf := `"delegates":[` + tt.plugins + `]`
			if command != "ADD" {
				w.mustRun(t, "ADD", conf)
			}
			stop()

			done := make(chan error, 1)
			go func() { done <- w.run(t, command, conf+tt.keys) }()
			<-begun
			after := newResident("20")
			after.run(t, w.conf.resident.Socket)
			var told []string
			for _, k := range <-after.known {
				told = append(told, fmt.Sprintf("%s %s %v", k.ContainerID, k.IfName, k.Added))
			}
			if diff := cmp.Diff(tt.told, told); diff != "" {
				t.Errorf("told (-want +got):\n%s", diff)
			}
			close(goOn)
			if err := <-done; err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(tt.calls, after.fake.Trace()); diff != "" {
				t.Errorf("called (-want +got):\n%s", diff)
			}
			w.mustRun(t, "DEL", conf)
			w.clean(t)
		})
	}
}

// A host that cannot start is an error before anything is served.
func TestResidentCannotStart(t *testing.T) {
	t.Parallel()
	for name, keys := range map[string]string{
		"an open directory":    `,"relaySocket":"$DIR/open/s"`,
		"no directory":         `,"relayDir":"$DIR/file"`,
		"one others may write": `,"relayDir":"$DIR/open"`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, keys)
			open := filepath.Join(w.dir, "open")
			if err := errors.Join(os.Mkdir(open, 0o700), os.Chmod(open, 0o777), os.WriteFile(filepath.Join(w.dir, "file"), nil, 0o600)); err != nil { //nolint:gosec // that is the matter
				t.Fatal(err)
			}
			l, err := listen(t.Context(), w.conf.SocketDir, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := w.serve(t.Context(), l, func(string) {}); err == nil || !strings.Contains(err.Error(), "resident: ") {
				t.Errorf("err = %v", err)
			}
		})
	}
}

// What a launched delegate writes is for who debugs.
func TestResidentChatter(t *testing.T) {
	t.Parallel()
	for level, want := range map[string]int{"info": 0, "debug": 2} {
		w := newWorld(t, fmt.Sprintf(`,"relayDir":"$DIR/none","logLevel":%q`, level))
		if _, err := io.WriteString(w.host.Stderr, "one\n\n  two "+strings.Repeat("x", 2*maxLine)); err != nil {
			t.Fatal(err)
		}
		if got := w.logged.of(t, "a launched delegate says"); len(got) != want {
			t.Errorf("%s: %v", level, got)
		}
	}
}
