package thick

import "context"

// A claim is what an operation says to later operations of its container.
type claim struct {
	*order
	cancel context.CancelCauseFunc // of the operation
}

// supersedes reports whether o cancels the earlier operation of its container.
//
//   - A DEL of the container cancels everything except DELs of the runtime. It
//     cancels DELs of the queue, which can be done later.
//   - A DEL of one more network cancels what attaches or checks the same
//     interface.
//   - A DEL of the queue cancels nothing: it is older than what is there.
func (o *order) supersedes(earlier *order) bool {
	switch {
	case o.command != cmdDel || o.replayed:
		return false
	case o.more:
		return earlier.more && earlier.command != cmdDel && earlier.args.IfName == o.args.IfName
	}
	return earlier.command != cmdDel || earlier.replayed
}
