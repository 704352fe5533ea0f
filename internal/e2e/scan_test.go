package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/examples/lab/host"
	"github.com/metacni/metacni/internal/hosttest"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/scratch"
)

// startWithoutHandles starts a command to which the kernel gives no file handles, as before Linux
// 6.18: it looks for namespaces in all processes.
func startWithoutHandles(cmd *exec.Cmd) error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread, which has the filter, ends with the goroutine
		err := hosttest.WithoutHandles(0)
		if err == nil {
			err = cmd.Start()
		}
		started <- err
	}()
	return <-started
}

// needsScan skips the test where no process can see all others.
func needsScan(tb testing.TB) {
	tb.Helper()
	for file, first := range map[string]string{"user": "user:[4026531837]", "pid": "pid:[4026531836]"} {
		if own, err := os.Readlink("/proc/self/ns/" + file); err != nil || own != first {
			tb.Skipf("needs root outside of user namespaces, and all processes: %s, %v", own, err)
		}
	}
}

// keep keeps the namespace of p alive, in the i'th of several ways, and removes its path.
func (n *node) keep(p *pod, i int) {
	n.Helper()
	keepers := []func() error{
		func() error { // a process
			cmd := exec.CommandContext(n.Context(), "sleep", "infinity")
			n.Cleanup(func() { _ = cmd.Wait() })
			return cmd.Start()
		},
		func() error { // a thread
			entered, end := make(chan error), make(chan struct{})
			n.Cleanup(func() { close(end) })
			go func() {
				runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
				fd, err := unix.Open(p.netns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
				if err == nil {
					err = unix.Setns(fd, unix.CLONE_NEWNET)
					_ = unix.Close(fd)
				}
				entered <- err
				<-end
			}()
			return <-entered
		},
		func() error { // a descriptor
			f, err := os.Open(p.netns) // its link has the path of the mount, and "/" when that is gone
			n.Cleanup(func() { _ = f.Close() })
			return err
		},
		func() error { // a socket
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			n.Cleanup(func() { _ = unix.Close(fd) })
			return err
		},
		func() error { // a mount
			at := n.file("kept-" + p.id)
			n.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
			err := os.WriteFile(at, nil, 0o600)
			if err == nil {
				err = unix.Mount("/proc/thread-self/ns/net", at, "", unix.MS_BIND, "")
			}
			return err
		},
	}
	nodetest.OK(n, host.Do(p.netns, keepers[i%len(keepers)]))
	nodetest.OK(n, host.RemoveNS(p.netns))
}

// Records of earlier releases have no number of the namespace: nobody but a scan of all processes
// can say that it is gone. Half of 110 are gone, and at the path of each is nothing. Sweeps remove
// these, and nothing of the others, which a process, a thread, a descriptor, a socket or a mount
// keeps.
func TestRecordsWithoutNumbersDoNotStayForEver(t *testing.T) { //nolint:paralleltest // a scan does not see everything while other tests end processes
	hosttest.Need(t)
	needsScan(t)
	n := nodeIn(t, "/run")
	n.scan = true
	pods := n.newPods(110, func() object { return n.multinet("1.1.0", n.fake("b")) })
	for some := range slices.Chunk(pods, 10) {
		n.allOK("ADD", some)
	}
	n.withoutNumbers(pods)
	var dead, living []*pod
	for i, p := range pods { // all were made before the first ends: no inode is used twice
		if i%2 == 0 {
			n.keep(p, i/2)
			living = append(living, p)
		} else {
			dead = append(dead, p)
		}
	}
	for _, p := range dead {
		n.vanish(p)
	}
	left := func() (ids []string) {
		for _, name := range n.live() {
			ids = append(ids, strings.Split(name, "@")[1])
		}
		return ids
	}
	var passes []string // of two sweeps each
	n.until("what is dead is gone", func() bool {
		passes = append(passes, n.operate(-1, "gc", "--bin-dir", n.bin).stderr)
		return !slices.ContainsFunc(dead, func(p *pod) bool { return slices.Contains(left(), p.id) })
	})
	if len(passes) > 1 { // something could not be looked at, and is said
		t.Logf("%d runs: %q", len(passes), passes)
	}
	want := make([]string, 0, len(living))
	for _, p := range living {
		want = append(want, p.id)
		if !n.recorded(p, "state") {
			t.Errorf("the record of %s is gone", p.id)
		}
	}
	slices.Sort(want)
	got := left()
	slices.Sort(got)
	nodetest.Equal(t, "attached", got, want)
}

// withoutNumbers makes the records of pods those of a release that did not record the number of a
// namespace.
func (n *node) withoutNumbers(pods []*pod) {
	n.Helper()
	records := scratch.Store[map[string]any]{Dir: n.file("state")}
	for _, p := range pods {
		lock, err := records.Lock(n.Context(), p.id)
		nodetest.OK(n, err)
		r, err := records.Get(scratch.Key{Network: n.name("multi"), ContainerID: p.id, IfName: p.ifname})
		nodetest.OK(n, err)
		for _, d := range r.Value["delegates"].([]any) {
			recorded := d.(map[string]any)["netns"].(map[string]any)
			if fmt.Sprint(recorded["inode"]) == "0" || recorded["number"] == nil {
				n.Fatalf("recorded as %v", recorded)
			}
			for key := range recorded {
				if !slices.Contains([]string{"path", "dev", "inode"}, key) {
					delete(recorded, key)
				}
			}
		}
		nodetest.OK(n, records.Put(lock, r))
		nodetest.OK(n, lock.Unlock())
	}
}
