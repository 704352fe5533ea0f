package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

// A crowd works on a few containers at once. It makes sure that of each
// container only one has a plugin running, and that the plugins see ADDs and
// DELs in a possible order.
type crowd struct {
	mu   sync.Mutex
	busy map[string]string // the call that is running, by container
	errs []error
	rng  *rand.Rand // guarded by mu
}

func (c *crowd) enter(call delegatetest.Call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if other := c.busy[call.ContainerID]; other != "" {
		c.errs = append(c.errs, fmt.Errorf("%s: %s beside %s", call.ContainerID, call, other))
	}
	c.busy[call.ContainerID] = call.String()
}

func (c *crowd) leave(call delegatetest.Call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy[call.ContainerID] = ""
}

func (c *crowd) intN(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rng.IntN(n)
}

// plugin fails now and then.
func (c *crowd) plugin(p delegatetest.Plugin) delegatetest.Plugin {
	return func(ctx context.Context, call delegatetest.Call) ([]byte, error) {
		if call.ContainerID == "" {
			return p(ctx, call)
		}
		c.enter(call)
		defer c.leave(call)
		runtime.Gosched()
		if c.intN(12) == 0 {
			return nil, types.NewError(101, "now and then", "")
		}
		return p(ctx, call)
	}
}

// Whatever many callers of two processes do with few containers, no two of
// them work on one container at a time, every failure is one that may be, and
// what is deleted at the end leaves nothing.
func TestGoroutinesTakeTurns(t *testing.T) {
	t.Parallel()
	const callers, each = 6, 20
	c := &crowd{busy: make(map[string]string), rng: rand.New(rand.NewPCG(1, 2))}
	one := newNode(t)
	for name, p := range one.exec.Plugins {
		one.exec.Plugins[name] = c.plugin(p)
	}
	two := &Manager{Invoker: one.Invoker, Dir: one.Dir, LockTimeout: time.Minute}
	one.LockTimeout = time.Minute
	var keys []scratch.Key
	for i := range 3 {
		for _, ifname := range []string{"eth0", "eth1"} {
			keys = append(keys, key(fmt.Sprint("c", i), ifname))
		}
	}
	do := func(m *Manager) error {
		ctx, k := t.Context(), keys[c.intN(len(keys))]
		if c.intN(10) == 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithCancel(ctx)
			cancel()
		}
		switch c.intN(8) {
		case 0, 1, 2:
			_, err := m.Add(ctx, k, pair(k))
			return err
		case 3, 4:
			return m.Del(ctx, Removal{Key: k})
		case 5:
			return m.Check(ctx, k)
		case 6:
			t := hotplug(k)
			if c.intN(2) == 0 {
				return m.Detach(ctx, k, "hot0")
			}
			_, err := m.Attach(ctx, k, t)
			return err
		default:
			return m.GC(ctx, Collection{Network: "multi", Valid: validFor(keys[c.intN(len(keys))], keys[c.intN(len(keys))])})
		}
	}
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			m := []*Manager{one.Manager, two}[i%2]
			for range each {
				err := do(m)
				switch code := status.Code(err); code {
				case 0, 7, 11, 101:
				default:
					t.Errorf("code %d: %v", code, err)
				}
				var e *Error
				if err != nil && !errors.As(err, &e) {
					t.Errorf("%T: %v", err, err)
				}
			}
		})
	}
	all.Wait()
	for _, err := range c.errs {
		t.Error(err)
	}
	one.exec.Plugins = plugins()
	for r, err := range one.Records(t.Context()) {
		if err != nil || len(r.Attached) == 0 {
			t.Errorf("%s: %v, %v", r.Key, r.Attached, err)
		}
	}
	for _, k := range keys {
		one.del(k)
	}
	one.wantNothing()
}
