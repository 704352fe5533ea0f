package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// fake returns a configuration of the fake plugin. on lists its faults as pairs
// of command and fault.
func (w *world) fake(id string, on ...string) object {
	faults := object{}
	for i := 0; i+1 < len(on); i += 2 {
		faults[on[i]] = on[i+1]
	}
	return object{"type": "fake", "id": id, "dir": w.file("fake"), "on": faults, "code": 111}
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
func (c call) runs() bool {
	f := stat(c.PID)
	return f != nil && f[0] != "Z" && f[0] != "X" && f[19] == c.Started
}

// calls returns the logged calls of this world's fakes.
func (w *world) calls() (list []call) {
	w.t.Helper()
	f, err := os.Open(w.file("fake", "log"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c call
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			w.t.Fatal(err)
		}
		list = append(list, c)
	}
	return list
}

// forget empties the log of calls.
func (w *world) forget() {
	w.t.Helper()
	if err := os.Remove(w.file("fake", "log")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.t.Fatal(err)
	}
}

// trace fails the test unless the fakes were called in the order of want, such
// as "ADD a eth0".
func (w *world) trace(want ...string) {
	w.t.Helper()
	var got []string
	for _, c := range w.calls() {
		got = append(got, strings.TrimSpace(c.Command+" "+c.ID+" "+c.IfName))
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		w.t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// live lists what the fakes have attached and not detached.
func (w *world) live() []string { return w.list(w.file("fake", "live")) }

// ready waits until a fake reports that it hangs or waits for its gate.
func (w *world) ready() {
	w.t.Helper()
	w.fifo("ready", func(f *os.File) error {
		_, err := f.Read(make([]byte, 1))
		return err
	})
}

// open lets one fake that waits for its gate continue.
func (w *world) open() {
	w.t.Helper()
	w.fifo("gate", func(f *os.File) error {
		_, err := f.WriteString("x")
		return err
	})
}

// fifo opens a FIFO for reading and writing, so that opening never blocks.
func (w *world) fifo(name string, use func(*os.File) error) {
	w.t.Helper()
	f, err := os.OpenFile(w.file("fake", name), os.O_RDWR, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = f.Close() })
	if err := f.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		w.t.Fatal(err)
	}
	if err := use(f); err != nil {
		w.t.Fatalf("%s: %v", name, err)
	}
}
