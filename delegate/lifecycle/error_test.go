package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/scratch"
)

// A sentinel has its code wherever it is found first.
func TestSentinelsHaveTheirCodesHoweverWrapped(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err  error
		code uint
	}{
		"added":               {ErrAdded, 7},
		"not added":           {ErrNotAdded, 7},
		"plan, explained":     {fmt.Errorf("x: %w", fmt.Errorf("%w: y", ErrPlan)), 7},
		"no list":             {ErrNoList, 7},
		"superseded":          {fmt.Errorf("x: %w", ErrSuperseded), 11},
		"corrupt":             {&scratch.Error{Err: scratch.ErrCorrupt}, 5},
		"a plugin's":          {types.NewError(123, "x", ""), 123},
		"wrapped by another":  {&scratch.Error{Err: ErrPlan}, 5},
		"ended":               {context.DeadlineExceeded, 11},
		"joined to another":   {errors.Join(types.NewError(123, "x", ""), ErrPlan), 123},
		"joined to nothing":   {errors.Join(errors.New("x"), ErrPlan), 7},
		"not undone":          {&delegate.UndoError{Err: fmt.Errorf("%w: y", ErrPlan), Undo: errors.New("x")}, 7},
		"nothing with a code": {errors.New("x"), 999},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := fail("ADD", eth0, tt.err)
			wantCode(t, err, tt.code)
			if !errors.Is(err, tt.err) {
				t.Error("it does not wrap its cause")
			}
		})
	}
	if err := fail("ADD", eth0, nil); err != nil {
		t.Errorf("%v of nothing", err)
	}
}

// Without a descriptor to hand down nothing runs, and the runtime tries again:
// a plugin that outlived us would work beside the next DEL.
func TestNoDescriptorToHandDownIsTryAgainLater(t *testing.T) {
	t.Parallel()
	wantCode(t, handable(nil), 11)
	if err := handable(os.Stdin); err != nil {
		t.Error(err)
	}
}

// What can never be right is refused before anything is done.
func TestMistakesOfTheCallerAreRefusedFirst(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(*node) error{
		"Release without keep": func(n *node) error { return n.Release(n.t.Context(), eth0, nil) },
		"Detach, LockTimeout -1": func(n *node) error {
			n.LockTimeout = -1
			return n.Detach(n.t.Context(), eth0, "net0")
		},
		"GC, LockTimeout -1": func(n *node) error {
			n.LockTimeout = -1
			return n.GC(n.t.Context(), Collection{Network: "multi", Valid: noneValid})
		},
		"Add, UndoTimeout -1": func(n *node) error {
			n.Invoker.UndoTimeout = -1
			_, err := n.Add(n.t.Context(), key("c2", "eth0"), pair(key("c2", "eth0")))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.add(eth0)
			calls := len(n.trace())
			wantCode(t, do(n), types.ErrInvalidNetworkConfig)
			n.wantRecords("c1/eth0 added")
			if len(n.trace()) > calls {
				t.Errorf("ran %q", n.trace()[calls:])
			}
		})
	}
}
