package resident_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/resident"
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
		ok(t, step(t.Context()))
		done, err := iv.Add(t.Context(), attach(t, "c1", "near"))
		ok(t, err)
		ok(t, iv.Del(t.Context(), done))
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
	if d := cmp.Diff([]string{"00-x ready", "10-z ready", "20-a ready", "20-b ready", "20-c ready"}, n.states()); d != "" {
		t.Errorf("plugins (-want +got):\n%s", d)
	}
	ok(t, n.Stop(t.Context()))
	want := []string{"20-c gone", "20-b gone", "20-a gone", "10-z gone", "00-x gone"}
	if d := cmp.Diff(want, n.seen()[5:]); d != "" {
		t.Errorf("stopped (-want +got):\n%s", d)
	}
}

func TestInvalidHellosAreRefusedWithAReason(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	n.serve(simple("50", "good"))
	many := make([]string, 65)
	for i := range many {
		many[i] = fmt.Sprint("t", i)
	}
	for name, tt := range map[string]struct{ say, want string }{
		"not JSON":            {"hello\n", "the hello is not a JSON object on one line"},
		"HTTP":                {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "not a JSON object"},
		"HTTP/2":              {"PRI * HTTP/2.0\r\n", "the hello is not a JSON object on one line"},
		"a list":              {"[]\n", "the hello is not a JSON object on one line"},
		"null":                {"null\n", "version 0"},
		"empty":               {"\n", "the hello is not a JSON object on one line"},
		"more than a line":    {hello("10", "a", "a") + "x", "more data after the hello"},
		"too long":            {strings.Repeat(" ", 32<<10), "more than 32768 bytes"},
		"no version":          {`{"index":"10","name":"a","types":["a"]}` + "\n", "version 0"},
		"version 1":           {`{"version":1,"index":"10","name":"a","types":["a"]}` + "\n", "version 1 of the protocol is not supported, only version 2: build"},
		"newer version":       {`{"version":3,"index":"10","name":"a","types":["a"]}` + "\n", "version 3 of the protocol is not supported"},
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
		p := n.dial().say(tt.say)
		w := p.hear()
		if !strings.Contains(w.Error, tt.want) || !strings.HasPrefix(w.Error, "refused: ") {
			t.Errorf("%s: %q, want %q", name, w.Error, tt.want)
		}
		p.closed()
	}
	if d := cmp.Diff([]string{"50-good ready"}, n.states()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if _, err := n.exec(t.Context(), "good", "ADD", "c1"); err != nil {
		t.Error(err)
	}
	for _, why := range n.refusals() {
		if !strings.HasPrefix(why, "register ") {
			t.Errorf("%q", why)
		}
	}
}

func TestUnknownKeysOfAHelloAreIgnored(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	if w := n.dial().say(`{"version":2,"index":"10","name":"a","types":["a"],"events":["all"]}` + "\n").hear(); w.Error != "" {
		t.Error(w.Error)
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
		silent = append(silent, n.dial(), n.dial().say(`{"version":2,`))
	}
	n.serve(simple("10", "a"))
	n.serve(simple("11", "b"))
	_, err := n.exec(t.Context(), "b", "ADD", "c1")
	ok(t, err)
	ok(t, n.Stop(t.Context()))
	for _, p := range silent {
		p.closed()
	}
}

func TestSilentClientIsRefusedAfterRegisterTimeout(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.RegisterTimeout = 10 * time.Millisecond
	n.start()
	p := n.dial()
	if w := p.hear(); !strings.Contains(w.Error, "the hello is missing") {
		t.Errorf("%+v", w)
	}
	p.closed()
}

// Further ones are refused until one has ended.
func TestRegistrationsAtTheSameTimeAreLimited(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.RegisterTimeout = time.Hour
	n.start()
	var pending []*peer
	for range 32 {
		pending = append(pending, n.dial())
	}
	next := n.dial()
	if w := next.hear(); !strings.Contains(w.Error, "32 residents are registering already") {
		t.Errorf("%+v", w)
	}
	next.closed()
	pending[0].say("no\n").closed()
	pending[1].register("10", "b")
	n.serve(simple("11", "c"))
}

// The first one is not affected.
func TestSecondResidentOfANameIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	n.serve(simple("10", "a"))
	second := n.connect(newPlugin("10", "a", fakes("other"), "other"))
	err := come(t, second.err, "the refusal")
	if !errors.Is(err, resident.ErrRefused) || !strings.Contains(err.Error(), "a resident 10-a is connected already") {
		t.Errorf("err = %v", err)
	}
	n.serve(newPlugin("20", "a", fakes("third"), "third")) // the index is part of the name
	_, err = n.exec(t.Context(), "a", "ADD", "c1")
	ok(t, err)
}

// The reason names both residents.
func TestSecondResidentOfATypeIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	n.serve(newPlugin("10", "a", fakes("x", "y"), "x", "y"))
	err := come(t, n.connect(newPlugin("05", "b", fakes("y"), "y")).err, "the refusal")
	if !errors.Is(err, resident.ErrRefused) || !strings.Contains(err.Error(), `05-b claims type "y", which 10-a serves`) {
		t.Errorf("err = %v", err)
	}
	if d := cmp.Diff([]string{"10-a ready"}, n.states()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
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
		if err := come(t, refused, "a refusal"); !errors.Is(err, resident.ErrRefused) {
			t.Errorf("err = %v", err)
		}
	}
	_, err := n.exec(t.Context(), "x", "ADD", "c1")
	ok(t, err)
}

// A resident that breaks the protocol before it is ready is refused, and its name
// and types are free.
func TestResidentThatBreaksTheProtocolIsRefused(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]func(p *peer){
		"garbage": func(p *peer) { p.say(strings.Repeat("garbage\r\n", 100)) },
		"closed":  func(p *peer) { _ = p.Close() },
		"mute":    func(*peer) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			if name == "mute" {
				n.RegisterTimeout = 2 * time.Second
			}
			n.start()
			n.serve(simple("50", "good"))
			p := n.dial().say(hello("10", "a", "a"))
			if w := p.hear(); w.Error != "" {
				t.Fatal(w.Error)
			}
			then(p)
			n.await("10-a refused", 1)
			_, err := n.exec(t.Context(), "good", "ADD", "c1")
			ok(t, err)
			if d := cmp.Diff([]string{"50-good ready"}, n.states()); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			n.serve(simple("10", "a")) // the name and the type are free
		})
	}
}

// Other residents are not affected.
func TestResidentThatBreaksTheProtocolIsDisconnected(t *testing.T) {
	t.Parallel()
	for name, say := range map[string]string{
		"garbage":   "garbage",
		"too long":  "\x7f\xff\xff\xff",
		"not JSON":  "\x00\x00\x00\x01{",
		"a list":    "\x00\x00\x00\x02[]",
		"cut short": "\x00\x00\x00",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t).start()
			n.serve(simple("20", "other"))
			p := n.dial().register("10", "a")
			n.await("10-a ready", 1)
			p.say(say)
			if name == "cut short" {
				_ = p.Close()
			}
			if s := n.await("10-a gone", 1); !errors.Is(s.Err, resident.ErrLost) {
				t.Errorf("gone for %v", s.Err)
			}
			_, err := n.exec(t.Context(), "other", "ADD", "c1")
			ok(t, err)
		})
	}
}

// A process is refused when the system does not tell its user.
func TestUnidentifiedPeersAreRefused(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	n := &node{t: t, more: make(chan struct{})}
	n.Host = &resident.Host{Listener: l, Observer: n.note}
	n.start()
	c, err := net.Dial("tcp", l.Addr().String())
	ok(t, err)
	err = simple("10", "a").Serve(t.Context(), c)
	if !errors.Is(err, resident.ErrRefused) || !strings.Contains(err.Error(), "the user of its process is unknown") {
		t.Errorf("err = %v", err)
	}
	if all := n.Plugins(); len(all) > 0 {
		t.Errorf("entered: %v", all)
	}
}
