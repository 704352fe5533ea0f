package queue

import (
	"context"
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

	"github.com/google/go-cmp/cmp"
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

// done is the do of a daemon that has nothing to do.
func done(context.Context, wire.Request) error { return nil }

func request(container string) wire.Request {
	return wire.Request{
		Env:        map[string]string{"CNI_COMMAND": "DEL", "CNI_CONTAINERID": container, "CNI_IFNAME": "eth0", "CNI_NETNS": "/run/netns/<x>"},
		Config:     []byte(`{"cniVersion":"1.1.0","name":"net","type":"multinet","password":"secret & more"}`),
		APIVersion: wire.Version,
	}
}

// nameOf returns the name of r's file.
func nameOf(t *testing.T, r wire.Request) string {
	t.Helper()
	name, _, err := encode(r)
	nodetest.OK(t, err)
	return name
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
	if _, odd, err := In(dir).List(t.Context()); odd != nil || err != nil {
		t.Fatal(odd, err)
	}
}

// marked returns the directory of an empty queue that a daemon reads.
func marked(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "queue")
	mark(t, dir)
	return dir
}

// pass does what a daemon does: it tries once to do each DEL. It returns how
// many are left, and everything that is wrong.
func pass(ctx context.Context, dir string, do func(context.Context, wire.Request) error) (left int, err error) {
	return In(dir).pass(ctx, do)
}

func (q Queue) pass(ctx context.Context, do func(context.Context, wire.Request) error) (left int, err error) {
	names, odd, err := q.List(ctx)
	errs := []error{odd, err}
	for _, name := range names {
		r, err := q.Read(name)
		if err == nil {
			err = do(ctx, r)
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

// containers does the DELs in dir and returns whose they were.
func containers(t *testing.T, dir string) []string {
	t.Helper()
	var got []string
	left, err := pass(t.Context(), dir, func(_ context.Context, r wire.Request) error {
		got = append(got, r.Env["CNI_CONTAINERID"])
		return nil
	})
	if err != nil && !errors.Is(err, ErrForeign) || left != 0 {
		t.Errorf("%d left: %v", left, err)
	}
	slices.Sort(got)
	return got
}

// entries lists the directory, without the mark.
func entries(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		if e.Name() != markName {
			names = append(names, e.Name())
		}
	}
	return names
}

func code(t *testing.T, err error) uint {
	t.Helper()
	if err == nil || !strings.HasPrefix(err.Error(), "DEL queue: ") {
		t.Errorf("not an error of the queue: %v", err)
	}
	return fault.Code(err, 0)
}

func TestPutReplay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/a/queue"
	mark(t, dir)
	r := request("c1")
	r.DeadlineMs = 115000
	put(t, dir, r)
	for path, want := range map[string]fs.FileMode{
		filepath.Dir(dir):                fs.ModeDir | 0o700,
		dir:                              fs.ModeDir | 0o700,
		filepath.Join(dir, nameOf(t, r)): 0o600,
		filepath.Join(dir, markName):     0o600,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	var got []wire.Request
	left, err := pass(t.Context(), dir, func(_ context.Context, r wire.Request) error {
		got = append(got, r)
		return nil
	})
	nodetest.OK(t, err)
	r.DeadlineMs = 0
	if diff := cmp.Diff([]wire.Request{r}, got); diff != "" || left != 0 {
		t.Error(left, diff)
	}
	if left := entries(t, dir); len(left) != 0 {
		t.Errorf("left %q", left)
	}
}

// Nothing is written when the daemon is there after all.
func TestPutTriesFirst(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	queued, err := In(dir).Put(t.Context(), request("c1"), func() bool { return true })
	if queued || err != nil || len(entries(t, dir)) != 0 {
		t.Errorf("%v, %v, %q", queued, err, entries(t, dir))
	}
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
	// What a later version adds is covered by the sum, and ignored.
	body := []byte(`{"later":true,"env":{"CNI_CONTAINERID":"c1","CNI_IFNAME":"eth0"},"config":"eyJuYW1lIjoibmV0In0="}`)
	r, err := decode(name, append([]byte(head(body)), body[1:]...))
	if err != nil || r.Env["CNI_CONTAINERID"] != "c1" {
		t.Errorf("%v, %v", r, err)
	}
}

// A configuration that has no name cannot be undone by anyone, and is not kept
// nor told.
func TestPutOfBadConfig(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	for _, conf := range []string{"", "secret", "null", "[]", `"secret"`, `{"name":{"secret":1}}`, `{"password":"secret"`, "\x00"} {
		r := request("c1")
		r.Config = []byte(conf)
		_, err := In(dir).Put(t.Context(), r, away)
		if code(t, err) != 6 || strings.Contains(err.Error(), "secret") || len(entries(t, dir)) != 0 {
			t.Errorf("%q: %v", conf, err)
		}
	}
	r := request("c1")
	r.Config = fmt.Appendf(nil, `{"name":"net","x":%q}`, strings.Repeat("x", wire.MaxBody))
	if _, err := In(dir).Put(t.Context(), r, away); code(t, err) != 6 || len(entries(t, dir)) != 0 {
		t.Errorf("large: %.100v", err)
	}
}

// One attachment takes one place, and the first request for it stays.
func TestPutKeepsWhatIsThere(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	first, second := request("c1"), request("c1")
	second.Env["CNI_NETNS"] = ""
	put(t, dir, first)
	put(t, dir, second)
	check := func(want wire.Request) {
		t.Helper()
		left, err := pass(t.Context(), dir, func(_ context.Context, got wire.Request) error {
			nodetest.Equal(t, "got", got, want)
			return nil
		})
		if left != 0 || err != nil {
			t.Error(left, err)
		}
	}
	check(first)
	// A damaged one is as good as none.
	put(t, dir, first)
	nodetest.OK(t, os.Truncate(filepath.Join(dir, nameOf(t, first)), 30))
	put(t, dir, second)
	check(second)
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
	if !errors.Is(err, ErrFull) || code(t, err) != 11 {
		t.Error(err)
	}
	put(t, dir, request("c7"))
	nodetest.OK(t, os.Truncate(filepath.Join(dir, nameOf(t, request("c8"))), 0))
	put(t, dir, request("c8")) // there, though damaged
	left, err := pass(t.Context(), dir, done)
	if left != 0 || !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "and 246 more") {
		t.Error(left, err)
	}
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
		dir := marked(t)
		put(t, dir, request("c1"))
		nodetest.OK(t, change(dir))
		if _, err := In(dir).Put(t.Context(), request("c2"), away); code(t, err) != 5 {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := pass(t.Context(), dir, func(context.Context, wire.Request) error { t.Error("done"); return nil }); code(t, err) != 5 {
			t.Errorf("%s: %v", name, err)
		}
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

// roleVar tells this test's executable, run once more, to play a part.
const roleVar = "METACNI_QUEUE_ROLE"

// TestRole is not a test: it writes to a queue, and is killed before a system call.
func TestRole(t *testing.T) {
	role := strings.Fields(os.Getenv(roleVar))
	if len(role) != 2 {
		t.Skip("plays a part in other tests")
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
		before := entries(t, dir)
		got := containers(t, dir)
		if strings.HasPrefix(string(said), "survived\n") {
			if len(got) != 1 || n < 10 {
				t.Errorf("survived %d calls: %q", n, got)
			}
			return
		}
		if written := slices.ContainsFunc(before, func(name string) bool { return isName(name, entrySuffix) }); written != (len(got) == 1) {
			t.Errorf("killed before call %d: %q, and in it %q", n, before, got)
		}
		put(t, dir, request("c1"))
		if got := containers(t, dir); len(got) != 1 {
			t.Errorf("after call %d: %q", n, got)
		}
		if names := entries(t, dir); len(names) != 0 {
			t.Errorf("after call %d: left %q", n, names)
		}
	}
}

// The order is the guarantee: the directories before what is in them, the data
// before its name, the name before the return.
func TestPutSyncs(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "queue")
	hook, calls := trace()
	q := Queue{dir: dir, hook: hook}
	_, _, err := q.List(t.Context())
	nodetest.OK(t, err)
	want := []string{
		"open .", "open .", "mkdirat queue", "fsync .", "open .",
		"open .", "flock .", "openat .reader", "fstat .reader", "getdents .", "unflock .",
	}
	nodetest.Equal(t, "got", *calls, want)
	*calls = nil
	_, err = q.Put(t.Context(), request("c1"), away)
	nodetest.OK(t, err)
	want = []string{
		"open .", "fstatat .reader", "flock .", "openat ENTRY", "getdents .",
		"create TEMP", "write TEMP", "fsync TEMP", "close TEMP", "renameat TEMP", "fsync .", "unflock .",
	}
	nodetest.Equal(t, "got", *calls, want)
	// Whoever finds its request there does not know whether its writer got to
	// the last of these calls.
	*calls = nil
	_, err = q.Put(t.Context(), request("c1"), away)
	nodetest.OK(t, err)
	want = []string{"open .", "fstatat .reader", "flock .", "openat ENTRY", "fstat ENTRY", "read ENTRY", "fsync .", "unflock ."}
	nodetest.Equal(t, "got", *calls, want)
}

// Whichever call fails, Put says so, with the code of an I/O failure, and what
// is there can be read or is not there.
func TestPutReportsEveryFailure(t *testing.T) {
	t.Parallel()
	for _, errno := range []unix.Errno{unix.ENOSPC, unix.EROFS} {
		for _, there := range []bool{false, true} {
			for at := 1; ; at++ {
				dir := marked(t)
				if there {
					put(t, dir, request("c1"))
				}
				n := 0
				hook := func(call, name string) error {
					if n++; n == at {
						return errno
					}
					return nil
				}
				_, err := Queue{dir: dir, hook: hook}.Put(t.Context(), request("c1"), away)
				got := containers(t, dir)
				if err == nil {
					if len(got) != 1 {
						t.Errorf("%v at call %d: nil, and there is %q", errno, at, got)
					}
					if n < at {
						break
					}
					continue // of no consequence
				}
				if !errors.Is(err, errno) || code(t, err) != 5 || len(got) > 1 || there && len(got) == 0 {
					t.Errorf("%v at call %d: %v; there is %q", errno, at, err, got)
				}
			}
		}
	}
}
