// Package dump lists what a kernel has in a network namespace, whole or not at all.
package dump

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// tries is how often a list is read that changes meanwhile. Other containers come and go at the
// same time.
const tries = 100

// Whole calls list, which reads a list from the kernel by netlink, until the list did not change
// while it was read. It fails with [netlink.ErrDumpInterrupted] if each of 100 lists changed:
// what is not in such a list may be there all the same.
//
// Package netlinksafe returns such a list without an error.
func Whole[T any](list func() ([]T, error)) (all []T, err error) {
	for range tries {
		all, err = list()
		if err == nil {
			return all, nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return nil, err
}
