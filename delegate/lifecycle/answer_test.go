package lifecycle

import (
	"errors"
	"io/fs"
	"syscall"
	"testing"

	"github.com/metacni/metacni/scratch"
)

// A Del that got no lock lets the container go only where it is certain that
// nothing is attached: inside an operation, when an Add was refused there; on a
// full or read-only disk, when there is no record.
func TestDelWithoutALock(t *testing.T) {
	t.Parallel()
	nested := &scratch.Error{Op: "lock", Err: scratch.ErrNested}
	disk := func(errno syscall.Errno) error {
		return &scratch.Error{Op: "lock", Err: &fs.PathError{Op: "open", Path: "c1@lock", Err: errno}}
	}
	states := []string{"no record", "planned", "added", "partial", "deleting", "damaged"}
	leave := map[string]func(*node){
		"no record": func(n *node) { n.add(key("c2", "eth0")) },
		"planned":   func(n *node) { n.crash("ADD tuning", eth0) },
		"added":     func(n *node) { n.add(eth0) },
		"partial": func(n *node) {
			n.add(eth0)
			n.dieOn("ADD ipvlan")
			n.dies(func() error { _, err := n.Attach(n.t.Context(), eth0, hotplug(eth0)); return err })
		},
		"deleting": func(n *node) {
			n.add(eth0)
			n.failOn("DEL bridge", 101)
			wantCode(n.t, n.Del(n.t.Context(), Removal{Key: eth0}), 101)
		},
		"damaged": func(n *node) { n.add(eth0); n.damage(eth0) },
	}
	for name, tt := range map[string]struct {
		err    error
		passes []bool // for each state
	}{
		"nested":    {nested, []bool{true, true, false, false, true, false}},
		"full":      {disk(syscall.ENOSPC), []bool{true, false, false, false, false, false}},
		"quota":     {disk(syscall.EDQUOT), []bool{true, false, false, false, false, false}},
		"read-only": {disk(syscall.EROFS), []bool{true, false, false, false, false, false}},
		"broken":    {disk(syscall.EIO), []bool{false, false, false, false, false, false}},
		"given up":  {&givenUpError{errors.New("x")}, []bool{true, true, true, true, true, true}},
		"another":   {errors.New("x"), []bool{false, false, false, false, false, false}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i, state := range states {
				n := nodeAt(t, fastDir(t))
				leave[state](n)
				got := n.answer(Removal{Key: eth0}, tt.err)
				if got != nil && got != tt.err || (got == nil) != tt.passes[i] {
					t.Errorf("%s: %v", state, got)
				}
			}
		})
	}
	if err := newNode(t).answer(Removal{Key: eth0}, nil); err != nil {
		t.Error(err)
	}
}
