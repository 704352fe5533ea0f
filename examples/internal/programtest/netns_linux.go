package programtest

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// holder is the name of the process that holds the network namespace of a container.
const holder = "holder"

// newNetNS returns the path of a new network namespace, which ends with the test. It skips the test
// where an ordinary user cannot make one.
func newNetNS(t testing.TB) string {
	t.Helper()
	self, err := os.Executable()
	nodetest.OK(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Args[0] = holder
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
	}
	stdin, err := cmd.StdinPipe()
	nodetest.OK(t, err)
	if err := cmd.Start(); err != nil {
		t.Skipf("needs root, or a kernel that gives user namespaces to ordinary users: %v", err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait() // the context has killed it
	})
	return fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid)
}
