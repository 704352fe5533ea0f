package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"

	"github.com/metacni/metacni/delegate/conform/host"
)

// inHost runs the command of a user who is not root once more, as root of a user namespace with a
// network namespace and a mount namespace, and returns its exit status. It passes the end of
// ctx on as an interrupt. The error says that the kernel refuses.
func (p process) inHost(ctx context.Context) (status int, err error) {
	self, err := os.Executable()
	if err != nil {
		return -1, err
	}
	runtime.LockOSThread() // see host.Command
	defer runtime.UnlockOSThread()
	cmd := host.Command(ctx, self, p.args...)
	cmd.Env = append(slices.Clone(p.environ), inHost)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.stdin, p.stdout, p.stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
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
