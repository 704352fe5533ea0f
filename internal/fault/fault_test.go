package fault_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/fault"
)

// A nilError wraps nothing, in several ways.
type nilError struct{}

func (nilError) Error() string   { return "nothing" }
func (nilError) Unwrap() []error { return []error{nil, (*types.Error)(nil)} }

func TestErrors(t *testing.T) {
	t.Parallel()
	full := fault.New(11, "the disk is full")
	plain := errors.New("no such file")
	for _, tt := range []struct {
		name string
		err  error
		text string
		code uint
		is   error
	}{
		{"a sentinel", full, "the disk is full", 11, full},
		{"a wrapped sentinel", fmt.Errorf("write: %w", full), "write: the disk is full", 11, full},
		{"an operation", fault.Of("read", "the lease", full), "read the lease: the disk is full", 11, full},
		{"an operation without a subject", fault.Of("sync", "", plain), "sync: no such file", 5, plain},
		{"a subject", fault.Of("", "net.d", plain), "net.d: no such file", 5, plain},
		{"another code", fault.With(7, fault.Of("read", "net.d", full)), "read net.d: the disk is full", 7, full},
		{"a code for an error without", fault.Or(7, plain), "no such file", 7, plain},
		{"no code for an error with one", fault.Or(7, fault.Of("read", "net.d", full)), "read net.d: the disk is full", 11, full},
		{"an error of the CNI library", fault.Of("ADD", "", types.NewError(107, "no address", "")), "ADD: no address", 107, nil},
		{"joined errors", errors.Join(plain, full), "no such file\nthe disk is full", 11, full},
		{"a code inside of one without", errors.Join(fault.With(0, plain), full), "no such file\nthe disk is full", 11, full},
		{"the first of two codes", errors.Join(types.NewError(107, "no address", ""), full), "no address\nthe disk is full", 107, full},
		{"no error of the CNI library", errors.Join(nilError{}, full), "nothing\nthe disk is full", 11, full},
		{"another text", fmt.Errorf("write: %w", fault.Reworded("no space", full)), "write: no space", 11, full},
		{"not undone", fault.NotUndone(full, plain), "the disk is full; undoing it failed as well: no such file", 11, fault.ErrNotUndone},
		{"not undone, without a code", fault.NotUndone(plain, full), "no such file; undoing it failed as well: the disk is full", 999, plain},
		{"not undone, cancelled", fault.NotUndone(context.Canceled, types.NewError(107, "busy", "")), "context canceled; undoing it failed as well: busy", 11, context.Canceled},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := tt.err.Error(); got != tt.text {
				t.Errorf("text %q, want %q", got, tt.text)
			}
			if got := fault.Code(tt.err, 5); got != tt.code {
				t.Errorf("code %d, want %d", got, tt.code)
			}
			if tt.is != nil && !errors.Is(tt.err, tt.is) {
				t.Errorf("%v is not %v", tt.err, tt.is)
			}
		})
	}
	if fault.Of("read", "net.d", nil) != nil || fault.With(7, nil) != nil || fault.Or(7, nil) != nil {
		t.Error("no error became one")
	}
}
