package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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

	"github.com/metacni/metacni/delegate/resident"
	"github.com/metacni/metacni/examples/internal/programtest"
	"github.com/metacni/metacni/status"
)

// mortal is a delegate that is launched, and dies in the middle of each ADD.
func mortal() {
	conn, index, name, err := resident.Inherited(os.Environ())
	if conn == nil {
		panic(err)
	}
	kill := func(*skel.CmdArgs) error {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	no := func(*skel.CmdArgs) error { return nil }
	d := &resident.Plugin{Index: index, Name: name, Types: []string{"mortal"}, Funcs: func(context.Context, io.Writer) skel.CNIFuncs {
		return skel.CNIFuncs{Add: kill, Check: no, Del: no, GC: no, Status: no}
	}}
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

// networks are the container's networks in the configuration of s: that of a
// process, and one of a delegate that stays.
func (s *service) networks(delegate string) {
	s.args.StdinData = fmt.Appendf(nil,
		`{"cniVersion":"1.0.0","name":"multi","type":"multinet-shim","delegates":[{"type":"fake","dir":%q},%s]}`, s.Dir, delegate)
}

// end has the daemon drain and end.
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

// The example that stays, as the processes that it and the daemon are: it is
// launched, or it registers, and comes back to the next daemon.
func TestResidentProcess(t *testing.T) {
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
			if err := s.client.Funcs(t.Context()).Add(s.args); err != nil {
				t.Fatal(err)
			}
			if err := s.client.Funcs(t.Context()).Check(s.args); err != nil {
				t.Error(err)
			}
			s.end(t)
			s.run(t, "state=ready")
			if err := s.client.Funcs(t.Context()).Check(s.args); err != nil {
				t.Error(err)
			}
			if err := s.client.Funcs(t.Context()).Del(s.args); err != nil {
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

// A daemon that is killed leaves to the next one whose the types are: what is
// attached by a delegate is detached by it, and by no executable of its type,
// though one is there and the delegate comes last. That is so until the note of
// the type is removed.
func TestResidentRestartRunsNothingInstead(t *testing.T) {
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
	commands := s.client.Funcs(t.Context())

	stop := register(t, program, socket)
	s.logged(t, "state=ready")
	for _, a := range []*skel.CmdArgs{s.args, &other} {
		if err := commands.Add(a); err != nil {
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
	if err := commands.Add(&third); status.Code(err) != 11 {
		t.Errorf("ADD: code %d: %v", status.Code(err), err)
	}
	deleted := make(chan error, 1)
	go func() { deleted <- commands.Del(s.args) }()
	stop = register(t, program, socket)
	s.logged(t, "state=ready")
	if err := <-deleted; err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(ran); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the executable has run: %s, %v", text, err)
	}

	// The delegate is uninstalled for good.
	stop()
	s.logged(t, "state=gone")
	if err := os.Remove(filepath.Join(s.State+".relay", "resident")); err != nil {
		t.Fatal(err)
	}
	if err := commands.Del(&other); err != nil {
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

// A delegate that dies in the middle of an ADD: code 11, and what others did is
// undone at once. Its own DEL waits until it has been launched again, and then
// nothing is left.
func TestResidentDelegateDies(t *testing.T) {
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
	err = s.client.Funcs(t.Context()).Add(s.args)
	if status.Code(err) != 11 || !strings.Contains(err.Error(), "the connection was lost") {
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
	if err := s.client.Funcs(t.Context()).Del(s.args); err != nil {
		t.Error(err)
	}
	s.end(t)
}
