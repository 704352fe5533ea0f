package cause

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

func TestErrorsHoldTheContextsErrorAndItsCause(t *testing.T) {
	t.Parallel()
	stopped, failed := errors.New("stopped"), errors.New("failed")
	cancelled := func(why error) context.Context {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(why)
		return ctx
	}
	late, cancel := context.WithDeadlineCause(t.Context(), time.Unix(1, 0), stopped)
	defer cancel()
	for _, tt := range []struct {
		name  string
		ctx   context.Context
		err   error // for Add
		of    string
		added string
		is    []error // what errors.Is finds in the results
	}{
		{"not ended", t.Context(), failed, "<nil>", "failed", nil},
		{"cancelled", cancelled(nil), failed, "context canceled", "failed: context canceled", []error{context.Canceled}},
		{"cancelled for a reason", cancelled(stopped), failed, "context canceled: stopped", "failed: context canceled: stopped", []error{context.Canceled, stopped}},
		{"deadline with a cause", late, failed, "context deadline exceeded: stopped", "failed: context deadline exceeded: stopped", []error{context.DeadlineExceeded, stopped}},
		{"the cause wraps the context's error", cancelled(fmt.Errorf("x: %w", context.Canceled)), failed, "x: context canceled", "failed: x: context canceled", []error{context.Canceled}},
		{"the error says it already", cancelled(stopped), context.Canceled, "context canceled: stopped", "context canceled", []error{context.Canceled}},
		{"no error", cancelled(nil), nil, "context canceled", "<nil>", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			of, added := Of(tt.ctx), Add(tt.ctx, tt.err)
			if got := fmt.Sprint(of); got != tt.of {
				t.Errorf("Of: %s, want %s", got, tt.of)
			}
			if got := fmt.Sprint(added); got != tt.added {
				t.Errorf("Add: %s, want %s", got, tt.added)
			}
			for _, want := range tt.is {
				if !errors.Is(of, want) {
					t.Errorf("Of: %v is not %v", of, want)
				}
			}
			if tt.err != nil && !errors.Is(added, tt.err) {
				t.Errorf("Add: %v is not %v", added, tt.err)
			}
		})
	}
}
