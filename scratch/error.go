package scratch

import (
	"context"
	"errors"
	"strconv"
	"syscall"

	"github.com/metacni/metacni/internal/flock"
	"github.com/metacni/metacni/internal/terse"
)

var (
	// ErrCorrupt means that a record is damaged. CNI code 5.
	ErrCorrupt = errors.New("corrupt record")
	// ErrVersion means that a record is of a version of the format that this
	// program does not know. No method changes such a record. CNI code 5.
	ErrVersion = errors.New("record of an unknown version")
)

var errNotHeld = errors.New("the lock of this container is not held")

// An Error is a failed operation. Test for [fs.ErrNotExist], [ErrCorrupt],
// [ErrVersion] and the errors of contexts with errors.Is.
type Error struct {
	Op   string // "put", "get", "lock" and so on
	Key  Key    // as far as it is known: only the container for a lock, zero for the whole store
	Path string // the file or directory it is about, if any
	Err  error
}

// Error returns "OP which (path): why". Of a container ID of 64 hexadecimal digits
// it shows the first 12; the path has all of it.
func (e *Error) Error() string {
	s := e.Op
	switch k := e.Key; {
	case k == Key{}:
	case k.Network == "" && k.IfName == "":
		s += " container " + strconv.Quote(terse.ID(k.ContainerID))
	default:
		k.ContainerID = terse.ID(k.ContainerID)
		s += " record " + strconv.Quote(k.String())
	}
	if e.Path != "" {
		s += " (" + e.Path + ")"
	}
	return s + ": " + e.Err.Error()
}

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }

// CNICode returns the CNI error code for e: 4 for an unusable container ID or
// interface name, 7 for an unusable network name, for a process that runs inside the operation that
// holds the lock it asks for, and for a record that is larger than 16 MiB or nested more
// deeply than 1,024 levels, 11 for a context that ended
// and when the system is short of descriptors or memory, and otherwise 5, an I/O failure.
func (e *Error) CNICode() uint {
	if k := (*keyError)(nil); errors.As(e.Err, &k) {
		return k.code
	}
	switch {
	case errors.Is(e.Err, flock.ErrNested), errors.Is(e.Err, errTooLarge):
		return 7
	case errors.Is(e.Err, context.Canceled), errors.Is(e.Err, context.DeadlineExceeded),
		errors.Is(e.Err, syscall.EMFILE), errors.Is(e.Err, syscall.ENFILE), errors.Is(e.Err, syscall.ENOMEM):
		return 11
	}
	return 5
}

// A keyError is the part of a key that cannot be used.
type keyError struct {
	code uint
	part string
	name string
}

func (e *keyError) Error() string {
	if e.name == "" {
		return "no " + e.part
	}
	return "unusable " + e.part + " " + strconv.Quote(e.name)
}
