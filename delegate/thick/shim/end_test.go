package shim

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// When the context ends, a server of net/http has its request's context end, and
// its answer still reaches the shim: what was undone says so.
func TestEndIsToldToTheDaemon(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"ADD", "CHECK", "DEL", "GC"} {
		for _, body := range []string{"", strings.Repeat("x", 1<<20)} {
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
				a := args()
				a.StdinData = []byte(`{"name":"net","x":"` + body + `"}`)
				dir := newQueue(t)
				_, err := (&Client{Socket: socket, UndoTimeout: time.Minute, Queue: dir}).Do(ctx, command, a)
				wantError(t, err, 107)
				if len(queued(t, dir)) > 0 {
					t.Error("queued")
				}
			})
		}
	}
}

// A daemon that does not answer within the UndoTimeout, or dies, leaves the end
// of the context as the reason, whichever end that was. A DEL is not taken for
// done or queued.
func TestEndWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for _, dies := range []bool{false, true} {
		for _, command := range commands {
			for _, byTimeout := range []bool{false, true} {
				// A slow machine needs longer until the daemon has the request.
				for timeout := 30 * time.Millisecond; endWithoutAnAnswer(t, command, dies, byTimeout, timeout) == 0 && byTimeout; {
					timeout *= 4
				}
			}
		}
	}
}

// endWithoutAnAnswer returns how many requests the daemon has received. All that there was
// to see is right if it is one.
func endWithoutAnAnswer(t *testing.T, command string, dies, byTimeout bool, timeout time.Duration) int {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	d := newDaemon(t, func(_ int, conn *net.UnixConn) {
		_, _, _ = request(conn)
		if !byTimeout {
			cancel()
		}
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
	want := context.Canceled
	if byTimeout {
		c.Timeout, want = timeout, context.DeadlineExceeded
	}
	_, err := c.Do(ctx, command, args())
	n := d.count()
	if n == 0 && byTimeout && timeout < time.Minute {
		return 0
	}
	wantError(t, err, map[bool]uint{true: 50, false: 11}[command == "STATUS"])
	if !errors.Is(err, want) || n != 1 {
		t.Errorf("%s: %v, sent %d times", command, err, n)
	}
	if len(queued(t, dir)) > 0 {
		t.Error("queued")
	}
	return n
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
		r, err := (&Client{Socket: d.socket, UndoTimeout: time.Minute}).Do(ctx, command, args())
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
	_, err := (&Client{Socket: d.socket, UndoTimeout: time.Hour, Timeout: time.Hour}).Do(ctx, "ADD", a)
	wantError(t, err, 11)
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// The context ends while the daemon is waited for, with the reason that was
// given for it.
func TestEndWhileWaiting(t *testing.T) {
	t.Parallel()
	reason := errors.New("asked to stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	d := newDaemon(t, func(n int, conn *net.UnixConn) {
		if n == 2 {
			cancel(reason)
		}
		replies(busy)(n, conn)
	})
	_, err := (&Client{Socket: d.socket}).Do(ctx, "DEL", args())
	wantError(t, err, 11)
	if !errors.Is(err, context.Canceled) || !errors.Is(err, reason) {
		t.Error(err)
	}
}
