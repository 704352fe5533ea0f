package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/examples/internal/programtest"
)

// built returns the path of examples/resident, which it builds.
func built(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "resident")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", path, ".")
	cmd.Dir = "../resident"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	nodetest.OK(t, os.Chmod(path, 0o755)) //nolint:gosec // a program, whatever the umask is
	return path
}

// launchable puts a program by a name into a directory to launch it from.
func launchable(t *testing.T, program, name string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	nodetest.OK(t, os.Chmod(dir, 0o700)) //nolint:gosec // a directory
	nodetest.OK(t, os.Symlink(program, filepath.Join(dir, name)))
	return dir
}

// register runs examples/resident, which registers at a socket until the test
// ends, or until stop.
func register(t *testing.T, program, socket string) (stop func()) {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, "-socket", socket)
	var stderr bytes.Buffer
	cmd.Env, cmd.Stderr = []string{}, &stderr
	nodetest.OK(t, cmd.Start())
	stop = sync.OnceFunc(func() {
		nodetest.Code(t, cmd.Process.Signal(syscall.SIGTERM), 0)
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %s", err, &stderr)
		}
	})
	t.Cleanup(stop)
	return stop
}

// networks configures the networks of the container: one of an executable, and one
// of a resident plugin.
func (s *process) networks(delegate string) {
	s.args.StdinData = fmt.Appendf(nil,
		`{"cniVersion":"1.0.0","name":"multi","type":"multinet-shim","delegates":[{"type":"fake","dir":%q},%s]}`, s.Dir, delegate)
}

// end ends the daemon with SIGTERM.
func (s *process) end(t *testing.T) {
	t.Helper()
	nodetest.OK(t, s.cmd.Process.Signal(syscall.SIGTERM))
	s.logged(t, "msg=ended")
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("the daemon ended with %v", err)
	}
}

// The daemon and examples/resident work together as processes, launched or
// registered, also after a restart of the daemon.
func TestResidentProcessServesBothDaemons(t *testing.T) {
	t.Parallel()
	const steady = `{"name":"steady","type":"resident","addresses":["10.7.0.2/24"]}`
	program := built(t)
	for _, way := range []string{"registered", "launched"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			keys := `,"relayTypes":["resident"],"relaySocket":"$SOCKETS/relay.sock"`
			if way == "launched" {
				keys = fmt.Sprintf(`,"relayTypes":["resident"],"relayDir":%q`, launchable(t, program, "20-resident"))
			}
			s := startService(t, keys)
			if way == "registered" {
				register(t, program, filepath.Join(filepath.Dir(s.client.Socket), "relay.sock"))
				s.logged(t, "state=ready")
			}
			s.networks(steady)
			nodetest.OK(t, s.client.Execute(t.Context(), "ADD", s.args))
			nodetest.Code(t, s.client.Execute(t.Context(), "CHECK", s.args), 0)
			s.end(t)
			s.run(t, "state=ready")
			nodetest.Code(t, s.client.Execute(t.Context(), "CHECK", s.args), 0)
			nodetest.Code(t, s.client.Execute(t.Context(), "DEL", s.args), 0)
			if got := s.Log(); !slices.Equal(got, []string{"ADD eth0", "CHECK eth0", "CHECK eth0", "DEL eth0"}) {
				t.Errorf("calls %q", got)
			}
			if files := programtest.Files(t, s.State); len(files) > 0 {
				t.Errorf("left: %q", files)
			}
			s.end(t)
		})
	}
}

// After the daemon is killed, the next one lets only the resident detach its
// attachments, although an executable of the same type exists. This ends when the
// note of the type is removed.
func TestKilledDaemonRunsNoExecutableInPlaceOfAResident(t *testing.T) {
	t.Parallel()
	program := built(t)
	s := startService(t, `,"relaySocket":"$SOCKETS/relay.sock"`)
	socket := filepath.Join(filepath.Dir(s.client.Socket), "relay.sock")
	ran := filepath.Join(s.Dir, "ran")
	script := fmt.Sprintf("#!/bin/sh\necho $CNI_COMMAND >>%q\necho '{\"cniVersion\":\"1.0.0\"}'\n", ran)
	nodetest.OK(t, os.WriteFile(filepath.Join(s.args.Path, "resident"), []byte(script), 0o700)) //nolint:gosec // a program
	s.networks(`{"name":"steady","type":"resident","addresses":["10.7.0.2/24"]}`)
	other := *s.args
	other.ContainerID = "c2"

	stop := register(t, program, socket)
	s.logged(t, "state=ready")
	for _, a := range []*skel.CmdArgs{s.args, &other} {
		nodetest.OK(t, s.client.Execute(t.Context(), "ADD", a))
	}
	stop()
	s.logged(t, "state=gone")
	nodetest.OK(t, s.cmd.Process.Kill())
	_ = s.cmd.Wait()
	s.run(t)
	third := other
	third.ContainerID = "c3"
	nodetest.Code(t, s.client.Execute(t.Context(), "ADD", &third), 11)
	deleted := make(chan error, 1)
	go func() { deleted <- s.client.Execute(t.Context(), "DEL", s.args) }()
	stop = register(t, program, socket)
	s.logged(t, "state=ready")
	nodetest.Code(t, <-deleted, 0)
	if text, err := os.ReadFile(ran); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the executable has run: %s, %v", text, err)
	}

	// The resident is removed for good.
	stop()
	s.logged(t, "state=gone")
	nodetest.OK(t, os.Remove(filepath.Join(s.State+".relay", "resident")))
	nodetest.Code(t, s.client.Execute(t.Context(), "DEL", &other), 0)
	if text, err := os.ReadFile(ran); string(text) != "DEL\n" {
		t.Errorf("the executable has run: %s, %v", text, err)
	}
	if files := programtest.Files(t, s.State); len(files) > 0 {
		t.Errorf("left: %q", files)
	}
	s.end(t)
}
