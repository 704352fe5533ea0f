package lifecycle

import (
	"context"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/scratch"
)

// took are how long the plugins of a slow node take.
func took() map[string]time.Duration {
	return map[string]time.Duration{"bridge": 30 * time.Millisecond, "tuning": 5 * time.Millisecond, "macvlan": 2 * time.Second, "ipvlan": time.Millisecond}
}

// slowNode is a node whose plugins take their time, and what its Timed is told. Everything
// else takes none in a bubble of synctest.
func slowNode(t *testing.T) (*node, *nodetest.Notes[Timing]) {
	t.Helper()
	n := newNode(t)
	for typ, d := range took() {
		n.On("ADD "+typ, func(context.Context, delegatetest.Call) error { time.Sleep(d); return nil })
		n.On("DEL "+typ, func(context.Context, delegatetest.Call) error { time.Sleep(d); return nil })
	}
	told := new(nodetest.Notes[Timing])
	n.Timed = told.Note
	return n, told
}

// pluginTime is the time of a plugin of slowNode.
func pluginTime(command delegate.Command, plugin, network, ifname string) PluginTime {
	return PluginTime{command, plugin, network, ifname, took()[plugin]}
}

// pairTimes are the plugins of pair.
func pairTimes() []PluginTime {
	return []PluginTime{
		pluginTime("ADD", "bridge", "blue", "eth0"), pluginTime("ADD", "tuning", "blue", "eth0"), pluginTime("ADD", "macvlan", "red", "net0"),
	}
}

func TestTimingIsRecordedAndTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, told := slowNode(t)
		// timing wants this in the record, and to have been told this.
		timing := func(what string, recorded Timing, tell ...Timing) {
			t.Helper()
			rs, err := n.Container(t.Context(), "c1")
			nodetest.OK(t, err)
			nodetest.Equal(t, what, rs[0].Timing(), recorded)
			nodetest.Equal(t, what+" told", told.Taken(), tell)
		}
		l, err := n.store().Lock(t.Context(), "c1")
		nodetest.OK(t, err)
		time.AfterFunc(time.Second, func() { _ = l.Unlock() })
		start := time.Now()
		n.add(eth0)
		whole := time.Since(start)
		added := Timing{Whole: whole, Lock: whole - 2035*time.Millisecond, Plugins: pairTimes()}
		timing("ADD", added, added)
		if added.Lock < time.Second {
			t.Errorf("the lock took %s", added.Lock)
		}
		nodetest.Is(t, n.verb(t.Context(), "ADD"), ErrAdded)
		timing("refused ADD", added, Timing{})
		n.attach()
		attached := Timing{Whole: time.Millisecond, Plugins: []PluginTime{pluginTime("ADD", "ipvlan", "green", "hot0")}}
		timing("Attach", attached, attached)
		nodetest.OK(t, n.Detach(t.Context(), eth0, "hot0"))
		timing("Detach", attached)

		// A GC that runs plugins holds up what records something.
		dir, err := n.lockDir(t.Context(), true)
		nodetest.OK(t, err)
		time.AfterFunc(time.Second, func() { unlockDir(dir) })
		n.attach()
		if got := told.Taken()[0]; got.Record < time.Second || got.Whole != got.Record+time.Millisecond {
			t.Errorf("told %v", got)
		}
	})
}

// An ADD that fails tells where its time went, undo and failed plugins included.
func TestTimingOfAnADDThatFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, told := slowNode(t)
		n.On("ADD macvlan", func(context.Context, delegatetest.Call) error {
			time.Sleep(time.Second)
			return types.NewError(101, "no", "")
		})
		nodetest.Code(t, n.verb(t.Context(), "ADD"), 101)
		failed := pluginTime("ADD", "macvlan", "red", "net0")
		failed.Took = time.Second
		nodetest.Equal(t, "told", told.Taken(), []Timing{{Whole: 3070 * time.Millisecond, Plugins: append(pairTimes()[:2:2], failed,
			pluginTime("DEL", "macvlan", "red", "net0"), pluginTime("DEL", "tuning", "blue", "eth0"), pluginTime("DEL", "bridge", "blue", "eth0"))}})
		n.wantNothing()
	})
}

// Plugins that run at once are measured one by one, in the order in which they ended.
func TestTimingOfParallelPlugins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, told := slowNode(t)
		n.Invoker.Parallel = 8
		n.mustAdd(eth0, Transaction{Plan: Plan(
			attachment(nodetest.Network("first", "ipvlan"), "c1", "eth0"),
			attachment(nodetest.Network("slow", "macvlan"), "c1", "net1"),
			attachment(nodetest.Network("quick", "tuning"), "c1", "net2"),
		)})
		nodetest.Equal(t, "told", told.Taken(), []Timing{{Whole: 2001 * time.Millisecond, Plugins: []PluginTime{
			pluginTime("ADD", "ipvlan", "first", "eth0"), pluginTime("ADD", "tuning", "quick", "net2"), pluginTime("ADD", "macvlan", "slow", "net1"),
		}}})
	})
}

// However many plans are tried, a Timing stays small.
func TestTimingKeepsSoManyPlugins(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	ctx, finish := n.begin(t.Context(), eth0)
	defer finish()
	for range maxPlugins + 1 {
		_, ended := n.timed(ctx).Observer(ctx, delegate.Event{})
		ended(nil)
	}
	nodetest.Equal(t, "plugins", len(n.clock(ctx).now().Plugins), maxPlugins)
}

// What was adopted has no times, until something is attached to it.
func TestTimingOfWhatWasAdopted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.adopt(n.foreign(eth0, newNetNS(t)), true)
	file, err := os.ReadFile(n.recordFile(eth0))
	nodetest.OK(t, err)
	nodetest.Equal(t, "times are recorded", strings.Contains(string(file), "timing"), false)
	n.reconcile(keep("ipvlan"))
	rs, err := n.Container(t.Context(), "c1")
	nodetest.OK(t, err)
	nodetest.Equal(t, "plugins", len(rs[0].Timing().Plugins), 1)
}

// An inner Manager, which a plugin calls with its context, is measured as one invocation.
func TestTimingOfAManagerInAManager(t *testing.T) {
	t.Parallel()
	outer, inner := newNode(t), newNode(t)
	var told Timing
	outer.Timed = func(t Timing) { told = t }
	inner.add(key("c1", "eth1"))
	outer.On("ADD bridge", func(ctx context.Context, _ delegatetest.Call) error {
		return inner.Del(ctx, key("c1", "eth1"), Removal{})
	})
	outer.add(eth0)
	nodetest.Equal(t, "plugins", len(told.Plugins), 3)
}

// The text of a log has no configuration.
func TestTimingInALog(t *testing.T) {
	t.Parallel()
	got := Timing{Whole: time.Minute, Lock: time.Second, Record: 2 * time.Millisecond, Plugins: pairTimes()[1:]}.LogValue().String()
	nodetest.Equal(t, "log", got, "[lock=1s record=2ms plugins=ADD tuning blue eth0 5ms, ADD macvlan red net0 2s]")
}

// Times that are not as they should be harm nothing else of a record.
func TestTimingThatIsWrongIsNotKnown(t *testing.T) {
	t.Parallel()
	for _, wrong := range []string{`"long"`, `null`, `{"whole":"1s"}`, `{"lock":1e99}`} {
		n := newNode(t)
		n.put(eth0, scratch.Added, time.Time{}, `{"timing":`+wrong+`,`+strings.TrimPrefix(wholeRecord, "{"))
		rs, err := n.Container(t.Context(), "c1")
		nodetest.OK(t, err)
		nodetest.Equal(t, wrong, rs[0].Timing(), Timing{})
		n.del(eth0)
		n.wantNothing()
	}
}
