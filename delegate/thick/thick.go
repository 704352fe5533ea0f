// Package thick serves a CNI plugin from a daemon behind a unix socket. The
// runtime runs a small program in the plugin's place, the shim (package
// [github.com/metacni/metacni/delegate/thick/shim]), which hands each command
// to the daemon and prints what it answers. The messages are Multus's, see
// package [github.com/metacni/metacni/delegate/thick/wire].
//
// Where a thin plugin ends with its command, a daemon goes on. So a [Server]
// holds each operation to a deadline, ends it when its shim has gone, lets a DEL
// take the place of an ADD that is still running, runs one operation of a
// container at a time and only so many at once, and finishes or undoes what it
// has begun before it stops.
//
// # DELs while there is no server
//
// A shim may leave a DEL in a directory, the [Server.Queue], for the next server,
// and tell the runtime that it is done. The runtime then goes on without it, so a
// plugin has less to work with than in a DEL that is done at once:
//
//   - CNI_NETNS is the path that the runtime gave with the DEL. By now there may
//     be nothing at it, or the network namespace of another container. A plugin
//     that keeps records knows the namespace of the ADD, and hands on a path only
//     as long as that namespace is at it, as package
//     [github.com/metacni/metacni/delegate/lifecycle] does. Otherwise plugins get
//     none. What they would remove with the namespace has gone with it, except
//     what they look up in it: bridge leaves its ipMasq chain.
//   - The configuration is the one of the DEL. Results are the recorded ones.
//   - Devices that were moved into the namespace are back on the host, or lost.
//   - It may come late. Addresses and ports stay taken until then.
package thick

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/metacni/metacni/delegate/thick/wire"
)

// A Server serves the [Commands] of a plugin, see [Server.Serve]. Its fields must not change
// once it is in use, and it must not be copied. A server serves once. Its
// methods may be called by any number of goroutines at once.
type Server struct {
	// Commands are those of the runtime. Add and Del must not be nil.
	Commands Commands

	// Attach, when not nil, returns the commands that attach one more network
	// to a running container, check it and detach it. Their configuration is
	// the one of that network, and their interface is the one it gets. with is
	// what the client asks of the interface, and never nil. The server calls
	// Attach once for each request. Without Attach it answers 404.
	Attach func(with *wire.Attributes) Commands

	// Begin, when not nil, is called before each ADD, CHECK, DEL and GC, the DEL
	// that undoes an ADD included, by several goroutines at once. The command
	// gets the context that Begin returns, and the server calls the function
	// when the command has returned.
	Begin func(context.Context) (context.Context, func())

	// Attachments, when not nil, lists what a container is attached to, for
	// people. An empty containerID is every container. Without it such
	// requests answer 404.
	Attachments func(ctx context.Context, containerID string) ([]Attachment, error)

	// Override is a JSON object whose keys replace those of the runtime's
	// configuration, whatever the case of their letters, as readers of JSON
	// in Go do not tell it. It does not change the configurations of Attach.
	// Nil replaces none.
	Override json.RawMessage

	// Queue is the directory in which shims leave the DELs that came while
	// there was no server, see shim.Client. Serve makes it, marks it as one that
	// is read, and does what is in it, half as many DELs at once as MaxInFlight
	// says and beside all others. A DEL that fails is tried again from time to
	// time. One that the server would always refuse is set aside, under a name
	// that ends in ".corrupt", and told of.
	//
	// An attachment whose DEL is in the Queue is not added again before that is
	// done: ADD answers code 11. A DEL of the runtime does it, and fails when
	// it cannot be removed from the Queue. All others need not wait. While the
	// directory cannot be read the server is not ready, and no ADD is served.
	// Empty is no queue.
	Queue string

	// HandOver, when not nil, is called once when the server has drained. It
	// lets the next daemon take the socket before this one closes it: set it to
	// the method HandOver of a [Listener], which Serve refuses without. It has
	// five seconds, and its error is only logged. When it is nil, Serve closes
	// its listener at once.
	HandOver func(context.Context) error

	// Ready, when not nil, returns why no ADD can be served, and nil when one
	// can. [Server.CheckReady] calls it, and so do [wire.PathReady] and each
	// STATUS, which fails with that error and code 50. It has two seconds.
	Ready func(context.Context) error

	// Other, when not nil, serves every path that is not the server's own:
	// metrics, for instance. It has ten seconds until its client must have
	// taken the answer, unless it sets another write deadline with an
	// [http.ResponseController]. Nothing else limits what it does.
	Other http.Handler

	// AllowUIDs lists the users whose processes may connect. Nil is root and
	// the user of this process. Who is not known may not: what connects by
	// anything but a unix socket, and everybody on systems other than Linux.
	AllowUIDs []uint32

	// MaxInFlight bounds how many operations run at once that make or check
	// attachments, and, apart from these, how many that remove them, without
	// those of the Queue. Zero is twice the number of processors, and 4 at
	// least.
	MaxInFlight int

	// MaxQueued bounds, for each of the two, how many more may wait for their
	// turn, and QueueTimeout how long: a request that would wait in vain is
	// answered with code 11 and has done nothing. Zero is 256, and 30 seconds.
	MaxQueued    int
	QueueTimeout time.Duration

	// Timeouts bounds each operation, waiting included.
	Timeouts Timeouts

	// DrainTimeout is how long operations that have arrived may wait and run
	// once the context of Serve has ended. Those that are left then are cancelled and have UndoTimeout
	// to undo what they did. It is also how long the Del may take that undoes
	// an ADD. Zero is 25 seconds, and 10.
	DrainTimeout time.Duration
	UndoTimeout  time.Duration

	// Version is what the daemon says of itself to people who ask.
	Version string

	// Logger receives what no client is told. Nil discards it.
	Logger *slog.Logger

	// Observer, when not nil, is called after each request for an operation,
	// refused ones included, on the goroutine that served it, and after each
	// DEL of the Queue.
	Observer func(Event)

	// peer says who is at the other end, in place of the system, in tests.
	peer peerFunc

	served atomic.Bool
	once   sync.Once
	own    *service // made by once
}

// Timeouts bounds operations by command, counted from the request's arrival.
// Zero is 110 seconds for Add, Del and GC, 60 for Check and 2 for Status. A
// client may ask for less.
type Timeouts struct{ Add, Check, Del, GC, Status time.Duration }

// An Attachment is one that [Server.Attachments] lists.
type Attachment struct {
	ContainerID string          `json:"containerID"`
	IfName      string          `json:"ifname"`
	Network     string          `json:"network"`
	State       string          `json:"state"`
	Result      json.RawMessage `json:"result,omitempty"`
}

// An Event is one finished request for an operation.
type Event struct {
	Path        string // [wire.PathCNI] or [wire.PathAttach]; empty when a stranger asked for another
	Command     string // ADD, CHECK, DEL, GC or STATUS; empty when the request is none of these, or was not read
	Network     string // the name in the configuration
	ContainerID string
	IfName      string
	Args        string // CNI_ARGS
	UID         int    // of the peer, or -1
	Replayed    bool   // a DEL of the queue, of which there is no client
	Start       time.Time
	Queued      time.Duration // until it had its turn; 0 when it had none
	Duration    time.Duration // all in all
	Status      int           // of HTTP, or 499 when nobody was there to receive it
	Err         error         // what was answered, and what an undo that nobody hears of returned
}

// Stats counts operations at one moment.
type Stats struct {
	Add    Load // ADD and CHECK, those of Attach included
	Del    Load // DEL and GC, with the DELs of the Queue
	Status Load
}

// A Load is how busy a server is with one kind of operations.
type Load struct {
	InFlight int // running, undo included
	Queued   int // waiting for their container or their turn
}

// Stats returns how many operations run and wait now.
func (s *Server) Stats() Stats {
	sv := s.service()
	del, replays := sv.del.load(), sv.replays.load()
	del.InFlight += replays.InFlight
	del.Queued += replays.Queued
	return Stats{Add: sv.add.load(), Del: del, Status: sv.status.load()}
}
