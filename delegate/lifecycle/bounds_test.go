package lifecycle

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/bounds"
	"github.com/metacni/metacni/netconf"
)

// deep returns JSON with the given number of levels.
func deep(levels int) string { return strings.Repeat("[", levels) + strings.Repeat("]", levels) }

// withResult returns a result with the given JSON in one of its keys.
func withResult(value string) string { return `{"cniVersion":"1.1.0","x":` + value + `}` }

// What an ADD is given is recorded only if it can be read back.
func TestAddRefusesWhatCannotBeReadBack(t *testing.T) {
	t.Parallel()
	with := func(change func(*delegate.Attachment)) []delegate.Attachment {
		a := attachment(network("blue", "bridge"), "c1", "eth0")
		change(&a)
		return []delegate.Attachment{a}
	}
	large, err := mustParse(`{"name":"blue","type":"bridge"}`).EditPlugins(netconf.Set("x", strings.Repeat("x", bounds.Network)))
	if err != nil {
		t.Fatal(err)
	}
	tooDeep := raw(deep(bounds.Depth + 1))
	for name, tt := range map[string]struct {
		plan []delegate.Attachment
		say  string
	}{
		"an origin":            {with(func(a *delegate.Attachment) { a.Origin = tooDeep }), "the origin is nested more deeply than 1000 levels"},
		"a deeper origin":      {with(func(a *delegate.Attachment) { a.Origin = raw(deep(9_999)) }), "the origin is nested"},
		"an undeclared arg":    {with(func(a *delegate.Attachment) { a.CapabilityArgs = map[string]raw{"x": tooDeep} }), `capability argument "x" is nested`},
		"an arg that no JSON":  {with(func(a *delegate.Attachment) { a.CapabilityArgs = map[string]raw{"x": raw("{")} }), `capability argument "x" is not JSON`},
		"a large network":      {with(func(a *delegate.Attachment) { a.Network = large }), `network "blue": invalid configuration: larger than 1 MiB`},
		"a large origin":       {with(func(a *delegate.Attachment) { a.Origin = raw(`"` + strings.Repeat("x", bounds.Record) + `"`) }), "the record would be larger than 16 MiB"},
		"a large name, nearly": {with(func(a *delegate.Attachment) { a.Args = "A=" + strings.Repeat("x", bounds.Record) }), "larger than 16 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			_, err := n.Add(t.Context(), eth0, Transaction{Plan: Plan(tt.plan...)})
			wantCode(t, err, 7)
			if err == nil || !strings.Contains(err.Error(), tt.say) {
				t.Errorf("%.300v, want it to say %s", err, tt.say)
			}
			n.wantTrace()
			n.wantNothing()
		})
	}
}

// The deepest input that is accepted is recorded, read back and detached.
func TestDeepestAttachmentIsDetached(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	deepest := deep(bounds.Depth)
	net, err := mustParse(`{"cniVersion":"1.1.0","name":"blue","type":"bridge","x":` + deep(bounds.Depth-1) + `}`).
		EditPlugins(netconf.In("args", netconf.In("cni", netconf.Set("x", raw(deepest[6:len(deepest)-6])))))
	if err != nil {
		t.Fatal(err)
	}
	a := attachment(net, "c1", "eth0")
	a.Origin, a.CapabilityArgs = raw(deepest), map[string]raw{"x": raw(deepest)}
	n.printing("bridge", withResult(deep(bounds.Depth-1)))
	if _, err := n.Add(t.Context(), eth0, Transaction{Plan: Plan(a)}); err != nil {
		t.Fatal(err)
	}
	n.wantRecords("c1/eth0 added")
	other := nodeAt(t, n.Dir)
	if err := other.Check(t.Context(), eth0); err != nil {
		t.Error(err)
	}
	other.del(eth0)
	other.wantTrace("CHECK bridge eth0", "DEL bridge eth0")
	n.wantRecords()
}

// A result that cannot be recorded makes the ADD fail, and everything is undone.
func TestResultThatCannotBeReadBackIsUndone(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		result string
		code   uint
	}{
		"deep":           {withResult(deep(bounds.Depth)), 6},
		"deeper":         {withResult(deep(9_999)), 6},
		"large":          {withResult(`"` + strings.Repeat("x", bounds.Record) + `"`), 7},
		"not very large": {withResult(`"` + strings.Repeat("x", bounds.Record-4096) + `"`), 7}, // with the plan
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.printing("bridge", tt.result)
			a := attachment(network("blue", "bridge"), "c1", "eth0")
			a.Args = "A=" + strings.Repeat("x", 8192)
			_, err := n.Add(t.Context(), eth0, Transaction{Plan: Plan(a)})
			wantCode(t, err, tt.code)
			n.wantTrace("ADD bridge eth0", "DEL bridge eth0")
			n.wantNothing()
		})
	}
}

// Several results that are too large together make the ADD fail before the next plugin
// runs.
func TestResultsAreTooLargeTogether(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.printing("bridge", withResult(`"`+strings.Repeat("x", bounds.Record/2)+`"`))
	var plan []delegate.Attachment
	for i := range 3 {
		plan = append(plan, attachment(network(fmt.Sprint("n", i), "bridge"), "c1", fmt.Sprint("net", i)))
	}
	_, err := n.Add(t.Context(), eth0, Transaction{Plan: Plan(plan...)})
	wantCode(t, err, 7)
	n.wantTrace("ADD bridge net0", "ADD bridge net1", "DEL bridge net1", "DEL bridge net0")
	n.wantNothing()
}

func TestAdjustedResultThatCannotBeReadBackIsUndone(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	_, err := n.Add(t.Context(), eth0, Transaction{
		Plan: pair(eth0).Plan,
		Adjust: func(_ context.Context, added []delegate.Attached) error {
			added[0].Result = raw(withResult(deep(bounds.Depth)))
			return nil
		},
	})
	wantCode(t, err, 6)
	if n.wantNothing(); err == nil || !strings.Contains(err.Error(), "1000 levels") {
		t.Errorf("%.300v", err)
	}
}

func TestAdoptRefusesWhatCannotBeReadBack(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a := n.foreign(eth0, "")
	a.Attached[0].Result = raw(withResult(deep(bounds.Depth)))
	if adopted, err := n.Adopt(t.Context(), a); adopted || err == nil || !strings.Contains(err.Error(), "1000 levels") {
		t.Errorf("adopted %t, %.300v", adopted, err)
	}
	n.wantRecords()
}

// A network that is attached to a running container is subject to the same limits, and
// leaves the container as it was.
func TestAttachRefusesWhatCannotBeReadBack(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	a := attachment(network("green", "ipvlan"), "c1", "hot0")
	a.Origin = raw(deep(9_999))
	_, err := n.Attach(t.Context(), eth0, Transaction{Plan: Plan(a)})
	wantCode(t, err, 7)
	n.printing("ipvlan", withResult(`"`+strings.Repeat("x", bounds.Record)+`"`))
	_, err = n.Attach(t.Context(), eth0, hotplug(eth0))
	wantCode(t, err, 7)
	n.wantRecords("c1/eth0 added")
	n.del(eth0)
	n.wantNothing()
}
