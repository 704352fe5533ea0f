//go:build !linux

package flock

import (
	"context"
	"errors"
	"os"
	"time"
)

// Try returns [errors.ErrUnsupported].
func Try(int, bool) (bool, error) { return false, errors.ErrUnsupported }

// Unlock returns [errors.ErrUnsupported].
func Unlock(int) error { return errors.ErrUnsupported }

// Inherited returns false.
func Inherited(int) bool { return false }

// Claim returns [errors.ErrUnsupported].
func Claim(int) (claimed, interrupted bool, err error) { return false, false, errors.ErrUnsupported }

// Await returns [errors.ErrUnsupported].
func Await(*os.File) error { return errors.ErrUnsupported }

// Awaited returns false.
func Awaited(*os.File) bool { return false }

// Settle does nothing.
func Settle(int) {}

// End returns [errors.ErrUnsupported].
func End(context.Context, string, time.Duration) (bool, error) { return false, errors.ErrUnsupported }

func sinceBoot() int64 { return 0 }

func noteOfSelf() note { return note{} }
