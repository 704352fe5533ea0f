//go:build go1.26

// Until Go 1.26 net/http carries channels from one bubble of synctest to
// another, in a pool.

package resident

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metacni/metacni/delegate/thick/wire"
)

// A stalled connection reads nothing more once stop is closed.
type stalled struct {
	net.Conn
	stop, closed chan struct{}
	once         sync.Once
}

func (s *stalled) Read(p []byte) (int, error) {
	select {
	case <-s.stop:
		<-s.closed
	default:
	}
	return s.Conn.Read(p)
}

func (s *stalled) Close() error {
	s.once.Do(func() { close(s.closed) })
	return s.Conn.Close()
}

// A resident that is not answered gives up, and can connect again.
func TestWelcomeDoesNotTakeForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, its := net.Pipe()
		served := make(chan error, 1)
		go func() { served <- plain().Serve(t.Context(), its) }()
		if _, err := readHello(ours); err != nil {
			t.Fatal(err)
		}
		late := time.NewTimer(time.Hour)
		defer late.Stop()
		select {
		case err := <-served:
			if !errors.Is(err, ErrLost) {
				t.Errorf("err = %v", err)
			}
		case <-late.C:
			t.Error("it waits")
		}
		_ = ours.Close()
	})
}

// A resident that stops reading is closed, long before its silence is noticed or
// the call's time is up.
func TestResidentThatStopsReadingIsClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		c := &stalled{Conn: far, stop: make(chan struct{}), closed: make(chan struct{})}
		srv := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
		srv.Protocols.SetUnencryptedHTTP2(true)
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = srv.Serve(&single{conn: c, closed: make(chan struct{})})
		}()
		lost := make(chan error, 1)
		l := newLink(near, time.Hour, func(err error) { lost <- err })
		if err := l.open(t.Context()); err != nil {
			t.Fatal(err)
		}
		close(c.stop)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := l.call(ctx, "p", &wire.Request{}, 1); !errors.Is(err, ErrLost) {
			t.Errorf("err = %v", err)
		}
		synctest.Wait()
		if len(lost) == 0 {
			t.Error("it is there still")
		}
		l.close()
		_ = srv.Close()
		_ = c.Close()
		<-served
	})
}
