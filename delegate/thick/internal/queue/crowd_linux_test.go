package queue

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/durable"
)

// roleVar tells this test's executable, run once more, to play a part.
const roleVar = "METACNI_QUEUE_ROLE"

// An actor is a process that plays a part. Its input ends with the test.
type actor struct {
	*exec.Cmd
	out *bufio.Reader
}

func start(t *testing.T, role, dir, arg string) *actor {
	t.Helper()
	a := &actor{Cmd: exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0], "-test.run=^TestRole$")}
	a.Env = append(os.Environ(), roleVar+"="+role+" "+dir+" "+arg)
	a.Stderr = os.Stderr
	in, err := a.StdinPipe()
	ok(t, err)
	out, err := a.StdoutPipe()
	ok(t, err)
	a.out = bufio.NewReader(out)
	ok(t, a.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = a.Process.Kill()
		_ = a.Wait()
	})
	return a
}

// says waits for the actor's next line.
func (a *actor) says(t *testing.T) string {
	t.Helper()
	text, err := a.out.ReadString('\n')
	if err != nil {
		t.Fatalf("the other process says %q, %v", text, err)
	}
	return strings.TrimSuffix(text, "\n")
}

// TestRole is not a test: it plays the parts.
func TestRole(t *testing.T) {
	role := strings.SplitN(os.Getenv(roleVar), " ", 3)
	if len(role) != 3 {
		t.Skip("plays a part in other tests")
	}
	switch role[0] {
	case "write":
		for i := range 8 {
			ok(t, shim(t.Context(), role[1], fmt.Sprint(role[2], "-", i)))
		}
		fmt.Println("done")
	case "crash":
		n, err := strconv.Atoi(role[2])
		ok(t, err)
		calls := 0
		q := Queue{dir: filepath.Join(role[1], "queue"), hook: func(string, string) error {
			if calls++; calls == n {
				return unix.Kill(os.Getpid(), unix.SIGKILL)
			}
			return nil
		}}
		ok(t, q.Put(t.Context(), request("c1"), away))
		fmt.Println("survived")
	case "hold":
		ok(t, In(role[1]).Put(t.Context(), request("c1"), func() (bool, error) {
			fmt.Println("holds")
			_, _ = io.Copy(io.Discard, os.Stdin)
			return false, nil
		}))
	case "list":
		q := Queue{dir: role[1], hook: func(call, _ string) error {
			if call == "getdents" {
				fmt.Println("holds")
				_, _ = io.Copy(io.Discard, os.Stdin)
			}
			return nil
		}}
		_, _, err := q.List(t.Context())
		ok(t, err)
	}
}

// world returns a directory with a queue that a daemon has marked.
func world(t *testing.T) (base string) {
	t.Helper()
	base = t.TempDir()
	ok(t, os.Mkdir(filepath.Join(base, "done"), 0o700))
	mark(t, filepath.Join(base, "queue"))
	return base
}

// shim does what a shim does, with a daemon that is there when base has a file
// "up", and that notes what it has done in "done".
func shim(ctx context.Context, base, container string) error {
	try := func() (bool, error) {
		if _, err := os.Stat(filepath.Join(base, "up")); err == nil {
			return true, note(base, container)
		}
		return false, nil
	}
	if done, err := try(); done || err != nil {
		return err
	}
	return In(filepath.Join(base, "queue")).Put(ctx, request(container), try)
}

func note(base, container string) error {
	return os.WriteFile(filepath.Join(base, "done", container), nil, 0o600)
}

// daemon comes up and does what is in the queue, once.
func daemon(t *testing.T, base string) {
	t.Helper()
	ok(t, os.WriteFile(filepath.Join(base, "up"), nil, 0o600))
	left, err := pass(t.Context(), filepath.Join(base, "queue"), func(_ context.Context, r wire.Request) error {
		return note(base, r.Env["CNI_CONTAINERID"])
	})
	if left != 0 || err != nil {
		t.Errorf("%d left: %v", left, err)
	}
}

// However a daemon comes up among writers, and although it looks only once: when
// all have returned every DEL is done, and none is in the queue.
func TestNoDelIsLeftBehind(t *testing.T) {
	t.Parallel()
	for round := range 8 {
		base := world(t)
		var all sync.WaitGroup
		first := make(chan struct{}, 32*8)
		for w := range 32 {
			all.Go(func() {
				for i := range 8 {
					if err := shim(t.Context(), base, fmt.Sprintf("c%d-%d", w, i)); err != nil {
						t.Error(err)
					}
					first <- struct{}{}
				}
			})
		}
		for range round * 30 { // so many are written before
			<-first
		}
		daemon(t, base)
		all.Wait()
		if names := entries(t, filepath.Join(base, "queue")); len(names) != 0 {
			t.Fatalf("round %d: left %q", round, names)
		}
		if names := entries(t, filepath.Join(base, "done")); len(names) != 32*8 {
			t.Fatalf("round %d: %d done", round, len(names))
		}
	}
}

// The same between processes.
func TestNoDelIsLeftBehindByProcesses(t *testing.T) {
	t.Parallel()
	base := world(t)
	var all []*actor
	for w := range 32 {
		all = append(all, start(t, "write", base, fmt.Sprint("c", w)))
	}
	if said := all[7].says(t); said != "done" { // many are at it, and some are not yet
		t.Fatal(said)
	}
	daemon(t, base)
	for i, a := range all {
		if i != 7 {
			if said := a.says(t); said != "done" {
				t.Fatal(said)
			}
		}
	}
	if names := entries(t, filepath.Join(base, "queue")); len(names) != 0 {
		t.Errorf("left %q", names)
	}
	if names := entries(t, filepath.Join(base, "done")); len(names) != 32*8 {
		t.Errorf("%d done", len(names))
	}
}

// Killed before any of its system calls, a writer leaves its DEL or none, and
// nothing that keeps others out or is there for good.
func TestWriterKilledAnywhere(t *testing.T) {
	t.Parallel()
	for n := 1; ; n++ {
		base := world(t)
		dir := filepath.Join(base, "queue")
		a := start(t, "crash", base, strconv.Itoa(n))
		said, _ := a.out.ReadString('\n')
		_ = a.Wait()
		before := entries(t, dir)
		got := containers(t, dir)
		if said == "survived\n" {
			if len(got) != 1 || n < 10 {
				t.Errorf("survived %d calls: %q", n, got)
			}
			return
		}
		if written := slices.ContainsFunc(before, isEntry); written != (len(got) == 1) {
			t.Errorf("killed before call %d: %q, and in it %q", n, before, got)
		}
		ok(t, In(dir).Put(t.Context(), request("c1"), away))
		if got := containers(t, dir); len(got) != 1 {
			t.Errorf("after call %d: %q", n, got)
		}
		if names := entries(t, dir); len(names) != 0 {
			t.Errorf("after call %d: left %q", n, names)
		}
	}
}

// A lock ends with the process that has it, whichever side it is.
func TestHolderKilled(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	writer := start(t, "hold", dir, "")
	if said := writer.says(t); said != "holds" {
		t.Fatal(said)
	}
	fill(t, dir, 1) // beside it
	got := make(chan []string, 1)
	go func() { got <- containers(t, dir) }()
	ok(t, writer.Process.Kill())
	if all := <-got; !slices.Equal(all, []string{"c0"}) {
		t.Error(all)
	}
	fill(t, dir, 1)
	reader := start(t, "list", dir, "")
	if said := reader.says(t); said != "holds" {
		t.Fatal(said)
	}
	tried := make(chan struct{}, 1<<20)
	put := make(chan error, 1)
	go func() {
		put <- In(dir).Put(t.Context(), request("c1"), func() (bool, error) { tried <- struct{}{}; return false, nil })
	}()
	<-tried
	ok(t, reader.Process.Kill())
	ok(t, <-put)
	if all := containers(t, dir); !slices.Equal(all, []string{"c0", "c1"}) {
		t.Error(all)
	}
}

// A loss of power takes what has not been synced, whole or in part: whatever
// that is, a DEL whose Put has returned is there.
func TestPowerLoss(t *testing.T) {
	t.Parallel()
	for stop := 1; ; stop++ {
		dir := marked(t)
		ok(t, In(dir).Put(t.Context(), request("old"), away))
		disk := newDisk(t, dir)
		err := Queue{dir: dir, hook: disk.hook(stop)}.Put(t.Context(), request("new"), away)
		for _, lost := range []bool{true, false} { // what was not synced
			after := disk.afterwards(t, lost)
			got := containers(t, after)
			if !slices.Contains(got, "old") || err == nil && !slices.Contains(got, "new") {
				t.Errorf("stopped at call %d, lost %v: %q, and Put has said %v", stop, lost, got, err)
			}
		}
		if err == nil {
			return
		}
	}
}

// A disk knows what of a directory would survive a loss of power: the content
// of files that were synced, and the names there were when the directory was.
type disk struct {
	dir    string
	synced map[uint64][]byte // content by inode number
	names  map[string]uint64
	last   func()
}

func newDisk(t *testing.T, dir string) *disk {
	t.Helper()
	d := &disk{dir: dir, synced: map[uint64][]byte{}}
	d.names = d.list()
	for name, ino := range d.names {
		data, err := os.ReadFile(filepath.Join(dir, name))
		ok(t, err)
		d.synced[ino] = data
	}
	return d
}

func (d *disk) list() map[string]uint64 {
	all := map[string]uint64{}
	list, _ := os.ReadDir(d.dir)
	for _, e := range list {
		var st unix.Stat_t
		if unix.Stat(filepath.Join(d.dir, e.Name()), &st) == nil {
			all[e.Name()] = st.Ino
		}
	}
	return all
}

// hook follows what is synced, and fails from the call stop on. A call has had
// its effect when the next one comes.
func (d *disk) hook(stop int) durable.Hook {
	n := 0
	return func(call, name string) error {
		if d.last != nil {
			d.last()
			d.last = nil
		}
		if n++; n >= stop {
			return unix.EIO
		}
		if call == "fsync" && name == "." {
			d.last = func() { d.names = d.list() }
		} else if call == "fsync" {
			d.last = func() {
				if data, err := os.ReadFile(filepath.Join(d.dir, name)); err == nil {
					d.synced[d.list()[name]] = data
				}
			}
		}
		return nil
	}
}

// afterwards returns a directory as it is found when power is back: with the
// names that were synced or, unless lost, with those of the last moment, and in
// any case with no byte that was not synced.
func (d *disk) afterwards(t *testing.T, lost bool) string {
	t.Helper()
	if d.last != nil {
		d.last()
		d.last = nil
	}
	names := d.names
	if !lost {
		names = d.list()
	}
	dir := t.TempDir()
	for name, ino := range names {
		ok(t, os.WriteFile(filepath.Join(dir, name), d.synced[ino], 0o600))
	}
	return dir
}
