//go:build e2e && linux

package daemon

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
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
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/metacni/metacni/delegate/thick/shim"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/examples/internal/program"
	"github.com/metacni/metacni/examples/internal/programtest"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/internal/flock"
	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

func TestMain(m *testing.M) {
	programtest.Main(m, "multinetd", Main)
}

// A process is the daemon as a process.
type process struct {
	*programtest.Host
	first  []string // commands of the shell that starts it
	file   string   // of its configuration
	cmd    *exec.Cmd
	pipe   io.Closer // that stderr reads from
	stderr *bufio.Reader
	args   *skel.CmdArgs
	client *shim.Client
}

// startService starts the daemon with more keys in its file, and waits until it is ready. The shell
// that starts it runs the commands in first. The plugin of the container's ADD hangs.
func startService(t *testing.T, keys string, first ...string) *process {
	t.Helper()
	h := programtest.NewHost(t)
	dir := nodetest.ShortDir(t)
	s := &process{Host: h, first: first, client: &shim.Client{Socket: filepath.Join(dir, multinet.SocketName), Stdout: io.Discard}}
	s.file = h.Write("daemon.json", fmt.Sprintf(`{"socketDir":%q,"queueDir":%q,"cniDir":%q%s}`, dir, h.Dir+"/queue", h.State, keys))
	s.args = &skel.CmdArgs{ContainerID: "c1", Netns: h.NetNS, IfName: "eth0", Path: h.Path("bin"), StdinData: fmt.Appendf(nil,
		`{"cniVersion":"1.0.0","name":"multi","type":"multinet-shim","delegates":[{"type":"fake","dir":%q,"on":{"ADD":"hang"}}]}`, h.Dir)}
	s.run(t)
	return s
}

// run starts the daemon, the first or the next one, and waits until it is ready
// and what else has words in its log has happened.
func (s *process) run(t *testing.T, words ...string) {
	t.Helper()
	s.cmd = s.Command("", "")
	link := s.Path("multinetd")
	_ = os.Symlink(s.cmd.Path, link) // it is there already for the next daemon
	s.cmd.Path = "/bin/sh"
	s.cmd.Args = []string{"sh", "-c", strings.Join(append(s.first, `exec "$0" "$@"`), "; "), link, "--config", s.file}
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

// ended wants the daemon to log words and to end with this status.
func (s *process) ended(t *testing.T, status int, words ...string) {
	t.Helper()
	s.logged(t, words...)
	if err := s.cmd.Wait(); s.cmd.ProcessState.ExitCode() != status {
		t.Errorf("the daemon ended with %v, want status %d", err, status)
	}
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
			s.ended(t, 0, "msg=ended")
			nodetest.Equal(t, "calls", s.Calls(), []string{"ADD eth0", "DEL eth0"})
			nodetest.Equal(t, "left", s.Files("state"), nil)
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
	s.ended(t, 1)
	nodetest.Code(t, <-added, 11)
	_, err := os.Stat(filepath.Join(s.State, "c1@multi@eth0.json"))
	nodetest.Equal(t, "error of its record", err, nil)
	// The plugin is left, and holds the container's lock.
	lock := filepath.Join(s.State, "c1@lock")
	f, err := os.Open(lock)
	nodetest.OK(t, err)
	if free, err := flock.TryFile(f); free || err != nil {
		t.Errorf("nobody has the lock: %v, %v", free, err)
	}
	if ended, err := flock.End(t.Context(), lock, time.Minute); !ended || err != nil {
		t.Errorf("the plugin has not ended: %v", err)
	}
}

// The daemon ignores no signal that its parent does not ignore: its plugins would
// inherit that. It goes on when nobody reads its log any longer.
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
	nodetest.Equal(t, "ignored", signals(s.cmd.Process.Pid), signals(os.Getpid()))
	nodetest.OK(t, s.pipe.Close())
	nodetest.OK(t, s.cmd.Process.Signal(syscall.SIGTERM)) // which it logs
	s.ended(t, 0)
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
	s.ended(t, 1, "the readiness file was removed", "msg=ended")
	nodetest.Equal(t, "calls", s.Calls(), []string{"ADD eth0", "DEL eth0"})
	_, err := os.Stat(filepath.Join(dir, "00-multinet.conflist"))
	nodetest.Equal(t, "error of what was published", err, nil)
}

// The daemon launches examples/resident, and so does the next one. Both work with it.
func TestResidentProcessServesBothDaemons(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program := filepath.Join(dir, "20-resident")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", program, ".")
	cmd.Dir = "../../resident"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	nodetest.OK(t, errors.Join(os.Chmod(dir, 0o700), os.Chmod(program, 0o755))) //nolint:gosec // a directory and a program, whatever the umask is
	s := startService(t, fmt.Sprintf(`,"relayTypes":["resident"],"relayDir":%q`, dir))
	s.args.StdinData = fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"multi","type":"multinet-shim","delegates":[{"type":"fake","dir":%q},`+
		`{"name":"steady","type":"resident","addresses":["10.7.0.2/24"]}]}`, s.Dir)
	nodetest.OK(t, s.client.Execute(t.Context(), "ADD", s.args))
	nodetest.OK(t, s.cmd.Process.Signal(syscall.SIGTERM))
	s.ended(t, 0, "msg=ended")
	s.run(t, "state=ready")
	nodetest.OK(t, s.client.Execute(t.Context(), "CHECK", s.args))
	nodetest.OK(t, s.client.Execute(t.Context(), "DEL", s.args))
	nodetest.Equal(t, "calls", s.Calls(), []string{"ADD eth0", "CHECK eth0", "DEL eth0"})
	nodetest.Equal(t, "left", s.Files("state"), nil)
	nodetest.OK(t, s.cmd.Process.Signal(syscall.SIGTERM))
	s.ended(t, 0, "msg=ended")
}

// Those who ask for metrics and do not read, over TCP or on the socket, leave descriptors for
// commands.
func TestClientsOfMetricsLeaveDescriptorsForCommands(t *testing.T) {
	t.Parallel()
	tcp, err := net.Listen("tcp", "127.0.0.1:0") // for a port that is free
	nodetest.OK(t, err)
	nodetest.OK(t, tcp.Close())
	s := startService(t, fmt.Sprintf(`,"metricsAddress":%q`, tcp.Addr()), "ulimit -n 256")
	s.args.StdinData = bytes.Replace(s.args.StdinData, []byte(`"hang"`), []byte(`""`), 1)
	for _, at := range []net.Addr{tcp.Addr(), &net.UnixAddr{Name: s.client.Socket, Net: "unix"}} {
		for range 300 {
			c, err := net.Dial(at.Network(), at.String())
			nodetest.OK(t, err)
			defer c.Close()
			_, err = io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: daemon\r\n\r\n")
			if err != nil && !errors.Is(err, unix.EPIPE) {
				t.Fatal(err)
			}
		}
	}
	nodetest.OK(t, s.client.Execute(t.Context(), "ADD", s.args))
}

// A daemon that knows 110 pods and 1000 definitions needs at most 15 MiB of memory for data at rest.
func TestMemoryInALargeCluster(t *testing.T) {
	t.Parallel()
	api := kubetest.NewServer(scheme.Codecs.UniversalDeserializer().Decode)
	t.Cleanup(api.Close)
	for i := range 1000 {
		kubetest.Put(api, kubetest.Definition{
			Namespace: fmt.Sprintf("ns%d", i%50), Name: fmt.Sprintf("net%d", i),
			Config: fmt.Sprintf(`{"cniVersion":"1.0.0","plugins":[{"type":"macvlan","master":"eth%d","ipam":{"type":"host-local","ranges":[[{"subnet":"10.%d.%d.0/24"}]]}}]}`, i%8, i/250, i%250),
		})
	}
	for i := range 110 {
		kubetest.Put(api, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("pod%d", i), Annotations: map[string]string{"filler": strings.Repeat("x", 8<<10)}},
			Spec:       corev1.PodSpec{NodeName: "n1"},
		})
	}
	kubeconfig, err := api.Kubeconfig(t.TempDir())
	nodetest.OK(t, err)
	s := startService(t, fmt.Sprintf(`,"kubeconfig":%q,"nodeName":"n1","annotations":"api"`, kubeconfig))
	w := &world{client: s.client, logged: &nodetest.Log{}}
	w.until(t, "pods and definitions are known", func() bool {
		all := w.scrape(t)
		return all[`multinetd_view_objects{resource="pods"}`] == 110 && all[`multinetd_view_objects{resource="network-attachment-definitions"}`] == 1000
	})
	// The memory of the start is given back 10 seconds after the daemon is ready.
	w.until(t, "there are at most 15 MiB of data", func() bool {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
		nodetest.OK(t, err)
		_, anonymous, _ := strings.Cut(string(status), "RssAnon:")
		kb := 0
		_, err = fmt.Sscan(anonymous, &kb)
		nodetest.OK(t, err)
		return kb <= 15<<10
	})
}

const secret = "hunter2hunter2"

// At every level, and whatever fails, the log has no value of a configuration that
// may be a secret.
func TestLogHasNoSecrets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `,"logLevel":"debug","slowAfter":"0s"`)
	bin := t.TempDir()
	script(t, bin, "talks", `conf=$(cat); echo "called with $conf" >&2; echo "$conf" | tr , '\n' >&2; echo '{"cniVersion":"1.1.0"}'`)
	script(t, bin, "fails", `cat >&2; [ $CNI_COMMAND = ADD ] && exit 3; exit 0`)
	w.exec = &program.Exec{Log: w.log}
	w.path = os.Getenv("PATH")
	nodetest.NetNS(t, w.args("").Netns)
	w.start(t)
	dir := `"binDir":"` + bin + `",`
	for _, keys := range []string{
		dir + `"delegates":[{"type":"talks","password":"` + secret + `"}]`,
		dir + `"delegates":[{"type":"fails","password":"` + secret + `","nested":[{"x":"` + secret + `y"}]}]`,
		`"delegates":[{"type":"absent","password":"` + secret + `"}]`,
		`"delegates":[{"type":"bridge","ipam":["` + secret + `"]}]`,
		`"token":"` + secret + `","delegates":["` + secret + `"]`,
		`"delegates":[{"type":"bridge","password":"` + secret + `","password":"x"}]`,
	} {
		for _, command := range []string{"ADD", "CHECK", "STATUS", "GC", "DEL"} {
			_ = w.run(t, command, keys)
		}
	}
	hot := w.args(`{"name":"x","type":"` + secret + `,"`)
	_, _ = w.client.Do(t.Context(), "ADD", hot, &wire.Attributes{})
	nodetest.OK(t, w.stop())
	nodetest.Lacks(t, "log", w.logged.String(), secret)
	said := linesOf(t, w.logged, "plugin's stderr")
	if len(said) == 0 || said[0]["plugin"] != "talks" || said[0]["command"] != "ADD" || said[0]["container"] != "c1" || said[0]["ifname"] != "eth0" {
		t.Errorf("log:\n%s", w.logged)
	}
}

// script writes a plugin that is a shell script.
func script(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	nodetest.OK(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700))
	return path
}
