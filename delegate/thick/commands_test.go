package thick

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/nodetest"
)

func TestCommandThatThePluginDoesNotHave(t *testing.T) {
	t.Parallel()
	f := &fake{}
	for _, verb := range []string{"CHECK", "GC", "STATUS"} {
		s := &Server{Commands: Commands{Add: f.Add, Del: f.Del}}
		post(t, s, "POST", wire.PathCNI, string(encoded(request(verb, "c1")))).want(t, 500, 4, "no "+verb)
	}
	f.want(t)
}

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
			nodetest.OK(t, err)
			nodetest.OK(t, s.service().operate(t.Context(), heard(o)))
			nodetest.Equal(t, "got", got, tt.want)
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
		r.get(wire.PathCNI)   // not for an operation
		r.get(wire.PathReady) // nor this
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
		nodetest.Equal(t, "got", all, want)
	})
}

func TestOverrideAndConfigurationMustBeObjects(t *testing.T) {
	t.Parallel()
	for _, odd := range []string{``, `null`, `[]`, `{"a":1,}`, `{}{}`, strings.Repeat("[", 20000)} {
		m := request("ADD", "c1")
		m.Config = []byte(odd)
		s := &Server{Commands: (&fake{}).commands(), Override: json.RawMessage(`{"a":1}`)}
		_, err := decode(wire.PathCNI, &m, nil, s.service().override)
		refused(t, err, 6, "the configuration is not a JSON object")

		// The server's own: it does not begin.
		if odd == "" {
			continue
		}
		s = &Server{Commands: (&fake{}).commands(), Override: json.RawMessage(odd)}
		l := newInMemory()
		if err := s.Serve(t.Context(), l); err == nil || !strings.Contains(err.Error(), "Override is not a JSON object") {
			t.Errorf("%.20q: Serve: %v", odd, err)
		}
		if _, err := l.Accept(); err == nil {
			t.Error("the listener is open")
		}
	}
}

// The override reaches the plugin.
func TestOverrideReachesThePlugin(t *testing.T) {
	t.Parallel()
	f := &fake{}
	s := &Server{Commands: f.commands(), Override: json.RawMessage(`{"binDir":"/host/bin","NAME":"other"}`)}
	m := request("ADD", "c1")
	o, err := decode(wire.PathCNI, &m, nil, s.service().override)
	nodetest.OK(t, err)
	if got, want := string(o.args.StdinData), `{"NAME":"other","binDir":"/host/bin","cniVersion":"1.1.0","type":"multinet"}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if o.network != "other" {
		t.Errorf("network %q", o.network)
	}
}
