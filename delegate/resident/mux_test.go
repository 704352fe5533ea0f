package resident

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
)

type handler func(ctx context.Context, call string, body []byte) ([]byte, error)

// muxes returns the two ends of a pipe. Each takes 3 calls and messages of up to
// 1000 bytes.
func muxes(ctx context.Context, near, far handler) (a, b *mux, end func()) {
	ours, its := net.Pipe()
	a, b = limited(ctx, ours, near), limited(ctx, its, far)
	a.start()
	b.start()
	return a, b, func() {
		for _, m := range []*mux{a, b} {
			m.close(io.ErrClosedPipe)
			m.wait()
		}
	}
}

func limited(ctx context.Context, conn net.Conn, h handler) *mux {
	m := newMux(ctx, conn, bufio.NewReader(conn))
	m.maxIn, m.maxOut, m.limit, m.slots, m.handle = 1000, 1000, 3, make(chan struct{}, 3), h
	return m
}

func echo(_ context.Context, _ string, body []byte) ([]byte, error) { return body, nil }

// waits handles a call until its context ends.
func waits(ctx context.Context, _ string, _ []byte) ([]byte, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// Both sides call each other at the same time, as often as they like, and every
// call gets its own answer.
func TestMuxAnswersCallsOfBothSides(t *testing.T) {
	t.Parallel()
	a, b, end := muxes(t.Context(), echo, echo)
	defer end()
	done := make(chan bool)
	for i := range 100 {
		m := []*mux{a, b}[i%2]
		go func() {
			out, err := m.call(t.Context(), "x", i)
			want, _ := json.Marshal(i)
			if err != nil || string(out) != string(want) {
				t.Errorf("%s, %v", out, err)
			}
			done <- true
		}()
	}
	for range 100 {
		<-done
	}
}

// A call that is cancelled returns at once, and its handler's context ends. Its
// place is free when the handler has ended, so that a slow handler counts.
func TestMuxCancelsCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var running atomic.Int32
		release := make(chan struct{})
		a, _, end := muxes(t.Context(), nil, func(ctx context.Context, _ string, _ []byte) ([]byte, error) {
			running.Add(1)
			<-ctx.Done()
			<-release
			return nil, nil
		})
		defer end()
		ctx, cancel := context.WithCancel(t.Context())
		errs := make(chan error, 4)
		for range 4 {
			go func() {
				_, err := a.call(ctx, "x", nil)
				errs <- err
			}()
		}
		synctest.Wait()
		if n := running.Load(); n != 3 {
			t.Errorf("%d run, want 3", n)
		}
		cancel()
		for range 4 {
			if err := <-errs; !errors.Is(err, context.Canceled) {
				t.Errorf("err = %v", err)
			}
		}
		if len(a.slots) != 3 {
			t.Errorf("%d places are taken, want 3", len(a.slots))
		}
		close(release)
		synctest.Wait()
		if len(a.slots) != 0 {
			t.Errorf("%d places are taken, want none", len(a.slots))
		}
	})
}

// After a side has asked to leave it gets no further call. The connection is
// closed when the calls that run have been answered.
func TestMuxMakesNoCallsToASideThatLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		a, b, end := muxes(t.Context(), nil, func(context.Context, string, []byte) ([]byte, error) {
			<-release
			return []byte("done"), nil
		})
		defer end()
		answered := make(chan error, 1)
		go func() {
			out, err := a.call(t.Context(), "x", nil)
			if string(out) != "done" {
				err = fmt.Errorf("%q, %w", out, err)
			}
			answered <- err
		}()
		synctest.Wait()
		b.post(frame{Call: callLeave})
		b.post(frame{Call: callLeave})
		synctest.Wait()
		for range 10 {
			if _, err := a.call(t.Context(), "x", nil); !errors.Is(err, ErrGone) || !errors.Is(err, delegate.ErrNotRun) {
				t.Errorf("err = %v", err)
			}
		}
		close(release)
		if err := <-answered; err != nil {
			t.Error(err)
		}
		<-a.done
		if err := a.why(); !errors.Is(err, errLeft) {
			t.Errorf("closed for %v", err)
		}
	})
}

// A message that is too long is not sent: a call fails, and an answer becomes an
// error that keeps its code. The connection stays.
func TestMuxDoesNotSendLongMessages(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1000)
	a, _, end := muxes(t.Context(), nil, func(_ context.Context, call string, _ []byte) ([]byte, error) {
		switch call {
		case "stdout":
			return []byte(long), nil
		case "error":
			return nil, types.NewError(107, long, "")
		}
		return []byte("short"), nil
	})
	defer end()
	for call, code := range map[string]uint{"stdout": types.ErrInternal, "error": 107} {
		_, err := a.call(t.Context(), call, nil)
		var said *types.Error
		if !errors.As(err, &said) || said.Code != code || !strings.Contains(said.Msg, "longer than 1000") {
			t.Errorf("%s: %v", call, err)
		}
	}
	if _, err := a.call(t.Context(), "x", long); err == nil || errors.Is(err, ErrLost) {
		t.Errorf("err = %v", err)
	}
	if out, err := a.call(t.Context(), "x", nil); err != nil || string(out) != "short" {
		t.Errorf("%s, %v", out, err)
	}
}

// A side that breaks the rules is disconnected, and calls to it fail.
func TestMuxDisconnectsWhoBreaksTheRules(t *testing.T) {
	t.Parallel()
	for name, messages := range map[string][]string{
		"too long":       {"\x00\x00\x03\xe9"},
		"not JSON":       {"\x00\x00\x00\x01{"},
		"too many calls": {frameOf(t, 1), frameOf(t, 2), frameOf(t, 3), frameOf(t, 4)},
		"one ID twice":   {frameOf(t, 1), frameOf(t, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ours, its := net.Pipe()
			m := limited(t.Context(), ours, waits)
			m.start()
			called := make(chan error, 1)
			go func() {
				_, err := m.call(t.Context(), "x", nil)
				called <- err
			}()
			go func() { _, _ = io.Copy(io.Discard, its) }()
			for _, text := range messages {
				_, _ = io.WriteString(its, text)
			}
			<-m.done
			if !errors.Is(m.why(), errFrame) {
				t.Errorf("closed for %v", m.why())
			}
			if err := <-called; !errors.Is(err, ErrLost) && !errors.Is(err, ErrGone) {
				t.Errorf("err = %v", err)
			}
			m.loops.Wait()
			m.tasks.Wait()
		})
	}
}

// frameOf returns a call as it is written.
func frameOf(t *testing.T, id uint64) string {
	t.Helper()
	data, err := (&mux{maxOut: 1000}).encode(frame{ID: id, Call: "x"})
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Unknown keys, answers to unknown calls and cancellations of unknown calls are
// ignored.
func TestMuxIgnoresWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	ours, its := net.Pipe()
	m := limited(t.Context(), ours, echo)
	m.start()
	for _, text := range []string{`{"id":9,"stdout":"eA=="}`, `{"id":9,"cancel":true}`, `{"id":1,"call":"x","new":{}}`} {
		_, _ = io.WriteString(its, string([]byte{0, 0, 0, byte(len(text))})+text)
	}
	in := limited(t.Context(), its, nil)
	if f, err := in.next(); err != nil || f.ID != 1 {
		t.Errorf("%+v, %v", f, err)
	}
	m.close(io.EOF)
	m.loops.Wait()
}

// A side that reads nothing for 10 seconds is disconnected.
func TestMuxDisconnectsWhoDoesNotRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, its := net.Pipe()
		m := limited(t.Context(), ours, nil)
		m.start()
		start := time.Now()
		if _, err := m.call(t.Context(), "x", nil); !errors.Is(err, ErrLost) {
			t.Errorf("err = %v", err)
		}
		if took := time.Since(start); took != writeTimeout {
			t.Errorf("after %v", took)
		}
		m.loops.Wait()
		_ = its.Close()
	})
}

// A side that is silent is disconnected after three intervals, and one that
// answers pings is not.
func TestMuxDisconnectsWhoIsSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b, end := muxes(t.Context(), nil, nil)
		go a.watch(time.Second)
		time.Sleep(time.Hour)
		if isClosed(a.done) || isClosed(b.done) {
			t.Errorf("closed for %v, %v", a.why(), b.why())
		}
		end()

		ours, its := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, its) }()
		m := limited(t.Context(), ours, nil)
		m.start()
		start := time.Now()
		m.watch(time.Second)
		if took := time.Since(start); took > 4*time.Second || !errors.Is(m.why(), ErrLost) {
			t.Errorf("after %v: %v", took, m.why())
		}
		m.loops.Wait()
	})
}

// A host that does not answer the hello is given up after 30 seconds.
func TestServeDoesNotWaitForeverForTheWelcome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, its := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, ours) }()
		start := time.Now()
		p := &Plugin{Index: "10", Name: "a", Types: []string{"a"}}
		if err := p.Serve(t.Context(), its); !errors.Is(err, ErrLost) {
			t.Errorf("err = %v", err)
		}
		if took := time.Since(start); took != welcomeTimeout {
			t.Errorf("after %v", took)
		}
		_ = ours.Close()
	})
}

// Whatever is received, a mux neither panics nor hangs.
func FuzzMux(f *testing.F) {
	for _, s := range []string{"", "\x00\x00\x00\x02{}", "\x00\x00\x00\x0f{\"call\":\"ping\"}", "\x00\x00\x00\x10{\"call\":\"leave\"}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		ours, its := net.Pipe()
		m := limited(t.Context(), ours, echo)
		m.start()
		go func() { _, _ = io.Copy(io.Discard, its) }()
		_, _ = its.Write(data)
		_ = its.Close()
		<-m.done
		m.loops.Wait()
		m.tasks.Wait()
	})
}

// A side that makes calls and never reads the answers has no more calls than the
// limit handled: its answers would pile up in memory.
func TestMuxBoundsAnswersThatNobodyReads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, its := net.Pipe()
		var handled atomic.Int32
		m := limited(t.Context(), ours, func(context.Context, string, []byte) ([]byte, error) {
			handled.Add(1)
			return nil, nil
		})
		m.start()
		for id := 1; id <= 100 && !isClosed(m.done); id++ {
			text := fmt.Sprintf(`{"id":%d,"call":"x"}`, id)
			_, _ = its.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...))
			synctest.Wait()
		}
		if n := handled.Load(); n > 4 {
			t.Errorf("%d calls were handled, want 3 whose answers wait", n)
		}
		_ = its.Close()
		m.wait()
	})
}
