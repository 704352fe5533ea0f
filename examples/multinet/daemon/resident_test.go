package daemon

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

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/resident"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
)

// withResidents are the keys of a world with resident plugins; static is one.
const withResidents = `,"relaySocket":"$DIR/run/relay.sock","relayTypes":["static"]`

// two is a network of an executable and one of a resident plugin.
const two = `"delegates":[{"type":"bridge"},{"name":"steady","type":"static"}]`

// A served resident runs in this process; its plugin static is a fake.
type served struct {
	*resident.Resident
	fake  *delegatetest.Exec
	known chan []resident.Known // the list it got, for each registration
}

func newResident() *served {
	r := &served{
		fake:  &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{"static": delegatetest.Result(nodetest.Result("10.7.0.2/24"))}},
		known: make(chan []resident.Known, 10),
	}
	r.Resident = residentOf("static", r.fake)
	r.Synchronize = func(_ context.Context, known []resident.Known) error {
		r.known <- known
		return nil
	}
	return r
}

// residentOf returns a resident plugin that runs a fake.
func residentOf(typ string, exec *delegatetest.Exec) *resident.Resident {
	do := func(ctx context.Context, c *plugin.Call) error {
		out, err := exec.ExecPlugin(ctx, "/resident/"+typ, c.Config, c.System.Env)
		if err == nil {
			_, err = c.System.Stdout.Write(out)
		}
		return err
	}
	return &resident.Resident{
		Index: "10", Name: typ, Types: []string{typ},
		Plugin: plugin.Plugin{Add: do, Check: do, Del: do, GC: do, Status: do},
	}
}

// run registers the resident until stop or the end of the test.
func (r *served) run(t *testing.T, socket string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx, socket) }()
	stop = sync.OnceFunc(func() {
		cancel()
		nodetest.Code(t, <-ended, 0)
	})
	t.Cleanup(stop)
	return stop
}

func (r *served) clean(t *testing.T) {
	t.Helper()
	nodetest.Equal(t, "left", r.fake.Live(), nil)
}

// A reserved type fails until its resident has registered, and is served by it
// afterwards; other types are not affected. The resident attaches and detaches
// networks through the record of the container.
func TestReservedTypeIsServedByItsResidentOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withResidents).start(t)
	err := w.run(t, "ADD", two)
	nodetest.Code(t, err, 11)
	nodetest.Says(t, err, "not connected")
	nodetest.Code(t, w.run(t, "STATUS", two), 50)
	w.wantTrace(t, "ADD bridge eth0", "DEL bridge eth0", "STATUS bridge")
	w.clean(t)

	r := newResident()
	r.run(t, w.conf.resident.Socket)
	nodetest.Equal(t, "it is told", <-r.known, nil)
	w.mustRun(t, "ADD", two)
	w.mustRun(t, "CHECK", two)
	w.wantTrace(t, "ADD bridge eth0", "CHECK bridge eth0")
	green, err := netconf.Parse([]byte(`{"cniVersion":"1.1.0","name":"green","type":"macvlan","capabilities":{"ips":true}}`))
	nodetest.OK(t, err)
	attach := resident.Request{ContainerID: "c1", Network: green, CapabilityArgs: map[string]json.RawMessage{"ips": json.RawMessage(`["10.9.1.7/24"]`)}}
	nodetest.OK(t, r.Request(t.Context(), attach))
	attach.ContainerID = "c2"
	nodetest.Code(t, r.Request(t.Context(), attach), 7)
	w.answers(t, "/delegate?container=c1", 200, `"net2"`)
	nodetest.OK(t, r.Request(t.Context(), resident.Request{Detach: true, ContainerID: "c1", IfName: "net2"}))
	w.mustRun(t, "DEL", two)
	w.wantTrace(t, "ADD macvlan net2", "DEL macvlan net2", "DEL bridge eth0")
	nodetest.Equal(t, "calls of the resident", r.fake.Trace(), []string{"ADD static net1", "CHECK static net1", "DEL static net1"})
	w.clean(t)
	r.clean(t)

	got := w.scrape(t)
	wantSeries(t, got, map[string]float64{
		`multinetd_resident_delegates{state="ready"}`:                                     1,
		`multinetd_resident_calls_total{command="ADD",outcome="ok",type="static"}`:        1,
		`multinetd_resident_calls_total{command="ADD",outcome="failed",type="static"}`:    1,
		`multinetd_resident_calls_total{command="DEL",outcome="ok",type="static"}`:        1,
		`multinetd_delegate_executions_total{command="ADD",outcome="ok",type="bridge"}`:   2,
		`multinetd_resident_calls_total{command="STATUS",outcome="failed",type="static"}`: 1,
	})
	if _, ok := got[`multinetd_resident_calls_total{command="ADD",outcome="ok",type="bridge"}`]; ok {
		t.Error("a call of an executable is counted as one of a resident")
	}
	nodetest.OK(t, w.stop())
	nodetest.Contains(t, "log", w.logged.String(),
		`"msg":"resident plugins may register"`, `"state":"ready","source":"external","resident":"10-static"`,
		`"msg":"request of a resident plugin","operation":"attach","resident":"10-static","container":"c1"`, `"state":"gone"`)
}

// After a restart of the daemon residents reconnect, receive the recorded
// attachments, and remove them.
func TestResidentServesTheRecordsOfThePreviousDaemon(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withResidents).start(t)
	r := newResident()
	r.run(t, w.conf.resident.Socket)
	<-r.known
	w.mustRun(t, "ADD", two)
	nodetest.OK(t, w.stop())
	nodetest.OK(t, os.WriteFile(filepath.Join(w.dir, "state", "c9@multi@eth0.json"), []byte("{"), 0o600))

	next := newWorldIn(t, w.dir, withResidents)
	next.exec = w.fake
	next.start(t)
	known := <-r.known
	if len(known) != 2 || known[0].ContainerID != "c1" || known[0].IfName != "net1" || !known[0].Added {
		t.Errorf("it is told %+v", known)
	} else if unread := (resident.Known{Type: "static", ContainerID: "c9", IfName: "eth0", Unreadable: true}); !cmp.Equal(known[1], unread) {
		t.Errorf("of the damaged record it is told %+v", known[1])
	}
	next.mustRun(t, "DEL", two)
	w.wantTrace(t, "ADD bridge eth0", "DEL bridge eth0")
	r.clean(t)
	nodetest.Until(t, "the sweep tells of the damaged record", func() bool {
		return strings.Contains(next.logged.String(), `"msg":"record cannot be read","container":"c9"`)
	}, next.logged)
}

// The next daemon knows that a type is a resident's, also where the only record of it cannot be
// read, or is in a directory that a request has named: no executable runs the DEL.
func TestTypeStaysReservedWhereverItsRecordIs(t *testing.T) {
	t.Parallel()
	const keys = `,"sweepInterval":"0s","relaySocket":"$DIR/run/relay.sock"`
	for name, tt := range map[string]struct {
		dir    string
		damage string
		left   bool
	}{
		"a damaged record":           {"state", "c1@multi@eth0.json", true},
		"a directory of the request": {"other", "", true},
		"nothing is attached":        {"other", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorldIn(t, nodetest.ShortDir(t), keys, ownDirs)
			request := w.argsIn(tt.dir, two)
			w.start(t)
			r := newResident()
			stop := r.run(t, w.conf.resident.Socket)
			<-r.known
			nodetest.OK(t, w.client.Execute(t.Context(), "ADD", request))
			if !tt.left {
				nodetest.OK(t, w.client.Execute(t.Context(), "DEL", request))
			}
			nodetest.OK(t, w.stop())
			stop()
			if tt.damage != "" {
				nodetest.OK(t, os.WriteFile(filepath.Join(w.dir, "state", tt.damage), []byte("{"), 0o600))
			}
			next := newWorldIn(t, w.dir, keys, ownDirs)
			next.exec = w.fake
			next.start(t)
			_, err := os.Stat(w.dir + "/state.relay/static")
			nodetest.Equal(t, "reserved", err == nil, tt.left)
		})
	}
}

// argsIn are those of a command with more keys, and a directory of records.
func (w *world) argsIn(dir, keys string) *skel.CmdArgs {
	return w.args(strings.Replace(conf(keys), "/of/the/runtime", filepath.Join(w.dir, dir), 1))
}

// ownDirs lets requests have a cniDir of their own, as without the key in the daemon's file.
func ownDirs(c *config) { delete(c.override, "cniDir") }

// The daemon fails before it serves when residents cannot register or be launched.
func TestDaemonFailsWhenResidentsCannotStart(t *testing.T) {
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
			nodetest.OK(t, errors.Join(os.Mkdir(open, 0o700), os.Chmod(open, 0o777), os.WriteFile(filepath.Join(w.dir, "file"), nil, 0o600))) //nolint:gosec // that is the matter
			l, err := w.listen(t.Context(), nil)
			nodetest.OK(t, err)
			nodetest.Says(t, w.serve(t.Context(), l, func(string) {}), "resident plugins: ")
		})
	}
}

// The output of launched residents is logged at level debug only.
func TestOutputOfResidentsIsLoggedForDebugging(t *testing.T) {
	t.Parallel()
	for level, want := range map[string]int{"info": 0, "debug": 2} {
		w := newWorld(t, fmt.Sprintf(`,"relayDir":"$DIR/none","logLevel":%q`, level))
		_, err := io.WriteString(w.host.Stderr, "one\n\n  two "+strings.Repeat("x", 2*maxOutput))
		nodetest.OK(t, err)
		if got := linesOf(t, w.logged, "output of a resident plugin"); len(got) != want {
			t.Errorf("%s: %v", level, got)
		}
	}
}
