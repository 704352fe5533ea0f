package shim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/thick/internal/queue"
	"github.com/metacni/metacni/delegate/thick/wire"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// A DEL that finds no daemon is on disk when it is reported as done,
// whether there never was one or it dies with the DEL in its hands.
func TestDelWithoutADaemonIsOnDiskBeforeItSucceeds(t *testing.T) {
	t.Parallel()
	sockets := map[string]string{"away": filepath.Join(nodetest.ShortDir(t), "s")}
	for at, text := range cuts {
		sockets[at] = serveOnce(t, text)
	}
	for name, socket := range sockets {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := newQueue(t)
			c := &Client{Socket: socket, Queue: dir, QueueWait: -1, Env: []string{"CNI_X=y", "TOKEN=secret"}}
			for range 2 { // the second is the same
				nodetest.OK(t, c.Execute(t.Context(), "DEL", args()))
			}
			want := []wire.Request{{
				Env: map[string]string{
					"CNI_ARGS": "", "CNI_COMMAND": "DEL", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0",
					"CNI_NETNS": "/run/netns/c1", "CNI_PATH": "/opt/cni/bin", "CNI_X": "y",
				},
				Config: []byte(testConfig), APIVersion: wire.Version,
			}}
			nodetest.Equal(t, "got", queued(t, dir), want)
		})
	}
}

// A DEL waits a little for a daemon that is away before it is queued: done at
// once it leaves less behind. When the shim is told to stop meanwhile, the DEL
// is neither done nor queued, and fails.
func TestDelWaitsForTheDaemonBeforeItIsQueued(t *testing.T) {
	t.Parallel()
	dir, socket := newQueue(t), filepath.Join(nodetest.ShortDir(t), "s")
	done := make(chan error, 1)
	go func() {
		done <- (&Client{Socket: socket, Queue: dir, QueueWait: time.Minute}).Execute(t.Context(), "DEL", args())
	}()
	l := listen(t, socket+"-")
	go func() {
		conn, err := l.AcceptUnix()
		if err != nil {
			return
		}
		defer conn.Close()
		replies(okEmpty)(0, conn)
	}()
	nodetest.OK(t, os.Rename(socket+"-", socket))
	if err := <-done; err != nil {
		t.Error(err)
	}
	for _, end := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if end {
				time.AfterFunc(time.Second, cancel)
			}
			start := time.Now()
			c := &Client{Socket: filepath.Join(dir, "no-socket"), Queue: dir}
			err := c.Execute(ctx, "DEL", args())
			if end {
				wantError(t, err, 11)
			} else if err != nil {
				t.Error(err)
			}
			want := map[bool]time.Duration{false: 2 * time.Second, true: time.Second}[end]
			if d := time.Since(start); d != want {
				t.Errorf("waited %v, want %v", d, want)
			}
			if n := len(queued(t, dir)); end == (n > 0) {
				t.Errorf("queued %d", n)
			}
			for _, name := range glob(t, dir) {
				nodetest.OK(t, os.Remove(name))
			}
		})
	}
}

// serveOnce is a daemon that answers one request with text, and is away then.
func serveOnce(t *testing.T, text string) (socket string) {
	t.Helper()
	socket = filepath.Join(nodetest.ShortDir(t), "s")
	l := listen(t, socket)
	go func() {
		conn, err := l.AcceptUnix()
		if err != nil {
			return
		}
		_ = l.Close()
		replies(text)(0, conn)
		_ = conn.Close()
	}()
	return socket
}

// A DEL that cannot be written down is an error, of code 11 where it may be
// later.
func TestDelThatCannotBeQueuedFails(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(nodetest.ShortDir(t), "s")
	full := newQueue(t)
	c := &Client{Socket: socket, Queue: full, QueueWait: -1}
	for i := range queue.Cap {
		nodetest.OK(t, os.WriteFile(filepath.Join(full, fmt.Sprintf("%064x.json", i)), nil, 0o600))
	}
	wantError(t, c.Execute(t.Context(), "DEL", args()), 11)

	file := filepath.Join(nodetest.ShortDir(t), "q")
	nodetest.OK(t, os.WriteFile(file, nil, 0o600))
	wantError(t, (&Client{Socket: socket, Queue: file, QueueWait: -1}).Execute(t.Context(), "DEL", args()), 5)
	wantError(t, (&Client{Socket: socket}).Execute(t.Context(), "DEL", args()), 11) // there is none

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	dir := newQueue(t)
	wantError(t, (&Client{Socket: socket, Queue: dir, QueueWait: -1}).Execute(ended, "DEL", args()), 11)
	if len(queued(t, dir)) != 0 {
		t.Error("queued all the same, and reported as not done")
	}
}

// A daemon that comes while a DEL is about to be written down does it
// instead. Its answer counts, and nothing is left in the queue.
func TestDaemonThatComesBeforeTheDelIsQueuedDoesIt(t *testing.T) {
	t.Parallel()
	for text, code := range map[string]uint{
		okEmpty: 0, answer("500 X", `{"code":107,"msg":"own"}`): 107,
	} {
		socket, dir, listed, done := delMeetsReplay(t)
		l := listen(t, socket)
		go func() {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			_ = conn.Close() // which only looked whether there is a daemon
			if conn, err = l.AcceptUnix(); err == nil {
				replies(text)(0, conn)
				_ = conn.Close()
			}
		}()
		listed()
		if err := <-done; code == 0 && err != nil {
			t.Error(err)
		} else if code != 0 {
			wantError(t, err, code)
		}
		if all := queued(t, dir); len(all) != 0 {
			t.Errorf("queued %v", all)
		}
	}
	// One that comes and does not accept is there all the same.
	socket, dir, listed, done := delMeetsReplay(t)
	fill(t, socket)
	listed()
	err := <-done
	wantError(t, err, 11)
	if all := queued(t, dir); len(all) != 0 || !strings.Contains(err.Error(), errBusy.Error()) {
		t.Errorf("%v, queued %v", err, all)
	}
}

// delMeetsReplay has a client do a DEL without patience, and returns once that
// is about to be written down but for the lock, which a daemon has that replays.
// It goes on when listed is called.
func delMeetsReplay(t *testing.T) (socket, dir string, listed func(), done chan error) {
	t.Helper()
	socket, dir = filepath.Join(nodetest.ShortDir(t), "s"), newQueue(t)
	f, err := os.Open(dir)
	nodetest.OK(t, err)
	t.Cleanup(func() { _ = f.Close() })
	nodetest.OK(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
	done = make(chan error, 1)
	c := &Client{Socket: socket, Queue: dir, QueueWait: -1, Wait: -1}
	go func() { done <- c.Execute(t.Context(), "DEL", args()) }()
	nodetest.Until(t, "both have opened the queue", func() bool { return opened(dir) == 2 })
	return socket, dir, func() { nodetest.OK(t, syscall.Flock(int(f.Fd()), syscall.LOCK_UN)) }, done
}

// opened is how often this process has the file open.
func opened(path string) (n int) {
	fds, _ := filepath.Glob("/proc/self/fd/*")
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && to == path {
			n++
		}
	}
	return n
}

// A DEL that Away has done is not queued, the error is that of Away, and Away is not
// asked while there is a daemon.
func TestAwayDoesADelInTheDaemonsPlace(t *testing.T) {
	t.Parallel()
	own := types.NewError(107, "own", "details")
	for _, tt := range []struct {
		err  error
		code uint
	}{{nil, 0}, {own, 107}, {errors.New("plain"), 999}, {errLost, 11}} {
		dir := newQueue(t)
		asked := 0
		c := &Client{Socket: filepath.Join(nodetest.ShortDir(t), "s"), Queue: dir, QueueWait: -1, Away: func(_ context.Context, a *skel.CmdArgs) (bool, error) {
			asked++
			nodetest.Equal(t, "got", a, args())
			return true, tt.err
		}}
		err := c.Execute(t.Context(), "DEL", args())
		if tt.code != 0 {
			wantError(t, err, tt.code)
		} else if err != nil {
			t.Error(err)
		}
		if n := len(queued(t, dir)); n > 0 || asked != 1 {
			t.Errorf("asked %d times; queued %d", asked, n)
		}
		c.Socket = serveOnce(t, "") // it dies on the DEL
		if err := c.Execute(t.Context(), "DEL", args()); (err != nil) != (tt.code != 0) || asked != 2 {
			t.Errorf("%v, asked %d times", err, asked)
		}
		d := newDaemon(t, replies(answer("500 X", `{"code":108,"msg":"x"}`)))
		c.Socket = d.socket
		wantError(t, c.Execute(t.Context(), "DEL", args()), 108)
		if n := len(queued(t, dir)); n > 0 || asked != 2 {
			t.Errorf("there is a daemon; asked %d times, queued %d", asked, n)
		}
	}
}

// A DEL that Away cannot do is queued, with the time when its attachment was recorded;
// without a queue it fails with the error of Away.
func TestDelThatAwayCannotDoIsQueued(t *testing.T) {
	t.Parallel()
	recorded := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	why := types.NewError(107, "a resident plugin is needed", "")
	asked := 0
	c := &Client{
		Socket: filepath.Join(nodetest.ShortDir(t), "s"), Queue: newQueueOf(t, `{"cniDir":"/daemon"}`), QueueWait: 10 * time.Millisecond,
		Away: func(_ context.Context, a *skel.CmdArgs) (bool, error) {
			asked++
			if !strings.Contains(string(a.StdinData), `"cniDir":"/daemon"`) {
				t.Errorf("not the daemon's configuration: %s", a.StdinData)
			}
			return false, why
		},
		Recorded: func(context.Context, *skel.CmdArgs) (time.Time, bool) { return recorded, true },
	}
	if err := c.Execute(t.Context(), "DEL", args()); err != nil {
		t.Error(err)
	}
	all := queued(t, c.Queue)
	if len(all) != 1 || !all[0].Recorded.Equal(recorded) || !all[0].Unrecorded.IsZero() || asked != 1 {
		t.Errorf("asked %d times, queued %+v", asked, all)
	}
	if strings.Contains(string(all[0].Config), "/daemon") {
		t.Errorf("queued %s, not what the runtime has sent", all[0].Config)
	}
	c.Away = func(context.Context, *skel.CmdArgs) (bool, error) { return true, nil }
	if err := c.Execute(t.Context(), "DEL", args()); err != nil {
		t.Error(err)
	}
	if all := queued(t, c.Queue); len(all) != 0 {
		t.Errorf("done, and still queued: %v", all)
	}
	c.Away = func(context.Context, *skel.CmdArgs) (bool, error) { return false, why }
	c.Recorded = func(context.Context, *skel.CmdArgs) (time.Time, bool) { return time.Time{}, true }
	before := time.Now()
	if err := c.Execute(t.Context(), "DEL", args()); err != nil {
		t.Error(err)
	}
	if all := queued(t, c.Queue); len(all) != 1 || !all[0].Recorded.IsZero() || all[0].Unrecorded.Before(before) {
		t.Errorf("without a record: queued %+v", all)
	}
	c.Queue = filepath.Join(nodetest.ShortDir(t), "unread")
	wantError(t, c.Execute(t.Context(), "DEL", args()), 11)
	c.Queue = ""
	wantError(t, c.Execute(t.Context(), "DEL", args()), 107)
}

// As long as no daemon has told its Override, the shim does not guess where the records
// are.
func TestAwayIsNotAskedWithoutTheDaemonsConfiguration(t *testing.T) {
	t.Parallel()
	c := &Client{
		Socket: filepath.Join(nodetest.ShortDir(t), "s"), Queue: newQueueOf(t, ""), QueueWait: -1,
		Away: func(context.Context, *skel.CmdArgs) (bool, error) {
			t.Error("asked")
			return true, nil
		},
	}
	if err := c.Execute(t.Context(), "DEL", args()); err != nil {
		t.Error(err)
	}
	if all := queued(t, c.Queue); len(all) != 1 {
		t.Errorf("queued %v", all)
	}
}

// fill listens at socket, with a full backlog.
func fill(t *testing.T, socket string) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	nodetest.OK(t, err)
	t.Cleanup(func() { _ = syscall.Close(fd) })
	// By another name first: nobody else is to take a place in the backlog.
	hidden := socket + "-"
	nodetest.OK(t, errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: hidden}), syscall.Listen(fd, 0)))
	for {
		conn, err := net.Dial("unix", hidden)
		if err != nil {
			break
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	nodetest.OK(t, os.Rename(hidden, socket))
}

// A DEL of a step is neither queued nor left to Away: the record that knows of the step would
// be gone, and a queued DEL of the attachment would be taken for done.
func TestDelOfAStepIsNotQueued(t *testing.T) {
	t.Parallel()
	dir := newQueue(t)
	c := &Client{Socket: filepath.Join(nodetest.ShortDir(t), "s"), Queue: dir, Wait: -1, QueueWait: -1}
	nodetest.OK(t, c.Execute(t.Context(), "DEL", args()))
	c.Away = func(context.Context, *skel.CmdArgs) (bool, error) {
		t.Error("Away was asked")
		return true, nil
	}
	a := args()
	a.StdinData = []byte(`{"cniVersion":"1.1.0","name":"net","type":"tenant","step":"rule"}`)
	wantError(t, c.Execute(t.Context(), "DEL", a), 11)
	if n := len(queued(t, dir)); n != 1 {
		t.Errorf("queued %d", n)
	}
}
