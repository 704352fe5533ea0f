package ifname

import "slices"

// Taken returns the names and alternative names of all links in the network
// namespace at nsPath, including the loopback's "lo", sorted and each once. A new
// link cannot have one of these names: pass them to [Scheme.Taken].
//
// Entering a namespace takes CAP_SYS_ADMIN. The error is an [*Error] that names
// nsPath:
//
//   - [io/fs.ErrNotExist] when there is nothing at nsPath; CNI code 4;
//   - [ErrNetNS] when something else than a network namespace is there; code 4;
//   - any other when the namespace cannot be entered or read; code 5;
//   - [errors.ErrUnsupported] on systems other than Linux; no code.
//
// Taken keeps no handle on the namespace, and does not change the namespace of the
// calling goroutine. Goroutines may call it at the same time. It does not reserve
// names: the answer is that of the moment.
func Taken(nsPath string) ([]string, error) {
	names, err := taken(nsPath)
	if err != nil {
		return nil, &Error{NetNS: nsPath, Err: err}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
