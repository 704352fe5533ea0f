package lifecycle

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/scratch"
)

// A Timing says where the time of an Add, Attach or Reconcile has gone. Its times are rounded
// to microseconds. A Timing that is not known is zero.
type Timing struct {
	Whole  time.Duration `json:"whole"`  // all of the operation
	Lock   time.Duration `json:"lock"`   // the wait for the container's lock
	Record time.Duration `json:"record"` // the writes of the record

	// Plugins are the invocations of plugins, in the order in which they ended, including
	// failed ones and the DELs of an undo. Only the first 1,000 are kept: a
	// [Transaction.Next] may try any number of plans.
	Plugins []PluginTime `json:"plugins"`
}

// maxPlugins is how many invocations a Timing keeps.
const maxPlugins = 1000

// A PluginTime says how long one invocation of a plugin took.
type PluginTime struct {
	Command delegate.Command `json:"command"`
	Plugin  string           `json:"plugin"` // see [delegate.Event]
	Network string           `json:"network"`
	IfName  string           `json:"ifname"`
	Took    time.Duration    `json:"took"`
}

// LogValue returns a group with the keys "lock" and "record", and "plugins", one text of all
// invocations. Of configurations it has only the types of plugins and the names of networks
// and interfaces.
func (t Timing) LogValue() slog.Value {
	var plugins []string
	for _, p := range t.Plugins {
		plugins = append(plugins, fmt.Sprintf("%s %s %s %s %s", p.Command, p.Plugin, p.Network, p.IfName, p.Took))
	}
	return slog.GroupValue(slog.Duration("lock", t.Lock), slog.Duration("record", t.Record), slog.String("plugins", strings.Join(plugins, ", ")))
}

// A clock measures one Add, Attach or Reconcile of a Manager.
type clock struct {
	start time.Time

	mu sync.Mutex // guards the following: plugins may run at once
	t  Timing
}

// round makes times small in a record.
const round = time.Microsecond

// now returns what has been measured until now.
func (c *clock) now() Timing {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.t
	t.Whole, t.Plugins = time.Since(c.start).Round(round), slices.Clone(t.Plugins)
	return t
}

// measure begins a measurement. The function that it returns ends it, and calls note with the
// time, and then ended. Without a clock it returns ended.
func (c *clock) measure(note func(t *Timing, took time.Duration), ended func(error)) func(error) {
	if c == nil {
		return ended
	}
	since := time.Now()
	return func(err error) {
		c.mu.Lock()
		note(&c.t, time.Since(since).Round(round))
		c.mu.Unlock()
		ended(err)
	}
}

// A context has the clock of an Add, Attach or Reconcile of a Manager, and the operation that holds a
// lock of the Manager. The plugins that they run may call other Managers with it.
type (
	clockKey     struct{ m *Manager }
	operationKey struct{ m *Manager }
)

// clock returns the clock of ctx, or nil.
func (m *Manager) clock(ctx context.Context) *clock {
	c, _ := ctx.Value(clockKey{m}).(*clock)
	return c
}

// during returns ctx for the stages of op.
func (m *Manager) during(ctx context.Context, op string, k scratch.Key) context.Context {
	return context.WithValue(ctx, operationKey{m}, delegate.Event{Command: commandOf(op), Network: k.Network, ContainerID: k.ContainerID, IfName: k.IfName})
}

// begins tells of a stage of the operation of ctx. The function that it returns tells how the
// stage has ended.
func (m *Manager) begins(ctx context.Context, s delegate.Stage) func(error) {
	e, _ := ctx.Value(operationKey{m}).(delegate.Event)
	_, ended := m.invoker().Stages.Begin(ctx, s, e)
	return m.clock(ctx).measure(func(t *Timing, took time.Duration) {
		if s == delegate.StageLock {
			t.Lock += took
		} else {
			t.Record += took
		}
	}, ended)
}

// timed returns the Invoker. If ctx has a clock, the clock measures the invocations.
func (m *Manager) timed(ctx context.Context) *delegate.Invoker {
	c := m.clock(ctx)
	if c == nil {
		return m.invoker()
	}
	iv := *m.invoker()
	iv.Observe(func(ctx context.Context, e delegate.Event) (context.Context, func(error)) {
		return ctx, c.measure(func(t *Timing, took time.Duration) {
			if len(t.Plugins) < maxPlugins {
				t.Plugins = append(t.Plugins, PluginTime{e.Command, e.Plugin, e.Network, e.IfName, took})
			}
		}, func(error) {})
	})
	return &iv
}
