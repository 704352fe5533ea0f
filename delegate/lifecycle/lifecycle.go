// Package lifecycle manages a container's attachments from ADD to DEL. It runs
// plugins with package delegate and keeps records with package scratch:
//
//   - An attachment is recorded before the first plugin runs.
//   - An ADD that fails is undone.
//   - DEL, CHECK and GC work from the record, not from the configuration.
//   - Operations on one container run one after another, in one process and
//     across processes.
//
// The package knows no configuration format and no command line: thin plugins,
// daemons and node agents use the same [Manager].
package lifecycle

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/scratch"
)

// A Manager attaches containers to networks and keeps a record of each
// attachment. Its fields must not change once it is in use. It is then safe for
// concurrent use by any number of goroutines, and its Dir by any number of
// processes.
//
// Operations on one container run one after another, also those of other
// processes. An operation waits for the container's lock for LockTimeout at most.
// If a plugin whose parent has died holds the lock then, the plugin is killed. If
// anything else holds it, the operation fails with CNI code 11.
type Manager struct {
	// Invoker runs the plugins. Nil means the zero Invoker, which finds none.
	// Its Parallel applies to the attachments of one operation. Operations on
	// one container always run one after another.
	Invoker *delegate.Invoker

	// Dir is the directory of the records. It is made when it is missing.
	Dir string

	// Type is the plugin's type. Records have it, so that operations find those of
	// this plugin after its network has been renamed, see Configured. Without it
	// they do not look for them.
	Type string

	// Root, if not empty, is the root directory for paths of network
	// namespaces. It is the same as [delegate.Process.Root].
	Root string

	// LockTimeout bounds the wait for other operations on the container, and
	// of an ADD for a GC. Zero means ten seconds. If it is negative, what needs a
	// lock fails with CNI code 7. It should be the same for all who use Dir.
	LockTimeout time.Duration

	// DelTries bounds how often Del fails for an attachment whose network namespace
	// is at no known path any more, or does not have the interface any more: what a plugin
	// misses there, such as the device of host-device, may never come back. After that many failures, of any plugin
	// and for any reason, Del returns nil, so that the runtime can remove the
	// container. The record stays, as "deleting". Each GC and [Sweeper] tries
	// again, until the DEL succeeds or the record is forgotten, and an ADD of
	// the attachment fails. DelTries also bounds how often Del fails because it is
	// interrupted, for an attachment that never came about. Zero means no bound.
	DelTries int

	// Configured, if not nil, says whether the runtime still has a network called other with
	// our plugin, when it asks for the network ours. known is false if that is not certain. An
	// operation on an attachment that has no record takes the record of the same container and
	// interface under another name only if that name is certainly not configured any more. Nil
	// knows nothing.
	Configured func(ours, other string) (configured, known bool)

	// OnlyNetwork, if not nil, says whether the runtime certainly has no other network with our
	// plugin than ours. Then a GC of ours is about the records of a network that is not
	// configured any more: ours had that name. Otherwise it removes of these only what is [Dead].
	OnlyNetwork func(ours string) bool

	// Stale, if not nil, is for DELs that may be older than the attachment, such as
	// those from a queue. Del calls it with the time when the attachment was recorded,
	// while it has the lock of the container. If Stale returns true or an error, Del
	// changes nothing and returns nil or the error.
	Stale func(recorded time.Time) (bool, error)

	// InterfaceNames returns the names in use in the network namespace at a
	// path, for Add and Attach. Nil means [ifname.Taken] for paths in Root. A
	// path that does not exist, is not a network namespace or must not be
	// entered by an ordinary user then has no names. A function that returns
	// nothing leaves it to the plugins to detect names in use.
	InterfaceNames func(netns string) ([]string, error)

	// Timed, if not nil, is called at the end of each Add, Attach and Reconcile, also of
	// one that has failed, and says where its time has gone.
	Timed func(Timing)

	machine machine // nil: the one on which this process runs

	mu   sync.Mutex
	adds map[scratch.Key][]*running // of this Manager, guarded by mu
}

func (m *Manager) invoker() *delegate.Invoker {
	if m.Invoker != nil {
		return m.Invoker
	}
	return &delegate.Invoker{}
}

func (m *Manager) debug(ctx context.Context, text string, attrs ...slog.Attr) {
	if l := m.invoker().Logger; l != nil {
		l.LogAttrs(ctx, slog.LevelDebug, text, attrs...)
	}
}

func (m *Manager) store() scratch.Store[record] {
	return scratch.Store[record]{Dir: m.Dir}
}

// interfaceNames returns the names in use in the network namespace at path.
func (m *Manager) interfaceNames(path string) ([]string, error) {
	switch {
	case path == "":
		return nil, nil
	case m.InterfaceNames != nil:
		return m.InterfaceNames(path)
	}
	return namesIn(m.Root, path)
}

// A running ADD or Attach, which a DEL of the same key cancels.
type running struct{ cancel context.CancelCauseFunc }

// begin returns a context that a DEL of k cancels, with a clock, and a function that ends
// both.
func (m *Manager) begin(ctx context.Context, k scratch.Key) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	c := &clock{start: time.Now()}
	ctx = context.WithValue(ctx, clockKey{m}, c)
	a := &running{cancel}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.adds == nil {
		m.adds = make(map[scratch.Key][]*running)
	}
	m.adds[k] = append(m.adds[k], a)
	return ctx, func() {
		if m.Timed != nil {
			defer m.Timed(c.now())
		}
		cancel(nil)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.adds[k] = slices.DeleteFunc(m.adds[k], func(b *running) bool { return b == a })
		if len(m.adds[k]) == 0 {
			delete(m.adds, k)
		}
	}
}

// supersede cancels the ADDs of k in this Manager, running and waiting.
func (m *Manager) supersede(k scratch.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.adds[k] {
		a.cancel(ErrSuperseded)
	}
}
