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
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/resident"
	"github.com/metacni/metacni/examples/internal/programtest"
	"github.com/metacni/metacni/status"
)

// mortal is a launched resident that dies during each ADD.
func mortal() {
	conn, index, name, err := resident.Inherited(os.Environ())
	if conn == nil {
		panic(err)
	}
	kill := func(context.Context, *plugin.Call) error {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	nothing := func(context.Context, *plugin.Call) error { return nil }
	d := &resident.Plugin{
		Index: index, Name: name, Types: []string{"mortal"},
		Plugin: plugin.Plugin{Add: kill, Check: nothing, Del: nothing, GC: nothing, Status: nothing},
	}
	if err := d.Serve(context.Background(), conn); err != nil {
		panic(err)
	}
}

// built returns the path of examples/resident, which it builds.
func built(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "resident")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", path, ".")
	cmd.Dir = "../resident"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.Chmod(path, 0o755); err != nil { //nolint:gosec // a program, whatever the umask is
		t.Fatal(err)
	}
	return path
}

// launchable puts a program by a name into a directory to launch it from.
func launchable(t *testing.T, program, name string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil { //nolint:gosec // a directory
		t.Fatal(err)
	}
	if err := os.Symlink(program, filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// register runs examples/resident, which registers at a socket until the test
// ends, or until stop.
func register(t *testing.T, program, socket string) (stop func()) {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, "-socket", socket)
	var stderr bytes.Buffer
	cmd.Env, cmd.Stderr = []string{}, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %s", err, &stderr)
		}
	})
	t.Cleanup(stop)
	return stop
}

// networks configures the networks of the container: one of an executable, and one
// of a resident plugin.
func (s *service) networks(delegate string) {
	s.args.StdinData = fmt.Appendf(nil,
		`{"cniVersion":"1.0.0","name":"multi","type":"multinet-shim","delegates":[{"type":"fake","dir":%q},%s]}`, s.Dir, delegate)
}

// end ends the daemon with SIGTERM.
func (s *service) end(t *testing.T) {
	t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
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
			if err := s.client.Execute(t.Context(), "ADD", s.args); err != nil {
				t.Fatal(err)
			}
			if err := s.client.Execute(t.Context(), "CHECK", s.args); err != nil {
				t.Error(err)
			}
			s.end(t)
			s.run(t, "state=ready")
			if err := s.client.Execute(t.Context(), "CHECK", s.args); err != nil {
				t.Error(err)
			}
			if err := s.client.Execute(t.Context(), "DEL", s.args); err != nil {
				t.Error(err)
			}
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
	if err := os.WriteFile(filepath.Join(s.args.Path, "resident"), []byte(script), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	s.networks(`{"name":"steady","type":"resident","addresses":["10.7.0.2/24"]}`)
	other := *s.args
	other.ContainerID = "c2"

	stop := register(t, program, socket)
	s.logged(t, "state=ready")
	for _, a := range []*skel.CmdArgs{s.args, &other} {
		if err := s.client.Execute(t.Context(), "ADD", a); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	s.logged(t, "state=gone")
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = s.cmd.Wait()
	s.run(t)
	third := other
	third.ContainerID = "c3"
	if err := s.client.Execute(t.Context(), "ADD", &third); status.Code(err) != 11 {
		t.Errorf("ADD: code %d: %v", status.Code(err), err)
	}
	deleted := make(chan error, 1)
	go func() { deleted <- s.client.Execute(t.Context(), "DEL", s.args) }()
	stop = register(t, program, socket)
	s.logged(t, "state=ready")
	if err := <-deleted; err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(ran); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the executable has run: %s, %v", text, err)
	}

	// The resident is removed for good.
	stop()
	s.logged(t, "state=gone")
	if err := os.Remove(filepath.Join(s.State+".relay", "resident")); err != nil {
		t.Fatal(err)
	}
	if err := s.client.Execute(t.Context(), "DEL", &other); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(ran); string(text) != "DEL\n" {
		t.Errorf("the executable has run: %s, %v", text, err)
	}
	if files := programtest.Files(t, s.State); len(files) > 0 {
		t.Errorf("left: %q", files)
	}
	s.end(t)
}

// When a resident dies during an ADD, the ADD fails with code 11 and is undone.
// The DEL of the resident itself runs when it has been launched again.
func TestAddIsUndoneWhenAResidentDies(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(self, 0o755); err != nil { //nolint:gosec // a program, whatever the umask was
		t.Fatal(err)
	}
	s := startService(t, fmt.Sprintf(`,"relayDir":%q`, launchable(t, self, "10-mortal")))
	s.networks(`{"name":"steady","type":"mortal"}`)
	err = s.client.Execute(t.Context(), "ADD", s.args)
	if status.Code(err) != 11 || !strings.Contains(err.Error(), "connection lost") {
		t.Errorf("ADD: code %d: %v", status.Code(err), err)
	}
	if got := s.Log(); !slices.Equal(got, []string{"ADD eth0", "DEL eth0"}) {
		t.Errorf("calls %q", got)
	}
	if files := programtest.Files(t, s.State); len(files) > 0 {
		t.Errorf("left: %q", files)
	}
	s.logged(t, "state=gone")
	s.logged(t, "state=ready")
	if err := s.client.Execute(t.Context(), "DEL", s.args); err != nil {
		t.Error(err)
	}
	s.end(t)
}
