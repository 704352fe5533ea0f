package queue

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/fault"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// away is what a shim finds whose daemon is away.
func away() bool { return false }

// put has a shim write r, whose daemon is away.
func put(t testing.TB, dir string, r wire.Request) {
	t.Helper()
	if queued, err := In(dir).Put(t.Context(), r, away); !queued || err != nil {
		t.Fatal(queued, err)
	}
}

func request(container string) wire.Request {
	return wire.Request{
		Env:        map[string]string{"CNI_COMMAND": "DEL", "CNI_CONTAINERID": container, "CNI_IFNAME": "eth0", "CNI_NETNS": "/run/netns/<x>"},
		Config:     []byte(`{"cniVersion":"1.1.0","name":"net","type":"multinet","password":"secret & more"}`),
		APIVersion: wire.Version,
	}
}

// List lists the queue as a daemon does that ends then.
func (q Queue) List(ctx context.Context) (names []string, odd, err error) {
	r := &Reader{Queue: q}
	defer r.Close()
	return r.List(ctx)
}

// mark has a daemon read dir, which is made.
func mark(t testing.TB, dir string) {
	t.Helper()
	_, odd, err := In(dir).List(t.Context())
	nodetest.OK(t, errors.Join(odd, err))
}

// marked returns the directory of an empty queue that a daemon reads.
func marked(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "queue")
	mark(t, dir)
	return dir
}

// pass does what a daemon does: it tries once to do each DEL. It returns how
// many are left, and everything that is wrong. do may be nil.
func (q Queue) pass(ctx context.Context, do func(wire.Request)) (left int, err error) {
	names, odd, err := q.List(ctx)
	errs := []error{odd, err}
	for _, name := range names {
		r, err := q.Read(name)
		if err == nil && do != nil {
			do(r)
		}
		if err == nil {
			err = q.Remove(name)
		}
		if err != nil && !errors.Is(err, ErrDamaged) {
			left++
		}
		errs = append(errs, err)
	}
	return left, errors.Join(errs...)
}

// requests does the DELs in dir and returns them.
func requests(t *testing.T, dir string) (got []wire.Request) {
	t.Helper()
	left, err := In(dir).pass(t.Context(), func(r wire.Request) { got = append(got, r) })
	if err != nil && !errors.Is(err, ErrForeign) || left != 0 {
		t.Errorf("%d left: %v", left, err)
	}
	return got
}

// containers does the DELs in dir and returns whose they were.
func containers(t *testing.T, dir string) (got []string) {
	t.Helper()
	for _, r := range requests(t, dir) {
		got = append(got, r.Env["CNI_CONTAINERID"])
	}
	slices.Sort(got)
	return got
}

// entries lists the directory, without the mark.
func entries(t *testing.T, dir string) []string {
	t.Helper()
	names := (&nodetest.Node{TB: t, Dir: dir}).Files("")
	return slices.DeleteFunc(names, func(name string) bool { return name == markName })
}

// fails wants an error of the queue that is want, with the code.
func fails(t *testing.T, err, want error, code uint) {
	t.Helper()
	nodetest.Says(t, err, "DEL queue: ")
	nodetest.Equal(t, "code", fault.Code(err, 0), code)
	if want != nil {
		nodetest.Is(t, err, want)
	}
}

// fill puts the DELs of n containers into dir and returns the names of their
// files.
func fill(t *testing.T, dir string, n int) []string {
	t.Helper()
	var names []string
	for i := range n {
		r := request(fmt.Sprint("c", i))
		put(t, dir, r)
		names = append(names, nameOf(t, r))
	}
	slices.Sort(names)
	return names
}

func TestPutReplay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/a/queue"
	mark(t, dir)
	r := request("c1")
	r.DeadlineMs = 115000
	// Nothing is written when the daemon is there after all.
	queued, err := In(dir).Put(t.Context(), r, func() bool { return true })
	nodetest.OK(t, err)
	nodetest.Equal(t, "queued", queued, false)
	nodetest.Equal(t, "files", entries(t, dir), nil)
	put(t, dir, r)
	for path, want := range map[string]fs.FileMode{
		"..": fs.ModeDir | 0o700, ".": fs.ModeDir | 0o700, nameOf(t, r): 0o600, markName: 0o600,
	} {
		info, err := os.Stat(filepath.Join(dir, path))
		nodetest.OK(t, err)
		nodetest.Equal(t, path, info.Mode(), want)
	}
	r.DeadlineMs = 0
	nodetest.Equal(t, "done", requests(t, dir), []wire.Request{r})
	nodetest.Equal(t, "files", entries(t, dir), nil)
}

// Two attachments have two names, however their parts are cut, and one has one
// name whatever else is asked.
func TestNames(t *testing.T) {
	t.Parallel()
	of := func(network, container, ifName, more string) string {
		return nameOf(t, wire.Request{
			Env:    map[string]string{"CNI_CONTAINERID": container, "CNI_IFNAME": ifName, "CNI_ARGS": more},
			Config: fmt.Appendf(nil, `{"type":%q,"name":%q}`, more, network),
		})
	}
	seen := map[string]string{}
	for _, parts := range [][3]string{
		{"net", "c1", "eth0"}, {"netc1", "", "eth0"}, {"ne", "tc1", "eth0"}, {"net", "c1eth0", ""}, {"", "netc1", "eth0"}, {"net", "c1", "eth1"}, {},
	} {
		name := of(parts[0], parts[1], parts[2], "x")
		if other, found := seen[name]; found || !isName(name, entrySuffix) {
			t.Errorf("%q and %q are %s", parts, other, name)
		}
		seen[name] = fmt.Sprintf("%q", parts)
		if again := of(parts[0], parts[1], parts[2], "y"); again != name {
			t.Errorf("%q: %s and %s", parts, name, again)
		}
	}
}

// The daemon of the next version reads what the shim of this one has written.
func TestFormat(t *testing.T) {
	t.Parallel()
	name, data, err := encode(wire.Request{
		Env:    map[string]string{"CNI_COMMAND": "DEL", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0"},
		Config: []byte(`{"name":"net"}`),
	})
	nodetest.OK(t, err)
	nodetest.Equal(t, "got", name, "942b7792c85697eb54b040e80b544e3a21620580ba505071f20605ad804633c7.json")
	want := `{"sum":"2a48eb5e0dacb8baf15cbed45284c591dcfbc1b19d5805ab51b8e062fb50fd63","env":{"CNI_COMMAND":"DEL","CNI_CONTAINERID":"c1","CNI_IFNAME":"eth0"},"config":"eyJuYW1lIjoibmV0In0="}`
	nodetest.Equal(t, "got", string(data), want)

	// A DEL that a later release has queued is done, whatever keys it has besides, and the same DEL
	// of this release leaves its file alone.
	dir := marked(t)
	name, data, err = encode(request("c1"))
	nodetest.OK(t, err)
	body := append([]byte(`{"later":{"a":[1.0]},`), data[sumLen:]...)
	later := append([]byte(head(body)), body[1:]...)
	nodetest.OK(t, os.WriteFile(filepath.Join(dir, name), later, 0o600))
	put(t, dir, request("c1"))
	there, err := os.ReadFile(filepath.Join(dir, name))
	nodetest.OK(t, err)
	nodetest.Equal(t, "queued", string(there), string(later))
	nodetest.Equal(t, "done", containers(t, dir), []string{"c1"})

	// Nobody's mark tells an Override, and that of a later release does.
	for text, want := range map[string]string{"": "", "A daemon": "", "null": "", `{"later":1,"override":{"a":1},"about":""}`: `{"a":1}`} {
		nodetest.OK(t, os.WriteFile(filepath.Join(dir, markName), []byte(text), 0o600))
		nodetest.Equal(t, text, string(In(dir).Override()), want)
	}
	nodetest.Equal(t, "without a directory", string(In(dir+"/none").Override()), "")
}

// A configuration that has no name cannot be undone by anyone, and is not kept
// nor told.
func TestPutOfBadConfig(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	for _, conf := range []string{
		"", "null", "[]", `"secret"`, `{"name":{"secret":1}}`, `{"password":"secret"`, fmt.Sprintf(`{"name":"net","secret":%q}`, strings.Repeat("x", wire.MaxBody)),
	} {
		r := request("c1")
		r.Config = []byte(conf)
		_, err := In(dir).Put(t.Context(), r, away)
		fails(t, err, nil, 6)
		nodetest.Equal(t, "told", strings.Contains(err.Error(), "secret"), false)
		nodetest.Equal(t, "files", entries(t, dir), nil)
	}
}

// One attachment takes one place, and the first request for it stays, unless it is damaged or for an
// attachment that was recorded at another time: it would not be done to this one.
func TestPutKeepsWhatIsThere(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	first, second := request("c1"), request("c1")
	second.Env["CNI_NETNS"] = ""
	put(t, dir, first)
	put(t, dir, second)
	nodetest.Equal(t, "done", requests(t, dir), []wire.Request{first})
	put(t, dir, first)
	nodetest.OK(t, os.Truncate(filepath.Join(dir, nameOf(t, first)), 30))
	put(t, dir, second)
	nodetest.Equal(t, "done", requests(t, dir), []wire.Request{second})
	early := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	for _, recorded := range []time.Time{early, early.Add(1), {}, early} {
		r := request("c1")
		r.Recorded = recorded
		put(t, dir, r)
		got, err := In(dir).Read(nameOf(t, r))
		nodetest.OK(t, err)
		nodetest.Equal(t, "queued for", got.Recorded, recorded)
	}
}

// The queue is bounded, whatever its files are. One that is there already needs no place.
func TestCap(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	for i := range Cap - 2 {
		nodetest.OK(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%064x%s", i, damagedSuffix)), nil, 0o600))
	}
	nodetest.OK(t, os.WriteFile(filepath.Join(dir, "README"), nil, 0o600)) // does not count
	put(t, dir, request("c7"))
	put(t, dir, request("c8"))
	_, err := In(dir).Put(t.Context(), request("one more"), away)
	fails(t, err, ErrFull, 11)
	put(t, dir, request("c7"))
	nodetest.OK(t, os.Truncate(filepath.Join(dir, nameOf(t, request("c8"))), 0))
	put(t, dir, request("c8")) // there, though damaged
	left, err := In(dir).pass(t.Context(), nil)
	nodetest.Equal(t, "left", left, 0)
	nodetest.Is(t, err, ErrDamaged)
	nodetest.Says(t, err, "and 246 more")
	put(t, dir, request("one more"))
}

// What others may have planted is not run.
func TestDirectoryOfOthers(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(dir string) error{
		"group": func(dir string) error { return os.Chmod(dir, 0o770) },
		"all":   func(dir string) error { return os.Chmod(dir, 0o702) },
		"owner": func(dir string) error {
			if os.Geteuid() != 0 {
				return os.Chmod(dir, 0o777) // cannot be tried
			}
			return os.Chown(dir, 12345, 12345)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := marked(t)
			put(t, dir, request("c1"))
			nodetest.OK(t, change(dir))
			_, err := In(dir).Put(t.Context(), request("c2"), away)
			fails(t, err, nil, 5)
			_, err = In(dir).pass(t.Context(), never(t))
			fails(t, err, nil, 5)
		})
	}
}

// trace returns a hook that writes down the calls.
func trace() (durable.Hook, *[]string) {
	var mu sync.Mutex
	var calls []string
	return func(call, name string) error {
		mu.Lock()
		defer mu.Unlock()
		if durable.IsTemp(name) {
			name = "TEMP"
		} else if isName(name, entrySuffix) {
			name = "ENTRY"
		}
		calls = append(calls, call+" "+name)
		return nil
	}, &calls
}

// failAt returns a hook that fails at the n-th call, and the number of calls.
func failAt(n int, why error) (durable.Hook, *int) {
	calls := new(int)
	return func(string, string) error {
		if *calls++; *calls == n {
			return why
		}
		return nil
	}, calls
}

// roleVar tells this test's executable, run once more, to play a part.
const roleVar = "METACNI_QUEUE_ROLE"

// TestRole is not a test: it writes to a queue, and is killed before a system call.
func TestRole(t *testing.T) {
	role := strings.Fields(os.Getenv(roleVar))
	if len(role) != 2 {
		return // no other test has asked for a part
	}
	n, err := strconv.Atoi(role[1])
	nodetest.OK(t, err)
	calls := 0
	q := Queue{dir: role[0], hook: func(string, string) error {
		if calls++; calls == n {
			return unix.Kill(os.Getpid(), unix.SIGKILL)
		}
		return nil
	}}
	if queued, err := q.Put(t.Context(), request("c1"), away); !queued || err != nil {
		t.Fatal(queued, err)
	}
	fmt.Println("survived")
}

// Killed before any of its system calls, a writer leaves its DEL or none, and
// nothing that keeps others out or is there for good.
func TestWriterKilledAnywhere(t *testing.T) {
	t.Parallel()
	for n := 1; ; n++ {
		dir := marked(t)
		crash := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRole$")
		crash.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", roleVar, dir, n))
		said, _ := crash.Output() // it fails, unless it survives
		written := slices.ContainsFunc(entries(t, dir), func(name string) bool { return isName(name, entrySuffix) })
		got := containers(t, dir)
		if strings.HasPrefix(string(said), "survived\n") {
			if len(got) != 1 || n < 10 {
				t.Errorf("survived %d calls: %q", n, got)
			}
			return
		}
		at := fmt.Sprintf("killed before call %d", n)
		nodetest.Equal(t, at, len(got) == 1, written)
		put(t, dir, request("c1"))
		nodetest.Equal(t, at, containers(t, dir), []string{"c1"})
		nodetest.Equal(t, at, entries(t, dir), nil)
	}
}

// The order is the guarantee: the directories before what is in them, the data
// before its name, the name before the return.
func TestPutSyncs(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "queue")
	hook, calls := trace()
	q := Queue{dir: dir, hook: hook}
	wrote := func(want ...string) {
		t.Helper()
		*calls = nil
		_, err := q.Put(t.Context(), request("c1"), away)
		nodetest.OK(t, err)
		nodetest.Equal(t, "calls", *calls, want)
	}
	_, _, err := q.List(t.Context())
	nodetest.OK(t, err)
	nodetest.Equal(t, "calls", *calls, []string{
		"open .", "open .", "mkdirat queue", "fsync .", "open .",
		"open .", "flock .", "openat .reader", "fstat .reader", "getdents .", "unflock .",
	})
	wrote(
		"open .", "fstatat .reader", "flock .", "openat ENTRY", "getdents .",
		"create TEMP", "write TEMP", "fsync TEMP", "close TEMP", "renameat TEMP", "fsync .", "unflock .",
	)
	// Whoever finds its request there does not know whether its writer got to
	// the last of these calls.
	wrote("open .", "fstatat .reader", "flock .", "openat ENTRY", "fstat ENTRY", "read ENTRY", "fsync .", "unflock .")
}

// Whichever call fails, Put says so, with the code of an I/O failure, and what
// is there can be read or is not there.
func TestPutReportsEveryFailure(t *testing.T) {
	t.Parallel()
	for _, there := range []bool{false, true} {
		for at := 1; ; at++ {
			dir := marked(t)
			if there {
				put(t, dir, request("c1"))
			}
			hook, n := failAt(at, unix.ENOSPC)
			_, err := Queue{dir: dir, hook: hook}.Put(t.Context(), request("c1"), away)
			got := containers(t, dir)
			if err == nil { // of no consequence
				nodetest.Equal(t, fmt.Sprintf("in it after call %d", at), got, []string{"c1"})
				if *n < at {
					break
				}
				continue
			}
			fails(t, err, unix.ENOSPC, 5)
			if len(got) > 1 || there && len(got) == 0 {
				t.Errorf("call %d: %v; there is %q", at, err, got)
			}
		}
	}
}

// nameOf returns the name of r's file.
func nameOf(t testing.TB, r wire.Request) string {
	t.Helper()
	name, _, err := encode(r)
	nodetest.OK(t, err)
	return name
}

// never is a do that is not to be called.
func never(t *testing.T) func(wire.Request) {
	t.Helper()
	return func(r wire.Request) { t.Errorf("done: %+v", r) }
}

// One daemon reads a queue at a time, whether it writes the mark, finds it, or finds
// that of a daemon with another Override, and also when the mark is taken away.
func TestOneReaderAtATime(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "queue")
	list := func(r *Reader, want error) {
		t.Helper()
		_, odd, err := r.List(t.Context())
		nodetest.OK(t, odd)
		nodetest.Is(t, err, want)
		nodetest.Equal(t, "code", fault.Code(err, 0), map[bool]uint{true: 11}[want != nil])
	}
	var last *Reader
	for _, override := range []string{`{"cniDir":"/a"}`, `{"cniDir":"/a"}`, `{"cniDir":"/b"}`} {
		last = &Reader{Queue: In(dir), Override: json.RawMessage(override)}
		for range 2 {
			list(last, nil)
			list(&Reader{Queue: In(dir)}, ErrOther)
			nodetest.Equal(t, "the mark tells", string(In(dir).Override()), override)
		}
		last.Close()
	}
	list(last, nil)
	nodetest.OK(t, os.Remove(filepath.Join(dir, markName)))
	list(last, nil)
	list(&Reader{Queue: In(dir)}, ErrOther)
	last.Close()
	mark(t, dir)
}

// Only a file of the attachment is owed, and it is gone once paid,
// however often that is asked.
func TestPay(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	hook, calls := trace()
	q := Queue{dir: dir, hook: hook}
	names := fill(t, dir, 2)
	for _, want := range [][]string{
		{"open .", "fstatat ENTRY", "unlinkat ENTRY"},
		{"open .", "fstatat ENTRY"},
	} {
		*calls = nil
		nodetest.OK(t, q.Remove(names[0]))
		nodetest.Equal(t, "calls", *calls, want)
	}
	missing := In(filepath.Join(dir, "missing"))
	nodetest.OK(t, missing.Remove(names[1]))
	for name, q := range map[string]Queue{names[0]: q, names[1]: q, "": missing} {
		owed, err := q.Has(name)
		nodetest.OK(t, err)
		nodetest.Equal(t, "owed", owed, name == names[1])
	}
	_, _, err := In(filepath.Join(dir, names[1])).List(t.Context())
	fails(t, err, unix.ENOTDIR, 5)
}

// A shim writes only where a daemon reads, and says why it does not.
func TestPutOnlyWhereADaemonReads(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "queue")
	unread := func() {
		t.Helper()
		_, err := In(dir).Put(t.Context(), request("c1"), away)
		fails(t, err, ErrUnread, 11)
		nodetest.Says(t, err, markName)
	}
	unread()
	nodetest.OK(t, os.Mkdir(dir, 0o700)) // Put has not made it
	unread()
	mark(t, dir)
	put(t, dir, request("c1"))
	// Taken away by hand, the mark is back when the daemon looks again.
	nodetest.OK(t, os.Remove(filepath.Join(dir, markName)))
	unread()
	// A daemon that cannot mark the directory does not read it: nothing would tell
	// another one that it does.
	_, err := Queue{dir: dir, hook: func(_, name string) error {
		if name == markName {
			return unix.EROFS
		}
		return nil
	}}.pass(t.Context(), never(t))
	nodetest.Is(t, err, ErrUnread)
	nodetest.Is(t, err, unix.EROFS)
	mark(t, dir)
	nodetest.Equal(t, "done", containers(t, dir), []string{"c1"})
}

// The lock is waited for until the context ends, by both sides.
func TestLockEndsWithContext(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	fill(t, dir, 1)
	began, end := make(chan struct{}), make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		once := sync.OnceFunc(func() { close(began); <-end })
		q := Queue{dir: dir, hook: func(call, _ string) error {
			if call == "getdents" { // with the lock
				once()
			}
			return nil
		}}
		if left, err := q.pass(t.Context(), nil); left != 0 || err != nil {
			t.Error(left, err)
		}
	})
	<-began
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	queued, err := In(dir).Put(ctx, request("c2"), away)
	fails(t, err, context.Canceled, 11)
	nodetest.Equal(t, "queued", queued, false)
	_, _, err = In(dir).List(ctx)
	fails(t, err, context.Canceled, 11)
	close(end)
	reader.Wait()
	nodetest.Equal(t, "files", entries(t, dir), nil)
	// Free, the lock is taken by one whose time is over: it is better to write.
	_, err = In(dir).Put(ctx, request("c4"), away)
	nodetest.OK(t, err)
	nodetest.Equal(t, "done", containers(t, dir), []string{"c4"})
}

// A writer has the lock while it looks for the daemon, so that a daemon that has come up
// meanwhile waits for what it writes.
func TestReplayWaitsForWriters(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	fill(t, dir, 1)
	got := make(chan []string, 1)
	_, err := In(dir).Put(t.Context(), request("late"), func() bool {
		go func() { got <- containers(t, dir) }()
		put(t, dir, request("other")) // others write meanwhile
		return false
	})
	nodetest.OK(t, err)
	nodetest.Equal(t, "got", <-got, []string{"c0", "late", "other"})
}

// Whichever call fails, nothing is taken for done that was not, and what was
// done and is still there is told of.
func TestReplayReportsEveryFailure(t *testing.T) {
	t.Parallel()
	for _, total := range []int{2, 1} {
		for at := 1; ; at++ {
			dir := marked(t)
			if names := fill(t, dir, 2); total == 1 {
				nodetest.OK(t, os.Truncate(filepath.Join(dir, names[0]), 0))
			}
			did := 0
			hook, calls := failAt(at, unix.EIO)
			left, err := Queue{dir: dir, hook: hook}.pass(t.Context(), func(wire.Request) { did++ })
			if *calls < at {
				break
			}
			there := len(slices.DeleteFunc(entries(t, dir), func(name string) bool { return !isName(name, entrySuffix) }))
			if !errors.Is(err, unix.EIO) && (did == 0 || left > 0) || did+there < total { // or of no consequence
				t.Errorf("EIO at call %d: %d done, %d left, %d there: %v", at, did, left, there, err)
			}
		}
	}
}

// Whichever byte is changed, and wherever the file ends, what it says is done
// as it was written, or not at all.
func TestDamageAtEveryByte(t *testing.T) {
	t.Parallel()
	name, data, err := encode(request("c1"))
	nodetest.OK(t, err)
	damaged := []string{"", "null", "{}", "[1]", string(data[sumLen:]), head([]byte("{null")) + "null", head([]byte(`{]`)) + "]", string(data) + "\n"}
	for n := range data {
		damaged = append(damaged, string(data[:n]))
		for _, flip := range []byte{1, 2, 4, 8, 16, 32, 64, 128, 255, data[n], data[n] ^ '\n'} {
			if flip != 0 {
				text := bytes.Clone(data)
				text[n] ^= flip
				damaged = append(damaged, string(text))
			}
		}
	}
	for _, text := range damaged {
		if r, err := decode(name, []byte(text)); err == nil {
			t.Errorf("%q: %v", text, r)
		}
	}
}

// A damaged file is set aside, told of until somebody removes it, and stops no
// other.
func TestDamagedFiles(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(path string) error{
		"cut off":   func(p string) error { return os.Truncate(p, 90) },
		"zeros":     func(p string) error { return os.WriteFile(p, make([]byte, 300), 0o600) },
		"too large": func(p string) error { return os.Truncate(p, maxFile+1) },
		"directory": func(p string) error { return errors.Join(os.Remove(p), os.Mkdir(p, 0o700)) },
		"link": func(p string) error {
			return errors.Join(os.Rename(p, filepath.Join(p, "../../x")), os.Symlink("../x", p))
		},
		"another's": func(p string) error {
			names, _ := filepath.Glob(filepath.Join(p, "../*.json"))
			data, err := os.ReadFile(names[0])
			return errors.Join(err, os.WriteFile(p, data, 0o600))
		},
		"pipe": func(p string) error { return errors.Join(os.Remove(p), unix.Mkfifo(p, 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := marked(t)
			bad := fill(t, dir, 3)[1]
			nodetest.OK(t, damage(filepath.Join(dir, bad)))
			aside := strings.TrimSuffix(bad, entrySuffix) + damagedSuffix
			for _, want := range []int{2, 0, 0} {
				n := 0
				left, err := In(dir).pass(t.Context(), func(wire.Request) { n++ })
				nodetest.Equal(t, "done and left", []int{n, left}, []int{want, 0})
				fails(t, err, ErrDamaged, 5)
				nodetest.Says(t, err, aside)
			}
			nodetest.Equal(t, "files", entries(t, dir), []string{aside})
			nodetest.OK(t, os.Remove(filepath.Join(dir, aside)))
			nodetest.Equal(t, "done", containers(t, dir), nil)
		})
	}
}

// What is not the queue's own is left alone and told of. What a dead writer left
// is removed.
func TestForeignFiles(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	fill(t, dir, 1)
	foreign := []string{strings.Repeat("0", 64), strings.Repeat("0", 64) + ".json~", "README", strings.Repeat("g", 64) + ".json"}
	for _, name := range append(foreign, durable.TempPrefix+"1") {
		nodetest.OK(t, os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600))
	}
	_, odd, err := In(dir).List(t.Context())
	nodetest.OK(t, err)
	nodetest.Is(t, odd, ErrForeign)
	nodetest.Says(t, odd, `"README"`)
	nodetest.Equal(t, "done", containers(t, dir), []string{"c0"})
	nodetest.Equal(t, "files", entries(t, dir), foreign)
}

// A file of a later version stays as it is, for a daemon of that version. It is
// told of and not done.
func TestFilesOfAnotherVersion(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	name := fill(t, dir, 1)[0]
	const text = `{"version":2,"del":{"container":"c1"}}`
	nodetest.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	left, err := In(dir).pass(t.Context(), never(t))
	fails(t, err, ErrVersion, 5)
	nodetest.Equal(t, "left", left, 1)
	data, err := os.ReadFile(filepath.Join(dir, name))
	nodetest.OK(t, err)
	nodetest.Equal(t, "file", string(data), text)
	owed, err := In(dir).Has(name)
	nodetest.OK(t, err)
	nodetest.Equal(t, "owed", owed, true)
	// A shim that knows its own version only does not take it for a DEL that
	// will be done.
	put(t, dir, request("c0"))
	nodetest.Equal(t, "done", containers(t, dir), []string{"c0"})
}

// Writable succeeds while a List removes the files of dead writers, and its own with them.
func TestWritableDuringAList(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	q := Queue{dir: dir, hook: func(call, _ string) error {
		if call == "fsync" {
			_, _, err := In(dir).List(t.Context())
			return err
		}
		return nil
	}}
	nodetest.OK(t, q.Writable())
}
