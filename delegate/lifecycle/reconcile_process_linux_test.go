package lifecycle

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Wherever a process dies, or has no room on the disk, the next one ends with what is
// wanted: what cannot be recorded is not attached, and what cannot be noted as detached is
// detached once more.
func TestReconcileAfterAProcessThatCouldNotFinish(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		role        role
		code        uint
		trace, then []string
		left        []string
	}{
		"dies before it detaches":   {role{KillAt: "DEL macvlan"}, 0, nil, []string{"DEL macvlan hot0", "ADD ipvlan hot1"}, []string{"macvlan hot0 half"}},
		"dies before it attaches":   {role{KillAt: "ADD ipvlan"}, 0, nil, []string{"DEL ipvlan hot1", "ADD ipvlan hot1"}, []string{"ipvlan hot1 half"}},
		"the disk is full":          {role{Limit: 1}, 5, []string{"DEL macvlan hot0"}, []string{"DEL macvlan hot0", "ADD ipvlan hot1"}, []string{"macvlan hot0"}},
		"and the plugin fails, too": {role{Limit: 1, FailAt: "DEL macvlan"}, 101, []string{"DEL macvlan hot0"}, []string{"DEL macvlan hot0", "ADD ipvlan hot1"}, []string{"macvlan hot0"}},
		"a plugin fails alone":      {role{FailAt: "ADD ipvlan"}, 101, []string{"DEL macvlan hot0", "ADD ipvlan hot1", "DEL ipvlan hot1"}, []string{"ADD ipvlan hot1"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.own()
			n.reconcile(keep("macvlan@hot0"))
			r := tt.role
			r.Dir, r.Verb = n.Dir, "RECONCILE"
			if p := start(t, r); r.KillAt != "" {
				p.died()
			} else {
				out := p.end()
				wantCode(t, errOf(out), tt.code)
				if d := cmp.Diff(tt.trace, out.Trace); d != "" {
					t.Errorf("calls (-want +got):\n%s", d)
				}
			}
			n.wantAttachments(tt.left...)
			before := len(n.trace())
			n.reconcile(keep("ipvlan@hot1"))
			if d := cmp.Diff(tt.then, n.trace()[before:]); d != "" {
				t.Errorf("then (-want +got):\n%s", d)
			}
			n.wantAttachments("ipvlan hot1")
			n.wantRecords("c1/eth0 added")
			n.del(eth0)
			if left := n.files(); len(left) > 0 {
				t.Errorf("files: %q", left)
			}
		})
	}
}
