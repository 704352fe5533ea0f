package thick

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/thick/wire"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
)

// The trace of a request reaches the plugin: its headers before its variables.
func TestTrace(t *testing.T) {
	t.Parallel()
	var got []string
	s := &Server{Plugin: plugin.Plugin{Check: func(_ context.Context, c *plugin.Call) error {
		got = c.Env
		return nil
	}}}
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
			op, err := understood(s, &m, tt.header)
			nodetest.OK(t, err)
			nodetest.OK(t, s.service().operate(t.Context(), op))
			nodetest.Equal(t, "got", got, tt.want)
		})
	}
}

// The Process is made before the request waits for its turn, with its trace, and is told of
// the wait.
func TestStageOfTheQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen nodetest.Notes[string]
		hold := make(chan struct{})
		f := &fake{check: func(context.Context, *skel.CmdArgs) error {
			<-hold
			return nil
		}}
		r := serve(t, &Server{Plugin: f.plugin(), Trace: func(p plugin.Process) plugin.Process {
			trace := p.Env
			return plugin.Process{Env: trace, Stages: func(ctx context.Context, s delegate.Stage, e delegate.Event) (context.Context, func(error)) {
				what := fmt.Sprint(s, " ", e.Command, " of ", e.Network, " ", e.ContainerID, " ", e.IfName, " ", trace)
				seen.Note(what)
				return ctx, func(err error) { seen.Note(fmt.Sprint("end of ", what, " ", err)) }
			}}
		}})
		m := with(request("CHECK", "c1"), "TRACEPARENT", "a")
		first := r.begin(m)
		synctest.Wait()
		nodetest.Equal(t, "first", seen.Taken(), []string{"queue CHECK of pods c1 eth0 [TRACEPARENT=a]", "end of queue CHECK of pods c1 eth0 [TRACEPARENT=a] <nil>", "command CHECK of pods c1 eth0 [TRACEPARENT=a]"})
		second := r.begin(request("CHECK", "c1"))
		time.Sleep(waitTimeout + 1)
		synctest.Wait()
		nodetest.Equal(t, "second", seen.Taken(), []string{"queue CHECK of pods c1 eth0 []", fmt.Sprint("end of queue CHECK of pods c1 eth0 [] ", errLate)})
		close(hold)
		first().wantOK(t)
		second()
	})
}

// A function of Stages that panics before the command begins costs its own request.
func TestPanicInTheStageOfTheQueue(t *testing.T) {
	t.Parallel()
	for name, stages := range map[string]delegate.Stages{
		"begin": func(context.Context, delegate.Stage, delegate.Event) (context.Context, func(error)) { panic("hunter2") },
		"end": func(ctx context.Context, _ delegate.Stage, _ delegate.Event) (context.Context, func(error)) {
			return ctx, func(error) { panic("hunter2") }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fake{}
			r := serve(t, &Server{Plugin: f.plugin(), MaxInFlight: 1, Process: func() plugin.Process { return plugin.Process{Stages: stages} }})
			for range 3 { // the turn and the container are free again
				r.do(request("ADD", "c1")).want(t, 500, 999, "panicked")
			}
			f.want(t)
		})
	}
}

// The Observer is told of every request for an operation.
func TestObserver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen nodetest.Notes[Event]
		f := &fake{add: func(context.Context, *skel.CmdArgs) error {
			time.Sleep(time.Second)
			return nil
		}}
		r := serve(t, &Server{Plugin: f.plugin(), Observer: seen.Note, MaxInFlight: 1})
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
		all := seen.Taken()
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

// The Observer is told where the time of an ADD went, if the plugin keeps records.
func TestObserverIsToldTheTiming(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen nodetest.Notes[Event]
		bridge := func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
			time.Sleep(time.Second)
			return delegatetest.Result(nil)(ctx, c)
		}
		p := plugin.Plugin{StateDir: t.TempDir(), Networks: func(context.Context, *plugin.Call) ([]netconf.Network, error) {
			return []netconf.Network{nodetest.Network("pods", "bridge")}, nil
		}}
		r := serve(t, &Server{Plugin: p, Observer: seen.Note, Process: func() plugin.Process {
			return plugin.Process{Exec: &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{"bridge": bridge}}}
		}})
		r.begin(request("ADD", "c1"))().wantOK(t)
		r.begin(request("DEL", "c1"))().wantOK(t)
		synctest.Wait()
		all := seen.Taken()
		nodetest.Equal(t, "ADD", all[0].Timing, lifecycle.Timing{Whole: time.Second, Plugins: []lifecycle.PluginTime{
			{Command: "ADD", Plugin: "bridge", Network: "pods", IfName: "eth0", Took: time.Second},
		}})
		nodetest.Equal(t, "DEL", all[1].Timing, lifecycle.Timing{})
	})
}

func TestAnADDIsSlowIfItTakesLongerThanSlowAfter(t *testing.T) {
	t.Parallel()
	for after, want := range map[time.Duration]bool{0: true, -1: false, 1: true, 3 * time.Second: false} {
		synctest.Test(t, func(t *testing.T) {
			var seen nodetest.Notes[Event]
			slow := func(context.Context, *skel.CmdArgs) error {
				time.Sleep(3 * time.Second)
				return nil
			}
			r := serve(t, &Server{Plugin: (&fake{add: slow, check: slow}).plugin(), Observer: seen.Note, SlowAfter: after})
			for command, want := range map[string]bool{"ADD": want, "CHECK": false} {
				r.begin(request(command, "c1"))().wantOK(t)
				synctest.Wait()
				nodetest.Equal(t, command+" with "+after.String(), seen.Taken()[0].Slow, want)
			}
		})
	}
}

// The override reaches the plugin.
func TestOverrideReachesThePlugin(t *testing.T) {
	t.Parallel()
	f := &fake{}
	s := &Server{Plugin: f.plugin(), Override: json.RawMessage(`{"binDir":"/host/bin","NAME":"other"}`)}
	m := request("ADD", "c1")
	o, err := understood(s, &m, nil)
	nodetest.OK(t, err)
	nodetest.Equal(t, "configuration", string(o.args.StdinData), `{"NAME":"other","binDir":"/host/bin","cniVersion":"1.1.0","type":"multinet"}`)
	nodetest.Equal(t, "network", o.Network, "other")
}

func (f *fake) want(t *testing.T, lines ...string) {
	t.Helper()
	nodetest.Equal(t, "calls", f.Taken(), lines)
}

// idle checks that nothing is held any more.
func (r *rig) idle() {
	r.t.Helper()
	synctest.Wait()
	r.wantNoLoad()
}

// An ADD is never answered with no result, and what cannot be answered is
// undone.
func TestInvalidResultIsUndone(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		printed string
		want    string // the result, or else the error's text
		code    uint
	}{
		"nothing":         {" \n", "it is empty", 6},
		"null":            {"null\n", "it is empty", 6},
		"noise":           {"hello\n{}", "invalid", 6},
		"list":            {"[]", "invalid", 6},
		"flood":           {strings.Repeat(" ", wire.MaxBody+1), "it is empty", 6},
		"unknown version": {`{"cniVersion":"9.9.9"}`, "unsupported", 6},
		"too long":        {`{"cniVersion":"1.1.0","dns":{"domain":"` + strings.Repeat("x", wire.MaxBody) + `"}}`, "more than 4194304 bytes", 6},
		"1.1.0":           {`{"cniVersion":"1.1.0","dns":{"domain":"d"}}`, `{"cniVersion":"1.1.0","dns":{"domain":"d"}}`, 0},
		"1.0.0":           {`{"cniVersion":"1.0.0"}`, `{"cniVersion":"1.1.0"}`, 0},
		"0.3.1":           {`{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.1.0.5/24"}]}`, `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.5/24"}]}`, 0},
		"without version": {`{"ip4":{"ip":"10.1.0.5/24"}}`, `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.5/24"}]}`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := &fake{result: tt.printed}
				r := serve(t, &Server{Plugin: f.plugin()})
				a := r.do(request("ADD", "c1"))
				if tt.code == 0 {
					a.wantOK(t)
					sameJSON(t, `{"Result":`+tt.want+`}`, a.body)
					f.want(t, "ADD c1")
					return
				}
				a.want(t, 500, tt.code, tt.want)
				f.want(t, "ADD c1", "DEL c1")
				r.idle()
			})
		})
	}
}

// The undo has what the ADD had, and says so when it fails.
func TestUndoFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var book nodetest.Log
		var args skel.CmdArgs
		f := &fake{
			result: "null",
			add: func(_ context.Context, a *skel.CmdArgs) error {
				clear(a.StdinData) // which is its own
				a.ContainerID = "other"
				return nil
			},
			del: func(ctx context.Context, a *skel.CmdArgs) error {
				args = *a
				return untilEnd(ctx, a) // and so the undo has an end
			},
		}
		r := serve(t, &Server{Plugin: f.plugin(), Logger: logTo(&book), UndoTimeout: time.Second})
		start := time.Now()
		a := r.do(request("ADD", "c1"))
		a.want(t, 500, 6, "it is empty; undo: ")
		nodetest.Equal(t, "took", time.Since(start), time.Second)
		if args.ContainerID != "c1" || string(args.StdinData) != podsConf {
			t.Errorf("undone with %+v", args)
		}
		if !strings.Contains(book.String(), "undo") {
			t.Errorf("log: %s", book.String())
		}
		r.idle()
	})
}

// An attachment is undone by the commands that made it.
func TestAttachIsUndoneByItsOwnCommands(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		primary := &fake{}
		var attrs []*wire.Attributes
		attached := &fake{
			result: "null",
			del: func(_ context.Context, a *skel.CmdArgs) error {
				nodetest.Equal(t, "undone on", a.IfName, "net1")
				return nil
			},
		}
		r := serve(t, &Server{Plugin: primary.plugin(), Attach: func(w *wire.Attributes) plugin.Plugin {
			attrs = append(attrs, w)
			return attached.plugin()
		}})
		m := with(request("ADD", "c1"), "CNI_IFNAME", "net1")
		r.attach(m).want(t, 500, 6, "it is empty")
		attached.want(t, "ADD c1", "DEL c1", "end DEL c1")
		primary.want(t)
		if len(attrs) != 1 || attrs[0] == nil {
			t.Errorf("attributes %v", attrs)
		}
	})
}

// A handler that panics costs its own operation, and tells no secret.
func TestPanic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var book nodetest.Log
		var seen nodetest.Notes[Event]
		boom := func(context.Context, *skel.CmdArgs) error { panic("hunter2") }
		f := &fake{
			add: boom, check: boom, gc: boom, status: boom,
		}
		r := serve(t, &Server{Plugin: f.plugin(), Logger: logTo(&book), Observer: seen.Note, MaxInFlight: 1, Attach: func(*wire.Attributes) plugin.Plugin { panic("hunter2") }})
		for _, verb := range []string{"ADD", "CHECK", "GC", "STATUS"} {
			a := r.do(request(verb, "c1"))
			a.want(t, 500, 999, "panicked")
			if strings.Contains(a.body, "hunter2") || strings.Contains(a.body, "goroutine") {
				t.Errorf("%s: %s", verb, a.body)
			}
			if !strings.Contains(book.String(), "hunter2") || !strings.Contains(book.String(), "operate_test.go") {
				t.Errorf("log: %s", book.String())
			}
		}
		// What an ADD did until then is undone.
		f.want(t, "ADD c1", "end ADD c1", "DEL c1", "CHECK c1", "end CHECK c1", "GC", "end GC", "STATUS", "end STATUS")
		r.attach(request("ADD", "c1")).want(t, 500, 999, "panicked")
		f.del = boom
		r.do(request("DEL", "c1")).want(t, 500, 999, "panicked")
		r.do(request("ADD", "c1")).want(t, 500, 999, "undo: ")
		r.idle()
		nodetest.Equal(t, "events", len(seen.Taken()), 7)
	})
}

// A client that goes away ends its operation, unless that only removes: the runtime has asked for
// it, and may have stopped waiting.
func TestClientThatGoesEndsItsOperation(t *testing.T) {
	t.Parallel()
	for verb, after := range map[string]time.Duration{"ADD": 0, "CHECK": 0, "STATUS": 0, "DEL": 5 * time.Second, "GC": 5 * time.Second} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var seen nodetest.Notes[Event]
				removed := func(ctx context.Context, _ *skel.CmdArgs) error {
					time.Sleep(5 * time.Second)
					return ctx.Err()
				}
				f := &fake{add: untilEnd, check: untilEnd, del: removed, gc: removed, status: untilEnd}
				r := serve(t, &Server{Plugin: f.plugin(), Observer: seen.Note})
				ctx, cancel := context.WithCancel(t.Context())
				wait := r.beginUntil(ctx, request(verb, "c1"))
				synctest.Wait()
				cancel()
				wait()
				time.Sleep(after)
				r.idle()
				what := strings.TrimSpace(verb + " c1")
				if verb == "GC" || verb == "STATUS" {
					what = verb
				}
				f.want(t, what, "end "+what)
				all := seen.Taken()
				want := map[bool]int{true: 200, false: 499}[after > 0] // what was removed is a success
				if len(all) != 1 || all[0].Status != want || errors.Is(all[0].Err, errGone) != (want == 499) || all[0].Command != verb {
					t.Errorf("events %+v", all)
				}
			})
		})
	}
}

// An ADD that succeeds for nobody is undone, while it has its container:
// the DEL that follows does not run beside it.
func TestAddWhoseClientHasGoneIsUndone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		added, undone := make(gate), make(gate)
		var seen nodetest.Notes[Event]
		undos := 0
		f := &fake{
			add: func(context.Context, *skel.CmdArgs) error { <-added; return nil },
			del: func(ctx context.Context, _ *skel.CmdArgs) error {
				if undos++; undos > 1 {
					return nil
				}
				if ctx.Err() != nil {
					t.Error("the undo begins with its time over")
				}
				<-undone
				return nil
			},
		}
		r := serve(t, &Server{Plugin: f.plugin(), Observer: seen.Note})
		ctx, cancel := context.WithCancel(t.Context())
		wait := r.beginUntil(ctx, request("ADD", "c1"))
		synctest.Wait()
		cancel()
		wait()
		synctest.Wait()
		close(added)
		synctest.Wait()
		del := r.begin(request("DEL", "c1"))
		synctest.Wait()
		f.want(t, "ADD c1", "end ADD c1", "DEL c1")
		close(undone)
		del().wantOK(t)
		f.want(t, "end DEL c1", "DEL c1", "end DEL c1")
		r.idle()
		all := seen.Taken() // in either order: the ADD lets go of its container first
		if len(all) != 2 || !slices.ContainsFunc(all, func(e Event) bool { return e.Command == "ADD" && e.Status == 499 }) {
			t.Errorf("events %+v", all)
		}
	})
}

// A client that goes after the time of its ADD is over hears nothing either, although the answer
// could still be written: it has closed its half of the connection.
func TestAddThatIsLateAndForNobodyIsUndone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, leave := context.WithCancel(t.Context())
		f := &fake{add: func(ctx context.Context, _ *skel.CmdArgs) error {
			<-ctx.Done()
			leave()
			return nil
		}, del: func(context.Context, *skel.CmdArgs) error { return nil }}
		sv := (&Server{Plugin: f.plugin()}).service()
		m := request("ADD", "c1")
		m.DeadlineMs = 1000
		op, err := understood(sv.Server, &m, nil)
		nodetest.OK(t, err)
		nodetest.Is(t, sv.operate(client, op), errUnheard)
		f.want(t, "ADD c1", "end ADD c1", "DEL c1", "end DEL c1")
	})
}

// Nor does a client count that is there and does not read.
func TestAddWhoseClientDoesNotReadIsUndone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		r := serve(t, &Server{Plugin: f.plugin()})
		c := r.connect()
		send(t, c, request("ADD", "c1"))
		time.Sleep(writeTimeout + time.Second)
		synctest.Wait()
		f.want(t, "ADD c1", "DEL c1")
		r.idle()
	})
}

// Each command has its time, and a client may have less. It begins with the
// request.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		verb  string
		asked int64
		want  time.Duration
		code  uint
	}{
		"ADD":             {"ADD", 0, 110 * time.Second, 11},
		"CHECK":           {"CHECK", 0, 60 * time.Second, 11},
		"DEL":             {"DEL", 0, 110 * time.Second, 11},
		"GC":              {"GC", 0, 110 * time.Second, 11},
		"STATUS":          {"STATUS", 0, 2 * time.Second, 50},
		"asked for less":  {"ADD", 1500, 1500 * time.Millisecond, 11},
		"asked for more":  {"DEL", 1e15, 110 * time.Second, 11},
		"asked for most":  {"DEL", 1<<63 - 1, 110 * time.Second, 11},
		"asked for odd":   {"DEL", -5, 110 * time.Second, 11},
		"STATUS for less": {"STATUS", 500, 500 * time.Millisecond, 50},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := &fake{add: untilEnd, check: untilEnd, del: untilEnd, gc: untilEnd, status: untilEnd}
				r := serve(t, &Server{Plugin: f.plugin()})
				m := request(tt.verb, "c1")
				m.DeadlineMs = tt.asked
				start := time.Now()
				r.do(m).want(t, 500, tt.code, "operation timed out")
				nodetest.Equal(t, "took", time.Since(start), tt.want)
				r.idle()
			})
		})
	}
}

// What a handler says counts, and the reason it was stopped comes first.
func TestStoppedHandler(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{
			add: func(ctx context.Context, _ *skel.CmdArgs) error {
				<-ctx.Done()
				return types.NewError(101, "bridge: killed", "")
			},
			status: func(ctx context.Context, _ *skel.CmdArgs) error {
				<-ctx.Done()
				return types.NewError(51, "uplink lost", "")
			},
		}
		r := serve(t, &Server{Plugin: f.plugin()})
		r.do(request("ADD", "c1")).want(t, 500, 11, "ADD c1 eth0: operation timed out: bridge: killed")
		r.do(request("STATUS", "")).want(t, 500, 51, "operation timed out: uplink lost")
	})
}

// A STATUS says what readiness does, without a word to the handler.
func TestStatusFailsWhileTheServerIsNotReady(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		ready func(context.Context) error
		code  uint
		says  string
	}{
		{func(context.Context) error { return fs.ErrPermission }, 50, "STATUS: not ready: plugin: " + fs.ErrPermission.Error()},
		{func(context.Context) error { return types.NewError(51, "half of it", "") }, 51, "half of it"},
		{func(ctx context.Context) error { return untilEnd(ctx, nil) }, 50, "timed out"},
		{func(context.Context) error { panic("hunter2") }, 50, "panicked"},
	} {
		m := request("STATUS", "")
		m.DeadlineMs = 1000
		s := &Server{Ready: tt.ready, Plugin: (&fake{status: func(context.Context, *skel.CmdArgs) error {
			t.Error("the handler was asked")
			return nil
		}}).plugin()}
		post(t, s, "POST", wire.PathCNI, string(encoded(m))).want(t, 500, tt.code, tt.says)
	}
}

// Operations of one container run one by one, in the order in which they
// came; those of others do not wait for them.
func TestOperationsOfAContainerRunInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := func(context.Context, *skel.CmdArgs) error {
			time.Sleep(time.Second)
			return nil
		}
		f := &fake{check: slow, del: slow, add: func(context.Context, *skel.CmdArgs) error {
			time.Sleep(time.Second)
			return nil
		}}
		attach := func(*wire.Attributes) plugin.Plugin { return f.plugin() }
		r := serve(t, &Server{Plugin: f.plugin(), Attach: attach})
		var waits []func() answer
		for _, verb := range []string{"ADD", "CHECK", "ADD"} {
			waits = append(waits, r.begin(request(verb, "c1")))
			synctest.Wait()
		}
		attached := make(chan answer, 1)
		go func() {
			attached <- r.attach(with(request("ADD", "c1"), "CNI_IFNAME", "net1"))
		}()
		synctest.Wait()
		// Of another container, and of none.
		start := time.Now()
		r.do(request("CHECK", "c2")).wantOK(t)
		r.do(request("GC", "c1")).wantOK(t)
		nodetest.Equal(t, "waited", time.Since(start), time.Second)
		for _, wait := range waits {
			wait().wantOK(t)
		}
		(<-attached).wantOK(t)
		nodetest.Equal(t, "took", time.Since(start), 4*time.Second)
		got := slices.DeleteFunc(f.Taken(), func(s string) bool { return !strings.HasSuffix(s, "c1") })
		nodetest.Equal(t, "calls", got, []string{"ADD c1", "end ADD c1", "CHECK c1", "end CHECK c1", "ADD c1", "end ADD c1", "ADD c1", "end ADD c1"})
		r.idle()
	})
}

// A DEL takes the place of all that came before it for its
// container, the waiting included, after it was undone.
func TestDelCancelsEarlierOperations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{add: func(ctx context.Context, _ *skel.CmdArgs) error {
			<-ctx.Done()
			time.Sleep(3 * time.Second) // undoing
			return types.NewError(101, "killed", "")
		}, del: func(context.Context, *skel.CmdArgs) error { return nil }}
		// All the ADDs that may be are there already: a DEL needs none of their places.
		r := serve(t, limited(&Server{Plugin: f.plugin(), MaxInFlight: 1}, 3))
		add := r.begin(request("ADD", "c1"))
		synctest.Wait()
		queued := r.begin(request("CHECK", "c1"))
		synctest.Wait()
		other := r.begin(request("ADD", "c2"))
		synctest.Wait()
		start := time.Now()
		first, second := r.begin(request("DEL", "c1")), r.begin(request("DEL", "c1"))
		synctest.Wait()
		after := r.begin(request("CHECK", "c1"))
		add().want(t, 500, 11, "ADD c1 eth0: cancelled by DEL: killed")
		// It must not be tried again, as a 503 would be.
		queued().want(t, 500, 11, "CHECK c1 eth0: cancelled by DEL")
		first().wantOK(t)
		second().wantOK(t)
		nodetest.Equal(t, "waited", time.Since(start), 3*time.Second)
		r.do(request("DEL", "c2")).wantOK(t)
		other().want(t, 500, 11, "cancelled by DEL")
		after().wantOK(t)
		calls := f.Taken()
		for id, want := range map[string][]string{
			"c1": {"ADD c1", "end ADD c1", "DEL c1", "end DEL c1", "DEL c1", "end DEL c1", "CHECK c1"},
			"c2": {"ADD c2", "end ADD c2", "DEL c2", "end DEL c2"},
		} {
			got := slices.DeleteFunc(slices.Clone(calls), func(s string) bool { return !strings.HasSuffix(s, id) })
			nodetest.Equal(t, "calls", got, want)
		}
		r.idle()
	})
}

// A step of a container does not wait for what the daemon does for that container, which may be
// waiting for the lock of the program that asks. It cancels nothing, and has no Override.
func TestStepWaitsForNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := make(gate)
		f := &fake{add: func(ctx context.Context, _ *skel.CmdArgs) error { return g.wait(ctx) }}
		p := f.plugin()
		p.Steps = map[string]plugin.Step{"rule": {Del: func(_ context.Context, c *plugin.Call) error {
			f.Note("step " + c.ContainerID + " " + string(c.StdinData))
			return nil
		}}}
		r := serve(t, limited(&Server{Plugin: p, MaxInFlight: 1, Override: json.RawMessage(`{"x":1}`)}, 0))
		add := r.begin(request("ADD", "c1"))
		synctest.Wait()
		const conf = `{"cniVersion":"1.1.0","name":"pods","type":"tenant","step":"rule"}`
		step := request("DEL", "c1")
		step.Config = []byte(conf)
		r.do(step).wantOK(t)
		step.Config = []byte(`{"cniVersion":"1.1.0","name":"pods","type":"tenant","step":"other"}`)
		r.do(step).want(t, http.StatusInternalServerError, 7, `no step "other"`)
		close(g)
		add().wantOK(t)
		nodetest.Equal(t, "ran", f.Taken(), []string{"ADD c1", "step c1 " + conf, "end ADD c1"})
		r.idle()
	})
}

// What a DEL comes too late for has succeeded, and is removed by it.
func TestDelAfterTheAddSucceeded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{add: func(ctx context.Context, _ *skel.CmdArgs) error {
			<-ctx.Done() // it has done all it had to
			return nil
		}}
		r := serve(t, &Server{Plugin: f.plugin()})
		add := r.begin(request("ADD", "c1"))
		synctest.Wait()
		r.do(request("DEL", "c1")).wantOK(t)
		add().wantOK(t)
		f.want(t, "ADD c1", "end ADD c1", "DEL c1")
	})
}

// A DEL of one more network cancels operations of its interface only.
func TestDetachCancelsOperationsOfItsInterfaceOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{add: untilEnd, check: untilEnd}
		r := serve(t, &Server{Plugin: f.plugin(), Attach: func(*wire.Attributes) plugin.Plugin { return f.plugin() }})
		more := func(verb, ifname string) func() answer {
			c := make(chan answer, 1)
			go func() {
				c <- r.attach(with(request(verb, "c1"), "CNI_IFNAME", ifname))
			}()
			synctest.Wait()
			return func() answer { return <-c }
		}
		short := request("CHECK", "c1")
		short.DeadlineMs = 1000
		check := r.begin(short) // runs on, until its time is up
		synctest.Wait()
		one, two := more("ADD", "net1"), more("ADD", "net2")
		detached := more("DEL", "net1")
		one().want(t, 500, 11, "cancelled by DEL")
		check().want(t, 500, 11, "operation timed out")
		synctest.Wait()
		// The DEL of the container takes all.
		del := r.begin(request("DEL", "c1"))
		two().want(t, 500, 11, "cancelled by DEL")
		detached().wantOK(t)
		del().wantOK(t)
		r.idle()
	})
}

// Whatever comes in whatever order, a container has one operation at a
// time, and nothing is left held.
func TestRacingOperationsOfAContainerRunOneAtATime(t *testing.T) {
	t.Parallel()
	const n = 200
	var holders [4]atomic.Int32
	busy := func(ctx context.Context, a *skel.CmdArgs) error {
		h := &holders[a.ContainerID[1]-'0']
		if h.Add(1) != 1 {
			t.Error("two at once in " + a.ContainerID)
		}
		defer h.Add(-1)
		if len(a.Netns)%3 == 0 {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	f := &fake{check: busy, del: func(context.Context, *skel.CmdArgs) error { return nil }, add: func(ctx context.Context, a *skel.CmdArgs) error {
		return busy(ctx, a)
	}}
	s := &Server{Plugin: f.plugin(), MaxInFlight: 3}
	sv := s.service()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			verb := []string{"ADD", "CHECK", "DEL", "ADD"}[i%4]
			m := with(request(verb, fmt.Sprint("c", i/4%4)), "CNI_NETNS", strings.Repeat("x", 1+i%7))
			m.DeadlineMs = 20
			op, err := understood(s, &m, nil)
			if err != nil {
				t.Error(err)
				return
			}
			if i%5 == 0 {
				go cancel()
			}
			delivered := 0
			op.answer = func(reply) error {
				delivered++
				return nil
			}
			if err := sv.operate(ctx, op); (err == nil) != (delivered == 1) {
				t.Errorf("%s: delivered %d times, %v", verb, delivered, err)
			}
		})
	}
	wg.Wait()
	(&rig{t: t, Server: s}).wantNoLoad()
	if len(sv.flight.ops.all()) != 0 {
		t.Error("something is left")
	}
}
