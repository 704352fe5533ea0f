package proctree

import (
	"bufio"
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// ok ends the test if there is an error.
func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// run starts a shell with script, and returns a descriptor of the process and
// the first line it prints.
func run(t *testing.T, script string) (cmd *exec.Cmd, pidfd int, said string) {
	t.Helper()
	cmd = exec.CommandContext(t.Context(), "/bin/sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{PidFD: &pidfd}
	out, err := cmd.StdoutPipe()
	ok(t, err)
	ok(t, cmd.Start())
	t.Cleanup(func() { _ = unix.Close(pidfd) })
	said, err = bufio.NewReader(out).ReadString('\n')
	ok(t, err)
	return cmd, pidfd, strings.TrimSpace(said)
}

// hold returns a descriptor of the process whose ID a shell has printed.
func hold(t *testing.T, said string) int {
	t.Helper()
	pid, err := strconv.Atoi(said)
	ok(t, err)
	fd, err := unix.PidfdOpen(pid, 0)
	ok(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// ends waits until the process of pidfd has exited.
func ends(t *testing.T, pidfd int) {
	t.Helper()
	poll := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}} //nolint:gosec // descriptors fit
	for {
		n, err := unix.Poll(poll, 30_000)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n == 0 || err != nil {
			t.Fatalf("the process is alive: %v", err)
		}
		return
	}
}

// Kill reaches a process's descendants in every session.
func TestKillReachesDescendantsInOtherSessions(t *testing.T) {
	t.Parallel()
	cmd, pidfd, said := run(t, `setsid sh -c 'echo $$; sleep 1000; :' & wait`)
	grandchild := hold(t, said)
	Kill(cmd.Process.Pid, pidfd)
	_ = cmd.Wait()
	ends(t, grandchild)
}

// A tree contains descendants even if the process has exited in the meantime.
func TestTreeReachesThoseWhoseParentHasExited(t *testing.T) {
	t.Parallel()
	cmd, _, said := run(t, `setsid sleep 1000 & echo $!; wait`)
	child := hold(t, said)
	below := Below(cmd.Process.Pid)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	below.Kill()
	ends(t, child)
}

// If a process is gone, Kill does not kill the process that has its number now.
func TestKillSparesANumberThatIsAnothers(t *testing.T) {
	t.Parallel()
	gone, pidfd, _ := run(t, "echo gone")
	_ = gone.Wait()
	if err := unix.PidfdSendSignal(pidfd, 0, nil, 0); err == nil {
		t.Fatal("the process still exists")
	}
	other := exec.CommandContext(t.Context(), "cat")
	stdin, err := other.StdinPipe()
	ok(t, err)
	ok(t, other.Start())
	Kill(unix.Getpid(), pidfd) // other is a child of this process
	_ = stdin.Close()
	if err := other.Wait(); err != nil {
		t.Errorf("another's child: %v", err)
	}
}
