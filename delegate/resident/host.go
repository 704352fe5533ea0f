package resident

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/metacni/metacni/delegate"
)

// A Host hands calls of plugins on to residents. Its fields must not change
// once it is started. Its methods may be called by any number of goroutines;
// it is started once and stopped once. No lock is held while a resident, or a
// function here, is called. Before Start, and without residents, the Exec of a
// Host does what the Exec below does.
type Host struct {
	// Listener takes the connections of residents; the host closes it. It is
	// one of a unix socket, in a directory that is not open to others:
	// whose process connects is asked of the system, which is known to say so
	// on Linux only, and refused where it does not. Nil takes none.
	Listener net.Listener

	// AllowUIDs lists the users whose processes may register. Nil is root and
	// the user of this process.
	AllowUIDs []uint32

	// MaxPending bounds how many connections may be registering at once;
	// further ones are refused. Zero is 32.
	MaxPending int

	// Dir is a directory of executables that are launched as residents: each
	// is called by its index and name, "10-static". Links are followed. Files
	// that are called otherwise, are not regular, not executable, not root's
	// or this process's user's, or writable by others are skipped, see
	// [Host.Plugins]; a Dir that others may write to is an error. A Dir that
	// is not there, and an empty one, launch nothing.
	//
	// The file and the Dir are looked at before each launch, and what is run
	// is the file that was looked at, even if another takes its place
	// meanwhile. So the kernel knows the process as "4", the descriptor of
	// that file, and a script finds /proc/self/fd/4 in $0; the name is in the
	// environment, see [Inherited]. Launching needs proc(5).
	Dir string

	// Reserve lists types that only residents serve, also before the first
	// has come: until then calls of them fail as those of one that has gone.
	Reserve []string

	// StateDir, when not empty, is a directory in which the host notes the
	// types that residents serve, before the first call: a file for each,
	// called as the type is. It is made when missing, and must not be that of
	// another host, or of anything else. Without it, nothing is known after a
	// restart of the residents before, and the Exec below is asked for their
	// types until they are back.
	//
	// To have the Exec below serve a type again when its resident has gone for
	// good, remove the file; no restart is needed. Start removes the files of
	// types of which nothing is attached, if Attachments says what is, and
	// Orphan those of types that are given up.
	StateDir string

	// Orphan is how long the types of a resident that has gone are kept for
	// it, or of one that was there before Start. After that they are like any other type again and the Exec below is
	// asked for them. Where that finds no plugin, a DEL fails with
	// [delegate.ErrPluginNotFound]: what was recorded of the attachment stays,
	// and it is for the operation's owner to say how often that is tried, see
	// lifecycle.Manager.DelTries. Zero keeps them until the resident is
	// back; less than zero keeps nothing.
	Orphan time.Duration

	// Attachments, when not nil, lists what is attached, for a resident that
	// has just registered. It must not call Begin. Those without a result are
	// not known to have been added.
	Attachments func(ctx context.Context) ([]delegate.Attached, error)

	// Update, when not nil, does what a resident asks for. It is called by
	// several goroutines, up to 16 for a resident, and its context ends when
	// that has gone. Without it residents cannot ask for anything.
	Update func(ctx context.Context, from Info, u Update) error

	// RegisterTimeout bounds each step of a registration: the hello, listing
	// the attachments, and the resident's answer to these. Zero is 5 seconds.
	RegisterTimeout time.Duration

	// ReturnTimeout bounds how long a call waits for a resident that is not
	// there, or still joins. Once a resident has been gone for that long, since
	// it was there or since Start, calls fail at once: they would only keep
	// others from being served. Zero is 15 seconds, which is longer than
	// [Plugin.Run] waits before it connects again.
	ReturnTimeout time.Duration

	// CallTimeout bounds each call. It should be less than the deadline of the
	// operations that calls are part of: a resident that lets it pass three
	// times in a row is closed. Zero is 30 seconds.
	CallTimeout time.Duration

	// PingInterval is after how long a silence a resident must show that it is
	// there, within as long again. Zero is 15 seconds.
	PingInterval time.Duration

	// MaxStdout is the most a plugin may print, in bytes. Zero means
	// [delegate.DefaultMaxStdout].
	MaxStdout int

	// Grace is how long a launched resident has between SIGTERM and SIGKILL.
	// Zero is 2 seconds.
	Grace time.Duration

	// Relaunch is how long after its end a resident of Dir is launched again, doubled up to a minute as long as it does not register. Zero is 1
	// second; less than zero is never.
	Relaunch time.Duration

	// Stderr receives what launched residents write to stdout and stderr.
	// Nil discards it. It must be safe for concurrent use if there are
	// several.
	Stderr io.Writer

	// Logger receives a debug record for each change of a resident. Nil
	// discards them.
	Logger *slog.Logger

	// Observer, when not nil, is called at each change of a resident, with
	// what it is then: in order for one resident, at once for several. It must
	// not call Stop.
	Observer func(Status)

	table
	tasks    sync.WaitGroup
	end      context.CancelFunc // of everything, once started
	stopping chan struct{}      // closed when nothing new may begin
	hurry    chan struct{}      // closed when there is no time for grace
}

// Start launches the residents of Dir, begins to listen, and returns when each of
// those launched is registered or has failed to be.
//
// It fails when Dir or StateDir cannot be used, when ctx ends, and when the host has been
// started before; nothing is left running then. A launched resident that fails,
// or is refused, is no error of Start: see [Host.Plugins]. What runs is not
// ended by ctx, but by Stop.
func (r *Host) Start(ctx context.Context) error {
	if err := r.open(); err != nil {
		return err
	}
	all, end := context.WithCancel(context.WithoutCancel(ctx))
	r.end, r.stopping, r.hurry = end, make(chan struct{}), make(chan struct{})
	r.setState(running)
	err := r.recall(ctx)
	var files []file
	if err == nil {
		files, err = r.scan(all)
	}
	if err != nil {
		return errors.Join(err, r.Stop(ctx))
	}
	var settled sync.WaitGroup
	for _, f := range files {
		settled.Add(1)
		r.tasks.Go(func() { r.supervise(all, f, settled.Done) })
	}
	if r.Listener != nil {
		r.tasks.Go(func() { r.accept(all) })
	}
	done := make(chan struct{})
	r.tasks.Go(func() {
		settled.Wait()
		close(done)
	})
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return errors.Join(&Error{Op: "launch", Which: r.Dir, Err: ended(ctx)}, r.Stop(ctx))
	}
}

// Stop refuses new residents, waits for the operations that have begun, and then
// ends the residents one after the other, last first, those that connected by
// themselves too: their connections are closed, and what was launched gets
// SIGTERM and, after Grace, SIGKILL; with it its process group and the
// descendants it had, in whatever group. When ctx ends neither operations nor grace
// are waited for. Stop returns when everything has ended, functions of this
// host that are running included. Calls fail with [ErrGone] then, whatever
// Orphan says.
//
// It returns nil unless the host has not been started or is stopped already.
func (r *Host) Stop(ctx context.Context) error {
	ops, pending, err := r.close()
	if err != nil {
		return err
	}
	close(r.stopping)
	if r.Listener != nil {
		_ = r.Listener.Close()
	}
	for _, c := range pending {
		_ = c.Close()
	}
	unhurry := context.AfterFunc(ctx, func() { close(r.hurry) })
	defer unhurry()
	for _, o := range ops {
		select {
		case <-o.done:
		case <-ctx.Done():
		}
	}
	for _, e := range slices.Backward(r.entries()) {
		r.leave(e, ErrStopped)
		<-e.ended
	}
	r.end()
	r.tasks.Wait()
	return nil
}

// An operation is what Begin begins.
type operation struct {
	done  chan struct{}
	used  map[string]bool // types of which something has been called; guarded by table.mu
	waits map[string]int  // calls that wait for the resident of a type; guarded by table.mu
}

type operationKey struct{}

// Begin tells the host of an operation on attachments: whoever adds, removes or
// checks one calls Begin first, uses the context it returns, and calls end when
// all is done, what it records included. It never waits.
//
// A resident that registers is told what is attached when the operations have
// ended that have called a plugin of its types, be it the resident before it or
// the Exec below; so none has to be told to it while it learns of the state they
// are changing. Those that call its types for the first time wait until it has
// been told. So do those that call them once more: it does not wait for these,
// as they would wait for each other.
func (r *Host) Begin(ctx context.Context) (operating context.Context, end func()) {
	o := &operation{done: make(chan struct{}), used: make(map[string]bool), waits: make(map[string]int)}
	r.begin(o)
	return context.WithValue(ctx, operationKey{}, o), sync.OnceFunc(func() {
		r.finish(o)
		close(o.done)
	})
}

func operationOf(ctx context.Context) *operation {
	o, _ := ctx.Value(operationKey{}).(*operation)
	return o
}

// observe tells the observer and the logger what has become of a resident.
func (r *Host) observe(ctx context.Context, s Status) {
	if r.Logger != nil {
		r.Logger.LogAttrs(ctx, slog.LevelDebug, "delegate", slog.String("which", s.which()), slog.String("state", string(s.State)),
			slog.String("source", string(s.Source)), slog.Int("uid", s.UID), slog.Int("pid", s.PID), slog.Any("err", s.Err))
	}
	if r.Observer != nil {
		r.Observer(s)
	}
}

func (r *Host) maxPending() int                { return orDefault(r.MaxPending, 32) }
func (r *Host) registerTimeout() time.Duration { return orDefault(r.RegisterTimeout, 5*time.Second) }
func (r *Host) callTimeout() time.Duration     { return orDefault(r.CallTimeout, 30*time.Second) }
func (r *Host) pingInterval() time.Duration    { return orDefault(r.PingInterval, 15*time.Second) }
func (r *Host) returnTimeout() time.Duration   { return orDefault(r.ReturnTimeout, 15*time.Second) }

func (r *Host) maxStdout() int       { return orDefault(r.MaxStdout, delegate.DefaultMaxStdout) }
func (r *Host) grace() time.Duration { return orDefault(r.Grace, 2*time.Second) }

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}
