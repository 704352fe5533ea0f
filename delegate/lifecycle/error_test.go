package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/scratch"
)

// An Error has the code of a sentinel that it is, and leaves those of others
// alone. G5.
func TestG5ErrorCodes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err  error
		own  uint // CNICode
		code uint // for the runtime
	}{
		"added":               {ErrAdded, 7, 7},
		"not added":           {ErrNotAdded, 7, 7},
		"plan, explained":     {fmt.Errorf("x: %w", fmt.Errorf("%w: y", ErrPlan)), 7, 7},
		"no list":             {ErrNoList, 7, 7},
		"superseded":          {fmt.Errorf("x: %w", ErrSuperseded), 11, 11},
		"corrupt":             {&scratch.Error{Err: scratch.ErrCorrupt}, 0, 5},
		"a plugin's":          {types.NewError(123, "x", ""), 0, 123},
		"wrapped by another":  {&scratch.Error{Err: ErrPlan}, 0, 5},
		"ended":               {context.DeadlineExceeded, 0, 11},
		"joined to another":   {errors.Join(types.NewError(123, "x", ""), ErrPlan), 0, 123},
		"nothing with a code": {errors.New("x"), 0, 999},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := fail("ADD", eth0, tt.err)
			if e := (*Error)(nil); !errors.As(err, &e) || e.CNICode() != tt.own {
				t.Errorf("CNICode of %v, want %d", err, tt.own)
			}
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
