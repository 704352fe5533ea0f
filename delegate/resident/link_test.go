package resident

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// connected returns the host's side of a pipe, and the other end of the pipe.
func connected(h *Host) (e *entry, its net.Conn, in *bufio.Reader) {
	ours, its := net.Pipe()
	e = &entry{}
	h.connect(context.Background(), e, ours)
	e.State = Ready
	return e, its, bufio.NewReader(its)
}

// end closes both sides and waits for all goroutines.
func end(e *entry, its net.Conn) {
	_ = its.Close()
	_ = e.client.Close()
}

// A resident that reads nothing for 10 seconds is disconnected. Calls end with their
// contexts before, and none is held up by another.
func TestWhoDoesNotReadIsDisconnected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, its, _ := connected(&Host{})
		defer end(e, its)
		start := time.Now()
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			err := e.call(ctx, time.Hour, methodLeave, nil, nil)
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, delegate.ErrNotRun) {
				t.Errorf("err = %v", err)
			}
		}
		nodetest.Equal(t, "after", time.Since(start), 3*time.Second)
		nodetest.Is(t, e.call(t.Context(), time.Hour, methodLeave, nil, nil), errLost)
		nodetest.Equal(t, "after", time.Since(start), writeTimeout)
		if err := e.call(t.Context(), time.Hour, methodLeave, nil, nil); !errors.Is(err, errGone) || !errors.Is(err, delegate.ErrNotRun) {
			t.Errorf("err = %v", err)
		}
	})
}

// Messages that wait for the other side are limited: then it is disconnected.
func TestMessagesThatWaitAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, its, _ := connected(&Host{})
		defer end(e, its)
		sent := 0
		for ; !e.closed(); sent++ {
			go func() { _ = e.call(t.Context(), time.Hour, methodLeave, nil, nil) }()
			synctest.Wait()
		}
		if sent > maxQueued+2 || !errors.Is(e.why(), errSlow) {
			t.Errorf("after %d messages: %v", sent, e.why())
		}
	})
}

// Nothing of a message is kept beyond the limit.
func TestLongMessagesAreNotRead(t *testing.T) {
	t.Parallel()
	e, its, _ := connected(&Host{})
	defer end(e, its)
	n, err := io.Copy(its, strings.NewReader(strings.Repeat("{", 2*maxFromPlugin)))
	if err == nil || n > maxFromPlugin || !errors.Is(e.why(), errLong) {
		t.Errorf("%d bytes were read: %v, %v", n, err, e.why())
	}
}

// The codes of errors survive, whatever their size. An error of the protocol is no
// answer of a plugin.
func TestFailuresAreSentWhole(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  error
		want *types.Error
	}{
		{nil, nil},
		{fmt.Errorf("opening: %w", types.NewError(1<<31, "stuck", "")), types.NewError(1<<31, "opening: stuck", "")},
		{types.NewError(107, strings.Repeat("x", maxOutput), ""), types.NewError(107, "an error of 4194304 bytes is longer than 2097152", "")},
	} {
		got := said(failure(tt.err))
		if (got == nil) != (tt.want == nil) || got != nil && *got != *tt.want {
			t.Errorf("%v: %+v, want %+v", tt.want, got, tt.want)
		}
	}
	nodetest.Equal(t, "got", said(errors.New("lost")), nil)
}

// Whatever is received, a host neither panics nor hangs.
func FuzzMessages(f *testing.F) {
	for _, s := range []string{
		"", "{}\n", "[]\n", `{"jsonrpc":"2.0","method":"leave"}` + "\n", `{"jsonrpc":"2.0","id":1,"result":7}` + "\n",
		`{"jsonrpc":"2.0","id":1,"error":{"code":-32097,"message":"x"}}` + "\n", `{"jsonrpc":"2.0","id":9,"method":"request","params":{}}` + "\n",
		`{"jsonrpc":"2.0","id":"1","method":"request","params":[]}` + "\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e, its, in := connected(&Host{})
		go func() { _, _ = io.Copy(io.Discard, in) }()
		called := make(chan error, 1)
		go func() { called <- e.call(context.Background(), time.Hour, methodRegister, greeting{}, new(hello)) }()
		_, _ = its.Write(data)
		end(e, its)
		<-called
	})
}

// An accepted hello holds only names that are safe in paths and log lines.
func FuzzHello(f *testing.F) {
	for _, s := range []string{
		`{"version":3,"index":"10","name":"a","types":["a"]}`, `{"version":3,"index":"10","name":"a","types":["../a","\u0000"]}`,
		`{"version":3,"index":"10","name":"..","types":["a"],"network":{"cniVersion":"1.1.0","name":"x","plugins":[{"type":"a"}]}}`,
		"", "null", "[]", "{", "\x00",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var h hello
		if json.Unmarshal(data, &h) != nil || h.check() != nil {
			return
		}
		i := h.Info
		if named, err := named(i.String()); err != nil || named.String() != i.String() {
			t.Errorf("%q is not a file name: %v", i, err)
		}
		for _, typ := range i.Types {
			if filepath.Base(typ) != typ || typ == ".." || typ == "." || strings.ContainsAny(typ, "\x00\n\r") {
				t.Errorf("type %q", typ)
			}
		}
	})
}
