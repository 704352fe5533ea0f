package ifname

import "slices"

// Taken returns every name that a link of the network namespace at nsPath
// answers to: link names and alternative names, the loopback's "lo" included,
// sorted and each once. Creating a link under one of them fails. It is what
// [Scheme] wants as its Taken.
//
// The error is an [*Error] that names nsPath. errors.Is finds
// [io/fs.ErrNotExist] when there is nothing at nsPath (CNI code 4), and
// [errors.ErrUnsupported] on systems other than Linux (no code). What is there
// but is no network namespace is an error with code 4; a namespace that may not
// be entered, or cannot be read, one with code 5. Entering a namespace takes
// CAP_SYS_ADMIN.
//
// Taken keeps no handle on the namespace, and leaves the calling goroutine's
// namespace as it was. It may be called from several goroutines. The answer is
// as of the call: Taken reserves nothing.
func Taken(nsPath string) ([]string, error) {
	names, err := taken(nsPath)
	if err != nil {
		return nil, &Error{NetNS: nsPath, Err: err}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
