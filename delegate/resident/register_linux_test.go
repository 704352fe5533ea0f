package resident_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/resident"
	"github.com/metacni/metacni/internal/nodetest"
)

// A host without residents passes all calls to the Exec below, started or not.
func TestZeroHostCallsTheExecBelow(t *testing.T) {
	t.Parallel()
	near := fakes("near")
	r := &resident.Host{}
	iv := &delegate.Invoker{Exec: r.Exec(near), Path: []string{"/opt/cni/bin"}}
	for _, step := range []func(context.Context) error{
		func(context.Context) error { return nil }, r.Start,
		func(ctx context.Context) error { return r.Stop(ctx) },
	} {
		nodetest.OK(t, step(t.Context()))
		done, err := iv.Add(t.Context(), attach("c1", "near"))
		nodetest.OK(t, err)
		nodetest.OK(t, iv.Del(t.Context(), done))
	}
	if err := r.Start(t.Context()); !errors.Is(err, resident.ErrStopped) {
		t.Errorf("started again: %v", err)
	}
	if err := r.Stop(t.Context()); !errors.Is(err, resident.ErrStopped) {
		t.Errorf("stopped again: %v", err)
	}
}

func TestResidentsAreOrderedByIndexAndName(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	for _, d := range []struct{ index, name string }{{"20", "b"}, {"10", "z"}, {"20", "a"}, {"00", "x"}, {"20", "c"}} {
		n.serve(simple(d.index, d.name))
	}
	nodetest.Equal(t, "plugins", n.states(), []string{"00-x ready", "10-z ready", "20-a ready", "20-b ready", "20-c ready"})
	nodetest.OK(t, n.Stop(t.Context()))
	want := []string{"20-c gone", "20-b gone", "20-a gone", "10-z gone", "00-x gone"}
	nodetest.Equal(t, "stopped", n.seen()[5:], want)
}

func TestInvalidHellosAreRefusedWithAReason(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	n.serve(simple("50", "good"))
	many := make([]string, 65)
	for i := range many {
		many[i] = fmt.Sprint("t", i)
	}
	version := func(v int) map[string]any {
		return map[string]any{"version": v, "index": "10", "name": "a", "types": []string{"a"}}
	}
	for name, tt := range map[string]struct {
		hello any
		want  string
	}{
		"a list":              {[]string{}, "invalid answer"},
		"a type that is none": {map[string]any{"version": 3, "types": 7}, "invalid answer"},
		"null":                {nil, "version 0"},
		"version 2":           {version(2), "it uses version 2 of the protocol, and the host version 3: build"},
		"newer version":       {version(4), "version 4 of the protocol"},
		"index of one digit":  {hello("1", "a", "a"), `index "1"`},
		"index of letters":    {hello("aa", "a", "a"), `index "aa"`},
		"index of three":      {hello("100", "a", "a"), `index "100"`},
		"no name":             {hello("10", "", "a"), `name ""`},
		"name with a path":    {hello("10", "../a", "a"), `name "../a"`},
		"name with a dot":     {hello("10", ".a", "a"), `name ".a"`},
		"name with a space":   {hello("10", "a b", "a"), `name "a b"`},
		"long name":           {hello("10", strings.Repeat("a", 65), "a"), `name "aaa`},
		"no types":            {hello("10", "a"), "10-a serves no types"},
		"too many types":      {hello("10", "a", many...), "65 types"},
		"type with a path":    {hello("10", "a", "a", "../../bin/sh"), `type "../../bin/sh" is not a valid plugin name`},
		"absolute type":       {hello("10", "a", "/bin/sh"), `type "/bin/sh"`},
		"type dot dot":        {hello("10", "a", ".."), `type ".."`},
		"empty type":          {hello("10", "a", ""), `type ""`},
		"type with a zero":    {hello("10", "a", "a\x00b"), `type "a\x00b"`},
		"type with a newline": {hello("10", "a", "a\nb"), `type "a\nb"`},
		"type twice":          {hello("10", "a", "a", "a"), `type "a" is listed twice`},
	} {
		p := n.dial().answer("register", tt.hello)
		refused := p.hear()
		if refused.Method != "refused" || !strings.Contains(refused.Params.Reason, tt.want) {
			t.Errorf("%s: %+v, want %q", name, refused, tt.want)
		}
		p.answerTo(refused, nil).closed()
	}
	nodetest.Equal(t, "got", n.states(), []string{"50-good ready"})
	if _, err := n.exec(t.Context(), "good", "ADD", "c1"); err != nil {
		t.Error(err)
	}
	for _, why := range n.refusals() {
		if !strings.HasPrefix(why, "register ") {
			t.Errorf("%q", why)
		}
	}
}

// A client that sends no complete hello does not delay others, and Stop
// disconnects it.
func TestSilentClientsDelayNobody(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.RegisterTimeout = time.Hour
	n.start()
	var silent []*peer
	for range 5 {
		silent = append(silent, n.dial(), n.dial().say(`{"jsonrpc":"2.0",`))
	}
	n.serve(simple("10", "a"))
	n.serve(simple("11", "b"))
	_, err := n.exec(t.Context(), "b", "ADD", "c1")
	nodetest.OK(t, err)
	nodetest.OK(t, n.Stop(t.Context()))
	for _, p := range silent {
		p.closed()
	}
}

func TestSilentClientIsRefusedAfterRegisterTimeout(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.RegisterTimeout = 10 * time.Millisecond
	n.start()
	n.dial().closed()
	nodetest.Says(t, n.await(". refused", 1).Err, "asking who it is: no answer in time")
}

// 32 processes that do not say who they are hold up others until they have ended.
func TestRegistrationsAtTheSameTimeAreLimited(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.RegisterTimeout = time.Hour
	n.start()
	var pending []*peer
	for range 32 {
		p := n.dial()
		p.hear() // the host has accepted it
		pending = append(pending, p)
	}
	next := n.connect(simple("10", "a"))
	if len(n.seen()) > 0 || len(next.err) > 0 {
		t.Errorf("%q", n.seen())
	}
	_ = pending[0].Close()
	n.await("10-a ready", 1)
}

// The first one is not affected.
func TestSecondResidentOfANameIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	n.serve(simple("10", "a"))
	second := n.connect(newPlugin("10", "a", fakes("other"), "other"))
	err := nodetest.Come(t, second.err, "the refusal")
	if !errors.Is(err, resident.ErrRefused) || !strings.Contains(err.Error(), "a resident 10-a is connected already") {
		t.Errorf("err = %v", err)
	}
	n.serve(newPlugin("20", "a", fakes("third"), "third")) // the index is part of the name
	_, err = n.exec(t.Context(), "a", "ADD", "c1")
	nodetest.OK(t, err)
}

// The reason names both residents.
func TestSecondResidentOfATypeIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	n.serve(newPlugin("10", "a", fakes("x", "y"), "x", "y"))
	err := nodetest.Come(t, n.connect(newPlugin("05", "b", fakes("y"), "y")).err, "the refusal")
	if !errors.Is(err, resident.ErrRefused) || !strings.Contains(err.Error(), `05-b claims type "y", which 10-a serves`) {
		t.Errorf("err = %v", err)
	}
	nodetest.Equal(t, "got", n.states(), []string{"10-a ready"})
}

func TestOneOfManyResidentsThatClaimATypeGetsIt(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.ReturnTimeout = patience
	n.start()
	var all []*served
	for i := range 10 {
		all = append(all, n.connect(newPlugin("10", fmt.Sprint("d", i), fakes("x"), "x")))
	}
	refused := make(chan error)
	for _, r := range all {
		go func() { refused <- <-r.err }()
	}
	for range 9 {
		if err := nodetest.Come(t, refused, "a refusal"); !errors.Is(err, resident.ErrRefused) {
			t.Errorf("err = %v", err)
		}
	}
	_, err := n.exec(t.Context(), "x", "ADD", "c1")
	nodetest.OK(t, err)
}

// A process that breaks the protocol is disconnected, before it is ready and after. Its
// name and types are free then, and other residents are not affected.
func TestWhoBreaksTheProtocolIsDisconnected(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]func(p *peer){
		"garbage":       func(p *peer) { p.say(strings.Repeat("garbage\r\n", 100)) },
		"not JSON":      func(p *peer) { p.say("{\n") },
		"a batch":       func(p *peer) { p.say("[{},{}]\n") },
		"an empty line": func(p *peer) { p.say("\n") },
		"HTTP/2":        func(p *peer) { p.say("PRI * HTTP/2.0\r\n") },
		"too long":      func(p *peer) { p.say(strings.Repeat("{", 9<<20)) },
		"closed":        func(p *peer) { _ = p.Close() },
		"cut short":     func(p *peer) { p.say(`{"jsonrpc":`); _ = p.Close() },
	} {
		for _, stage := range []string{"silent", "joining", "ready"} {
			t.Run(stage+" "+name, func(t *testing.T) {
				t.Parallel()
				n := newNode(t).start()
				n.serve(simple("50", "good"))
				p, want := n.dial(), ". refused"
				switch stage {
				case "joining":
					p.answer("register", hello("10", "a", "a")).hear()
					want = "10-a refused"
				case "ready":
					p.register("10", "a")
					n.await("10-a ready", 1)
					want = "10-a gone"
				}
				then(p)
				if s := n.await(want, 1); !errors.Is(s.Err, resident.ErrLost) {
					t.Errorf("gone for %v", s.Err)
				}
				_, err := n.exec(t.Context(), "good", "ADD", "c1")
				nodetest.OK(t, err)
				n.serve(simple("10", "a"), map[string]int{"ready": 2}[stage]) // the name and the type are free
			})
		}
	}
}

// Unknown keys of an answer and answers to unknown calls are ignored. An answer that is
// not valid fails its call.
func TestWhatIsNotKnownIsIgnored(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	h := hello("10", "a", "a")
	h["events"] = []string{"all"}
	p := n.dial().say(`{"jsonrpc":"2.0","id":99,"result":1}`+"\n"+`{"jsonrpc":"2.0","method":"news"}`+"\n").answer("register", h).answer("synchronize", nil)
	n.await("10-a ready", 1)
	for _, answer := range []any{7, "not base64!", []int{300}} {
		result := make(chan error, 1)
		go func() {
			_, err := n.exec(t.Context(), "a", "ADD", "c1")
			result <- err
		}()
		p.answer("cni", answer)
		err := nodetest.Come(t, result, "the end of the call")
		nodetest.Code(t, err, 999)
		nodetest.Says(t, err, "invalid answer")
	}
	nodetest.Equal(t, "plugins", n.states(), []string{"10-a ready"})
}

// A process is refused when the system does not tell its user.
func TestUnidentifiedPeersAreRefused(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	nodetest.OK(t, err)
	n := &node{t: t, more: make(chan struct{})}
	n.Host = &resident.Host{Listener: l, Observer: n.note}
	n.start()
	c, err := net.Dial("tcp", l.Addr().String())
	nodetest.OK(t, err)
	err = simple("10", "a").Serve(t.Context(), c)
	if !errors.Is(err, resident.ErrRefused) || !strings.Contains(err.Error(), "the user of its process is unknown") {
		t.Errorf("err = %v", err)
	}
	if all := n.Plugins(); len(all) > 0 {
		t.Errorf("entered: %v", all)
	}
}
