package thick

import (
	"context"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate/thick/wire"
)

// The trace of a request reaches the plugin: its headers before its variables.
func TestTrace(t *testing.T) {
	t.Parallel()
	var got []string
	f := &fake{check: func(ctx context.Context, _ *skel.CmdArgs) error {
		got = Trace(ctx)
		return nil
	}}
	s := &Server{Commands: f.commands()}
	for name, tt := range map[string]struct {
		env    []string
		header http.Header
		want   []string
	}{
		"none":       {nil, nil, nil},
		"variables":  {[]string{"TRACEPARENT", "a", "TRACESTATE", "b", "BAGGAGE", "c"}, nil, []string{"TRACEPARENT=a", "TRACESTATE=b", "BAGGAGE=c"}},
		"headers":    {[]string{"TRACEPARENT", "a", "BAGGAGE", "c"}, http.Header{"Traceparent": {"x"}, "Tracestate": {"y"}}, []string{"TRACEPARENT=x", "TRACESTATE=y", "BAGGAGE=c"}},
		"impossible": {[]string{"TRACEPARENT", "a\x00b", "BAGGAGE", strings.Repeat("x", maxTrace+1)}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := with(request("CHECK", "c1"), tt.env...)
			o, err := decode(wire.PathCNI, &m, tt.header, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.service().operate(t.Context(), heard(o)); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
	if got := Trace(t.Context()); got != nil {
		t.Errorf("of no request: %q", got)
	}
}

// The Observer is told of every request for an operation.
func TestObserver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen events
		f := &fake{add: func(context.Context, *skel.CmdArgs) (types.Result, error) {
			time.Sleep(time.Second)
			return someResult(), nil
		}}
		r := serve(t, &Server{Commands: f.commands(), Observer: seen.observe, MaxInFlight: 1})
		m := with(request("ADD", "c1"), "CNI_ARGS", "K8S_POD_NAME=web-0")
		start := time.Now()
		first := r.begin(m)
		synctest.Wait()
		second := r.begin(request("ADD", "c2"))
		first().wantOK(t)
		second().wantOK(t)
		synctest.Wait()
		exchange(t.Context(), r.Client, "POST", wire.PathCNI, []byte("{"))
		synctest.Wait() // it is told after the answer
		exchange(t.Context(), r.Client, "POST", wire.PathCNI, encoded(with(m, "CNI_COMMAND", "VERSION")))
		synctest.Wait()
		exchange(t.Context(), r.Client, "POST", wire.PathCNI, encoded(with(m, "CNI_CONTAINERID", "../x")))
		exchange(t.Context(), r.Client, "GET", wire.PathCNI, nil)   // not for an operation
		exchange(t.Context(), r.Client, "GET", wire.PathReady, nil) // nor this
		synctest.Wait()
		all := seen.taken()
		want := []Event{
			{Path: "/cni", Command: "ADD", Network: "pods", ContainerID: "c1", IfName: "eth0", Args: "K8S_POD_NAME=web-0", Start: start, Duration: time.Second, Status: 200},
			{Path: "/cni", Command: "ADD", Network: "pods", ContainerID: "c2", IfName: "eth0", Start: start, Queued: time.Second, Duration: 2 * time.Second, Status: 200},
			{Path: "/cni", Start: start.Add(2 * time.Second), Status: 400},
			{Path: "/cni", Start: start.Add(2 * time.Second), Status: 400},
			{Path: "/cni", Command: "ADD", Start: start.Add(2 * time.Second), Status: 400},
		}
		for i := range all {
			if (all[i].Status == 200) != (all[i].Err == nil) {
				t.Errorf("%d: err %v", i, all[i].Err)
			}
			all[i].Err = nil
		}
		for i := range want {
			want[i].UID = os.Geteuid()
		}
		if d := cmp.Diff(want, all); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	})
}
