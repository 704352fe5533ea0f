//go:build !linux

package flock

import "errors"

// Try returns [errors.ErrUnsupported].
func Try(int, bool) (bool, error) { return false, errors.ErrUnsupported }

// Unlock returns [errors.ErrUnsupported].
func Unlock(int) error { return errors.ErrUnsupported }

// Inherited returns false.
func Inherited(int) bool { return false }

// KillOrphans returns [errors.ErrUnsupported].
func KillOrphans(string) (int, error) { return 0, errors.ErrUnsupported }
