package tool

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
)

// The program is replaced in one step, also while it runs. It is not written if it is
// the same already.
func TestInstallProgram(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10-x.conflist", blue)
	install := func() fs.FileInfo {
		t.Helper()
		nodetest.OK(t, n.do("install"))
		if got := n.read("bin/multinet"); got != n.read("self") {
			t.Errorf("the copy is %q", got)
		}
		info := n.stat("bin/multinet")
		if info.Mode() != 0o755 {
			t.Errorf("mode %v", info.Mode())
		}
		return info
	}
	first := install()
	if again := install(); !os.SameFile(first, again) || !first.ModTime().Equal(again.ModTime()) {
		t.Error("written again")
	}
	n.Write("self", strings.Repeat("x", 100<<10)+"a")
	second := install()
	n.Write("self", strings.Repeat("x", 100<<10)+"b")
	if install(); os.SameFile(first, second) {
		t.Error("written in place")
	}
	nodetest.OK(t, os.Chmod(n.Path("bin/multinet"), 0o700))
	install()
	nodetest.OK(t, errors.Join(os.Remove(n.Path("bin/multinet")), os.Symlink("../self", n.Path("bin/multinet"))))
	install()
	n.Write("bin/.multinet.tmp-1", "left by a crash")
	n.Write("self", "")
	install()
	nodetest.Equal(t, "left", n.files(), []string{"bin/multinet", "net.d/.multinet/lock", "net.d/00-multinet.conflist", "net.d/10-x.conflist", "self"})

	// By itself it does nothing to itself.
	c := console{self: func() (string, error) { return n.Path("bin/multinet"), nil }}
	nodetest.OK(t, c.copyProgram(n.Path("bin/multinet")))
	// A program that runs cannot be written to; here it can be replaced.
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip(err)
	}
	c.self = func() (string, error) { return sleep, nil }
	nodetest.OK(t, c.copyProgram(n.Path("bin/sleep")))
	var cmd *exec.Cmd
	for err = syscall.ETXTBSY; errors.Is(err, syscall.ETXTBSY); { // a child that a test starts at this moment may have it open
		cmd = exec.CommandContext(t.Context(), n.Path("bin/sleep"), "600")
		err = cmd.Start()
	}
	nodetest.OK(t, err)
	n.Write("self", "#!/bin/sh\nexit 7\n")
	c.self = func() (string, error) { return n.Path("self"), nil }
	nodetest.OK(t, c.copyProgram(n.Path("bin/sleep")))
	if n.read("bin/sleep") != n.read("self") {
		t.Error("not replaced")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Errorf("the old one has ended: %v", err)
	}
	_ = cmd.Wait()

	// What fails leaves what there was.
	before := n.files()
	c.self = func() (string, error) { return n.Path("absent"), nil }
	if err := c.copyProgram(n.Path("bin/sleep")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("err = %v", err)
	}
	c.self = func() (string, error) { return n.Path("self"), nil }
	nodetest.OK(t, errors.Join(os.Mkdir(n.Path("bin/dir"), 0o700), os.Mkdir(n.Path("bin/dir/x"), 0o700)))
	if err := c.copyProgram(n.Path("bin/dir")); err == nil {
		t.Error("a directory was replaced")
	}
	nodetest.Equal(t, "left", n.files(), before)
}

// Concurrent installations do not remove each other's temporary files.
func TestInstallProgramAtOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Write("self", strings.Repeat("x", 1<<20))
	for range 20 {
		n.Write("bin/.multinet.tmp-1", "left by a crash")
		errs := make(chan error)
		for range 4 {
			go func() {
				errs <- console{self: func() (string, error) { return n.Path("self"), nil }}.copyProgram(n.Path("bin/multinet"))
			}()
		}
		for range 4 {
			nodetest.OK(t, <-errs)
		}
		nodetest.Equal(t, "left", n.files(), []string{"bin/multinet", "self"})
		nodetest.OK(t, os.Remove(n.Path("bin/multinet")))
	}
}
