package thick

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/thick/wire"
)

func benchServer(b *testing.B, s *Server) *http.Client {
	b.Helper()
	socket := b.TempDir() + "/s"
	l, err := net.Listen("unix", socket)
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(b.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(ctx, l)
	}()
	b.Cleanup(func() {
		stop()
		<-done
	})
	return unixClient(socket)
}

// BenchmarkAdd is what a request costs beside its plugin and its shim's start.
func BenchmarkAdd(b *testing.B) {
	client := benchServer(b, &Server{Commands: (&fake{}).commands()})
	body := encoded(request("ADD", "c1"))
	for b.Loop() {
		if a := exchange(b.Context(), client, http.MethodPost, wire.PathCNI, body); a.status != http.StatusOK {
			b.Fatal(a)
		}
	}
}

// BenchmarkDelUnderFlood is a DEL, with a plugin that takes no time, while 200
// ADDs of 10 ms each are asked for all the time.
func BenchmarkDelUnderFlood(b *testing.B) {
	client := benchServer(b, &Server{Commands: (&fake{add: func(context.Context, *skel.CmdArgs) (types.Result, error) {
		time.Sleep(10 * time.Millisecond)
		return someResult(), nil
	}}).commands(), MaxInFlight: 8})
	ctx, stop := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	for i := range 200 {
		body := encoded(request("ADD", fmt.Sprint("c", i)))
		wg.Go(func() {
			for ctx.Err() == nil {
				exchange(ctx, client, http.MethodPost, wire.PathCNI, body)
			}
		})
	}
	body := encoded(request("DEL", "d"))
	for b.Loop() {
		if a := exchange(b.Context(), client, http.MethodPost, wire.PathCNI, body); a.status != http.StatusOK {
			b.Fatal(a)
		}
	}
}
