package thick

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
		got = c.System.Env
		return nil
	}}}
	for _, tt := range []struct {
		env    []string
		header http.Header
		want   []string
	}{
		{nil, nil, nil},
		{[]string{"TRACEPARENT", "a", "BAGGAGE", "c"}, http.Header{"Traceparent": {"x"}, "Tracestate": {"y"}}, []string{"TRACEPARENT=x", "TRACESTATE=y", "BAGGAGE=c"}},
		{[]string{"TRACEPARENT", "a\x00b", "BAGGAGE", strings.Repeat("x", maxTrace+1)}, nil, nil},
	} {
		m := with(request("CHECK", "c1"), tt.env...)
		op, err := understood(s, &m, tt.header)
		nodetest.OK(t, err)
		nodetest.OK(t, s.service().operate(t.Context(), op))
		nodetest.Equal(t, "got", got, tt.want)
	}
}

// The Process is made before the request waits for its turn, with its trace, and is told of
// the wait.
func TestStageOfTheQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen nodetest.Notes[string]
		hold := make(gate)
		f := &fake{check: hold.wait}
		r := serve(t, &Server{Plugin: f.plugin(), Trace: func(p plugin.System) plugin.System {
			trace := p.Env
			return plugin.System{Env: trace, Stages: func(ctx context.Context, s delegate.Stage, e delegate.Event) (context.Context, func(error)) {
				what := fmt.Sprint(s, " ", e.Command, " of ", e.Network, " ", e.ContainerID, " ", e.IfName, " ", trace)
				seen.Note(what)
				return ctx, func(err error) { seen.Note(fmt.Sprint("end of ", what, " ", err)) }
			}}
		}})
		m := with(request("CHECK", "c1"), "TRACEPARENT", "a")
		first := r.begin(m)
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
			synctest.Test(t, func(t *testing.T) {
				f := &fake{}
				r := serve(t, &Server{Plugin: f.plugin(), MaxInFlight: 1, System: func() plugin.System { return plugin.System{Stages: stages} }})
				for range 3 { // the turn and the container are free again
					r.do(request("ADD", "c1")).want(t, 500, 999, "panicked")
				}
				f.want(t)
			})
		})
	}
}

// The Observer is told of every request for an operation.
func TestObserver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen nodetest.Notes[Event]
		f := &fake{add: takes(time.Second)}
		r := serve(t, &Server{Plugin: f.plugin(), Observer: seen.Note, MaxInFlight: 1})
		m := with(request("ADD", "c1"), "CNI_ARGS", "K8S_POD_NAME=web-0")
		start := time.Now()
		first, second := r.begin(m), r.begin(request("ADD", "c2"))
		first().wantOK(t)
		second().wantOK(t)
		synctest.Wait() // it is told after the answer
		exchange(t.Context(), r.Client, "POST", wire.PathCNI, []byte("{"))
		synctest.Wait()
		r.do(with(m, "CNI_COMMAND", "VERSION"))
		synctest.Wait()
		r.do(with(m, "CNI_CONTAINERID", "../x"))
		r.get(wire.PathCNI)   // not for an operation
		r.get(wire.PathReady) // nor this
		synctest.Wait()
		all := seen.Taken()
		late := start.Add(2 * time.Second)
		want := []Event{
			{Command: "ADD", Network: "pods", ContainerID: "c1", IfName: "eth0", Args: "K8S_POD_NAME=web-0", Start: start, Duration: time.Second, Status: 200},
			{Command: "ADD", Network: "pods", ContainerID: "c2", IfName: "eth0", Start: start, Queued: time.Second, Duration: 2 * time.Second, Status: 200},
			{Start: late, Status: 400},
			{Start: late, Status: 400},
			{Command: "ADD", Start: late, Status: 400},
		}
		for i := range want {
			want[i].UID, want[i].Path = os.Geteuid(), "/cni"
		}
		for i := range all {
			nodetest.Equal(t, "success", all[i].Err == nil, all[i].Status == 200)
			all[i].Err = nil
		}
		nodetest.Equal(t, "got", all, want)
	})
}

// The Observer is told where the time of an ADD went, if the plugin keeps records.
func TestObserverIsToldTheTiming(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen nodetest.Notes[Event]
		n := nodetest.New(t, "bridge")
		n.On("ADD bridge", func(context.Context, delegatetest.Invocation) error {
			time.Sleep(time.Second)
			return nil
		})
		p := plugin.Plugin{StateDir: n.Dir, Networks: func(context.Context, *plugin.Call) ([]netconf.Network, error) {
			return []netconf.Network{nodetest.Network("pods", "bridge")}, nil
		}}
		r := serve(t, &Server{Plugin: p, Observer: seen.Note, System: func() plugin.System { return plugin.System{Exec: n.Exec} }})
		r.do(request("ADD", "c1")).wantOK(t)
		synctest.Wait()
		r.do(request("DEL", "c1")).wantOK(t)
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
			f := &fake{add: takes(3 * time.Second), check: takes(3 * time.Second)}
			r := serve(t, &Server{Plugin: f.plugin(), Observer: seen.Note, SlowAfter: after})
			for command, want := range map[string]bool{"ADD": want, "CHECK": false} {
				r.do(request(command, "c1")).wantOK(t)
				synctest.Wait()
				nodetest.Equal(t, command+" with "+after.String(), seen.Taken()[0].Slow, want)
			}
		})
	}
}

func (f *fake) want(t *testing.T, lines ...string) {
	t.Helper()
	nodetest.Equal(t, "calls", f.Taken(), lines)
}

// of returns the calls of one container so far.
func (f *fake) of(id string) []string {
	return slices.DeleteFunc(f.Taken(), func(s string) bool { return !strings.HasSuffix(s, id) })
}

// An ADD is never answered with no result, and what cannot be answered is
// undone, by the commands that made it.
func TestInvalidResultIsUndone(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		printed string
		want    string // the result, or else the error's text
		valid   bool
	}{
		"nothing":         {" \n", "it is empty", false},
		"null":            {"null\n", "it is empty", false},
		"noise":           {"hello\n{}", "invalid", false},
		"unknown version": {`{"cniVersion":"9.9.9"}`, "unsupported", false},
		"too long":        {`{"cniVersion":"1.1.0","dns":{"domain":"` + strings.Repeat("x", wire.MaxBody) + `"}}`, "more than 4194304 bytes", false},
		"1.1.0":           {`{"cniVersion":"1.1.0","dns":{"domain":"d"}}`, `{"cniVersion":"1.1.0","dns":{"domain":"d"}}`, true},
		"0.3.1":           {`{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.1.0.5/24"}]}`, `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.5/24"}]}`, true},
		"without version": {`{"ip4":{"ip":"10.1.0.5/24"}}`, `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.5/24"}]}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f, more := &fake{result: tt.printed}, &fake{result: tt.printed}
				var attrs []*wire.Attributes
				r := serve(t, &Server{Plugin: f.plugin(), Attach: func(w *wire.Attributes) plugin.Plugin {
					attrs = append(attrs, w)
					return more.plugin()
				}})
				for _, a := range []answer{r.do(request("ADD", "c1")), r.attach(request("ADD", "c2"))} {
					if tt.valid {
						a.wantOK(t)
						sameJSON(t, `{"Result":`+tt.want+`}`, a.body)
					} else {
						a.want(t, 500, 6, tt.want)
					}
				}
				if tt.valid {
					f.want(t, "ADD c1")
				} else {
					f.want(t, "ADD c1", "DEL c1")
					more.want(t, "ADD c2", "DEL c2")
				}
				nodetest.Equal(t, "attributes", attrs, []*wire.Attributes{{}})
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
		r.do(request("ADD", "c1")).want(t, 500, 6, "it is empty; undo: ")
		nodetest.Equal(t, "took", time.Since(start), time.Second)
		nodetest.Equal(t, "undone with", args.ContainerID+" "+string(args.StdinData), "c1 "+podsConf)
		nodetest.Equal(t, "logged", book.Count("undo") > 0, true)
		r.idle()
	})
}

// A handler that panics costs its own operation, and tells no secret.
func TestPanic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var book nodetest.Log
		var seen nodetest.Notes[Event]
		boom := func(context.Context, *skel.CmdArgs) error { panic("hunter2") }
		f := &fake{add: boom, check: boom, gc: boom, status: boom}
		r := serve(t, &Server{Plugin: f.plugin(), Logger: logTo(&book), Observer: seen.Note, MaxInFlight: 1, Attach: func(*wire.Attributes) plugin.Plugin { panic("hunter2") }})
		for i, verb := range []string{"ADD", "CHECK", "GC", "STATUS"} {
			a := r.do(request(verb, "c1"))
			a.want(t, 500, 999, "panicked")
			nodetest.Equal(t, "tells", strings.Contains(a.body, "hunter2") || strings.Contains(a.body, "goroutine"), false)
			nodetest.Equal(t, "logged", []bool{book.Count("hunter2") > i, book.Count("operate_test.go") > i}, []bool{true, true})
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
	for what, removes := range map[string]bool{"ADD c1": false, "CHECK c1": false, "STATUS": false, "DEL c1": true, "GC": true} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var seen nodetest.Notes[Event]
				removed := takes(5 * time.Second)
				f := &fake{add: untilEnd, check: untilEnd, del: removed, gc: removed, status: untilEnd}
				r := serve(t, &Server{Plugin: f.plugin(), Observer: seen.Note})
				ctx, cancel := context.WithCancel(t.Context())
				verb, _, _ := strings.Cut(what, " ")
				wait := r.beginUntil(ctx, request(verb, "c1"))
				cancel()
				wait()
				want := statusGone
				if removes {
					time.Sleep(5 * time.Second)
					want = http.StatusOK // what was removed is a success
				}
				r.idle()
				f.want(t, what, "end "+what)
				all := seen.Taken()
				if len(all) != 1 || all[0].Status != want || errors.Is(all[0].Err, errGone) == removes || all[0].Command != verb {
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
		undone := make(gate)
		var seen nodetest.Notes[Event]
		f := &fake{add: func(context.Context, *skel.CmdArgs) error { time.Sleep(time.Second); return nil }, del: undone.wait}
		r := serve(t, &Server{Plugin: f.plugin(), Observer: seen.Note})
		ctx, cancel := context.WithCancel(t.Context())
		wait := r.beginUntil(ctx, request("ADD", "c1"))
		cancel()
		wait()
		time.Sleep(2 * time.Second)
		del := r.begin(request("DEL", "c1"))
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
		}, del: takes(0)}
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
// request. The reason why a handler was stopped comes first, then what it says.
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
		"STATUS":          {"STATUS", 0, 2 * time.Second, 51}, // which it says itself
		"asked for less":  {"ADD", 1500, 1500 * time.Millisecond, 11},
		"asked for more":  {"DEL", 1<<63 - 1, 110 * time.Second, 11},
		"asked for odd":   {"DEL", -5, 110 * time.Second, 11},
		"STATUS for less": {"STATUS", 500, 500 * time.Millisecond, 51},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				stopped := func(ctx context.Context, _ *skel.CmdArgs) error {
					<-ctx.Done()
					return types.NewError(51, "uplink lost", "")
				}
				f := &fake{add: stopped, check: stopped, del: stopped, gc: stopped, status: stopped}
				r := serve(t, &Server{Plugin: f.plugin()})
				m := request(tt.verb, "c1")
				m.DeadlineMs = tt.asked
				start := time.Now()
				r.do(m).want(t, 500, tt.code, "operation timed out: uplink lost")
				nodetest.Equal(t, "took", time.Since(start), tt.want)
				r.idle()
			})
		})
	}
}

// Operations of one container run one by one, in the order in which they
// came; those of others do not wait for them.
func TestOperationsOfAContainerRunInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := takes(time.Second)
		f := &fake{check: slow, add: slow}
		r := serve(t, &Server{Plugin: f.plugin(), Attach: func(*wire.Attributes) plugin.Plugin { return f.plugin() }})
		var waits []func() answer
		for _, verb := range []string{"ADD", "CHECK", "ADD"} {
			waits = append(waits, r.begin(request(verb, "c1")))
		}
		waits = append(waits, begun(func() answer { return r.attach(with(request("ADD", "c1"), "CNI_IFNAME", "net1")) }))
		// Of another container, and of none.
		start := time.Now()
		r.do(request("CHECK", "c2")).wantOK(t)
		r.do(request("GC", "c1")).wantOK(t)
		nodetest.Equal(t, "waited", time.Since(start), time.Second)
		for _, wait := range waits {
			wait().wantOK(t)
		}
		nodetest.Equal(t, "took", time.Since(start), 4*time.Second)
		nodetest.Equal(t, "calls", f.of("c1"), []string{"ADD c1", "end ADD c1", "CHECK c1", "end CHECK c1", "ADD c1", "end ADD c1", "ADD c1", "end ADD c1"})
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
		}, del: takes(0)}
		// All the ADDs that may be are there already: a DEL needs none of their places.
		r := serve(t, limited(&Server{Plugin: f.plugin(), MaxInFlight: 1}, 3))
		add := r.begin(request("ADD", "c1"))
		queued := r.begin(request("CHECK", "c1"))
		other := r.begin(request("ADD", "c2"))
		start := time.Now()
		first, second := r.begin(request("DEL", "c1")), r.begin(request("DEL", "c1"))
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
		nodetest.Equal(t, "calls", f.of("c1"), []string{"ADD c1", "end ADD c1", "DEL c1", "end DEL c1", "DEL c1", "end DEL c1", "CHECK c1"})
		r.idle()
	})
}

// A step of a container does not wait for what the daemon does for that container, which may be
// waiting for the lock of the program that asks. It cancels nothing, and has no Override.
func TestStepWaitsForNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := make(gate)
		f := &fake{add: g.wait}
		p := f.plugin()
		p.Steps = map[string]plugin.Step{"rule": {Del: func(_ context.Context, c *plugin.Call) error {
			f.Note("step " + c.ContainerID + " " + string(c.Config))
			return nil
		}}}
		r := serve(t, limited(&Server{Plugin: p, MaxInFlight: 1, Override: json.RawMessage(`{"x":1}`)}, 0))
		add := r.begin(request("ADD", "c1"))
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
			return begun(func() answer { return r.attach(with(request(verb, "c1"), "CNI_IFNAME", ifname)) })
		}
		short := request("CHECK", "c1")
		short.DeadlineMs = 1000
		check := r.begin(short) // runs on, until its time is up
		one, two, detached := more("ADD", "net1"), more("ADD", "net2"), more("DEL", "net1")
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
			return untilEnd(ctx, a)
		}
		return nil
	}
	f := &fake{check: busy, del: takes(0), add: busy}
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
	nodetest.Equal(t, "left", len(sv.flight.ops.all()), 0)
}
