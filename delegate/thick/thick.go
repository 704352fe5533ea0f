// Package thick serves a CNI plugin from a daemon behind a unix socket. The
// runtime executes a small program, the shim (package
// [github.com/metacni/metacni/delegate/thick/shim]), which sends each command to
// the daemon and prints the answer. The messages are those of Multus, see package
// [github.com/metacni/metacni/delegate/thick/wire].
//
// [Main] is a whole daemon, and Main of package shim its shim. What they do not suit is
// built from [Listen] and a [Server], as examples/multinet/daemon is.
//
// A thin plugin ends with its command; a daemon goes on. A [Server] therefore
//   - bounds each operation by a deadline: 110 seconds after the arrival of the request, 60
//     for CHECK, 2 for STATUS, or less if the shim asks for less,
//   - cancels an operation when its shim has gone; DEL and GC go on,
//   - lets a DEL cancel an ADD of the same container that is still running,
//   - runs one operation of a container at a time,
//   - gives a limited number a turn at once, each for a second at most,
//   - finishes or undoes what it has begun before it stops.
//
// # DELs while the daemon is away
//
// A shim may do a DEL itself while the network namespace exists, if it has the plugin
// and its records, see Client.Away of package shim. It may also leave the DEL in a
// directory, the [Server.Queue], and report success to the runtime. The next server
// does the DEL. The plugin then has less to work
// with than in a DEL that is done at once:
//
//   - CNI_NETNS is the path that the runtime gave with the DEL. By now nothing may
//     be at that path, or the network namespace of another container. A plugin
//     that keeps records knows the namespace of the ADD. It must pass the path on
//     only if that namespace is still there, as package
//     [github.com/metacni/metacni/delegate/lifecycle] does; otherwise its plugins
//     get none. What they would remove in the namespace has gone with it, but not
//     what they find by looking into it: bridge leaves its ipMasq chain.
//   - The configuration is the one of the DEL. Results are the recorded ones.
//   - Devices that were moved into the namespace are back on the host, or lost.
//   - The DEL may come late. Addresses and ports stay in use until then.
package thick

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/thick/internal/override"
	"github.com/metacni/metacni/delegate/thick/internal/queue"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/peer"
	"github.com/metacni/metacni/internal/turns"
)

// A Server serves the commands of a plugin, see [Server.Serve]. It serves once.
// It must not be copied, and its fields must not change once it is in use. Its
// methods may be called by any number of goroutines at once.
type Server struct {
	// Plugin executes the runtime's commands, with [plugin.Plugin.Do], on any
	// number of goroutines at once. But only one operation of a container runs at
	// a time. GC and STATUS belong to no container and run beside all others, and so
	// does a step that another program asks for: it has locked the container.
	//
	// The server has checked the arguments as package skel does, except that the
	// configuration may be empty, when the shim sent none.
	//
	// A command must return soon after its context has ended, and must have undone
	// what it did. The context ends
	//   - at the deadline of the operation,
	//   - when the shim has gone, unless the command is DEL or GC,
	//   - when a DEL of the container arrives, unless the command is DEL itself,
	//   - when the server stops and its time to drain is over.
	//
	// [context.Cause] says which.
	//
	// The server receives what an ADD prints. The result may be of any version of
	// the specification; if it cannot be read, the ADD fails with code 6. What other
	// commands print is dropped.
	//
	// An ADD that returns an error has undone what it did. When ADD panics, when it
	// prints no valid result, and when nobody is there to receive its result, the
	// server executes a DEL with the same arguments. The context of that DEL does
	// not end with the context of the ADD.
	//
	// Errors reach the runtime with the CNI code that [status.Code] finds in them
	// and with their full text, so they must not quote the configuration.
	//
	// [status.Code]: https://pkg.go.dev/github.com/metacni/metacni/status#Code
	Plugin plugin.Plugin

	// System, when not nil, returns what one request may use of this process. The server
	// adds the trace of the request to Env, sets Stdout and Timed, and Stale for a DEL of
	// the Queue. It calls System before the request waits for its turn.
	System func() plugin.System

	// Trace, when not nil, is called with the System of each request, and returns the
	// one to use instead, such as one that makes spans. Unlike in System, Env has the
	// variables of [wire.TraceEnv] that came with the request.
	Trace func(s plugin.System) plugin.System

	// Attach, when not nil, returns the plugin that attaches one more network to a
	// running container, checks it and detaches it. Its configuration is the one of
	// that network, and its interface is the one that the network gets. with is
	// what the client asks of the interface, and never nil. The server calls
	// Attach once for each request. When Attach is nil, such requests are
	// answered with 404.
	Attach func(with *wire.Attributes) plugin.Plugin

	// Attachments, when not nil, lists the attachments of a container, for
	// people. An empty containerID means all containers. When Attachments is
	// nil, such requests are answered with 404.
	Attachments func(ctx context.Context, containerID string) ([]Listed, error)

	// Override is a JSON object whose keys replace those of the runtime's
	// configuration. Keys are compared without regard to case, as encoding/json
	// does. Override does not change the configurations of Attach and of steps. Nil
	// replaces nothing. Serve writes it to the Queue, for shims that do a DEL themselves.
	Override json.RawMessage

	// Queue is the directory in which shims leave DELs while the daemon is away,
	// see shim.Client. Serve makes the directory, marks it as one that a daemon
	// reads, and does the DELs in it: half of MaxInFlight have a turn at once, in
	// addition to other operations. It retries those that fail. It renames one that
	// can never succeed to a name that ends in ".corrupt", and logs it.
	//
	// One server at a time reads a queue. Another one with the same Queue is not
	// ready until the first has drained, and every ADD fails.
	//
	// A DEL of the queue removes no attachment that was added after it was
	// queued, provided that the plugin keeps its records with package lifecycle.
	//
	// While the DEL of an attachment is queued, an ADD of the attachment fails
	// with code 11. A DEL of the runtime takes the place of the queued one; it
	// fails when the queued one cannot be removed. Other operations do not
	// wait. While the directory cannot be read, the server is not ready and
	// every ADD fails. While it cannot be written to, the server is not ready.
	// Empty means no queue.
	Queue string

	// Ready, when not nil, returns why no ADD can be served, and nil when one
	// can. [Server.CheckReady] calls it, and so do [wire.PathReady] and each
	// STATUS, which fails with that error and code 50. It has two seconds.
	Ready func(context.Context) error

	// Probe, when not nil, is one more condition of [wire.PathReady] and of
	// nothing else: an ADD is served and STATUS succeeds whatever it returns. It
	// is for what only some ADDs need, such as a cache that has to be filled. The
	// query "verbose" lists the error, also if ok is true. Probe has two seconds.
	Probe func(context.Context) (ok bool, err error)

	// Other, when not nil, serves every path that is not the server's own, such
	// as metrics. The client must have read the answer after ten seconds,
	// unless Other sets another write deadline with an
	// [http.ResponseController]. It serves at most 32 requests at once; further ones are
	// answered with 503.
	Other http.Handler

	// AllowUIDs lists the users whose processes may connect. Nil means root and
	// the user of this process. Unidentified peers are refused: those that do
	// not connect through a unix socket, and all peers on systems other than
	// Linux.
	AllowUIDs []uint32

	// MaxInFlight is how many ADDs and CHECKs have a turn at once. Zero means twice
	// GOMAXPROCS, but at least 4. As many GCs have a turn, and of DELs, which mostly wait
	// for the kernel, 16 for each processor, but at least 64. A turn lasts a second at
	// most: an operation that takes longer goes on, and the next one begins. So a plugin
	// that hangs holds up nobody else.
	//
	// Of each kind, at most 110 operations run at once, or as many as have a turn if these
	// are more, and 256 more requests may wait for their turn, for 30 seconds. A request
	// beyond these limits is answered with code 11, and nothing was done for it.
	MaxInFlight int

	// DrainTimeout is how long accepted operations may go on after the context
	// of Serve has ended. Then they are cancelled and have UndoTimeout to undo
	// what they did. UndoTimeout also limits the Del that undoes an ADD. Zero
	// means 25 seconds for DrainTimeout and 10 for UndoTimeout.
	DrainTimeout time.Duration
	UndoTimeout  time.Duration

	// SlowAfter is how long an ADD may take, including the wait for its turn, before
	// its Event is Slow. Zero means 2 seconds, a negative duration that none is.
	SlowAfter time.Duration

	// Version is the version of the daemon, which the page /info tells.
	Version string

	// Logger receives what no client can be told. Nil discards it.
	Logger *slog.Logger

	// Observer, when not nil, is called after each request for an operation,
	// including refused ones, on the goroutine that served it, and after each
	// DEL of the Queue.
	Observer func(Event)

	once sync.Once
	own  *service // made by once
}

// A Listed is an element of the list that [Server.Attachments] returns.
type Listed struct {
	ContainerID string          `json:"containerID"`
	IfName      string          `json:"ifname"`
	Network     string          `json:"network"`
	State       string          `json:"state"`
	Result      json.RawMessage `json:"result,omitempty"`
}

// An Event is one finished request for an operation.
type Event struct {
	Path        string // [wire.PathCNI] or [wire.PathAttach]; empty when a refused peer asked for another path
	Command     string // ADD, CHECK, DEL, GC or STATUS; empty when the request was not read or is none of these
	Network     string // the name in the configuration
	ContainerID string
	IfName      string
	Args        string // CNI_ARGS
	UID         int    // of the peer, or -1
	Replayed    bool   // a DEL of the Queue, which has no client
	Start       time.Time
	Queued      time.Duration    // how long it waited for its turn; 0 when it got none
	Duration    time.Duration    // including Queued
	Slow        bool             // an ADD that took longer than SlowAfter
	Timing      lifecycle.Timing // of an ADD that got its turn, if the plugin keeps records
	Status      int              // HTTP status, or 499 when the client had gone and the operation was ended or undone
	Err         error            // the error of the answer, and that of an undo that no client is told of
}

// A Load says how many operations of one kind there are.
type Load struct {
	InFlight int // running, including undo
	Queued   int // waiting for their container or their turn
}

// Loads returns how many operations run and wait at the moment: "add" is ADD and CHECK,
// those of Attach included, "del" is DEL with the DELs of the Queue, "gc" is GC, and
// "status" is STATUS.
func (s *Server) Loads() map[string]Load {
	sv := s.service()
	loads := make(map[string]Load)
	for kind, l := range map[string]turns.Lane{"add": sv.add, "del": sv.del, "gc": sv.gc, "status": sv.status} {
		running, waiting := l.Load()
		loads[kind] = Load{running, waiting}
	}
	del := loads["del"]
	replayed, _ := sv.replays.Load()
	loads["del"] = Load{del.InFlight + replayed, del.Queued}
	return loads
}

// Limits that cannot be configured.
const (
	statusInFlight = 4                // STATUS commands that have a turn at once
	maxInFlight    = 110              // operations of one kind that run at once, with or without a turn: a kubelet's default number of pods
	maxWaiting     = 256              // operations of one kind that wait for their turn
	maxOthers      = 32               // requests that Other serves at once
	maxStrangers   = 2 * maxOthers    // connections that are strangers at once
	waitTimeout    = 30 * time.Second // of a request that waits for its turn
	probeTimeout   = 2 * time.Second  // of Server.Ready and Server.Probe
)

// A service is a Server with its defaults and its state.
type service struct {
	*Server

	override override.Override
	invalid  error // why the Override cannot be used, or nil

	flight                        flight
	containers                    turns.Turns[*operation]
	add, del, gc, status, replays turns.Lane // replays has the DELs of the Queue
	backlog                       backlog
	reader                        queue.Reader

	strangers strangers
	others    chan struct{} // has an element for each request that Other serves

	listener atomic.Pointer[ownListener] // of Serve; nil if it has another one

	peer func(net.Conn) (uid int, ok bool) // identifies the other end of a connection
}

func (s *Server) service() *service {
	s.once.Do(func() {
		sv := &service{Server: s, reader: queue.Reader{Queue: queue.In(s.Queue), Override: json.RawMessage("{}")}, peer: peer.UID}
		sv.others, sv.strangers.places = make(chan struct{}, maxOthers), make(chan struct{}, maxStrangers)
		if s.Override != nil {
			sv.reader.Override = s.Override
			var err error
			if sv.override, err = override.Parse(s.Override); err != nil {
				sv.invalid = coded(http.StatusInternalServerError, types.ErrInvalidNetworkConfig, "the Override is not a JSON object: %v", err)
			}
		}
		n := s.MaxInFlight
		if n <= 0 {
			n = max(4, 2*runtime.GOMAXPROCS(0))
		}
		lane := func(turnsAtOnce int) turns.Lane {
			return turns.NewLane(turnsAtOnce, max(maxInFlight, turnsAtOnce), maxWaiting)
		}
		sv.add, sv.del, sv.gc = lane(n), lane(max(64, 16*runtime.GOMAXPROCS(0))), lane(n)
		sv.status, sv.replays = lane(statusInFlight), lane(max(1, n/2))
		sv.backlog = backlog{wake: make(chan struct{}, 1), dels: map[string]*queuedDel{}}
		s.own = sv
	})
	return s.own
}

func (s *Server) drainTimeout() time.Duration { return cmp.Or(s.DrainTimeout, 25*time.Second) }
func (s *Server) undoTimeout() time.Duration  { return cmp.Or(s.UndoTimeout, 10*time.Second) }

func (s *Server) logger() *slog.Logger { return cmp.Or(s.Logger, slog.New(slog.DiscardHandler)) }

func (s *Server) log(ctx context.Context, level slog.Level, msg string, attrs ...slog.Attr) {
	s.logger().LogAttrs(ctx, level, msg, attrs...)
}

// guarded calls f and returns its error, or errPanic after a panic, which it logs.
func (s *Server) guarded(ctx context.Context, what string, f func(context.Context) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log(ctx, slog.LevelError, "the plugin panicked", slog.String("operation", what), slog.Any("value", p), slog.String("stack", string(debug.Stack())))
			err = errPanic
		}
	}()
	return f(ctx)
}
