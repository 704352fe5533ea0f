package shim

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate/thick/wire"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// ADD, CHECK and GC wait for a daemon that is away for as long as Wait
// says, and then answer 11. STATUS and DEL do not wait. Attach always does.
func TestWaitForADaemonThatIsAway(t *testing.T) {
	t.Parallel()
	stale := filepath.Join(nodetest.ShortDir(t), "s")
	l := listen(t, stale)
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	for _, socket := range []string{filepath.Join(nodetest.ShortDir(t), "s"), stale} {
		for _, command := range commands {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				c := &Client{Socket: socket, Stdout: io.Discard}
				err := c.run(t, command)
				want, code := 30*time.Second, uint(11)
				switch command {
				case "STATUS":
					want, code = 0, 50
				case "DEL": // it is an error, not a success
					want = 0
				}
				wantError(t, err, code)
				if waited := time.Since(start); waited != want {
					t.Errorf("%s waited %v, want %v", command, waited, want)
				}
			})
		}
		for _, command := range []string{"ADD", "CHECK", "DEL"} {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				dir := newQueue(t)
				c := &Client{Socket: socket, Wait: 10 * time.Second, Queue: dir, Away: func(context.Context, *skel.CmdArgs) (bool, error) {
					t.Error("a command of nobody's runtime was done in the daemon's place")
					return true, nil
				}}
				_, err := c.Do(t.Context(), command, args(), &wire.Attributes{})
				wantError(t, err, 11)
				if !errors.Is(err, errAway) || time.Since(start) != c.Wait {
					t.Errorf("%s: %v after %v", command, err, time.Since(start))
				}
				if len(queued(t, dir)) > 0 {
					t.Error("queued")
				}
			})
		}
	}
}

// The total limit, and the end of the context, end the wait for a daemon, with their reason.
func TestWaitIsWithinTheTimeout(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(nodetest.ShortDir(t), "s")
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		_, err := (&Client{Socket: socket, Timeout: 5 * time.Second}).Do(t.Context(), "ADD", args(), nil)
		wantError(t, err, 11)
		if time.Since(start) != 5*time.Second || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errAway) {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		reason := errors.New("asked to stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(7*time.Second, func() { cancel(reason) })
		start := time.Now()
		_, err := (&Client{Socket: socket}).Do(ctx, "GC", args(), nil)
		wantError(t, err, 11)
		if time.Since(start) != 7*time.Second || !errors.Is(err, context.Canceled) || !errors.Is(err, reason) {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
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
			dir := newQueue(t)
			err := (&Client{Socket: d.socket, Stdout: io.Discard, Queue: dir, QueueWait: -1}).run(t, command)
			n := d.count()
			if command == "STATUS" {
				wantError(t, err, 50)
				if n != 1 {
					t.Errorf("asked %d times", n)
				}
				return
			}
			if err != nil || n != 3 {
				t.Errorf("%v after %d requests, want 3", err, n)
			}
			// and when it stays so, 11, and no DEL is taken for queued
			for wait := 200 * time.Millisecond; ; wait *= 4 { // until a slow machine has asked twice
				d = newDaemon(t, replies(busy))
				err = (&Client{Socket: d.socket, Stdout: io.Discard, Queue: dir, QueueWait: -1, Wait: wait}).run(t, command)
				wantError(t, err, 11)
				if d.count() >= 2 || t.Failed() {
					break
				}
			}
			if len(queued(t, dir)) > 0 {
				t.Error("queued")
			}
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
				dir := newQueue(t)
				err := (&Client{Socket: d.socket, Stdout: io.Discard, Queue: dir, QueueWait: -1}).run(t, command)
				n := d.count()
				switch command {
				case "ADD":
					wantError(t, err, 11)
					if n != 1 {
						t.Errorf("sent %d times", n)
					}
				case "STATUS":
					wantError(t, err, 50)
					if n != 1 {
						t.Errorf("sent %d times", n)
					}
				default:
					if err != nil || n != 2 {
						t.Errorf("%v, sent %d times", err, n)
					}
				}
				if len(queued(t, dir)) > 0 {
					t.Error("queued")
				}
			})
		}
	}
	// A result without a length ends with the connection, however that ended.
	for i := range testResult {
		d := newDaemon(t, replies("HTTP/1.0 200 OK\r\n\r\n"+testResult[:i]))
		_, err := (&Client{Socket: d.socket}).Do(t.Context(), "ADD", args(), nil)
		wantError(t, err, 11)
		if !errors.Is(err, errLost) {
			t.Errorf("cut at %d: %v", i, err)
		}
	}
}

// A daemon may close before it has read all, with a reason or without.
func TestDaemonDoesNotReadAll(t *testing.T) {
	t.Parallel()
	a := args()
	a.StdinData = []byte(`{"name":"net","x":"` + strings.Repeat("x", 2<<20) + `"}`)
	for text, code := range map[string]uint{answer("413 X", `{"code":6,"msg":"too large"}`): 6, "": 11} {
		d := newDaemon(t, func(_ int, conn *net.UnixConn) {
			_, _ = io.ReadFull(conn, make([]byte, 10))
			_, _ = io.WriteString(conn, text)
		})
		_, err := (&Client{Socket: d.socket}).Do(t.Context(), "ADD", a, nil)
		wantError(t, err, code)
		if d.count() != 1 {
			t.Errorf("sent %d times", d.count())
		}
	}
}

// What answers is something else, or the socket cannot be used at all: an error
// at once, and no DEL is taken for queued.
func TestNotADaemon(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, func(_ int, conn *net.UnixConn) { _, _ = io.WriteString(conn, "SSH-2.0-OpenSSH_9.6\r\n") })
	long := filepath.Join("/tmp", strings.Repeat("x", 200))
	for socket, code := range map[string]uint{d.socket: 6, long: 5} {
		for _, command := range commands {
			if command == "STATUS" {
				code = 50
			}
			dir := newQueue(t)
			wantError(t, (&Client{Socket: socket, Stdout: io.Discard, Queue: dir, QueueWait: -1}).run(t, command), code)
			if len(queued(t, dir)) > 0 {
				t.Error("queued")
			}
		}
	}
}

// When the context ends, a server of net/http has its request's context end, and
// its answer still reaches the shim: what was undone says so.
func TestEndIsToldToTheDaemon(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"ADD", "CHECK", "DEL", "GC"} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			socket := newHTTP(t, func(w http.ResponseWriter, r *http.Request) {
				commandOf(r)
				cancel()
				<-r.Context().Done()
				w.WriteHeader(http.StatusInternalServerError)
				_, _ = io.WriteString(w, `{"code":107,"msg":"undone"}`)
			})
			dir := newQueue(t)
			_, err := (&Client{Socket: socket, UndoTimeout: time.Minute, Queue: dir}).Do(ctx, command, args(), nil)
			wantError(t, err, 107)
			if len(queued(t, dir)) > 0 {
				t.Error("queued")
			}
		})
	}
}

// A daemon that does not answer within the UndoTimeout, or dies, leaves the end
// of the context as the reason. A DEL is not taken for done or queued.
func TestEndWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for _, dies := range []bool{false, true} {
		for _, command := range commands {
			ctx, cancel := context.WithCancel(t.Context())
			d := newDaemon(t, func(_ int, conn *net.UnixConn) {
				_, _, _ = request(conn)
				cancel()
				_, _ = io.Copy(io.Discard, conn) // until the other half is closed
				if !dies {
					<-t.Context().Done()
				}
			})
			dir := newQueue(t)
			c := &Client{Socket: d.socket, Queue: dir, UndoTimeout: 5 * time.Millisecond}
			if command == "STATUS" {
				c.UndoTimeout = time.Hour // for which there is no time
			}
			_, err := c.Do(ctx, command, args(), nil)
			wantError(t, err, map[bool]uint{true: 50, false: 11}[command == "STATUS"])
			if n := d.count(); !errors.Is(err, context.Canceled) || n != 1 {
				t.Errorf("%s: %v, sent %d times", command, err, n)
			}
			if len(queued(t, dir)) > 0 {
				t.Error("queued")
			}
		}
	}
}

// A result that comes after the daemon was told that nobody waits is none: the
// daemon may undo it. What is done is done for the others.
func TestEndBeforeTheResult(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"ADD", "CHECK", "DEL", "GC"} {
		ctx, cancel := context.WithCancel(t.Context())
		d := newDaemon(t, func(_ int, conn *net.UnixConn) {
			_, _, _ = request(conn)
			cancel()
			_, _ = io.Copy(io.Discard, conn)
			_, _ = io.WriteString(conn, okAdd)
		})
		r, err := (&Client{Socket: d.socket, UndoTimeout: time.Minute}).Do(ctx, command, args(), nil)
		if command != "ADD" {
			if err != nil {
				t.Errorf("%s: %v", command, err)
			}
			continue
		}
		wantError(t, err, 11)
		if r != nil || !errors.Is(err, context.Canceled) {
			t.Error(r, err)
		}
	}
}

// The context ends while the daemon reads nothing of a long request.
func TestEndWhileWriting(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	d := newDaemon(t, func(_ int, conn *net.UnixConn) {
		_, _ = io.ReadFull(conn, make([]byte, 10))
		cancel()
		<-t.Context().Done()
	})
	a := args()
	a.StdinData = []byte(`{"name":"net","x":"` + strings.Repeat("x", 2<<20) + `"}`)
	_, err := (&Client{Socket: d.socket, UndoTimeout: time.Hour, Timeout: time.Hour}).Do(ctx, "ADD", a, nil)
	wantError(t, err, 11)
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
