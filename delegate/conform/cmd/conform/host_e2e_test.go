//go:build e2e && linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// asUser runs the test as a user who is not root. It reports whether it has done so, in another process.
func asUser(t *testing.T) bool {
	t.Helper()
	if os.Getuid() != 0 {
		return false
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	user := []syscall.SysProcIDMap{{ContainerID: 1000, HostID: 0, Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: user, GidMappings: user}
	out, err := cmd.CombinedOutput()
	switch {
	case errors.As(err, new(*exec.ExitError)):
		t.Errorf("%v\n%s", err, out)
	case err != nil || !bytes.Contains(out, []byte("--- PASS")):
		t.Skipf("%v\n%s", err, out)
	}
	return true
}

// A user who is not root gets real containers in a user namespace, and the exit status
// and the output of the checks there.
func TestChecksRunInAUserNamespace(t *testing.T) {
	t.Parallel()
	if asUser(t) {
		return
	}
	plugin, seen := spy(t)
	var stdout, stderr bytes.Buffer
	p := process{append(only("version"), "-netns", plugin), os.Environ(), nil, &stdout, &stderr} // the last -netns counts
	status, err := p.inHost(t.Context())
	if err != nil {
		t.Skip("no user namespaces: ", err)
	}
	if status != failed || !strings.Contains(stdout.String(), "failed   version") {
		t.Errorf("status %d:\n%s%s", status, &stdout, &stderr)
	}
	if status, err = (process{[]string{"-netns", "-conf", "testdata/fake.json", "testdata/good"}, os.Environ(), nil, &stdout, &stderr}).inHost(t.Context()); err != nil || status != passed {
		t.Errorf("a good plugin: status %d, %v:\n%s%s", status, err, &stdout, &stderr)
	}
	got := strings.Fields(read(t, seen))
	if len(got) != 2 || got[0] != "0" || got[1] == userNS(t) {
		t.Errorf("the plugin ran as %q, want root of another namespace than %s", got, userNS(t))
	}
}

// The command does not hang, and leaves no plugin behind, when it is interrupted.
func TestAnInterruptReachesTheUserNamespace(t *testing.T) {
	t.Parallel()
	if asUser(t) {
		return
	}
	dir := t.TempDir()
	plugin, began := filepath.Join(dir, "slow"), filepath.Join(dir, "began")
	nodetest.OK(t, os.WriteFile(plugin, fmt.Appendf(nil, "#!/bin/sh\n: >%s\nexec sleep 1000\n", began), 0o700))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var log nodetest.Log
	p := process{[]string{"-timeout=1h", plugin}, os.Environ(), nil, &log, &log}
	type end struct {
		status int
		err    error
	}
	ended := make(chan end, 1)
	go func() {
		status, err := p.inHost(ctx)
		ended <- end{status, err}
	}()
	nodetest.Until(t, "the plugin runs, or there are no user namespaces", func() bool {
		_, err := os.Stat(began)
		return err == nil || len(ended) > 0
	}, &log)
	cancel()
	e := <-ended
	if e.err != nil {
		t.Skip("no user namespaces: ", e.err)
	}
	if e.status != cannot || !strings.Contains(log.String(), "conform: interrupted\n") {
		t.Errorf("status %d, said %q", e.status, log.String())
	}
}

// The action builds conform with the go command, and a good plugin passes all checks.
func TestActionBuildsConform(t *testing.T) {
	t.Parallel()
	runAction(t, actionCase{inputs: []string{"PLUGIN=testdata/good", "CONFIGURATION=testdata/fake.json", "KIND=meta"}, want: passed, summary: "### conform good: "}, "CONFORM_FLAGS=-netns=false")
}
