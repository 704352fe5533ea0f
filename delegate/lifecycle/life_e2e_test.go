//go:build e2e && linux

package lifecycle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/internal/thread"
)

// handless is the kernel before Linux 6.18.
type handless struct{ kernel }

func (handless) ask(netns) Life { return Unknown }

// ownMounts gives the calling thread a mount namespace of its own, and the namespaces of flags.
func ownMounts(flags int) error {
	return errors.Join(unix.Unshare(unix.CLONE_NEWNS|flags), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
}

// drop gives up a capability of the calling thread.
func drop(c int) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	err := unix.Capget(&header, &data[0])
	data[c/32].Effective &^= 1 << (c % 32)
	return errors.Join(err, unix.Capset(&header, &data[0]))
}

// needsRoot skips a test that makes namespaces.
func needsRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 || !may(unix.CAP_SYS_ADMIN, unix.CAP_SYS_PTRACE) {
		t.Skip("needs root, outside of user namespaces")
	}
	if inode, ok := linkTo("", "/proc/self/ns/pid", "pid"); !ok || inode != initialPID {
		t.Skip("needs the initial PID namespace")
	}
}

// inNewNetNS calls do on a thread that has a new network namespace, and ends the thread.
func inNewNetNS(t *testing.T, do func(n netns) error) {
	t.Helper()
	var err error
	thread.Alone(func() {
		if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			err = do(kernel{}.identify("", ownNetNS).inBoot(kernel{}.boot()))
		}
	})
	nodetest.OK(t, err)
}

// A holder holds a network namespace whose recorded path leads nowhere.
type holder func(t *testing.T) (n netns, release func())

// holders returns everything that can hold a network namespace.
func holders() map[string]holder {
	return map[string]holder{
		"a thread": func(t *testing.T) (n netns, release func()) {
			t.Helper()
			ready, end := make(chan netns), make(chan struct{})
			go thread.Alone(func() {
				if unix.Unshare(unix.CLONE_NEWNET) == nil {
					n = kernel{}.identify("", ownNetNS).inBoot(kernel{}.boot())
				}
				ready <- n
				<-end
			})
			n = <-ready
			return n, func() { close(end) }
		},
		"a descriptor": opening(openOwn),
		"a socket": opening(func(*testing.T) (int, error) {
			return unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		}),
		"a mount": func(t *testing.T) (n netns, release func()) {
			t.Helper()
			path := filepath.Join(t.TempDir(), "another name")
			write(t, path)
			ready, end := make(chan error), make(chan struct{})
			go thread.Alone(func() { // in a mount namespace that no other program copies
				before, err := unix.Open(ownNetNS, unix.O_RDONLY|unix.O_CLOEXEC, 0)
				if err == nil {
					err = ownMounts(unix.CLONE_NEWNET)
					n = kernel{}.identify("", ownNetNS).inBoot(kernel{}.boot())
					err = errors.Join(err, unix.Mount(ownNetNS, path, "", unix.MS_BIND, ""), unix.Setns(before, unix.CLONE_NEWNET), unix.Close(before))
				}
				ready <- err
				<-end
			})
			nodetest.OK(t, <-ready)
			return n, func() { close(end) }
		},
		"a mount in a mount namespace without a process": opening(func(t *testing.T) (int, error) {
			t.Helper()
			path := filepath.Join(t.TempDir(), "ns")
			write(t, path)
			if err := errors.Join(ownMounts(0), unix.Mount(ownNetNS, path, "", unix.MS_BIND, "")); err != nil {
				return -1, err
			}
			return unix.Open("/proc/thread-self/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}),
	}
}

// judgeUntil judges a container in n until the judgement is as wanted, for two minutes at most: the
// thread that made the namespace takes a moment to end.
func judgeUntil(m machine, n netns, wanted func(Judgement) bool) Judgement {
	for start := time.Now(); ; runtime.Gosched() {
		j := (&Manager{machine: m}).Judge([]AddRecord{{entries: []entry{{NetNS: n}}}})[0]
		if wanted(j) || time.Since(start) > 2*time.Minute {
			return j
		}
	}
}

// A namespace that only one thing holds is alive for the kernel and for a scan, and dead when
// that has ended: for the kernel at once, for a scan after a second one.
func TestNamespaceLivesAsLongAsAnythingHoldsIt(t *testing.T) { //nolint:paralleltest // the scan must not see what other tests open
	needsRoot(t)
	for name, hold := range holders() {
		for _, m := range []machine{kernel{}, handless{}} {
			t.Run(fmt.Sprintf("%s, %T", name, m), func(t *testing.T) {
				n, release := hold(t)
				if n.Inode == 0 {
					t.Fatal("no namespace")
				}
				n.Path = "/run/netns/no-such-name"
				if m == (kernel{}) && (kernel{}).ask(n) == Unknown {
					t.Skip("this kernel has no file handles of namespaces")
				}
				if j := judgeUntil(m, n, func(Judgement) bool { return true }); j.Life != Alive {
					t.Errorf("held: %+v", j)
				}
				release()
				want := Judgement{Life: Dead}
				if m != (kernel{}) {
					want = Judgement{Life: Unknown, Pending: true}
				}
				wanted := func(j Judgement) bool { return j.Life == want.Life && j.Pending == want.Pending }
				if j := judgeUntil(m, n, wanted); !wanted(j) {
					t.Errorf("released: %+v", j)
				}
			})
		}
	}
}

// judgeEnv makes the test process judge namespaces for another, see [judgedIn].
const judgeEnv = "METACNI_LIFE_JUDGE"

// judged returns the judgement about a container in each namespace.
func judged(m machine, all []netns) []Judgement {
	var rs []AddRecord
	for _, n := range all {
		rs = append(rs, AddRecord{entries: []entry{{NetNS: n}}})
	}
	return (&Manager{machine: m}).Judge(rs)
}

// judgedIn returns what a process in new namespaces judges, with handles and without. It runs t again.
func judgedIn(t *testing.T, flags uintptr, all []netns) (js []Judgement) {
	t.Helper()
	text, err := json.Marshal(all)
	nodetest.OK(t, err)
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestLivingNamespaceIsDeadForNobody$")
	cmd.Env = append(os.Environ(), judgeEnv+"="+string(text))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	if flags&syscall.CLONE_NEWUSER != 0 {
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if json.NewDecoder(bytes.NewReader(out)).Decode(&js) != nil || len(js) != 2*len(all) {
		t.Fatalf("%v: %s", err, out)
	}
	return js
}

// Nobody without the rights to see it takes a living namespace for dead, by the kernel or by a
// scan, nor does one that sees other files, other processes or another boot ID.
func TestLivingNamespaceIsDeadForNobody(t *testing.T) { //nolint:paralleltest // as above
	if text := os.Getenv(judgeEnv); text != "" {
		var all []netns
		nodetest.OK(t, json.Unmarshal([]byte(text), &all))
		nodetest.OK(t, json.NewEncoder(os.Stdout).Encode(append(judged(kernel{}, all), judged(handless{}, all)...)))
		return
	}
	needsRoot(t)
	holder := exec.CommandContext(t.Context(), "sleep", "3600") // another process, which not everybody may see
	holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	nodetest.OK(t, holder.Start())
	defer holder.Wait()
	defer holder.Process.Kill()
	dir := t.TempDir()
	path := filepath.Join(dir, "ns")
	nodetest.OK(t, os.Symlink(fmt.Sprintf("/proc/%d/ns/net", holder.Process.Pid), path))
	n := kernel{}.identify("", path).inBoot(kernel{}.boot())
	other := n
	other.Path = "/no-such-directory/ns"
	earlier := other
	earlier.Number, earlier.Boot = "", ""
	spared := func(t *testing.T, js []Judgement) {
		t.Helper()
		for i, j := range js {
			if j.Life == Dead || j.Pending {
				t.Errorf("namespace %d: %+v", i, j)
			}
		}
	}
	all := []netns{n, other, earlier}
	for name, flags := range map[string]uintptr{"user": syscall.CLONE_NEWUSER, "PID": syscall.CLONE_NEWPID | syscall.CLONE_NEWNS} {
		t.Run("another "+name+" namespace", func(t *testing.T) { spared(t, judgedIn(t, flags, all)) })
	}
	fake := filepath.Join(t.TempDir(), "boot-id")
	nodetest.OK(t, os.WriteFile(fake, []byte("5f3ad3c2-3f43-4ac5-8fbd-0c1d1d2e4a01\n"), 0o600))
	for name, become := range map[string]func() error{
		"root": func() error { return nil },
		"another user": func() error {
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
				return errno
			}
			return nil
		},
		"root without CAP_SYS_ADMIN":  func() error { return drop(unix.CAP_SYS_ADMIN) },
		"root without CAP_SYS_PTRACE": func() error { return drop(unix.CAP_SYS_PTRACE) },
		"another mount namespace":     func() error { return errors.Join(ownMounts(0), unix.Mount("tmpfs", dir, "tmpfs", 0, "")) },
		"another boot ID, which is fake": func() error {
			return errors.Join(ownMounts(0), unix.Mount(fake, "/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, ""))
		},
	} {
		for _, m := range []machine{kernel{}, handless{}} {
			t.Run(fmt.Sprintf("%s, %T", name, m), func(t *testing.T) {
				var js []Judgement
				var err error
				thread.Alone(func() {
					if err = become(); err == nil {
						js = judged(m, all)
					}
				})
				nodetest.OK(t, err)
				spared(t, js)
			})
		}
	}
}

// coverEach mounts a namespace in a new mount namespace, closes its descriptor, which open returns,
// and covers it by each of several things in turn, for which it calls do. A container can do so.
func coverEach(t *testing.T, open func() (int, error), do func(cover string)) {
	t.Helper()
	dir := t.TempDir()
	at, fifo, file := filepath.Join(dir, "ns"), filepath.Join(dir, "fifo"), filepath.Join(dir, "file")
	write(t, at)
	write(t, file)
	nodetest.OK(t, unix.Mkfifo(fifo, 0o600))
	var err error
	thread.Alone(func() {
		if err = errors.Join(onFirstCPU(), ownMounts(0)); err != nil {
			return
		}
		var fd int
		if fd, err = open(); err != nil {
			return
		}
		err = errors.Join(unix.Mount(fmt.Sprint("/proc/self/fd/", fd), at, "", unix.MS_BIND, ""), unix.Close(fd))
		for _, cover := range []string{fifo, file, "/dev/null", ownNetNS} {
			if err == nil {
				err = unix.Mount(cover, at, "", unix.MS_BIND, "")
			}
			if err == nil {
				do(cover)
				err = unix.Unmount(at, 0)
			}
		}
	})
	nodetest.OK(t, err)
}

// onFirstCPU keeps the calling thread, which must end soon, on one CPU. A mount namespace is mounted
// only in one with a lower number (mount_namespaces(7)), and each CPU has numbers of its own, in order
// (gen_cookie_next in the kernel's linux/cookie.h).
func onFirstCPU() error {
	var may, first unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return err
	}
	for cpu := 0; ; cpu++ {
		if may.IsSet(cpu) {
			first.Set(cpu)
			return unix.SchedSetaffinity(0, &first)
		}
	}
}

// What a container mounts over a namespace is neither opened nor taken for the namespace.
func TestNamespaceBelowAnotherMountIsNotDead(t *testing.T) { //nolint:paralleltest // as above
	needsRoot(t)
	var n netns
	judge := func(cover string) {
		j := judgeUntil(handless{}, n, func(j Judgement) bool { return j.Life != Alive })
		if j.Life != Unknown || j.Pending {
			t.Errorf("below %s: %+v", cover, j)
		}
	}
	coverEach(t, func() (fd int, err error) {
		inNewNetNS(t, func(now netns) error {
			n = now
			fd, err = openOwn(t)
			return err
		})
		n.Path = "/run/netns/no-such-name"
		return fd, err
	}, judge)
	n.Inode += 1 << 40 // nobody has it, but perhaps a mount namespace that cannot be opened
	coverEach(t, func() (fd int, err error) {
		thread.Alone(func() {
			if err = errors.Join(onFirstCPU(), unix.Unshare(unix.CLONE_NEWNS)); err == nil {
				fd, err = unix.Open("/proc/thread-self/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			}
		})
		return fd, err
	}, judge)
}

// opening returns a holder that is a descriptor, which open returns on a thread with a new
// namespace.
func opening(open func(t *testing.T) (fd int, err error)) holder {
	return func(t *testing.T) (n netns, release func()) {
		t.Helper()
		fd := -1
		inNewNetNS(t, func(now netns) (err error) {
			n = now
			fd, err = open(t)
			return err
		})
		return n, func() { _ = unix.Close(fd) }
	}
}

// openOwn opens the namespace of the calling thread.
func openOwn(*testing.T) (int, error) { return unix.Open(ownNetNS, unix.O_RDONLY|unix.O_CLOEXEC, 0) }
