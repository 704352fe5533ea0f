package lifecycle

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// What is wanted may be an old answer. It attaches, and only a confirmed one detaches.
func TestReconcileDetachesOnlyWhatIsConfirmedToBeUnwanted(t *testing.T) {
	t.Parallel()
	const unknown = "?"
	for name, tt := range map[string]struct {
		before, wanted, confirmed string
		replace                   bool
		done                      []string
		asked                     int // how often for a confirmation
		then                      []string
	}{
		"an attach needs none": {
			before: "ipvlan", wanted: "ipvlan macvlan@hot0", confirmed: unknown,
			done: []string{"ATTACH macvlan hot0"}, then: []string{"ipvlan net1", "macvlan hot0"},
		},
		"a detach that is confirmed": {
			before: "ipvlan macvlan", wanted: "ipvlan", confirmed: "ipvlan",
			done: []string{"DETACH macvlan net2"}, asked: 1, then: []string{"ipvlan net1"},
		},
		"an old answer": {
			before: "ipvlan macvlan", wanted: "ipvlan", confirmed: "ipvlan macvlan",
			asked: 1, then: []string{"ipvlan net1", "macvlan net2"},
		},
		"the confirmed answer attaches too": {
			before: "ipvlan", wanted: "", confirmed: "ipvlan macvlan",
			done: []string{"ATTACH macvlan net2"}, asked: 2, then: []string{"ipvlan net1", "macvlan net2"},
		},
		"not known": {
			before: "ipvlan@hot0 macvlan", wanted: "macvlan@hot0 tuning@hot1", confirmed: unknown,
			done: []string{"ATTACH tuning hot1"}, asked: 1, then: []string{"ipvlan hot0", "macvlan net1", "tuning hot1"},
		},
		"a replacement that is confirmed": {
			before: "ipvlan@hot0?a", wanted: "ipvlan@hot0?b", confirmed: "ipvlan@hot0?b", replace: true,
			done: []string{"DETACH ipvlan hot0", "ATTACH ipvlan hot0"}, asked: 1, then: []string{"ipvlan hot0"},
		},
		"a replacement that is not": {
			before: "ipvlan@hot0?a", wanted: "ipvlan@hot0?b", confirmed: "ipvlan@hot0?a", replace: true,
			asked: 1, then: []string{"ipvlan hot0"},
		},
		"a replacement that is not known": {
			before: "ipvlan@hot0?a", wanted: "ipvlan@hot0?b", confirmed: unknown, replace: true,
			asked: 1, then: []string{"ipvlan hot0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.own()
			n.reconcile(keep(strings.Fields(tt.before)...))
			why := types.NewError(11, "the API is away", "")
			asked := 0
			r := keep(strings.Fields(tt.wanted)...)
			r.Replace = tt.replace
			r.Confirmed = func(context.Context, Record) ([]Wanted, error) {
				if asked++; tt.confirmed == unknown {
					return nil, why
				}
				return wanted(strings.Fields(tt.confirmed)...), nil
			}
			done, err := n.Reconcile(t.Context(), eth0, r)
			if failed := tt.confirmed == unknown && asked > 0; failed != errors.Is(err, why) || !failed && err != nil {
				t.Errorf("err = %v", err)
			}
			nodetest.Equal(t, "done", reconciled(done), tt.done)
			nodetest.Equal(t, "asked", asked, tt.asked)
			n.wantAttachments(tt.then...)
		})
	}
}

// It was being detached already.
func TestReconcileNeedsNoConfirmationForTheRestOfADetach(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.own()
	n.reconcile(keep("ipvlan@hot0"))
	n.FailOn("DEL ipvlan", 101)
	_, err := n.Reconcile(t.Context(), eth0, keep())
	nodetest.Code(t, err, 101)
	n.wantAttachments("ipvlan hot0 half")
	n.Exec.Plugins = plugins()
	r := keep()
	r.Confirmed = func(context.Context, Record) ([]Wanted, error) {
		t.Error("asked for a confirmation")
		return nil, errors.New("away")
	}
	nodetest.Equal(t, "done", n.reconcile(r), []string{"DETACH ipvlan hot0"})
}
