package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A bill is what a plugin has done. Its delegates do not count, except in execs. The
// first seven counts are the same on every run and machine, the others vary a little.
type bill struct {
	syncs int // fsync and fdatasync
	opens int // files opened, without the plugin's own network namespace
	scans int // getdents64: reads of directories
	execs int // programs run
	looks int // how often the container's network namespace was opened
	lists int // netlink sockets: lists of the interfaces there
	cache int // looks for files in the cache of libcni

	memory int // peak resident memory in kB
	faults int // page faults without I/O
	allocs int // objects allocated on the heap

	opened []string // the paths of the files opened
}

// traced runs a plugin, which counting has built, under ptrace(2) and returns its bill.
func (n *node) traced(path, command string, p *pod) bill {
	n.Helper()
	dir := n.TempDir()
	stdout := filepath.Join(dir, "stdout")
	n.write(p.conf, "traced")
	in, err := os.Open(n.file("traced"))
	if err != nil {
		n.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(stdout)
	if err != nil {
		n.Fatal(err)
	}
	defer out.Close()
	counts, err := os.Create(filepath.Join(dir, "counts"))
	if err != nil {
		n.Fatal(err)
	}
	defer counts.Close()
	cmd := exec.CommandContext(n.Context(), path)
	cmd.Env = []string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + p.id, "CNI_NETNS=" + p.netns, "CNI_IFNAME=" + p.ifname,
		"CNI_PATH=" + n.bin, "PATH=" + n.path,
		"GODEBUG=asyncpreemptoff=1", // the Go runtime must not signal threads that ptrace stops
		"GOMAXPROCS=1",              // the order of goroutines, and the memory for processors, vary less
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = in, out, out, []*os.File{counts}
	b, status, err := trace(cmd)
	for _, path := range b.opened {
		if path == p.netns {
			b.looks++
		}
	}
	if text, _ := os.ReadFile(stdout); err != nil || status != 0 {
		n.Fatalf("%s %s: %v, status %d: %s", path, command, err, status, text)
	}
	text, err := os.ReadFile(counts.Name())
	if err == nil {
		b.allocs, err = strconv.Atoi(string(text))
	}
	if err != nil {
		n.Fatalf("%s %s has not written the number of its allocations: %v", path, command, err)
	}
	return b
}

// trace runs cmd until it exits. All ptrace requests come from this thread. It
// waits only for the process group of cmd, which contains neither delegates nor
// the children of other tests.
func trace(cmd *exec.Cmd) (b bill, status int, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// cmd inherits this. With huge pages memory and page faults would depend on the machine.
	if err := unix.Prctl(unix.PR_SET_THP_DISABLE, 1, 0, 0, 0); err != nil {
		return b, 0, err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return b, 0, err
	}
	tracee := cmd.Process.Pid
	var ws unix.WaitStatus
	if _, err := unix.Wait4(tracee, &ws, unix.WALL, nil); err != nil {
		return b, 0, err
	}
	const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEEXIT | unix.PTRACE_O_EXITKILL
	if err := unix.PtraceSetOptions(tracee, options); err != nil {
		return b, 0, err
	}
	calls := map[int]syscallEntry{} // by thread, while in the call
	for tid, signal := tracee, 0; ; {
		// The thread may have been killed in the meantime.
		if err := unix.PtraceSyscall(tid, signal); err != nil && err != unix.ESRCH {
			return b, 0, err
		}
		signal = 0
		for {
			tid, err = unix.Wait4(-tracee, &ws, unix.WALL, nil)
			if err == unix.ECHILD {
				return b, status, nil
			}
			if err != nil && err != unix.EINTR {
				return b, 0, err
			}
			if tid == tracee && ws.Exited() {
				status = ws.ExitStatus()
			}
			if err == nil && ws.Stopped() {
				break
			}
		}
		switch stop := ws.StopSignal(); {
		case stop == unix.SIGTRAP|0x80:
			b.syscall(tid, calls)
		case stop == unix.SIGTRAP && ws.TrapCause() == unix.PTRACE_EVENT_EXIT:
			b.memory = max(b.memory, statusField(tid, "VmHWM"))
			b.faults = max(b.faults, minorFaults(tid))
		case stop == unix.SIGTRAP, stop == unix.SIGSTOP:
		default:
			signal = int(stop)
		}
	}
}

// syscall counts a system call that thread tid has entered or left.
func (b *bill) syscall(tid int, calls map[int]syscallEntry) {
	var info [88]byte // struct ptrace_syscall_info
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid), uintptr(len(info)), uintptr(unsafe.Pointer(&info[0])), 0, 0)
	if errno != 0 {
		return
	}
	value := binary.NativeEndian.Uint64(info[24:])
	if info[0] == unix.PTRACE_SYSCALL_INFO_ENTRY {
		calls[tid] = syscallEntry{number: value, first: binary.NativeEndian.Uint64(info[32:])}
		if value == newfstatat && strings.HasPrefix(stringAt(tid, binary.NativeEndian.Uint64(info[40:])), "/var/lib/cni/results/") {
			b.cache++
		}
		return
	}
	if int64(value) < 0 { //nolint:gosec // the register holds a signed number
		return
	}
	switch calls[tid].number {
	case unix.SYS_FSYNC, unix.SYS_FDATASYNC:
		b.syncs++
	case unix.SYS_OPENAT, unix.SYS_OPENAT2:
		path, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tid, value))
		if !strings.HasPrefix(path, "net:[") { // before Linux 6.18 it is entered to identify another
			b.opens++
			b.opened = append(b.opened, path)
		}
	case unix.SYS_GETDENTS64:
		b.scans++
	case unix.SYS_SOCKET:
		if calls[tid].first == unix.AF_NETLINK {
			b.lists++
		}
	case unix.SYS_CLONE:
		if calls[tid].first&unix.CLONE_VFORK != 0 { // otherwise it starts a thread
			b.execs++
		}
	}
}

// newfstatat is the number of a system call that has a name of its own on arm64.
var newfstatat = map[string]uint64{"amd64": 262, "arm64": 79}[runtime.GOARCH]

// A syscallEntry is the number of a system call and its first argument.
type syscallEntry struct{ number, first uint64 }

// stringAt returns the beginning of a string in the memory of a thread, or nothing.
func stringAt(tid int, address uint64) string {
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", tid))
	if err != nil {
		return ""
	}
	defer memory.Close()
	var text [64]byte
	n, _ := memory.ReadAt(text[:], int64(address)) //nolint:gosec // an address of user space
	found, _, _ := bytes.Cut(text[:n], []byte{0})
	return string(found)
}

// statusField returns a number from /proc/TID/status, or 0.
func statusField(tid int, name string) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	found := regexp.MustCompile(`(?m)^` + name + `:\s+(\d+)`).FindSubmatch(bytes.TrimSpace(text))
	if found == nil {
		return 0
	}
	n, _ := strconv.Atoi(string(found[1]))
	return n
}

// minorFaults returns the number of page faults without I/O of the process of a thread,
// or 0.
func minorFaults(tid int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", tid))
	_, after, _ := bytes.Cut(text, []byte(") "))
	fields := bytes.Fields(after)
	if len(fields) < 8 {
		return 0
	}
	n, _ := strconv.Atoi(string(fields[7]))
	return n
}
