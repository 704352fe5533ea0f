package thick

import (
	"time"

	"github.com/metacni/metacni/delegate"
)

// timeouts has the limit of an operation with each command of the runtime, counted from the
// arrival of the request.
//
//nolint:gochecknoglobals // never written
var timeouts = map[delegate.Command]time.Duration{
	delegate.CommandAdd:    110 * time.Second,
	delegate.CommandCheck:  60 * time.Second,
	delegate.CommandDel:    110 * time.Second,
	delegate.CommandGC:     110 * time.Second,
	delegate.CommandStatus: 2 * time.Second,
}

// removes reports whether c only removes attachments. Such commands are served
// while the server drains, and go on without their client.
func removes(c delegate.Command) bool { return c == delegate.CommandDel || c == delegate.CommandGC }
