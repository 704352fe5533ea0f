package resident

import (
	"cmp"
	"context"
	"io"
	"net"
	"sync"
	"time"

	"github.com/metacni/metacni/delegate"
)

// A Host is the daemon's side: residents register with it, and its Exec calls
// them. The zero value has no residents.
//
// The fields must not change after Start. A Host is started and stopped once. Its
// methods are safe for concurrent use.
type Host struct {
	// Listener accepts connections of residents; nil accepts none. The host
	// closes it. It must be a unix socket in a directory that only trusted
	// users can enter. Processes of root and of the user of this process may
	// register. Unidentified processes are refused; the kernel is known to
	// identify them on Linux only.
	Listener net.Listener

	// Dir is a directory of executables to be launched as residents. Each is
	// named by index and name, "10-static". A missing or empty directory
	// launches nothing. A resident that ends is launched again after a pause,
	// which grows from a second to a minute until it registers.
	//
	// A file is skipped when it has another name, is not regular, is not
	// executable, belongs to another user than root and the one of this
	// process, or is writable by others; [Host.Plugins] lists it. Links are
	// followed. A Dir that others may write to is an error.
	//
	// The file is checked before each launch, and the checked file is the one
	// executed, even if its path is replaced meanwhile. Therefore the process
	// name is "4", a descriptor, and $0 of a script is /proc/self/fd/4.
	// Launching needs /proc.
	Dir string

	// Reserve lists types that only residents serve, even before the first one
	// has registered. Until then calls fail as if it had gone.
	Reserve []string

	// StateDir, when not empty, is a directory for notes: a file for each type
	// that a resident has served, named like the type. Start creates the
	// directory. Nothing else may use it.
	//
	// With the notes, types stay reserved for their residents after a restart.
	// Remove a note to have the Exec below serve the type again; a restart is
	// not needed. Start removes the notes of types that no attachment uses,
	// provided Attachments is set and does not fail.
	StateDir string

	// Orphan is how long types are reserved for a resident that has gone, or
	// that has not come back after Start. After that the Exec below serves
	// them. Where it finds no executable, DEL fails with
	// [delegate.ErrPluginNotFound] and the record is kept. Zero reserves types
	// until the resident is back; a negative value does not reserve them.
	Orphan time.Duration

	// Attachments, when not nil, lists the current attachments, and whatever is left
	// of earlier ones, to be told to a resident that registers. With attachments that
	// are recorded before their ADD, the list has every attachment that another plugin
	// of the type has made. An operation that still runs may change it.
	//
	// An attachment that is known to be recorded, and cannot be read, has no Network: it
	// counts as one of every type. Attachments fails if it cannot list all of them.
	Attachments func(ctx context.Context) ([]delegate.Attached, error)

	// Requests, when not nil, handles the requests of residents, several at the
	// same time. The context ends with the connection.
	Requests func(ctx context.Context, from Info, r Request) error

	// RegisterTimeout limits each step of a registration: the hello, listing
	// the attachments, and the resident's Synchronize. Zero means 5 seconds.
	RegisterTimeout time.Duration

	// ReturnTimeout limits how long a call waits for a resident that is not
	// connected or still registers. When a resident has been gone for longer,
	// calls fail at once. Zero means 15 seconds; that is longer than
	// [Resident.Run] waits before it reconnects.
	ReturnTimeout time.Duration

	// CallTimeout limits each call. After three timeouts in a row without any
	// answer the resident is disconnected. Choose less than the deadline of
	// the operations that make the calls. Zero means 30 seconds.
	CallTimeout time.Duration

	// Stderr receives the output of launched residents; nil discards it. With
	// several residents it must be safe for concurrent use.
	Stderr io.Writer

	// Observer, when not nil, is called for each change of a resident: in
	// order for one resident, concurrently for several. It must not call Stop.
	Observer func(Status)

	// Called, when not nil, is called after each call of a plugin type that
	// only residents serve, with the error of the call. It is meant for metrics
	// and must be safe for concurrent use.
	Called func(typ, command string, err error)

	// The tests set these; zero means the default.
	grace, relaunch time.Duration

	table
	tasks  sync.WaitGroup
	refuse context.CancelFunc // ends the registration of residents
	hurry  chan struct{}      // closed when the context of Stop ends
}

func (h *Host) observe(s Status) {
	if h.Observer != nil {
		h.Observer(s)
	}
}

func (h *Host) notes() noteDir                 { return noteDir(h.StateDir) }
func (h *Host) registerTimeout() time.Duration { return cmp.Or(h.RegisterTimeout, 5*time.Second) }
func (h *Host) callTimeout() time.Duration     { return cmp.Or(h.CallTimeout, 30*time.Second) }
func (h *Host) returnTimeout() time.Duration   { return cmp.Or(h.ReturnTimeout, 15*time.Second) }
