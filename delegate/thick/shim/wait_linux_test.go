package shim

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// ADD, CHECK and GC wait for a daemon that is away for as long as Wait
// says, and then answer 11. STATUS and DEL do not wait. Attach always does.
func TestWaitForADaemonThatIsAway(t *testing.T) {
	t.Parallel()
	stale := away(t)
	l := listen(t, stale)
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	for _, socket := range []string{away(t), stale} {
		for _, command := range commands {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				wantError(t, (&Client{Socket: socket, Stdout: io.Discard}).Execute(t.Context(), command, args()), later(command))
				want := 30 * time.Second
				if command == "STATUS" || command == "DEL" { // it is an error, not a success
					want = 0
				}
				nodetest.Equal(t, command+" waited", time.Since(start), want)
			})
		}
		for _, command := range []string{"ADD", "CHECK", "DEL"} {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				c := newClient(t, socket)
				c.Wait = 10 * time.Second
				c.Away = func(context.Context, *skel.CmdArgs) (bool, error) {
					t.Error("a command of nobody's runtime was done in the daemon's place")
					return true, nil
				}
				_, err := c.Do(t.Context(), command, args(), &wire.Attributes{})
				wantError(t, err, 11)
				nodetest.Is(t, err, errAway)
				nodetest.Equal(t, command+" waited", time.Since(start), c.Wait)
				c.wantQueued(t, 0)
			})
		}
	}
}

// The total limit, and the end of the context, end the wait for a daemon, with their reason.
func TestWaitIsWithinTheTimeout(t *testing.T) {
	t.Parallel()
	for _, limited := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			reason := errors.New("asked to stop")
			c, wants := &Client{Socket: away(t)}, []error{context.Canceled, reason}
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(7*time.Second, func() { cancel(reason) })
			if limited {
				c.Timeout, wants, ctx = 7*time.Second, []error{context.DeadlineExceeded, errAway}, t.Context()
			}
			start := time.Now()
			_, err := c.Do(ctx, "GC", args(), nil)
			wantError(t, err, 11)
			nodetest.Equal(t, "waited", time.Since(start), 7*time.Second)
			for _, want := range wants {
				nodetest.Is(t, err, want)
			}
		})
	}
}

// Pauses grow from 50 ms to a second, less a little, and a hint of the
// daemon only makes them shorter.
func TestPausesGrow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct{ pause, hint, least, most time.Duration }{
			{firstPause, -1, firstPause / 2, firstPause},
			{maxPause, -1, maxPause / 2, maxPause},
			{maxPause, 0, firstPause / 2, firstPause},
			{maxPause, 200 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond},
			{firstPause, time.Hour, firstPause / 2, firstPause},
		} {
			start := time.Now()
			if !rest(t.Context(), tt.pause, tt.hint) {
				t.Error("ended")
			}
			if d := time.Since(start); d < tt.least || d > tt.most {
				t.Errorf("%+v: %v", tt, d)
			}
		}
	})
}

// 503 says that nothing was done, so that any command may be sent again;
// STATUS has no time for it.
func TestRequestIsSentAgainToABusyDaemon(t *testing.T) {
	t.Parallel()
	for _, command := range commands {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			d := newDaemon(t, replies(busy, busy, okAdd))
			c := newClient(t, d.socket)
			err := c.Execute(t.Context(), command, args())
			if command == "STATUS" {
				wantError(t, err, 50)
				nodetest.Equal(t, "requests", d.count(), 1)
				return
			}
			nodetest.OK(t, err)
			nodetest.Equal(t, "requests", d.count(), 3)
			// and when it stays so, 11, and no DEL is taken for queued
			for c.Wait = 200 * time.Millisecond; ; c.Wait *= 4 { // until a slow machine has asked twice
				d = newDaemon(t, replies(busy))
				c.Socket = d.socket
				wantError(t, c.Execute(t.Context(), command, args()), 11)
				if d.count() >= 2 || t.Failed() {
					break
				}
			}
			c.wantQueued(t, 0)
		})
	}
}

// cuts are what a daemon that dies leaves of a response.
var cuts = map[string]string{
	"before the response": "",
	"in the header":       "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n",
	"in the body":         "HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n" + testResult,
}

// A daemon that goes away before it has answered has perhaps done an ADD.
// It is not sent again. CHECK, GC and DEL are.
func TestAddIsNotSentAgainToADaemonThatWasLost(t *testing.T) {
	t.Parallel()
	for at, text := range cuts {
		for _, command := range commands {
			t.Run(command+" "+at, func(t *testing.T) {
				t.Parallel()
				d := newDaemon(t, replies(text, okAdd))
				c := newClient(t, d.socket)
				code, sent := uint(0), 2
				if command == "ADD" || command == "STATUS" {
					code, sent = later(command), 1
				}
				wantError(t, c.Execute(t.Context(), command, args()), code)
				nodetest.Equal(t, "sent", d.count(), sent)
				c.wantQueued(t, 0)
			})
		}
	}
	// A result without a length ends with the connection, however that ended.
	for i := range testResult {
		d := newDaemon(t, replies("HTTP/1.0 200 OK\r\n\r\n"+testResult[:i]))
		_, err := (&Client{Socket: d.socket}).Do(t.Context(), "ADD", args(), nil)
		wantError(t, err, 11)
		nodetest.Is(t, err, errLost)
	}
}

// A daemon may close before it has read all, with a reason or without.
func TestDaemonDoesNotReadAll(t *testing.T) {
	t.Parallel()
	for text, code := range map[string]uint{answer("413 X", `{"code":6,"msg":"too large"}`): 6, "": 11} {
		d := newDaemon(t, func(_ int, conn *net.UnixConn) {
			_, _ = io.ReadFull(conn, make([]byte, 10))
			_, _ = io.WriteString(conn, text)
		})
		_, err := (&Client{Socket: d.socket}).Do(t.Context(), "ADD", longArgs(), nil)
		wantError(t, err, code)
		nodetest.Equal(t, "sent", d.count(), 1)
	}
}

// What answers is something else, or the socket cannot be used at all: an error
// at once, and no DEL is taken for queued.
func TestNotADaemon(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, func(_ int, conn *net.UnixConn) { _, _ = io.WriteString(conn, "SSH-2.0-OpenSSH_9.6\r\n") })
	for socket, code := range map[string]uint{d.socket: 6, "/tmp/" + strings.Repeat("x", 200): 5} {
		for _, command := range commands {
			if command == "STATUS" {
				code = 50
			}
			c := newClient(t, socket)
			wantError(t, c.Execute(t.Context(), command, args()), code)
			c.wantQueued(t, 0)
		}
	}
}

// longArgs are those of a long request.
func longArgs() *skel.CmdArgs {
	a := args()
	a.StdinData = []byte(`{"name":"net","x":"` + strings.Repeat("x", 2<<20) + `"}`)
	return a
}

// A DEL that finds no daemon is on disk when it is reported as done,
// whether there never was one or it dies with the DEL in its hands.
func TestDelWithoutADaemonIsOnDiskBeforeItSucceeds(t *testing.T) {
	t.Parallel()
	sockets := map[string]string{"away": away(t)}
	for at, text := range cuts {
		sockets[at] = serveOnce(t, text)
	}
	for name, socket := range sockets {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClient(t, socket)
			c.Env = []string{"CNI_X=y", "TOKEN=secret"}
			for range 2 { // the second is the same
				nodetest.OK(t, c.Execute(t.Context(), "DEL", args()))
			}
			nodetest.Equal(t, "got", queued(t, c.Queue), []wire.Request{{
				Env: map[string]string{
					"CNI_ARGS": "", "CNI_COMMAND": "DEL", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0",
					"CNI_NETNS": "/run/netns/c1", "CNI_PATH": "/opt/cni/bin", "CNI_X": "y",
				},
				Config: []byte(testConfig), APIVersion: wire.Version,
			}})
		})
	}
}

// A DEL waits a little for a daemon that is away before it is queued: done at
// once it leaves less behind. When the shim is told to stop meanwhile, the DEL
// is neither done nor queued, and fails.
func TestDelWaitsForTheDaemonBeforeItIsQueued(t *testing.T) {
	t.Parallel()
	c := newClient(t, away(t))
	c.QueueWait = time.Hour
	done := make(chan error, 1)
	go func() { done <- c.Execute(t.Context(), "DEL", args()) }()
	nodetest.OK(t, os.Rename(serveOnce(t, okEmpty), c.Socket))
	nodetest.OK(t, nodetest.Come(t, done, "the answer"))
	for _, end := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			wait, code, queued := 2*time.Second, uint(0), 1
			if end {
				wait, code, queued = time.Second, 11, 0
				time.AfterFunc(wait, cancel)
			}
			start := time.Now()
			c := newClient(t, away(t))
			c.QueueWait = 0
			wantError(t, c.Execute(ctx, "DEL", args()), code)
			nodetest.Equal(t, "waited", time.Since(start), wait)
			c.wantQueued(t, queued)
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
	c := newClient(t, away(t))
	for i := range queue.Cap {
		nodetest.OK(t, os.WriteFile(filepath.Join(c.Queue, fmt.Sprintf("%064x.json", i)), nil, 0o600))
	}
	wantError(t, c.Execute(t.Context(), "DEL", args()), 11)
	c.Queue = filepath.Join(c.Queue, fmt.Sprintf("%064x.json", 0)) // a file
	wantError(t, c.Execute(t.Context(), "DEL", args()), 5)
	c.Queue = "" // there is none
	wantError(t, c.Execute(t.Context(), "DEL", args()), 11)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	c = newClient(t, c.Socket)
	wantError(t, c.Execute(ended, "DEL", args()), 11)
	c.wantQueued(t, 0) // it is reported as not done
}

// A daemon that comes while a DEL is about to be written down does it
// instead. Its answer counts, and nothing is left in the queue.
func TestDaemonThatComesBeforeTheDelIsQueuedDoesIt(t *testing.T) {
	t.Parallel()
	for text, code := range map[string]uint{
		okEmpty: 0, answer("500 X", `{"code":107,"msg":"own"}`): 107,
		"": 11, // one that comes and does not accept is there all the same
	} {
		c, listed, done := delMeetsReplay(t)
		if text == "" {
			fill(t, c.Socket)
		} else {
			l := listen(t, c.Socket)
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
		}
		listed()
		err := nodetest.Come(t, done, "the end of the DEL")
		wantError(t, err, code)
		nodetest.Equal(t, "busy", errors.Is(err, errBusy) || strings.Contains(fmt.Sprint(err), errBusy.Error()), text == "")
		c.wantQueued(t, 0)
	}
}

// delMeetsReplay has a client do a DEL without patience, and returns once that
// is about to be written down but for the lock, which a daemon has that replays.
// It goes on when listed is called.
func delMeetsReplay(t *testing.T) (c *Client, listed func(), done chan error) {
	t.Helper()
	c = newClient(t, away(t))
	c.Wait = -1
	f, err := os.Open(c.Queue)
	nodetest.OK(t, err)
	t.Cleanup(func() { _ = f.Close() })
	nodetest.OK(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
	done = make(chan error, 1)
	go func() { done <- c.Execute(t.Context(), "DEL", args()) }()
	nodetest.Until(t, "both have opened the queue", func() bool { return opened(c.Queue) == 2 })
	return c, func() { nodetest.OK(t, syscall.Flock(int(f.Fd()), syscall.LOCK_UN)) }, done
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
	for _, tt := range []struct {
		err  error
		code uint
	}{{nil, 0}, {types.NewError(107, "own", "details"), 107}, {errors.New("plain"), 999}, {errLost, 11}} {
		asked := 0
		c := newClient(t, away(t))
		c.Away = func(_ context.Context, a *skel.CmdArgs) (bool, error) {
			asked++
			nodetest.Equal(t, "got", a, args())
			return true, tt.err
		}
		wantError(t, c.Execute(t.Context(), "DEL", args()), tt.code)
		nodetest.Equal(t, "asked", asked, 1)
		c.Socket = serveOnce(t, "") // it dies on the DEL
		wantError(t, c.Execute(t.Context(), "DEL", args()), tt.code)
		nodetest.Equal(t, "asked", asked, 2)
		c.Socket = newDaemon(t, replies(answer("500 X", `{"code":108,"msg":"x"}`))).socket
		wantError(t, c.Execute(t.Context(), "DEL", args()), 108)
		nodetest.Equal(t, "asked", asked, 2)
		c.wantQueued(t, 0)
	}
}

// A DEL that Away cannot do is queued, with the time when its attachment was recorded;
// without a queue it fails with the error of Away.
func TestDelThatAwayCannotDoIsQueued(t *testing.T) {
	t.Parallel()
	recorded := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	why := types.NewError(107, "a resident plugin is needed", "")
	asked := 0
	c := newClient(t, away(t))
	c.Queue, c.QueueWait = newQueueOf(t, `{"cniDir":"/daemon"}`), 10*time.Millisecond
	c.Away = func(_ context.Context, a *skel.CmdArgs) (bool, error) {
		asked++
		nodetest.Equal(t, "the daemon's configuration", strings.Contains(string(a.StdinData), `"cniDir":"/daemon"`), true)
		return false, why
	}
	c.Recorded = func(context.Context, *skel.CmdArgs) (time.Time, bool) { return recorded, true }
	nodetest.OK(t, c.Execute(t.Context(), "DEL", args()))
	all := queued(t, c.Queue)
	if len(all) != 1 || !all[0].Recorded.Equal(recorded) || !all[0].Unrecorded.IsZero() || asked != 1 {
		t.Errorf("asked %d times, queued %+v", asked, all)
	}
	nodetest.Equal(t, "queued", string(all[0].Config), testConfig)
	c.Away = func(context.Context, *skel.CmdArgs) (bool, error) { return true, nil }
	nodetest.OK(t, c.Execute(t.Context(), "DEL", args()))
	c.wantQueued(t, 0)
	c.Away = func(context.Context, *skel.CmdArgs) (bool, error) { return false, why }
	c.Recorded = func(context.Context, *skel.CmdArgs) (time.Time, bool) { return time.Time{}, true }
	before := time.Now()
	nodetest.OK(t, c.Execute(t.Context(), "DEL", args()))
	if all := queued(t, c.Queue); len(all) != 1 || !all[0].Recorded.IsZero() || all[0].Unrecorded.Before(before) {
		t.Errorf("without a record: queued %+v", all)
	}
	c.Queue = away(t) // nobody reads it
	wantError(t, c.Execute(t.Context(), "DEL", args()), 11)
	c.Queue = ""
	wantError(t, c.Execute(t.Context(), "DEL", args()), 107)
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

// As long as no daemon has told its Override, the shim does not guess where the records
// are. Nor is a DEL of a step left to Away, and it is not queued: the record that knows of the step would
// be gone, and a queued DEL of the attachment would be taken for done.
func TestAwayIsNotAsked(t *testing.T) {
	t.Parallel()
	c := newClient(t, away(t))
	c.Wait = -1
	c.Away = func(context.Context, *skel.CmdArgs) (bool, error) {
		t.Error("asked")
		return true, nil
	}
	a := args()
	a.StdinData = []byte(`{"cniVersion":"1.1.0","name":"net","type":"tenant","step":"rule"}`)
	wantError(t, c.Execute(t.Context(), "DEL", a), 11)
	c.wantQueued(t, 0)
	c.Queue = newQueueOf(t, "")
	nodetest.OK(t, c.Execute(t.Context(), "DEL", args()))
	wantError(t, c.Execute(t.Context(), "DEL", a), 11)
	c.wantQueued(t, 1)
}

// When the context ends, the daemon is told, and its answer still reaches the shim: what was undone says so.
// A result that comes then is none: the daemon may undo it. What is done is done for the others. Without an
// answer within the UndoTimeout the end of the context is the reason. No DEL is taken for queued.
func TestEndOfTheContext(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		args *skel.CmdArgs
		says string
		code map[string]uint // if not that of what may succeed later
	}{
		"an error":              {args(), answer("500 X", `{"code":107,"msg":"undone"}`), map[string]uint{"ADD": 107, "CHECK": 107, "DEL": 107, "GC": 107}},
		"a result":              {args(), okAdd, map[string]uint{"CHECK": 0, "DEL": 0, "GC": 0}},
		"the end":               {args(), "", nil},
		"silence":               {args(), "silence", nil},
		"not the whole request": {longArgs(), "silence", nil},
	} {
		for _, command := range commands {
			if command == "STATUS" && tt.code != nil {
				continue // it has no time for an answer, but may be in time
			}
			t.Run(command+" "+name, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithCancel(t.Context())
				d := newDaemon(t, func(_ int, conn *net.UnixConn) {
					_, _ = io.ReadFull(conn, make([]byte, 10))
					if len(tt.args.StdinData) > len(testConfig) { // nothing more is read
						cancel()
						<-t.Context().Done()
					}
					_, _, _ = request(io.MultiReader(strings.NewReader("POST /cni "), conn))
					cancel()
					_, _ = io.Copy(io.Discard, conn) // until the other half is closed
					if tt.says == "silence" {
						<-t.Context().Done()
					}
					_, _ = io.WriteString(conn, tt.says)
				})
				c := newClient(t, d.socket)
				if c.UndoTimeout = 2 * time.Minute; tt.says == "silence" && command != "STATUS" { // for which there is no time
					c.UndoTimeout = 5 * time.Millisecond
				}
				code, other := tt.code[command]
				if !other {
					code = later(command)
				}
				r, err := c.Do(ctx, command, tt.args, nil)
				wantError(t, err, code)
				if !other && command != "STATUS" { // whose two seconds a slow machine needs
					nodetest.Is(t, err, context.Canceled)
				}
				nodetest.Equal(t, "a result", r != nil, false)
				nodetest.Equal(t, "sent", d.count(), 1)
				c.wantQueued(t, 0)
			})
		}
	}
}
