package lifecycle

import (
	"cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/status"
)

// Status returns the state of the interfaces of r, in the order of r.Attached: for each
// attachment that is [Record.Whole] what [status.Networks] returns, at least one Network.
// An attachment whose result lacks the interface, as those before CNI 0.3 do, has a Network
// with the interface that was asked for. That is all that an attachment has whose result
// is missing or cannot be decoded. Default is true for one interface of the attachment to
// r.Key.IfName, if r has that.
//
// name returns the name of a network. Nil means the name in its configuration.
//
// Status is a pure function of r: whoever reads the record later gets the same. From the
// time when [Transaction].Report runs it is what it will be when Add returns.
func (r Record) Status(name func(delegate.Attached) string) []status.Network {
	if name == nil {
		name = func(a delegate.Attached) string { return a.Network.Name() }
	}
	var all []status.Network
	for i, a := range r.Attached {
		if !r.Whole(i) {
			continue
		}
		for _, n := range interfaces(a, name(a), a.IfName == r.Key.IfName) {
			n.Interface = cmp.Or(n.Interface, a.IfName)
			all = append(all, n)
		}
	}
	return all
}

// interfaces returns the state of the interfaces of a, at least one.
func interfaces(a delegate.Attached, name string, primary bool) []status.Network {
	result, err := a.Decode()
	if err == nil {
		if networks, err := status.Networks(name, result, primary); err == nil {
			return networks
		}
	}
	return []status.Network{{Name: name, Default: primary}}
}
