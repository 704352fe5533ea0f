package main

import (
	"bufio"
	"fmt"
	"io"
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
			if got := s.Log(); !slices.Equal(got, []string{"ADD eth0", "DEL eth0"}) {
				t.Errorf("calls %q", got)
			}
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
	if got := s.Log(); !slices.Equal(got, []string{"ADD eth0", "DEL eth0"}) {
		t.Errorf("calls %q", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "00-multinet.conflist")); err != nil {
		t.Errorf("what was published is gone: %v", err)
	}
}
