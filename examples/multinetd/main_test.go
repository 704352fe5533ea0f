package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate/thick/shim"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/examples/internal/programtest"
	"github.com/metacni/metacni/internal/flock"
	"github.com/metacni/metacni/internal/nodetest"
)

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
		{"what", []string{"--what"}},
		{"socketDir", []string{"--socket-dir", "x"}},
		{"--cert", []string{"webhook"}},
		{"--key", webhook()[:3]},
		{"no such file", []string{"webhook", "--cert", "/absent", "--key", "/absent"}},
		{"bad.json", webhook("--config", bad)},
		{"namespaceIsolation", webhook("--config", wrong)},
		{"/absent", webhook("--config", "/absent")},
		{`"now"`, webhook("now")},
		{"what", webhook("--what")},
		{"no-port", webhook("--address", "no-port")},
		{"metrics", webhook("--metrics-address", "no-port")},
	} {
		err := run(t.Context(), tt.args, "/absent", nil, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%q: err = %v, want %s", tt.args, err, tt.says)
		}
	}
	for says, args := range map[string][]string{"multinetd ": {"--version"}, "-socket-dir": {"--help"}, "-cert": {"webhook", "--help"}} {
		var out bytes.Buffer
		if err := run(t.Context(), args, "/absent", nil, &out, io.Discard); err != nil || !strings.Contains(out.String(), says) {
			t.Errorf("%q: %v: %s", args, err, out.String())
		}
	}
}

// The init container of the DaemonSet installs the shim of the image on the node. It
// replaces an older one that may be running.
func TestShimIsInstalledFromBesideTheDaemon(t *testing.T) {
	t.Parallel()
	image, node := t.TempDir(), t.TempDir()
	self := func() (string, error) { return filepath.Join(image, "multinetd"), nil }
	nodetest.Is(t, installShim(self, node), fs.ErrNotExist)
	shim := filepath.Join(node, shimType)
	for _, version := range []string{"one", "two"} {
		nodetest.OK(t, os.WriteFile(filepath.Join(image, shimType), []byte(version), 0o755))
		old, _ := os.Stat(shim) // nil the first time
		nodetest.OK(t, installShim(self, node))
		text, err := os.ReadFile(shim)
		info, _ := os.Stat(shim)
		if err != nil || string(text) != version || info.Mode() != 0o755 || os.SameFile(old, info) {
			t.Errorf("%s: %q, %v, %v", version, text, info.Mode(), err)
		}
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
	if err := notify(dir+"/absent", "READY=1"); err == nil {
		t.Error("nobody was told, and no error")
	}
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

func TestMain(m *testing.M) {
	programtest.Main(m, "multinetd", main)
}

// A process is the daemon as a process.
type process struct {
	*programtest.Host
	file   string // of its configuration
	cmd    *exec.Cmd
	pipe   io.Closer // that stderr reads from
	stderr *bufio.Reader
	args   *skel.CmdArgs
	client *shim.Client
}

// startService starts the daemon with more keys in its file, in which $SOCKETS
// is the directory of sockets, and waits until it is ready.
func startService(t *testing.T, keys string) *process {
	t.Helper()
	h := programtest.NewHost(t, "multinetd")
	dir := nodetest.ShortDir(t)
	file := filepath.Join(h.Dir, "daemon.json")
	text := fmt.Sprintf(`{"socketDir":%q,"queueDir":%q,"cniDir":%q%s}`, dir, h.Dir+"/queue", h.State, strings.ReplaceAll(keys, "$SOCKETS", dir))
	nodetest.OK(t, os.WriteFile(file, []byte(text), 0o600))
	s := &process{Host: h, file: file, client: &shim.Client{Socket: filepath.Join(dir, wire.SocketName), Stdout: io.Discard}}
	s.run(t)
	self, err := os.Executable()
	nodetest.OK(t, err)
	bin := t.TempDir()
	nodetest.OK(t, os.Symlink(self, filepath.Join(bin, "fake")))
	s.args = &skel.CmdArgs{ContainerID: "c1", Netns: h.NetNS, IfName: "eth0", Path: bin, StdinData: fmt.Appendf(nil,
		`{"cniVersion":"1.0.0","name":"multi","type":"multinet-shim","delegates":[{"type":"fake","dir":%q,"on":{"ADD":"hang"}}]}`, h.Dir)}
	return s
}

// run starts the daemon, the first or the next one, and waits until it is ready
// and what else has words in its log has happened.
func (s *process) run(t *testing.T, words ...string) {
	t.Helper()
	s.cmd = s.Command("", "")
	s.cmd.Args = append(s.cmd.Args, "--config", s.file)
	stderr, err := s.cmd.StderrPipe()
	nodetest.OK(t, err)
	s.pipe, s.stderr = stderr, bufio.NewReader(stderr)
	nodetest.OK(t, s.cmd.Start())
	s.logged(t, append(words, "msg=ready")...)
}

// logged waits for lines that have words, in any order.
func (s *process) logged(t *testing.T, words ...string) {
	t.Helper()
	for len(words) > 0 {
		line, err := s.stderr.ReadString('\n')
		if err != nil {
			t.Fatalf("no %q before the end of the log: %v", words, err)
		}
		words = slices.DeleteFunc(words, func(w string) bool { return strings.Contains(line, w) })
	}
}

// adding starts an ADD, and returns once its plugin hangs.
func (s *process) adding(t *testing.T) <-chan error {
	t.Helper()
	added := make(chan error, 1)
	s.Ready(func() error {
		go func() { added <- s.client.Execute(t.Context(), "ADD", s.args) }()
		return nil
	})
	return added
}

// A daemon that is told to stop undoes what does not end in time, and tells the
// shim.
func TestTerminatedDaemonUndoesWhatDoesNotEnd(t *testing.T) {
	t.Parallel()
	for _, sig := range []os.Signal{syscall.SIGTERM, os.Interrupt, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			if signal.Ignored(sig) {
				t.Skipf("needs %v not to be ignored, as nohup has it: what is ignored is inherited", sig)
			}
			s := startService(t, `,"drainTimeout":"1ms"`)
			added := s.adding(t)
			nodetest.OK(t, s.cmd.Process.Signal(sig))
			nodetest.Code(t, <-added, 11)
			s.logged(t, "msg=ended")
			if err := s.cmd.Wait(); err != nil {
				t.Errorf("the daemon ended with %v", err)
			}
			nodetest.Equal(t, "calls", s.Log(), []string{"ADD eth0", "DEL eth0"})
			if files := programtest.Files(t, s.State); len(files) > 0 {
				t.Errorf("left: %q", files)
			}
		})
	}
}

// The second signal ends the daemon at once. What it had begun is recorded.
func TestSecondSignalEndsTheDaemonAtOnce(t *testing.T) {
	t.Parallel()
	s := startService(t, "")
	added := s.adding(t)
	nodetest.OK(t, s.cmd.Process.Signal(syscall.SIGTERM))
	s.logged(t, "msg=stopping")
	again, ended := time.NewTicker(100*time.Millisecond), make(chan struct{})
	defer again.Stop()
	go func() {
		for {
			select {
			case <-again.C: // within a second it counts once
				_ = s.cmd.Process.Signal(syscall.SIGTERM) // fails when it has ended
			case <-ended:
				return
			}
		}
	}()
	s.logged(t, "ended without waiting")
	close(ended)
	if err := s.cmd.Wait(); s.cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("the daemon ended with %v", err)
	}
	nodetest.Code(t, <-added, 11)
	if _, err := os.Stat(filepath.Join(s.State, "c1@multi@eth0.json")); err != nil {
		t.Errorf("there is no record of it: %v", err)
	}
	// The plugin is left, and holds the container's lock.
	if n, err := flock.KillOrphans(filepath.Join(s.State, "c1@lock")); n != 1 || err != nil {
		t.Errorf("killed %d: %v", n, err)
	}
}

// The daemon ignores no signal that its parent does not ignore: its plugins would
// inherit that.
func TestIgnoresNoSignal(t *testing.T) {
	t.Parallel()
	s := startService(t, "")
	signals := func(pid int) string {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		nodetest.OK(t, err)
		_, after, _ := strings.Cut(string(data), "SigIgn:")
		line, _, _ := strings.Cut(after, "\n")
		return strings.TrimSpace(line)
	}
	if got, want := signals(s.cmd.Process.Pid), signals(os.Getpid()); got != want {
		t.Errorf("the daemon ignores %s, and its parent %s", got, want)
	}
	nodetest.OK(t, s.cmd.Process.Signal(syscall.SIGTERM))
	nodetest.Code(t, s.cmd.Wait(), 0)
}

// The daemon goes on when nobody reads its log any longer.
func TestDaemonOutlivesTheReaderOfItsLog(t *testing.T) {
	t.Parallel()
	s := startService(t, "")
	nodetest.OK(t, s.pipe.Close())
	nodetest.OK(t, s.cmd.Process.Signal(syscall.SIGTERM)) // which it logs
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("the daemon ended with %v", err)
	}
}

// A daemon whose readiness file is removed drains and ends with status 1, for its
// service manager to start it again.
func TestProcessEndsWhenReadinessIsLost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{"ready": "", "10-x.conf": `{"cniVersion":"0.4.0","name":"blue","type":"bridge"}`} {
		nodetest.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	s := startService(t, fmt.Sprintf(`,"drainTimeout":"1ms","multusConfigFile":"auto","cniConfigDir":%q,"readinessindicatorfile":%q`, dir, dir+"/ready"))
	added := s.adding(t)
	nodetest.OK(t, os.Remove(filepath.Join(dir, "ready")))
	nodetest.Code(t, <-added, 11)
	s.logged(t, "the readiness file was removed")
	s.logged(t, "msg=ended")
	if err := s.cmd.Wait(); s.cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("the daemon ended with %v", err)
	}
	nodetest.Equal(t, "calls", s.Log(), []string{"ADD eth0", "DEL eth0"})
	if _, err := os.Stat(filepath.Join(dir, "00-multinet.conflist")); err != nil {
		t.Errorf("what was published is gone: %v", err)
	}
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

// The daemon accepts the configuration of its DaemonSet, and the probes use the address of its
// metrics.
func TestDaemonSetConfiguresTheDaemon(t *testing.T) {
	t.Parallel()
	c, root := configured(t, "deploy/daemon/daemon-config.json")
	if c.publish.Dir != root+"/etc/cni/net.d" {
		t.Errorf("published in %s", c.publish.Dir)
	}
	host, port, _ := strings.Cut(c.MetricsAddress, ":")
	if n := strings.Count(deployed(t, "deploy/daemon/daemonset.yaml"), "{host: "+host+", port: "+port+","); n != 2 {
		t.Errorf("%d probes ask at %s, want 2", n, c.MetricsAddress)
	}
}

// The daemon accepts the example of ResourceClaims, and the component gives it the right to watch
// the pods of its node.
func TestExampleOfClaimsIsAConfiguration(t *testing.T) {
	t.Parallel()
	c, _ := configured(t, "deploy/dra/examples/daemon-config.json")
	if d := c.cluster.DRA; d == nil || d.Driver == "" || len(d.Networks) == 0 {
		t.Errorf("%+v", c)
	}
	if !strings.Contains(deployed(t, "deploy/dra/kustomization.yaml"), "resources: [pods], verbs: [list, watch]") {
		t.Error("the daemon may not watch pods")
	}
}

// A pod has a token only where the daemon uses the API; the webhook never does. The init container mounts only
// the directory of plugins.
func TestDeploymentGivesNoMoreThanIsNeeded(t *testing.T) {
	t.Parallel()
	const daemonSet = "deploy/daemon/daemonset.yaml"
	for _, name := range []string{daemonSet, "deploy/webhook/deployment.yaml", "../multinet/daemonset.yaml"} {
		if !strings.Contains(deployed(t, name), "\n      automountServiceAccountToken: false") {
			t.Errorf("%s: the pod has a token", name)
		}
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
	unit, service, _ := strings.Cut(deployed(t, "multinetd.service"), "[Service]")
	if !strings.Contains(unit, "\nStartLimitIntervalSec=0\n") || !strings.Contains(service, "\nRestart=always\n") {
		t.Errorf("%s", unit)
	}
}
