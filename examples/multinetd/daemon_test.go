package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/thick"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/examples/internal/daemon"
	"github.com/metacni/metacni/internal/nodetest"
)

// The server waits for the undo of an ADD for longer than the undo may take.
func TestServerWaitsLongerThanUndoingTakes(t *testing.T) {
	t.Parallel()
	d := newWorld(t, "").service
	if server, undoing := d.server.UndoTimeout, d.process(t.Context()).UndoTimeout; undoing <= 0 || server <= undoing {
		t.Errorf("the server waits %v, and undoing takes up to %v", server, undoing)
	}
}

// Commands go from the shim to the plugins and back. DEL also detaches a network
// that was attached to the running container.
func TestLifeOfAContainer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "").start(t)
	w.mustRun(t, "STATUS", bridge)
	w.mustRun(t, "ADD", bridge)
	if got := w.printed.String(); !strings.Contains(got, "10.9.0.2/24") {
		t.Errorf("printed %s", got)
	}
	w.mustRun(t, "CHECK", bridge)
	w.wantTrace(t, "STATUS bridge", "ADD bridge eth0", "CHECK bridge eth0")

	hot := w.args(`{"name":"green","type":"macvlan","capabilities":{"ips":true}}`)
	hot.IfName = "hot0"
	r, err := w.client.Do(t.Context(), "ADD", hot, &wire.Attributes{IPs: []string{"10.9.1.7/24"}})
	if err != nil || !strings.Contains(fmt.Sprint(r), "10.9.1.2") {
		t.Fatalf("plugged %v: %v", r, err)
	}
	calls := w.fake.Calls()
	if got := string(calls[len(calls)-1].Stdin); !strings.Contains(got, `"ips":["10.9.1.7/24"]`) {
		t.Errorf("the plugin was given %s", got)
	}
	if _, err := w.client.Do(t.Context(), "CHECK", hot, &wire.Attributes{}); err != nil {
		t.Error(err)
	}
	w.mustRun(t, "CHECK", bridge)
	w.wantTrace(t, "ADD macvlan hot0", "CHECK macvlan hot0", "CHECK bridge eth0", "CHECK macvlan hot0")

	var list []thick.Attachment
	code, body := w.get(t, "/delegate?container=c1")
	if err := json.Unmarshal([]byte(body), &list); err != nil || code != 200 || len(list) != 2 || list[1].IfName != "hot0" || list[1].Network != "green" || list[1].State != "added" {
		t.Errorf("attachments: %d %s: %v", code, body, err)
	}
	if strings.Contains(body, "hunter2") {
		t.Errorf("attachments tell of secrets: %s", body)
	}

	w.mustRun(t, "GC", bridge+`,"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]`)
	w.seen = len(w.fake.Trace())
	w.mustRun(t, "DEL", bridge)
	w.wantTrace(t, "DEL macvlan hot0", "DEL bridge eth0")
	w.mustRun(t, "DEL", bridge)
	w.clean(t)
	nodetest.Code(t, w.stop(), 0)
	if got := <-w.states; got != "STOPPING=1" {
		t.Errorf("the service manager is told %s", got)
	}
}

// The keys in the file replace those of each request, but not those of a network
// that is attached to a running container.
func TestFilesKeysReplaceThoseOfRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `,"binDir":"/from/file","delegates":[{"type":"macvlan"}],"cniVersion":"0.3.1","name":"other","type":"other"`).start(t)
	w.mustRun(t, "ADD", bridge)
	w.wantTrace(t, "ADD macvlan eth0")
	call := w.fake.Calls()[0]
	if call.Path != "/from/file:/opt/other/bin" || !strings.Contains(string(call.Stdin), `"cniVersion":"1.1.0"`) || !strings.Contains(string(call.Stdin), `"name":"multi"`) {
		t.Errorf("call %+v %s", call, call.Stdin)
	}
	if records, err := filepath.Glob(w.dir + "/state/c1@*.json"); len(records) != 1 {
		t.Errorf("the records are not where the file says: %q, %v", records, err)
	}
	w.mustRun(t, "DEL", bridge)
	w.clean(t)
}

// Plugins receive PATH, the CNI variables and the trace of the request, and nothing
// else from the environment of the daemon or of the shim.
func TestPluginsSeeNothingOfOtherEnvironments(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "").start(t)
	w.mustRun(t, "ADD", bridge)
	w.mustRun(t, "DEL", bridge)
	for _, c := range w.fake.Calls() {
		var names []string
		for _, kv := range c.Env {
			name, _, _ := strings.Cut(kv, "=")
			names = append(names, name)
		}
		slices.Sort(names)
		want := []string{"CNI_ARGS", "CNI_COMMAND", "CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS", "CNI_PATH", "PATH", "TRACEPARENT"}
		if diff := cmp.Diff(want, names); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c, diff)
		}
		if !slices.Contains(c.Env, "PATH=/daemon/bin") || !slices.Contains(c.Env, "TRACEPARENT=00-1-2-01") {
			t.Errorf("%s: %q", c, c.Env)
		}
	}
}

// An unknown path is answered with an error object, not with a redirection to a
// known path.
func TestUnknownPathIsNotRedirected(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "").start(t)
	for _, path := range []string{"/", "/nope", "//cni", "/cni/../delegate", "/metrics/"} {
		if code, body := w.get(t, path); code != 404 || !strings.Contains(body, `"code":999`) {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
}

// A directory of records or of the queue that cannot be written to makes the daemon unready. An
// invalid metrics address ends it.
func TestNotReadyWithoutWritableDirectories(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "").start(t)
	if code, _ := w.get(t, "/readyz"); code != 200 {
		t.Errorf("/readyz: %d", code)
	}
	for _, dir := range []string{"queue", "state"} {
		obstacle := filepath.Join(w.dir, dir, ".tmp-try") // as a full disk is
		nodetest.OK(t, os.MkdirAll(obstacle, 0o700))
		if code, body := w.get(t, "/readyz"); code != 503 || !strings.Contains(body, filepath.Join(w.dir, dir)) {
			t.Errorf("/readyz: %d %s", code, body)
		}
		nodetest.OK(t, os.Remove(obstacle))
	}
	bad := newWorld(t, `,"metricsAddress":"127.0.0.1:none"`)
	sock, err := bad.listen(t.Context(), nil)
	nodetest.OK(t, err)
	nodetest.Says(t, bad.serve(t.Context(), sock, func(string) {}), "metrics")
}

// A daemon that does not become ready says why, once, in its log and to the service
// manager, and becomes ready when the reason is gone.
func TestDaemonThatIsNotReadySaysWhyOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	nodetest.OK(t, os.WriteFile(w.dir+"/state", nil, 0o600))
	w.begin(t)
	why := <-w.reasons
	if !strings.Contains(why, "not ready") || !strings.Contains(why, w.dir+"/state") {
		t.Errorf("the service manager is told %q", why)
	}
	nodetest.OK(t, os.Remove(w.dir+"/state"))
	if got := <-w.states; got != "READY=1" {
		t.Errorf("told %q", got)
	}
	if why := <-w.reasons; why != "ready" {
		t.Errorf("told %q", why)
	}
	if n := strings.Count(w.logged.String(), `"msg":"not ready"`); n != 1 {
		t.Errorf("logged %d times:\n%s", n, w.logged)
	}
}

// With chrootDir plugins are found and run in the root of the node. The paths they
// receive are the node's: those of binDir and of the network namespace, which the
// DEL takes from the record.
func TestPluginsRunInTheRoot(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to change the root directory of a child")
	}
	ldd, err := exec.CommandContext(t.Context(), "ldd", "/bin/sh").Output()
	if err != nil {
		t.Skipf("needs ldd(1), to copy a shell with its libraries: %v", err)
	}
	root := t.TempDir()
	put := func(path, text string) {
		t.Helper()
		nodetest.OK(t, errors.Join(os.MkdirAll(filepath.Dir(root+path), 0o755), os.WriteFile(root+path, []byte(text), 0o755)))
	}
	for _, path := range append([]string{"/bin/sh"}, regexp.MustCompile(`/[^ ]+`).FindAllString(string(ldd), -1)...) {
		text, err := os.ReadFile(path)
		nodetest.OK(t, err)
		put(path, string(text))
	}
	put("/run/netns/c1", "")
	put("/tmp/.keep", "")
	put("/opt/cni/bin/inside", `#!/bin/sh
echo "$CNI_COMMAND $CNI_NETNS $(pwd)" >>/log
[ $CNI_COMMAND = ADD ] && echo '{"cniVersion":"1.1.0"}'
exit 0
`)
	w := newWorld(t, fmt.Sprintf(`,"chrootDir":%q`, root))
	w.exec = &daemon.Exec{Process: delegate.Process{Root: w.conf.ChrootDir}, Log: w.log}
	w.start(t)
	args := w.args(conf(`"delegates":[{"type":"inside"}]`))
	args.Netns = "/run/netns/c1"
	nodetest.OK(t, w.client.Execute(t.Context(), "ADD", args))
	args.Netns = "" // that of the record
	nodetest.OK(t, w.client.Execute(t.Context(), "DEL", args))
	log, err := os.ReadFile(root + "/log")
	if want := "ADD /run/netns/c1 /\nDEL /run/netns/c1 /"; err != nil || strings.TrimSpace(string(log)) != want {
		t.Errorf("the plugin wrote %q, want %q: %v", log, want, err)
	}
}

// With chrootDir the socket, the queue and the records are where the node has them,
// whatever links it has and whatever the daemon's own root has at these paths. The
// DEL that a shim of the node has queued is done. When the node's links change, the
// daemon is not ready.
func TestQueueIsTheOneOfTheNode(t *testing.T) {
	t.Parallel()
	root := node(t)
	nodetest.OK(t, os.Symlink("/data/tmp", root+"/tmp")) // in the daemon's own root there is no such thing
	w := newWorld(t, fmt.Sprintf(`,"chrootDir":%q`, root))
	onNode := filepath.Join(root, "data", w.dir)
	if got, want := []string{w.conf.SocketDir, w.conf.QueueDir, w.conf.stateDir}, []string{onNode + "/run", onNode + "/queue", onNode + "/state"}; !slices.Equal(got, want) {
		t.Fatalf("directories %q, want %q", got, want)
	}
	// The mark of the daemon before this one.
	nodetest.OK(t, errors.Join(os.MkdirAll(onNode+"/queue", 0o700), os.WriteFile(onNode+"/queue/.reader", nil, 0o600)))
	w.mustRun(t, "DEL", bridge) // there is no daemon
	if queued, err := filepath.Glob(onNode + "/queue/*.json"); len(queued) == 0 {
		t.Fatalf("nothing is queued: %v", err)
	}
	replayed := w.replayed()
	w.start(t)
	<-replayed
	if code, body := w.get(t, "/readyz"); code != 200 {
		t.Errorf("/readyz: %d %s", code, body)
	}
	if log := w.logged.String(); !strings.Contains(log, `"replayed":true`) {
		t.Errorf("the DEL was not done:\n%s", log)
	}
	w.mustRun(t, "ADD", bridge)
	w.mustRun(t, "DEL", bridge)
	if outside, _ := filepath.Glob(w.dir + "/[qs]*"); len(outside) > 0 {
		t.Errorf("made outside of the root: %q", outside)
	}

	nodetest.OK(t, errors.Join(os.Remove(root+"/tmp"), os.Symlink("/data/new", root+"/tmp")))
	if code, body := w.get(t, "/readyz?verbose"); code == 200 || !strings.Contains(body, "queueDir") {
		t.Errorf("/readyz with another queue: %d %s", code, body)
	}
}

// A stale attachment is removed without a request. The result is logged once,
// however many sweeps there are, and counted.
func TestSweepsWhatIsStale(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, logged, counted string
		fails                 bool
		tries                 int // to wait for
	}{
		{"removed", "stale attachment removed", `multinetd_stale_attachments_tried_total{outcome="ok"}`, false, 1},
		{"stays", "stale attachment cannot be removed", `multinetd_stale_attachments_tried_total{outcome="failed"}`, true, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, `,"sweepInterval":"1ms"`)
			netns := filepath.Join(w.dir, "netns")
			nodetest.OK(t, os.WriteFile(netns, nil, 0o600))
			tried := make(chan struct{}, 1000)
			w.node.On("DEL", func(context.Context, delegatetest.Call) error {
				tried <- struct{}{}
				if tt.fails {
					return types.NewError(101, "not now", "")
				}
				return nil
			})
			w.start(t)
			w.mustRun(t, "ADD", bridge)
			nodetest.OK(t, os.Remove(netns))
			for range tt.tries {
				<-tried
			}
			got := w.final(t)
			if n := got[tt.counted]; n == 0 {
				t.Error("not counted")
			}
			if left := got[`multinetd_records_left{state="stale"}`]; (left == 1) != tt.fails {
				t.Errorf("%v stale", left)
			}
			if n := strings.Count(w.logged.String(), tt.logged); n != 1 {
				t.Errorf("logged %d times: %s", n, w.logged)
			}
			for _, line := range linesOf(t, w.logged, tt.logged) {
				why, _ := line["error"].(string)
				if line["container"] != "c1" || line["ifname"] != "eth0" || strings.Contains(why, "not now") != tt.fails {
					t.Errorf("logged %v", line)
				}
			}
		})
	}
}

// Every directory in which requests keep records is swept.
func TestSweepsEveryStateDirectory(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `,"sweepInterval":"1ms"`)
	w.server.Override = nil
	netns := filepath.Join(w.dir, "netns")
	nodetest.OK(t, os.WriteFile(netns, nil, 0o600))
	removed := make(chan struct{}, 2)
	w.node.On("DEL", func(context.Context, delegatetest.Call) error {
		removed <- struct{}{}
		return nil
	})
	w.start(t)
	for _, dir := range []string{"/one", "/two"} {
		nodetest.OK(t, w.client.Execute(t.Context(), "ADD", w.args(strings.Replace(conf(bridge), "/of/the/runtime", w.dir+dir, 1))))
	}
	nodetest.OK(t, os.Remove(netns))
	<-removed
	<-removed
	w.final(t)
	nodetest.Equal(t, "attached", w.fake.Live(), nil)
}

// What is left of an ADD that never succeeded is counted. It is an Event on its pod, once, if it
// cannot be removed.
func TestLeftoverIsAnEventOnce(t *testing.T) {
	t.Parallel()
	w := inCluster(t, `,"sweepInterval":"1ms"`)
	w.node.FailOn("ADD bridge", 101)
	w.node.FailOn("DEL bridge", 101)
	w.start(t)
	want(t, "ADD", w.command(t, "ADD", w.pod(t, "one"), annotated("blue")), 101, "")
	w.until(t, "it is tried again", func() bool { return w.metric(t, `multinetd_stale_attachments_tried_total{outcome="failed"}`) > 1 })
	if n := w.final(t)["multinet_leftovers"]; n != 1 { // Events are written then
		t.Errorf("%v leftovers are counted", n)
	}
	nodetest.Equal(t, "Events", w.events(), []string{"Pod one FailedRemovingInterface"})
}
