package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// fake returns a configuration of the fake plugin. on lists its faults as pairs
// of command and fault.
func (n *node) fake(id string, on ...string) object {
	faults := object{}
	for i := 0; i+1 < len(on); i += 2 {
		faults[on[i]] = on[i+1]
	}
	return object{"type": "fake", "id": id, "dir": n.file("fake"), "on": faults, "code": 111}
}

// call is one line of the fake plugin's log.
type call struct {
	Command   string
	ID        string
	PID       int
	Started   string
	Container string
	IfName    string
	NetNS     string
	Args      string
	Stdin     json.RawMessage
}

// runs reports whether the fake of the call has not exited. Another process may have its number
// by now.
func (c call) runs() bool { return !nodetest.Ended(c.PID, c.Started) }

// calls returns the logged calls of this node's fakes.
func (n *node) calls() (list []call) {
	n.Helper()
	f, err := os.Open(n.file("fake", "log"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	nodetest.OK(n, err)
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c call
		nodetest.OK(n, json.Unmarshal(lines.Bytes(), &c))
		list = append(list, c)
	}
	return list
}

// forget empties the log of calls.
func (n *node) forget() {
	n.Helper()
	if err := os.Remove(n.file("fake", "log")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.Fatal(err)
	}
}

// trace fails the test unless the fakes were called in the order of want, such
// as "ADD a eth0".
func (n *node) trace(want ...string) {
	n.Helper()
	var got []string
	for _, c := range n.calls() {
		got = append(got, strings.TrimSpace(c.Command+" "+c.ID+" "+c.IfName))
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		n.Errorf("calls (-want +got):\n%s", diff)
	}
}

// live lists what the fakes have attached and not detached.
func (n *node) live() []string { return n.list(n.file("fake", "live")) }

// ready waits until a fake reports that it hangs or waits for its gate.
func (n *node) ready() {
	n.Helper()
	n.fifo("ready", func(f *os.File) error {
		_, err := f.Read(make([]byte, 1))
		return err
	})
}

// open lets one fake that waits for its gate continue.
func (n *node) open() {
	n.Helper()
	n.fifo("gate", func(f *os.File) error {
		_, err := f.WriteString("x")
		return err
	})
}

// fifo opens a FIFO for reading and writing, so that opening never blocks.
func (n *node) fifo(name string, use func(*os.File) error) {
	n.Helper()
	f, err := os.OpenFile(n.file("fake", name), os.O_RDWR, 0)
	nodetest.OK(n, err)
	n.Cleanup(func() { _ = f.Close() })
	nodetest.OK(n, f.SetDeadline(time.Now().Add(2*time.Minute)))
	if err := use(f); err != nil {
		n.Fatalf("%s: %v", name, err)
	}
}

// parallel makes multinet attach and detach these fakes at the same time.
func (n *node) parallel(conf object, fakes ...object) {
	conf["parallel"] = true
	for _, f := range fakes {
		f["parallel"] = true
	}
}

// cure stops all faults of the fakes.
func (n *node) cure() {
	n.Helper()
	nodetest.OK(n, os.WriteFile(n.file("fake", "cured"), nil, 0o600))
}

// sicken ends cure: the fakes fail again as configured.
func (n *node) sicken() {
	n.Helper()
	nodetest.OK(n, os.Remove(n.file("fake", "cured")))
}

// running lists the processes of this node's fakes that have not exited.
func (n *node) running() (pids []int) {
	n.Helper()
	for _, c := range n.calls() {
		if c.runs() {
			pids = append(pids, c.PID)
		}
	}
	return pids
}

// orphansEnd waits until no fake of this node runs. Nobody waits for a killed child of a plugin,
// so it may end a moment after the command that has killed it.
func (n *node) orphansEnd() {
	n.Helper()
	n.until("no plugin runs", func() bool { return len(n.running()) == 0 })
}

// endChildren kills the children that the fakes left behind.
func (n *node) endChildren() {
	n.Helper()
	for _, c := range n.calls() {
		if c.Command == "NONE" && c.runs() {
			_ = syscall.Kill(c.PID, syscall.SIGKILL)
		}
	}
	n.orphansEnd()
}

// bystander starts an idle process that leads a process group and has files
// open.
func (n *node) bystander(files ...*os.File) (pid int) {
	n.Helper()
	cmd := exec.Command(built("fake"))
	cmd.ExtraFiles = files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe() // it reads until this is closed
	nodetest.OK(n, errors.Join(err, cmd.Start()))
	n.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}
