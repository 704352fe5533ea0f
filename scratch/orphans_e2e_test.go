//go:build e2e && linux

package scratch

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

var _ = func() bool {
	roles["namespace"] = namespace
	return true
}()

// In a PID namespace of its own the kernel does not tell a dead taker's number:
// orphans are found there as well.
func TestOrphansInAPIDNamespace(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	s := newStore(t)
	a := startWith(t, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Setpgid: true}, "namespace", s.Dir, "")
	equal(t, "ended", a.says(t), "false true <nil>")
	a.in.Close()
	a.gone(t)
	nodetest.OK(t, lock(t, s).Unlock())
}

// namespace is process 1 of a PID namespace and ends orphans in it.
func namespace(t *testing.T, s Store[value], _ string) {
	t.Helper()
	nodetest.OK(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	nodetest.OK(t, unix.Mount("proc", "/proc", "proc", 0, ""))
	p, _ := orphan(t, s, "stay")
	before, err := end(t, s)
	nodetest.OK(t, err)
	p.kill(t)
	after, err := end(t, s)
	fmt.Println(before, after, err)
}
