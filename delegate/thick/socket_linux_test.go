package thick

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/nodetest"
)

// unixClient is a client of the server at socket. Nobody having listened at the
// moment it came is no answer, and it asks again, as a shim does.
func unixClient(socket string) *http.Client {
	return clientOf(func(ctx context.Context) (net.Conn, error) {
		for {
			c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
			if !errors.Is(err, syscall.ECONNREFUSED) || ctx.Err() != nil {
				return c, err
			}
		}
	})
}

// serveUnix starts s on a unix socket of its own.
func serveUnix(t *testing.T, s *Server) (*rig, string) {
	t.Helper()
	socket := socketDir(t) + "/s"
	r := &rig{t: t, Server: s, Client: unixClient(socket), done: make(chan struct{})}
	l := listenOn(t, socket)
	s.HandOver = l.HandOver
	r.run(l)
	return r, socket
}

// What the kernel says of a client's end is noticed, and what is sent to
// one that has gone is not taken for received.
func TestClosedConnectionEndsTheOperation(t *testing.T) {
	t.Parallel()
	began, g, undone := make(chan struct{}, 1), make(gate), make(chan struct{})
	f := &fake{add: func(ctx context.Context, a *skel.CmdArgs) (types.Result, error) {
		began <- struct{}{}
		if a.ContainerID == "c1" {
			return addUntilEnd(ctx, a)
		}
		<-g
		return someResult(), nil
	}, del: func(context.Context, *skel.CmdArgs) error {
		close(undone)
		return nil
	}}
	seen := make(chan Event, 2)
	_, socket := serveUnix(t, &Server{Commands: f.commands(), Observer: func(ev Event) { seen <- ev }})
	send := func(id string) net.Conn {
		c, err := net.Dial("unix", socket)
		nodetest.OK(t, err)
		send(t, c, request("ADD", id))
		<-began
		return c
	}
	nodetest.OK(t, send("c1").Close())
	if ev := <-seen; ev.Status != 499 || ev.UID != os.Geteuid() {
		t.Errorf("%+v", ev)
	}
	nodetest.OK(t, send("c2").Close())
	close(g)
	<-undone
	if ev := <-seen; ev.Status != 499 {
		t.Errorf("%+v", ev)
	}
}

// What stops to write and still reads has gone, too. It is told no success.
func TestHalfClosedConnectionEndsTheOperation(t *testing.T) {
	t.Parallel()
	began := make(chan struct{})
	f := &fake{add: func(ctx context.Context, _ *skel.CmdArgs) (types.Result, error) {
		close(began)
		<-ctx.Done()
		return someResult(), nil
	}}
	_, socket := serveUnix(t, &Server{Commands: f.commands()})
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	nodetest.OK(t, err)
	defer c.Close()
	send(t, c, request("ADD", "c1"))
	<-began
	nodetest.OK(t, c.CloseWrite())
	data, err := io.ReadAll(c)
	nodetest.OK(t, err)
	if !strings.HasPrefix(string(data), "HTTP/1.1 500 ") || !strings.Contains(string(data), "the client disconnected") {
		t.Errorf("answer %s", data)
	}
	f.want(t, "ADD c1", "end ADD c1", "DEL c1")
}

// The kernel says who connects.
func TestStrangersOnASocket(t *testing.T) {
	t.Parallel()
	r, _ := serveUnix(t, &Server{Commands: (&fake{}).commands(), AllowUIDs: []uint32{uint32(os.Geteuid()) + 1}}) //nolint:gosec // no ID is negative
	r.do(request("ADD", "c1")).want(t, 403, 999, fmt.Sprintf("user %d may not connect", os.Geteuid()))
	r, _ = serveUnix(t, bare())
	r.do(request("ADD", "c1")).wantOK(t)
}

// While one daemon follows the other no request is lost: each has an
// answer, each DEL succeeds, and an ADD that does not has done nothing.
func TestRestartsLoseNoRequest(t *testing.T) {
	t.Parallel()
	socket := socketDir(t) + "/s"
	var adds, dels atomic.Int64
	handler := func() *fake {
		return &fake{
			add: func(context.Context, *skel.CmdArgs) (types.Result, error) { adds.Add(1); return someResult(), nil },
			del: func(context.Context, *skel.CmdArgs) error { dels.Add(1); return nil },
		}
	}
	first := make(chan struct{})
	next := func() *rig {
		r := &rig{t: t, Server: &Server{Commands: handler().commands(), MaxInFlight: 2}, done: make(chan struct{})}
		ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
		r.stop = stop
		go func() {
			defer close(r.done)
			l, err := Listen(ctx, socket)
			if err != nil {
				r.err = err
				return
			}
			select {
			case <-first:
			default:
				close(first)
			}
			r.HandOver = l.HandOver
			r.err = r.Serve(ctx, l)
		}()
		return r
	}
	daemon := next()
	<-first
	client := unixClient(socket)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	var added, deleted atomic.Int64
	stop := make(chan struct{})
	for i := range 8 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				id := fmt.Sprintf("c%d-%d", i, n)
				a := exchange(ctx, client, http.MethodPost, wire.PathCNI, encoded(request("ADD", id)))
				for a.status == http.StatusServiceUnavailable {
					a = exchange(ctx, client, http.MethodPost, wire.PathCNI, encoded(request("ADD", id)))
				}
				if a.status != http.StatusOK || a.err != nil {
					t.Errorf("ADD %s: %d %s, %v", id, a.status, a.body, a.err)
					return
				}
				added.Add(1)
				a = exchange(ctx, client, http.MethodPost, wire.PathCNI, encoded(request("DEL", id)))
				if a.status != http.StatusOK || a.err != nil {
					t.Errorf("DEL %s: %d %s, %v", id, a.status, a.body, a.err)
					return
				}
				deleted.Add(1)
			}
		})
	}
	for range 5 {
		successor := next()
		announced(t, socket)
		daemon.stop()
		<-daemon.done
		if daemon.err != nil {
			t.Error(daemon.err)
		}
		daemon = successor
		if _, err := os.Lstat(socket); err != nil {
			t.Error(err)
		}
		for have := adds.Load(); adds.Load() < have+10 && !t.Failed(); {
			a := exchange(ctx, client, http.MethodPost, wire.PathCNI, encoded(request("STATUS", "")))
			if a.err != nil {
				t.Error(a.err)
			}
		}
	}
	close(stop)
	wg.Wait()
	daemon.stop()
	<-daemon.done
	if daemon.err != nil {
		t.Error(daemon.err)
	}
	if adds.Load() != added.Load() || dels.Load() != deleted.Load() {
		t.Errorf("%d ADDs done, %d answered; %d DELs done, %d answered", adds.Load(), added.Load(), dels.Load(), deleted.Load())
	}
}
