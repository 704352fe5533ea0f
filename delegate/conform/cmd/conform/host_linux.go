package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"
)

// inHost runs the command once more, as root of a user namespace with a network
// namespace and a mount namespace, and returns its exit status. It passes the end of
// ctx on as an interrupt. The error says that the kernel refuses.
func (p process) inHost(ctx context.Context) (status int, err error) {
	self, err := os.Executable()
	if err != nil {
		return -1, err
	}
	// Pdeathsig is about the thread that starts the command.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, self, p.args...)
	cmd.Env = append(slices.Clone(p.environ), inHost)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.stdin, p.stdout, p.stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		return -1, fmt.Errorf("this needs root, or a kernel with user namespaces for all users: %w", err)
	}
	if err := cmd.Wait(); cmd.ProcessState == nil {
		return -1, err
	}
	if status = cmd.ProcessState.ExitCode(); status < 0 {
		return cannot, nil
	}
	return status, nil
}
