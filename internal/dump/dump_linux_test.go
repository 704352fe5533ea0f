package dump_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"

	"github.com/metacni/metacni/internal/dump"
)

func TestWhole(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	tests := []struct {
		name  string
		lists int   // how many lists change while they are read, or fail
		err   error // of these lists
		want  []int
		fails error
		calls int
	}{
		{name: "unchanged", want: []int{1, 2}, calls: 1},
		{name: "changed for a while", lists: 50, err: netlink.ErrDumpInterrupted, want: []int{1, 2}, calls: 51},
		{name: "always changed", lists: 1000, err: netlink.ErrDumpInterrupted, fails: netlink.ErrDumpInterrupted, calls: 100},
		{name: "not readable", lists: 1000, err: broken, fails: broken, calls: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			calls := 0
			got, err := dump.Whole(func() ([]int, error) {
				if calls++; calls <= tt.lists {
					return []int{1}, tt.err
				}
				return []int{1, 2}, nil
			})
			if diff := cmp.Diff(tt.fails, err, cmpopts.EquateErrors()); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("list (-want +got):\n%s", diff)
			}
			if calls != tt.calls {
				t.Errorf("%d lists were read, want %d", calls, tt.calls)
			}
		})
	}
}
