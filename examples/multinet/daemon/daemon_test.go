package daemon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/thick"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/examples/multinet/doctor"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// The server waits for the undo of an ADD for longer than the undo may take.
func TestServerWaitsLongerThanUndoingTakes(t *testing.T) {
	t.Parallel()
	d := newWorld(t, "").service
	if server, undoing := d.server.UndoTimeout, d.process().UndoTimeout; undoing <= 0 || server <= undoing {
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
	nodetest.Contains(t, "printed", w.printed.String(), "10.9.0.2/24")
	w.mustRun(t, "CHECK", bridge)
	w.wantTrace(t, "STATUS bridge", "ADD bridge eth0", "CHECK bridge eth0")

	hot := w.args(`{"name":"green","type":"macvlan","capabilities":{"ips":true}}`)
	hot.IfName = "hot0"
	r, err := w.client.Do(t.Context(), "ADD", hot, &wire.Attributes{IPs: []string{"10.9.1.7/24"}})
	if err != nil || !strings.Contains(fmt.Sprint(r), "10.9.1.2") {
		t.Fatalf("plugged %v: %v", r, err)
	}
	calls := w.fake.Calls()
	nodetest.Contains(t, "the plugin was given", string(calls[len(calls)-1].Stdin), `"ips":["10.9.1.7/24"]`)
	_, err = w.client.Do(t.Context(), "CHECK", hot, &wire.Attributes{})
	nodetest.OK(t, err)
	w.mustRun(t, "CHECK", bridge)
	w.wantTrace(t, "ADD macvlan hot0", "CHECK macvlan hot0", "CHECK bridge eth0", "CHECK macvlan hot0")

	var list []thick.Listed
	code, body := w.get(t, "/delegate?container=c1")
	if err := json.Unmarshal([]byte(body), &list); err != nil || code != 200 || len(list) != 2 || list[1].IfName != "hot0" || list[1].Network != "green" || list[1].State != "added" {
		t.Errorf("attachments: %d %s: %v", code, body, err)
	}
	nodetest.Lacks(t, "attachments", body, "hunter2")

	w.mustRun(t, "GC", bridge+`,"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]`)
	w.seen = len(w.fake.Trace())
	w.mustRun(t, "DEL", bridge)
	w.wantTrace(t, "DEL macvlan hot0", "DEL bridge eth0")
	w.mustRun(t, "DEL", bridge)
	w.clean(t)
	nodetest.Code(t, w.stop(), 0)
	nodetest.Equal(t, "the service manager is told", <-w.states, "STOPPING=1")
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

// Plugins receive PATH, the CNI variables and the trace of the request, and nothing else from
// the environment of the daemon or of the shim. No plugin and no log learns of the kubeconfig
// and its token.
func TestPluginsSeeNothingOfOtherEnvironments(t *testing.T) {
	t.Parallel()
	w := inCluster(t, "")
	w.api.SetToken("swordfish")
	w = w.next(t, "").start(t)
	a := w.pod(t, "one")
	for _, command := range []string{"ADD", "CHECK", "STATUS", "DEL"} {
		want(t, command, w.command(t, command, a, annotated("")), 0, "")
	}
	calls := w.fake.Calls()
	nodetest.Equal(t, "calls", len(calls), 4)
	for _, c := range slices.DeleteFunc(calls, func(c delegatetest.Invocation) bool { return c.Command == "STATUS" }) {
		var names []string
		for _, kv := range c.Env {
			name, _, _ := strings.Cut(kv, "=")
			names = append(names, name)
		}
		slices.Sort(names)
		known := []string{"CNI_ARGS", "CNI_COMMAND", "CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS", "CNI_PATH", "PATH", "TRACEPARENT"}
		nodetest.Equal(t, "value", names, known)
		if !slices.Contains(c.Env, "PATH=/daemon/bin") || !slices.Contains(c.Env, "TRACEPARENT=00-1-2-01") {
			t.Errorf("%s: %q", c, c.Env)
		}
	}
	for _, c := range calls {
		if text := fmt.Sprint(c.Env, string(c.Stdin)); strings.Contains(text, "KUBE") || strings.Contains(strings.ToLower(text), "kubeconfig") || strings.Contains(text, "swordfish") {
			t.Errorf("%s is given %s", c, text)
		}
	}
	nodetest.Lacks(t, "log", w.logged.String(), "swordfish")
}

// A daemon that does not become ready says why, once, in its log and to the service manager, and becomes
// ready when the reason is gone: here a directory of records or of the queue that cannot be written to.
// An invalid metrics address ends it.
func TestNotReadyWithoutWritableDirectories(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	nodetest.OK(t, os.WriteFile(w.dir+"/state", nil, 0o600))
	w.begin(t)
	nodetest.Contains(t, "why", <-w.reasons, "not ready", w.dir+"/state")
	nodetest.OK(t, os.Remove(w.dir+"/state"))
	nodetest.Equal(t, "told", <-w.states, "READY=1")
	nodetest.Equal(t, "told", <-w.reasons, "ready")
	nodetest.Equal(t, "logged", w.logged.Count(`"msg":"not ready"`), 1)
	w.answers(t, "/readyz", 200)
	for _, dir := range []string{"queue", "state"} {
		obstacle := filepath.Join(w.dir, dir, ".tmp-try") // as a full disk is
		nodetest.OK(t, os.MkdirAll(obstacle, 0o700))
		w.answers(t, "/readyz", 503, filepath.Join(w.dir, dir))
		nodetest.OK(t, os.Remove(obstacle))
	}
	bad := newWorld(t, `,"metricsAddress":"127.0.0.1:none"`)
	sock, err := bad.listen(t.Context(), nil)
	nodetest.OK(t, err)
	nodetest.Says(t, bad.serve(t.Context(), sock, func(string) {}), "metrics")
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
	w.answers(t, "/readyz", 200)
	nodetest.Contains(t, "log", w.logged.String(), `"replayed":true`)
	w.mustRun(t, "ADD", bridge)
	w.mustRun(t, "DEL", bridge)
	outside, _ := filepath.Glob(w.dir + "/[qs]*")
	nodetest.Equal(t, "made outside of the root", outside, nil)

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
			tried := make(chan struct{}, 1000)
			w.node.On("DEL", func(context.Context, delegatetest.Invocation) error {
				tried <- struct{}{}
				if tt.fails {
					return types.NewError(101, "not now", "")
				}
				return nil
			})
			w.start(t)
			w.mustRun(t, "ADD", bridge)
			(&nodetest.Node{TB: t, Dir: w.dir}).Restarted("state")
			for range tt.tries {
				<-tried
			}
			got := w.final(t)
			nodetest.Equal(t, "it is counted", got[tt.counted] > 0, true)
			if left := got[`multinetd_records_left{state="stale"}`]; (left == 1) != tt.fails {
				t.Errorf("%v stale", left)
			}
			nodetest.Equal(t, "logged", w.logged.Count(tt.logged), 1)
			for _, line := range linesOf(t, w.logged, tt.logged) {
				why, _ := line["error"].(string)
				if line["container"] != "c1" || line["ifname"] != "eth0" || strings.Contains(why, "not now") != tt.fails {
					t.Errorf("logged %v", line)
				}
			}
		})
	}
}

// Attachments of containers of which it is not known whether they live are counted, and logged
// once, with the reason. They stay.
func TestUnknownContainersAreCounted(t *testing.T) {
	t.Parallel()
	const unknown, why = "multinetd_attachments_unknown", "no network namespace was seen when it was recorded"
	w := newWorld(t, `,"sweepInterval":"1ms"`)
	w.start(t)
	w.mustRun(t, "ADD", bridge)
	w.until(t, "it is counted", func() bool { return w.metric(t, unknown) == 1 })
	w.wantTrace(t, "ADD bridge eth0")
	(&nodetest.Node{TB: t, Dir: w.dir}).Restarted("state")
	w.until(t, "what is dead is removed", func() bool { return w.metric(t, unknown) == 0 })
	lines := linesOf(t, w.logged, "it is not known whether containers live")
	if len(lines) != 1 || lines[0]["container"] != "c1" || lines[0]["why"] != why || lines[0]["attachments"] != 1.0 {
		t.Errorf("logged %v", lines)
	}
}

// Every directory in which requests keep records is swept.
func TestSweepsEveryStateDirectory(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `,"sweepInterval":"1ms"`)
	w.server.Override = nil
	removed := make(chan struct{}, 2)
	w.node.On("DEL", func(context.Context, delegatetest.Invocation) error {
		removed <- struct{}{}
		return nil
	})
	w.start(t)
	for _, dir := range []string{"/one", "/two"} {
		nodetest.OK(t, w.client.Execute(t.Context(), "ADD", w.args(strings.Replace(conf(bridge), "/of/the/runtime", w.dir+dir, 1))))
	}
	for _, dir := range []string{"one", "two"} {
		(&nodetest.Node{TB: t, Dir: w.dir}).Restarted(dir)
	}
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

// An invalid command line or file ends the daemon, or the webhook, at once.
func TestMistakesEndTheProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, cert := certify(t, dir)
	bad, wrong := filepath.Join(dir, "bad.json"), filepath.Join(dir, "wrong.json")
	nodetest.OK(t, errors.Join(os.WriteFile(bad, []byte("{"), 0o600), os.WriteFile(wrong, []byte(`{"namespaceIsolation":5}`), 0o600)))
	webhook := func(args ...string) []string { return slices.Concat([]string{"webhook"}, cert, args) }
	for _, tt := range []struct {
		says string
		args []string
	}{
		{"bad.json", []string{"--config", bad}},
		{"/absent", []string{"--config", "/absent"}},
		{"--cert", []string{"webhook"}},
		{"no such file", []string{"webhook", "--cert", "/absent", "--key", "/absent"}},
		{"namespaceIsolation", webhook("--config", wrong)},
		{"no-port", webhook("--address", "no-port")},
		{"metrics", webhook("--metrics-address", "no-port")},
	} {
		err := run(t.Context(), tt.args, "/absent", nil, io.Discard, io.Discard)
		nodetest.Says(t, err, tt.says)
	}
	for says, args := range map[string][]string{"multinetd ": {"--version"}, "-socket-dir": {"--help"}, "-cert": {"webhook", "--help"}} {
		var out bytes.Buffer
		if err := run(t.Context(), args, "/absent", nil, &out, io.Discard); err != nil || !strings.Contains(out.String(), says) {
			t.Errorf("%q: %v: %s", args, err, out.String())
		}
		lines := 0
		for line := range strings.Lines(out.String()) {
			if lines++; lines > 24 || len(line) > 81 {
				t.Errorf("%q does not fit on a screen: %s", args, line)
			}
		}
	}
}

// The init container of the DaemonSet installs the shim of the image on the node.
func TestShimIsInstalledFromBesideTheDaemon(t *testing.T) {
	t.Parallel()
	image, node := t.TempDir(), t.TempDir()
	self := func() (string, error) { return filepath.Join(image, "multinetd"), nil }
	nodetest.Is(t, installShim(self, node), fs.ErrNotExist)
	nodetest.OK(t, os.WriteFile(filepath.Join(image, shimType), []byte("shim"), 0o755))
	nodetest.OK(t, installShim(self, node))
	if text, err := os.ReadFile(filepath.Join(node, shimType)); err != nil || string(text) != "shim" {
		t.Errorf("%q, %v", text, err)
	}
	if entries, _ := os.ReadDir(node); len(entries) != 1 {
		t.Errorf("more than the shim: %v", entries)
	}
	nodetest.Is(t, run(t.Context(), []string{"--install-shim", node}, "/absent", nil, io.Discard, io.Discard), fs.ErrNotExist)
}

func TestServiceManagerIsNotified(t *testing.T) {
	t.Parallel()
	dir := nodetest.ShortDir(t)
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: dir + "/s", Net: "unixgram"})
	nodetest.OK(t, err)
	defer c.Close()
	nodetest.OK(t, notify(dir+"/s", "READY=1"))
	b := make([]byte, 100)
	if n, err := c.Read(b); err != nil || string(b[:n]) != "READY=1" {
		t.Errorf("%q, %v", b[:n], err)
	}
	nodetest.Code(t, notify("", "READY=1"), 0)
	for err = nil; err == nil; { // until nobody reads for too long
		err = notify(dir+"/s", "READY=1")
	}
	nodetest.Is(t, err, os.ErrDeadlineExceeded)
	nodetest.Refused(t, "nobody was told", notify(dir+"/absent", "READY=1"))
}

// A daemon that waits for another one to end logs that it does.
func TestWaitingForAnotherDaemonIsLogged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "").start(t)
	ctx, cancel := context.WithCancel(t.Context())
	stderr, log := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, []string{"--socket-dir", w.conf.SocketDir}, filepath.Join(w.dir, "none"), nil, io.Discard, log)
		_ = log.Close() // always nil
		ended <- err
	}()
	line, err := bufio.NewReader(stderr).ReadString('\n')
	if err != nil || !strings.Contains(line, "waiting for another daemon") || !strings.Contains(line, w.conf.SocketDir) {
		t.Errorf("logged %q, %v", line, err)
	}
	cancel()
	nodetest.Is(t, <-ended, context.Canceled)
}

func deployed(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	nodetest.OK(t, err)
	return string(text)
}

// configured is the configuration in a file of the manifests, on a node with this root. It has no
// key without effect, and the node has a copy of all definitions: one that restarts while the API
// is away then starts pods with networks.
func configured(t *testing.T, file string) (c *config, root string) {
	t.Helper()
	root = node(t)
	c, err := configOf(t, strings.ReplaceAll(deployed(t, file), `"/host"`, `"`+root+`"`))
	nodetest.OK(t, err)
	if want := root + "/var/lib/cni/multinet.nad"; len(c.ignored) > 0 || c.ChrootDir != root || c.cluster.NADDir != want || c.checkNADDir() != nil {
		t.Errorf("%+v: definitions are copied to %q, want %q: %v", c, c.cluster.NADDir, want, c.checkNADDir())
	}
	return c, root
}

// The daemon accepts the configuration of its DaemonSet, and the probes read the same file.
func TestDaemonSetConfiguresTheDaemon(t *testing.T) {
	t.Parallel()
	c, root := configured(t, "../deploy/daemon/daemon-config.json")
	nodetest.Equal(t, "published in", c.publish.Dir, root+"/etc/cni/net.d")
	daemonSet := deployed(t, "../deploy/daemon/daemonset.yaml")
	nodetest.Equal(t, "commands that read the configuration", strings.Count(daemonSet, "[/multinetd, --config, /etc/multinetd/daemon-config.json"), 3)
	later := fmt.Sprintf("timeoutSeconds: %d\n", probeTimeout/time.Second+2)
	nodetest.Equal(t, "probes with time to say what is wrong", strings.Count(daemonSet, later), 2)
}

// The daemon accepts the example of ResourceClaims, and the component gives it the right to watch
// the pods of its node.
func TestExampleOfClaimsIsAConfiguration(t *testing.T) {
	t.Parallel()
	c, _ := configured(t, "../deploy/dra/examples/daemon-config.json")
	if d := c.cluster.DRA; d == nil || d.Driver == "" || len(d.Networks) == 0 {
		t.Errorf("%+v", c)
	}
	nodetest.Contains(t, "rights", deployed(t, "../deploy/dra/kustomization.yaml"), "resources: [pods], verbs: [list, watch]")
}

// A pod has a token only where the daemon uses the API; the webhook never does. The init container mounts only
// the directory of plugins.
func TestDeploymentGivesNoMoreThanIsNeeded(t *testing.T) {
	t.Parallel()
	const daemonSet = "../deploy/daemon/daemonset.yaml"
	for _, name := range []string{daemonSet, "../deploy/webhook/deployment.yaml", "../deploy/multinet.yaml"} {
		nodetest.Contains(t, name, deployed(t, name), "\n      automountServiceAccountToken: false")
	}
	_, install, _ := strings.Cut(deployed(t, daemonSet), "initContainers:")
	install, _, _ = strings.Cut(install, "\n      containers:")
	if strings.Count(install, "mountPath:") != 1 || !strings.Contains(install, "{name: plugins, mountPath: /opt/cni/bin}") {
		t.Errorf("the init container mounts more than plugins:\n%s", install)
	}
}

// systemd restarts the daemon after any number of failures.
func TestServiceIsAlwaysStartedAgain(t *testing.T) {
	t.Parallel()
	unit, service, _ := strings.Cut(deployed(t, "../deploy/systemd/multinetd.service"), "[Service]")
	nodetest.Contains(t, "unit", unit, "\nStartLimitIntervalSec=0\n")
	nodetest.Contains(t, "service", service, "\nRestart=always\n")
}

// A probe is about the daemon that runs, and reaches it at its socket.
func TestProbeAsksTheDaemonThatRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "").start(t)
	file := filepath.Join(w.dir, "probe.json")
	probe := func(text, page string) error {
		nodetest.OK(t, os.WriteFile(file, []byte(text), 0o600))
		return run(t.Context(), []string{"--config", file, "--probe", page}, "/absent", nil, io.Discard, io.Discard)
	}
	conf := fmt.Sprintf(`{"socketDir":%q}`, w.conf.SocketDir)
	nodetest.OK(t, probe(conf, "/healthz"))
	nodetest.OK(t, probe(conf, "/readyz"))
	nodetest.Says(t, probe(conf, "/absent"), "404")
	nodetest.OK(t, w.stop())
	nodetest.Refused(t, "nobody listens", probe(conf, "/healthz"))
	nodetest.OK(t, probe(`{"socketDir":7}`, "/healthz")) // the next daemon would not start
}

// The doctor of the daemon looks at what its configuration names, and changes nothing.
func TestDoctorLooksWithTheConfigurationOfTheDaemon(t *testing.T) {
	t.Parallel()
	n := nodetest.New(t)
	n.Write("host/run/.keep", "")
	n.Write("host/var/.keep", "")
	n.Write("host/net.d/10-blue.conflist", `{"cniVersion":"1.0.0","name":"blue","plugins":[{"type":"bridge"}]}`)
	n.Write("host/plugins/bridge", "#!/bin/sh\n")
	n.Write("host/queue/x.json", "")
	n.Write("host/etc/crio/crio.conf", "[crio.network]\nnetwork_dir = \"/net.d\"\nplugin_dirs = [\"/plugins\"]\n")
	n.Write("config.json", `{"chrootDir":"`+n.Path("host")+`","socketDir":"/run/m","queueDir":"/queue","multusConfigFile":"auto","cniConfigDir":"/net.d","binDir":"/plugins","logToStderr":true}`)
	look := func(args ...string) (all []doctor.Finding) {
		t.Helper()
		before := n.Files("")
		var out strings.Builder
		err := run(t.Context(), append([]string{"doctor", "-o", "json"}, args...), n.Path("config.json"), nil, &out, &out)
		nodetest.Says(t, err, "something is to be done")
		nodetest.OK(t, json.Unmarshal([]byte(out.String()), &all))
		nodetest.Equal(t, "files", n.Files(""), before)
		return all
	}
	want := []string{
		"config ok " + n.Path("config.json"), "runtimes ok /etc/crio/crio.conf", "first problem /net.d", "plugins fatal /net.d/10-blue.conflist", "cilium ok /net.d", "chain ok /net.d",
		"disk ok /var/lib/cni/multinet", "files ok /net.d", "records ok /var/lib/cni/multinet", "unknown ok /var/lib/cni/multinet", "leases ok /var/lib/cni/multinet", "cache ok /var/lib/cni",
		"daemon problem /run/m/multus.sock", "daemon problem /queue",
	}
	var got []string
	for _, f := range look() {
		got = append(got, f.Check+" "+string(f.Verdict)+" "+f.Looked)
	}
	nodetest.Equal(t, "findings", got, want)

	// Without binDir, as in the shipped configuration, the shim is where the runtime looks for it.
	n.Write("shipped.json", `{"chrootDir":"`+n.Path("host")+`","multusConfigFile":"auto"}`)
	for _, f := range look("--config", n.Path("shipped.json"), "--cni-config-dir", "/net.d") {
		if f.Check == "runtimes" && f.Verdict != doctor.OK {
			t.Errorf("%+v", f)
		}
	}

	// The records of the runtime's network are not where the daemon looks for them.
	n.Write("two.json", `{"chrootDir":"`+n.Path("host")+`","multusConfigFile":"auto","network":{"cniDir":"/var/other"}}`)
	if all := look("--config", n.Path("two.json")); all[1].Check != "config" || all[1].Verdict != doctor.Problem || !strings.Contains(all[1].Found, "/var/other") {
		t.Errorf("%+v", all[1])
	}

	n.Write("bad.json", `{"socketDir":"run"}`)
	for file, why := range map[string]string{"bad.json": `socketDir "run" is not an absolute path`, "absent": "no such file", "host": "not a regular file"} {
		all := look("--config", n.Path(file))
		if len(all) != 1 || all[0].Check != "config" || all[0].Verdict != doctor.Fatal || all[0].Looked != n.Path(file) || !strings.Contains(all[0].Found, why) {
			t.Errorf("%s: %+v", file, all)
		}
	}
	var out strings.Builder
	nodetest.OK(t, run(t.Context(), []string{"doctor", "--help"}, "/default", nil, &out, &out))
	for _, wrong := range []string{"--what", "-o yaml", "-o wide", "extra -o json"} {
		nodetest.Says(t, run(t.Context(), append([]string{"doctor"}, strings.Fields(wrong)...), "/default", nil, &out, &out), "see multinetd --help")
	}
}
