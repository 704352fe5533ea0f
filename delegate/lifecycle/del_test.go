package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/flock"
	"github.com/metacni/metacni/internal/records"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// Where there is no directory, or no record, there is nothing to be done. No operation
// but an ADD makes the directory.
func TestNothingIsRecorded(t *testing.T) {
	t.Parallel()
	for _, directory := range []bool{false, true} {
		n := newNode(t)
		if directory {
			n.add(key("c2", "eth0"))
			n.Trace()
		}
		for _, verb := range []string{"DEL", "DETACH"} {
			nodetest.OK(t, n.verb(t.Context(), verb))
		}
		nodetest.OK(t, n.Release(t.Context(), eth0, func(context.Context, AddRecord) error { t.Error("called"); return nil }))
		for _, verb := range []string{"ATTACH", "CHECK"} {
			err := n.verb(t.Context(), verb)
			nodetest.Code(t, err, 7)
			nodetest.Is(t, err, ErrNotAdded)
		}
		n.WantTrace()
		nodetest.Equal(t, "the directory exists", exists(n.Dir), directory)
	}
}

// A Del that got no lock lets the container go only where it is certain that
// nothing is attached: inside an operation, when an Add was refused there; on a
// full or read-only disk, when there is no record.
func TestDelWithoutALock(t *testing.T) {
	t.Parallel()
	nested := &scratch.Error{Op: "lock", Err: flock.ErrNested}
	disk := func(errno syscall.Errno) error {
		return &scratch.Error{Op: "lock", Err: &fs.PathError{Op: "open", Path: "c1@lock", Err: errno}}
	}
	const always, ifNested, never = 2, 1, 0
	for name, tt := range map[string]struct {
		leave  func(*node)
		passes int
	}{
		"no record": {func(n *node) { n.add(key("c2", "eth0")) }, always},
		"planned":   {func(n *node) { n.crash("ADD tuning", eth0) }, ifNested},
		"added":     {func(n *node) { n.add(eth0) }, never},
		"partial": {func(n *node) {
			n.add(eth0)
			n.dieOn("ADD ipvlan")
			n.dies(func() error { return n.verb(n.Context(), "ATTACH") })
		}, never},
		"deleting": {func(n *node) { n.add(eth0); n.halfDelete(eth0) }, ifNested},
		"damaged":  {func(n *node) { n.add(eth0); n.damage(eth0) }, never},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			tt.leave(n)
			for err, passes := range map[error]bool{
				nested:                   tt.passes >= ifNested,
				disk(syscall.ENOSPC):     tt.passes == always,
				disk(syscall.EDQUOT):     tt.passes == always,
				disk(syscall.EROFS):      tt.passes == always,
				disk(syscall.EIO):        false,
				errors.New("of another"): false,
			} {
				if got := n.answer(t.Context(), eth0, DelRequest{}, err); got != nil && got != err || (got == nil) != passes {
					t.Errorf("%v: %v", err, got)
				}
			}
			nodetest.OK(t, n.answer(t.Context(), eth0, DelRequest{}, nil))
		})
	}
}

// configured makes the runtime's networks known: only these are configured.
func (n *node) configured(names ...string) {
	n.Configured = func(_, other string) (configured, known bool) { return slices.Contains(names, other), true }
}

// newEth0 is eth0 after the network was renamed.
var newEth0 = scratch.Key{Network: "new", ContainerID: "c1", IfName: "eth0"}

// After our network was renamed, operations find the record by the container, the interface and
// the plugin. A network that is still configured has another attachment.
func TestRecordIsFoundAfterARename(t *testing.T) {
	t.Parallel()
	other := scratch.Key{Network: "other", ContainerID: "c1", IfName: "eth0"}
	for name, tt := range map[string]struct {
		add        func(n *node)
		configured []string // nil: nobody knows
		typ        string   // of the DEL
		code       uint
		left       []string
	}{
		"renamed":                 {add: func(n *node) { n.add(eth0) }, configured: []string{"new"}},
		"configured":              {add: func(n *node) { n.add(eth0) }, configured: []string{"new", "multi"}, left: []string{"c1/eth0 added"}},
		"nobody knows":            {add: func(n *node) { n.add(eth0) }, code: 11, left: []string{"c1/eth0 added"}},
		"another interface":       {add: func(n *node) { n.add(key("c1", "eth1")) }, configured: []string{"new"}, left: []string{"c1/eth1 added"}},
		"another plugin":          {add: func(n *node) { n.add(eth0) }, configured: []string{"new"}, typ: "theirs", left: []string{"c1/eth0 added"}},
		"a plugin without a type": {add: func(n *node) { n.add(eth0) }, configured: []string{"new"}, typ: "-", left: []string{"c1/eth0 added"}},
		"its own record":          {add: func(n *node) { n.add(eth0); n.addNamed(newEth0) }, configured: []string{"new"}, left: []string{"c1/eth0 added"}},
		"two old names":           {add: func(n *node) { n.add(eth0); n.addNamed(other) }, configured: []string{"new"}},
		"two names, one is old":   {add: func(n *node) { n.add(eth0); n.addNamed(other) }, configured: []string{"new", "other"}, left: []string{"c1/eth0 added"}},
		"a damaged record":        {add: func(n *node) { n.add(eth0); n.damage(eth0) }, configured: []string{"new"}, code: 5, left: []string{"c1/eth0 damaged"}},
		"another's damaged":       {add: func(n *node) { n.add(key("c1", "eth1")); n.damage(key("c1", "eth1")) }, configured: []string{"new"}, left: []string{"c1/eth1 damaged"}},
		"half deleted":            {add: func(n *node) { n.add(eth0); n.halfDelete(eth0); n.Exec.Plugins = plugins() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.Type = "mine"
			tt.add(n)
			if n.Type = cmp.Or(strings.TrimPrefix(tt.typ, "-"), n.Type); tt.typ == "-" {
				n.Type = ""
			}
			if tt.configured != nil {
				n.configured(tt.configured...)
			}
			err := n.Del(t.Context(), newEth0, DelRequest{})
			if nodetest.Code(t, err, tt.code); tt.code == 11 {
				nodetest.Says(t, err, `network "multi" may be meant`)
			}
			n.wantRecords(tt.left...)
		})
	}
}

// CHECK, GC, Detach and ADD find what DEL finds.
func TestEachOperationFindsTheRecordAfterARename(t *testing.T) {
	t.Parallel()
	blue := []netconf.Network{nodetest.Network("blue", "bridge", "tuning")}
	gc := func(c GCRequest) func(n *node) error {
		c.Network = "new"
		return func(n *node) error { return n.GC(n.Context(), c) }
	}
	none := func(nets ...netconf.Network) func(n *node) error {
		return gc(GCRequest{Valid: noneValid, Networks: nets})
	}
	for name, tt := range map[string]struct {
		do      func(n *node) error
		several bool // networks of our plugin
		unnamed bool // the recorded network has the name that ours had
		code    uint
		calls   []string
		removed bool
	}{
		"GC":                              {do: none(blue...), calls: []string{"DEL macvlan net0", "DEL tuning eth0", "DEL bridge eth0", "GC bridge", "GC tuning"}, removed: true},
		"GC, of several":                  {do: none(blue...), several: true, calls: []string{"GC bridge", "GC tuning"}},
		"GC, of what attaches to another": {do: none(nodetest.Network("red", "macvlan")), calls: []string{"GC macvlan"}},
		"GC, of what attaches otherwise":  {do: none(nodetest.Network("blue", "bridge")), calls: []string{"GC bridge"}},
		"GC, of what has our name":        {do: none(nodetest.Network("new", "bridge", "tuning")), unnamed: true, calls: []string{"DEL tuning eth0", "DEL bridge eth0", "GC bridge", "GC tuning"}, removed: true},
		"GC, of what had our name":        {do: none(blue...), unnamed: true, calls: []string{"GC bridge", "GC tuning"}},
		"GC, of nobody knows what":        {do: none()},
		"GC, valid":                       {do: gc(GCRequest{Valid: validFor(newEth0), Networks: blue}), calls: []string{"GC bridge", "GC tuning", "GC macvlan"}},
		"CHECK":                           {do: func(n *node) error { return n.Check(n.Context(), newEth0, "") }, calls: []string{"CHECK bridge eth0", "CHECK tuning eth0", "CHECK macvlan net0"}},
		"DETACH":                          {do: func(n *node) error { return n.Detach(n.Context(), newEth0, "net0") }, calls: []string{"DEL macvlan net0"}},
		"ADD":                             {do: func(n *node) error { _, err := n.Add(n.Context(), newEth0, pair(newEth0)); return err }, code: 7},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.Type = "mine"
			n.configured("new")
			n.OnlyNetwork = func(ours string) bool { return ours == "new" && !tt.several }
			if tt.unnamed {
				n.mustAdd(eth0, Transaction{Plan: Plan(attachment(nodetest.Network(eth0.Network, "bridge", "tuning"), eth0.ContainerID, eth0.IfName))})
			} else {
				n.add(eth0)
			}
			n.Trace()
			nodetest.Code(t, tt.do(n), tt.code)
			n.WantTrace(tt.calls...)
			nodetest.Equal(t, "removed", len(n.records()) == 0, tt.removed)
		})
	}
}

// The DEL of an ADD that was refused, because another attachment has the interface, touches
// nothing, however often it comes.
func TestDelOfWhatWasRefusedTouchesNothing(t *testing.T) {
	t.Parallel()
	for name, inRecords := range map[string]bool{"the interface is in a record": true, "the interface is in the namespace": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, netns := newNode(t), newNetNS(t)
			n.Type = "mine"
			foreign := n.foreign(eth0, netns)
			adopt := DelRequest{NetNS: netns, Adopt: func() (Adoption, error) { return foreign, nil }}
			if inRecords {
				n.addIn(eth0, netns)
				adopt.Adopt = nil
			} else {
				n.named(netns, "eth0")
			}
			_, err := n.Add(t.Context(), newEth0, pairIn(newEth0, netns))
			nodetest.Code(t, err, 7)
			n.Trace()
			for range 2 {
				nodetest.OK(t, n.Del(t.Context(), newEth0, adopt))
			}
			newSweeper(n).sweep(SweepStats{})
			n.WantTrace()
			unlink(t, netns)
			nodetest.OK(t, n.Del(t.Context(), newEth0, DelRequest{NetNS: netns}))
			_, err = n.store().Get(newEth0)
			nodetest.Equal(t, "the mark is gone", notThere(err), true)
		})
	}
}

// If the renamed record cannot be removed because a disk is full, DEL fails: only a DEL
// without a record succeeds then.
func TestDelOfARenamedRecordFailsWithoutRoom(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Type = "mine"
	n.configured("new")
	n.add(eth0)
	n.On("DEL bridge", func(context.Context, delegatetest.Invocation) error { return syscall.ENOSPC })
	nodetest.Is(t, n.Del(t.Context(), newEth0, DelRequest{}), syscall.ENOSPC)
	n.wantRecords("c1/eth0 deleting")
}

// addNamed attaches k with interfaces that no other attachment has.
func (n *node) addNamed(k scratch.Key) {
	n.Helper()
	tr := Transaction{Plan: Plan(attachment(nodetest.Network("blue", "bridge"), k.ContainerID, "x-"+k.Network))}
	n.mustAdd(k, tr)
}

// A DEL that is older than the attachment removes nothing, and whether it is older is
// decided while nobody else can attach the container.
func TestStaleDelChangesNothing(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	records, err := n.Container(t.Context(), eth0.ContainerID)
	nodetest.OK(t, err)
	n.attach() // which makes the attachment no younger
	ended, end := context.WithCancel(t.Context())
	end()
	unknown := errors.New("the queue cannot be read")
	n.Trace()
	for _, tt := range []struct {
		stale bool
		err   error
		left  []string
	}{{true, nil, []string{"c1/eth0 added"}}, {false, unknown, []string{"c1/eth0 added"}}, {false, nil, nil}} {
		n.Stale = func(recorded time.Time) (bool, error) {
			nodetest.Equal(t, "recorded", recorded, records[0].Created)
			if _, err := n.store().Lock(ended, eth0.ContainerID); err == nil {
				t.Error("the container is not locked")
			}
			return tt.stale, tt.err
		}
		nodetest.Is(t, n.Del(t.Context(), eth0, DelRequest{}), tt.err)
		if n.wantRecords(tt.left...); tt.left != nil {
			n.WantTrace()
		}
	}
	n.del(eth0) // without a record
}

// elsewhere returns a DelRequest for a's container, which another program has recorded.
func elsewhere(a Adoption, calls *int) DelRequest {
	return DelRequest{Adopt: func() (Adoption, error) {
		*calls++
		if !exists(a.Sources[0]) {
			return Adoption{}, &fs.PathError{Op: "open", Path: a.Sources[0], Err: fs.ErrNotExist}
		}
		return a, nil
	}}
}

// A DEL without a record removes what another program has recorded, also when the
// directory does not exist yet, and then nothing any more. Nothing is asked for a record that
// is there.
func TestDelWithoutARecordRemovesWhatAnotherProgramAttached(t *testing.T) {
	t.Parallel()
	for _, used := range []bool{false, true} {
		n := newNode(t)
		if used {
			n.add(eth0)
			nodetest.OK(t, n.Del(t.Context(), eth0, DelRequest{Adopt: func() (Adoption, error) {
				return Adoption{}, errors.New("asked")
			}}))
		}
		a, calls := n.foreign(eth0, newNetNS(t)), 0
		n.Trace()
		for _, want := range [][]string{{"DEL macvlan net0", "DEL tuning eth0", "DEL bridge eth0"}, nil} {
			nodetest.OK(t, n.Del(t.Context(), eth0, elsewhere(a, &calls)))
			n.WantTrace(want...)
		}
		n.wantNothing()
		nodetest.Equal(t, "the other program's file is there", exists(a.Sources[0]), false)
	}
}

// Of an attachment that was taken over the namespace may be unknown. The path of its DEL is no evidence:
// if it leads to the namespace of another container, the plugins do not get it.
func TestDelSparesTheNamespaceOfAnotherContainer(t *testing.T) {
	t.Parallel()
	eth1 := key(eth0.ContainerID, "eth1")
	for name, tt := range map[string]struct {
		recorded scratch.Key // what has a record with the namespace
		handed   bool
	}{
		"nobody's":                   {scratch.Key{}, true},
		"its own, by another record": {eth1, true},
		"another container's":        {key("c2", "eth0"), false},
		"another's, which goes":      {key("c3", "eth0"), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, netns := newNode(t), newNetNS(t)
			a, calls := n.foreign(eth0, ""), 0
			if tt.recorded != (scratch.Key{}) {
				n.addIn(tt.recorded, netns)
			}
			if tt.recorded.ContainerID == "c3" {
				n.halfDelete(tt.recorded)
				n.Exec.Plugins = plugins()
			}
			want := ""
			if tt.handed {
				want = netns
			}
			remove := elsewhere(a, &calls)
			remove.NetNS = netns
			n.Trace()
			nodetest.OK(t, n.Del(t.Context(), eth0, remove))
			for _, c := range n.Since() {
				nodetest.Equal(t, c.String()+": path", c.NetNS, want)
			}
			n.WantTrace("DEL macvlan net0", "DEL tuning eth0", "DEL bridge eth0")
		})
	}
}

// A DEL that dies has recorded what it takes over: no plugin that has succeeded is
// told again.
func TestDelThatDiesAfterTakingOverIsContinued(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a, calls := n.foreign(eth0, newNetNS(t)), 0
	n.dieOn("DEL bridge")
	n.dies(func() error { return n.Del(t.Context(), eth0, elsewhere(a, &calls)) })
	n.wantRecords("c1/eth0 deleting")
	n.Exec.Plugins = plugins()
	n.Trace()
	nodetest.OK(t, n.Del(t.Context(), eth0, elsewhere(a, &calls)))
	n.WantTrace("DEL bridge eth0")
	nodetest.Equal(t, "asked", calls, 2)
	n.wantNothing()
}

// A DEL from a queue removes what another program has attached before it, and nothing that
// was attached after it.
func TestQueuedDelGoesByTheTimeOfTheOtherProgram(t *testing.T) {
	t.Parallel()
	for _, adopted := range []bool{false, true} {
		for _, later := range []bool{false, true} {
			n := newNode(t)
			a, calls := n.foreign(eth0, newNetNS(t)), 0
			queued := time.Now().Add(-time.Hour)
			written := queued.Add(-time.Hour)
			if later {
				written = queued.Add(time.Minute)
			}
			nodetest.OK(t, os.Chtimes(a.Sources[0], written, written))
			if adopted {
				n.adopt(a, true)
			}
			n.Trace()
			n.Stale = func(recorded time.Time) (bool, error) { return recorded.After(queued), nil }
			nodetest.OK(t, n.Del(t.Context(), eth0, elsewhere(a, &calls)))
			nodetest.Equal(t, fmt.Sprintf("adopted %t, attached later %t: nothing ran", adopted, later), len(n.Trace()) == 0, later)
		}
	}
}

// What cannot be read or recorded is no success.
func TestDelFailsIfItCannotTakeOver(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	broken := errors.New("broken entry")
	nodetest.Is(t, n.Del(t.Context(), eth0, DelRequest{Adopt: func() (Adoption, error) { return Adoption{}, broken }}), broken)
	full := &scratch.Error{Op: "put", Err: &fs.PathError{Op: "open", Path: "x", Err: syscall.ENOSPC}}
	calls := 0
	r := elsewhere(n.foreign(eth0, newNetNS(t)), &calls)
	nodetest.Is(t, n.answer(t.Context(), eth0, r, full), syscall.ENOSPC)
	a, err := r.Adopt()
	if err == nil {
		err = os.Remove(a.Sources[0])
	}
	if err := errors.Join(err, n.answer(t.Context(), eth0, r, full)); err != nil {
		t.Errorf("without an entry: %v", err)
	}
}

// What a failed Attach has left, and what cannot be removed, is in nobody's way
// but that of its own interface name.
func TestLeftoverOfAttachBlocksNothingElse(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	n.FailOn("ADD ipvlan hot0", 101)
	n.FailOn("DEL ipvlan hot0", 102)
	nodetest.Code(t, n.verb(t.Context(), "ATTACH"), 101)
	n.mustAttach(eth0, Transaction{Plan: Plan(attachment(nodetest.Network("green", "ipvlan"), "c1", "hot1"))})
	n.wantRecords("c1/eth0 partial")
	n.Trace()
	nodetest.OK(t, n.Check(t.Context(), eth0, ""))
	n.WantTrace("CHECK bridge eth0", "CHECK tuning eth0", "CHECK macvlan net0", "CHECK ipvlan hot1")

	err := n.verb(t.Context(), "ATTACH")
	nodetest.Is(t, err, ErrPlan)
	nodetest.Says(t, err, "hot0", "in use", "DEL network") // and why it is
	n.Exec.Plugins = plugins()                             // it is mended
	n.attach()
	n.wantRecords("c1/eth0 added")
	n.del(eth0)
	n.wantNothing()
}

// named makes the interfaces of the namespace at netns known.
func (n *node) named(netns string, names ...string) {
	n.InterfaceNames = func(path string) ([]string, error) {
		if path == netns {
			return append([]string{"lo"}, names...), nil
		}
		return nil, nil
	}
}

// failedAdd makes an ADD fail whose undo fails too, in the namespace netns.
func (n *node) failedAdd(k scratch.Key, netns string) {
	n.Helper()
	n.FailOn("ADD tuning", 101)
	n.FailOn("DEL bridge", 102)
	tr := pairIn(k, netns)
	_, err := n.Add(n.Context(), k, tr)
	nodetest.Code(n.TB, err, 101)
	n.named(netns)
	n.wantRecords(k.ContainerID + "/" + k.IfName + " leftover")
}

// What never was attached does not hold up the DEL of a container, unless its interface
// is there: the record stays, and sweeps and GC try again.
func TestLeftoverOfAnAddDoesNotHoldUpTheDel(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		there string
		code  uint
	}{
		"its interface is not there": {"eth1", 0},
		"its interface is there":     {"eth0", 102},
		"one that was undone":        {"net0", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, netns := newNode(t), newNetNS(t)
			n.failedAdd(eth0, netns)
			n.named(netns, tt.there)
			for range 2 {
				nodetest.Code(t, n.Del(t.Context(), eth0, DelRequest{NetNS: netns}), tt.code)
				n.wantRecords("c1/eth0 leftover")
			}
			n.Exec.Plugins = plugins()
			newSweeper(n).sweep(SweepStats{Removed: 1})
			n.wantNothing()
		})
	}
}

// A DEL that is interrupted has not tried every plugin. It fails even if nothing was ever
// attached: an address may still be taken. It is given up after DelTries.
func TestInterruptedDelOfALeftoverIsTriedAgain(t *testing.T) {
	t.Parallel()
	n, netns := newNode(t), newNetNS(t)
	n.DelTries = 2
	n.failedAdd(eth0, netns)
	for _, code := range []uint{11, 0} {
		ctx, cancel := context.WithCancel(t.Context())
		n.On("DEL bridge", func(context.Context, delegatetest.Invocation) error {
			cancel()
			return types.NewError(102, "interrupted", "")
		})
		nodetest.Code(t, n.Del(ctx, eth0, DelRequest{NetNS: netns}), code)
		n.wantRecords("c1/eth0 leftover")
		rs, err := n.Container(t.Context(), "c1")
		nodetest.OK(t, err)
		nodetest.Equal(t, "given up", rs[0].GivenUp, code == 0)
	}
	n.clear(1)
}

// clear mends the plugins and removes eth0. Nothing must be left, and the plugin bridge
// must have been called once for each of the ADDs that left it.
func (n *node) clear(adds int) {
	n.Helper()
	n.Exec.Plugins = plugins()
	n.Trace()
	n.del(eth0)
	n.wantNothing()
	nodetest.Equal(n, "DELs of bridge", strings.Count(strings.Join(n.Trace(), ","), "DEL bridge eth0"), adds)
}

// If the disk is full when a new ADD removes what earlier ones have left, and has room
// again when it records its plan, nothing of the leftovers is lost.
func TestLeftoversAreKeptIfTheyCannotBeNoted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.FailOn("ADD bridge", 101)
	n.FailOn("DEL bridge", 102)
	for _, args := range []string{"TRY=1", "TRY=2"} {
		blue := attachment(nodetest.Network("blue", "bridge", "tuning"), "c1", "eth0")
		blue.Args = args
		_, err := n.Add(n.Context(), eth0, Transaction{Plan: Plan(blue)})
		nodetest.Code(t, err, 101)
	}
	room := n.fullDisk()
	n.mustAdd(eth0, Transaction{Plan: func(context.Context, []string) ([]delegate.Attachment, error) {
		room()
		return []delegate.Attachment{attachment(nodetest.Network("green", "ipvlan"), "c1", "eth0")}, nil
	}})
	n.clear(2)
}

// An attachment is not handed to another program while its record is the only one that
// knows of a leftover.
func TestReleaseKeepsLeftovers(t *testing.T) {
	t.Parallel()
	n, netns := newNode(t), newNetNS(t)
	n.failedAdd(eth0, netns)
	n.Exec.Plugins["tuning"] = plugins()["tuning"] // DEL of the bridge fails still
	n.addIn(eth0, netns)
	n.Trace()
	err := n.Release(t.Context(), eth0, func(context.Context, AddRecord) error {
		t.Error("it was handed over")
		return nil
	})
	nodetest.Code(t, err, 11)
	n.WantTrace()
	n.wantRecords("c1/eth0 added")
	n.clear(2)
}

// However much a plugin has to say, its failure is counted, and the beginning of it
// kept.
func TestDelThatFailsAtLengthIsCounted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.DelTries = 2
	n.add(eth0)
	n.On("DEL tuning", func(context.Context, delegatetest.Invocation) error {
		return types.NewError(101, strings.Repeat("é", 1<<20), "")
	})
	nodetest.Code(t, n.Del(t.Context(), eth0, DelRequest{}), 101)
	r, err := n.store().Get(eth0)
	if err != nil || r.Value.Tries != 1 || !strings.Contains(r.Value.Why, "tuning") || len(r.Value.Why) > 1<<12 || strings.Contains(r.Value.Why, "\ufffd") {
		t.Errorf("%d tries, %d bytes: %v", r.Value.Tries, len(r.Value.Why), err)
	}
	n.del(eth0)
}

// A DEL that always fails has an end for the runtime once the network namespace
// is gone, and is not forgotten.
func TestDelThatNeverSucceedsIsGivenUp(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		tries    int
		missing  bool   // the executable, instead of failing
		there    bool   // the namespace is
		names    string // of the interfaces in it
		attempts []bool
	}{
		"never":                                       {attempts: []bool{false, false, false, false}},
		"after three":                                 {tries: 3, attempts: []bool{false, false, true, true}},
		"after three without an executable":           {tries: 3, missing: true, attempts: []bool{false, false, true, true}},
		"not while the namespace is there":            {tries: 1, there: true, attempts: []bool{false, false}},
		"not while the interface is there":            {tries: 1, there: true, names: "lo eth0", attempts: []bool{false, false}},
		"after two, while another interface is there": {tries: 2, there: true, names: "lo net0", attempts: []bool{false, true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, netns := newNode(t), newNetNS(t)
			n.DelTries = tt.tries
			n.addIn(eth0, netns)
			if tt.names != "" {
				n.InterfaceNames = func(string) ([]string, error) { return strings.Fields(tt.names), nil }
			}
			if !tt.there {
				unlink(t, netns)
			}
			if n.FailOn("DEL tuning", 123); tt.missing {
				delete(n.Exec.Plugins, "tuning")
			}
			absent := tt.tries > 0 && (!tt.there || tt.names != "" && !strings.Contains(tt.names, "eth0"))
			for i, ok := range tt.attempts {
				err := n.Del(t.Context(), eth0, DelRequest{NetNS: netns})
				if (err == nil) != ok || errors.Is(err, delegate.ErrPluginNotFound) != (tt.missing && !ok) || errors.Is(err, ErrAbsent) != (absent && !ok) {
					t.Fatalf("DEL %d: %v", i+1, err)
				}
			}
			n.wantRecords("c1/eth0 deleting")
			r, err := n.store().Get(eth0)
			nodetest.OK(t, err)
			nodetest.Equal(t, "tries", r.Value.Tries, len(tt.attempts))
			nodetest.Contains(t, "why", r.Value.Why, "tuning")
			for _, verb := range []string{"ADD", "GC"} { // neither takes it for removed
				if n.verb(t.Context(), verb) == nil {
					t.Errorf("%s says nothing", verb)
				}
			}
			n.Exec.Plugins = plugins() // it is mended
			nodetest.OK(t, n.verb(t.Context(), "GC"))
			n.wantNothing()
		})
	}
}

// newNetNS returns the path of a network namespace, as far as one can be told
// from another here.
func newNetNS(tb testing.TB) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "ns")
	nodetest.OK(tb, os.WriteFile(path, nil, 0o600))
	return path
}

func unlink(tb testing.TB, path string) {
	tb.Helper()
	nodetest.OK(tb, os.Remove(path))
}

// inNetNS is plan in a network namespace.
func inNetNS(plan func(context.Context, []string) ([]delegate.Attachment, error), netns string) func(context.Context, []string) ([]delegate.Attachment, error) {
	return func(ctx context.Context, taken []string) ([]delegate.Attachment, error) {
		as, err := plan(ctx, taken)
		for i := range as {
			as[i].NetNS = netns
		}
		return as, err
	}
}

// A GC that may remove only a part of a leftover spares the interface that another
// attachment has by now, as a DEL does.
func TestGCOfAPartOfALeftoverSparesTheInterfaceOfAnother(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	mute := nodetest.Parse(`{"cniVersion":"1.1.0","name":"red","disableGC":true,"plugins":[{"type":"macvlan"}]}`)
	n.FailOn("ADD macvlan", 101)
	n.FailOn("DEL", 102)
	_, err := n.Add(t.Context(), eth0, Transaction{Plan: Plan(attachment(nodetest.Network("blue", "bridge"), "c1", "eth0"), attachment(mute, "c1", "net0"))})
	nodetest.Code(t, err, 101)
	n.Exec.Plugins = plugins()
	other := scratch.Key{Network: "other", ContainerID: "c1", IfName: "eth0"}
	n.mustAdd(other, Transaction{Plan: Plan(attachment(nodetest.Network("gold", "ipvlan"), "c1", "eth0"))})
	n.Trace()
	nodetest.Code(t, n.verb(t.Context(), "GC"), 11)
	for _, call := range n.Trace() {
		if strings.HasPrefix(call, "DEL") {
			t.Errorf("beside the other attachment: %s", call)
		}
	}
	n.del(other)
	nodetest.OK(t, n.verb(t.Context(), "GC"))
	n.wantRecords("c1/eth0 leftover") // of red
}

// What was undone already keeps no leftover for the sake of another's interface.
func TestLeftoverIsRemovedBesideTheOwnerOfWhatWasUndone(t *testing.T) {
	t.Parallel()
	n, netns := newNode(t), newNetNS(t)
	n.failedAdd(eth0, netns)
	n.Exec.Plugins = plugins()
	other := scratch.Key{Network: "other", ContainerID: "c1", IfName: "net0"}
	n.mustAdd(other, Transaction{Plan: Plan(attachment(nodetest.Network("gold", "ipvlan"), "c1", "net0"))})
	n.del(eth0)
	n.wantRecords("c1/net0 added")
}

// An interface of which an interrupted Attach has left something may be another attachment's by
// now: a file system that loses writes has lost that it was released.
func TestDelSparesAnInterfaceThatIsAnothersByNow(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	n.mustAdd(key("c1", "eth1"), Transaction{Plan: Plan(
		attachment(nodetest.Network("blue", "bridge"), "c1", "eth1"), attachment(nodetest.Network("green", "ipvlan"), "c1", "hot0"),
	)})
	nodetest.OK(t, n.locked(t.Context(), opDel, eth0, func(_ context.Context, l *scratch.Lock) error {
		r, err := n.store().Get(eth0)
		r.State = scratch.Deleting
		r.Value.Delegates = append(r.Value.Delegates, entry{Network: nodetest.Network("green", "ipvlan"), IfName: "hot0", State: scratch.Planned})
		return errors.Join(err, n.note(t.Context(), l, r))
	}))
	n.Trace()
	n.del(eth0)
	n.WantTrace("DEL macvlan net0", "DEL tuning eth0", "DEL bridge eth0")
	n.wantRecords("c1/eth0 leftover", "c1/eth1 added")
	n.del(key("c1", "eth1"))
	n.del(eth0)
	n.wantNothing()
}

// Plugins run one after another, so that those after the first without a result have not begun,
// and an interface of their name is not theirs. That is known of a process that has died while a
// plugin ran. It is not known of another boot, because a loss of power takes the last notes, of
// plugins that run at once, or if the record has lost its notes otherwise.
func TestWhatHasNotBegunIsNotRemoved(t *testing.T) {
	t.Parallel()
	all := []string{"DEL macvlan net0", "DEL tuning eth0", "DEL bridge eth0"}
	const running = `{"pid":4194304,"at":1}`
	for name, tt := range map[string]struct {
		at       string // where the process dies
		parallel int
		boot     string // when the sweep comes
		programs string // in the note of the lock
		want     []string
	}{
		"the first was running":       {at: "ADD tuning", boot: "b1", programs: running, want: all[1:]},
		"the last was running":        {at: "ADD macvlan", boot: "b1", programs: running, want: all},
		"in another boot":             {at: "ADD tuning", boot: "b2", programs: running, want: all},
		"in a boot that is not known": {at: "ADD tuning", programs: running, want: all},
		"at once":                     {at: "ADD tuning", parallel: 2, boot: "b1", programs: running, want: all},
		"none was running":            {at: "ADD tuning", boot: "b1", want: all},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, netns := newNode(t), newNetNS(t)
			n.machine = &fileMachine{bootID: "b1"}
			n.Invoker.Parallel = tt.parallel
			n.dieOn(tt.at)
			n.dies(func() error { n.addIn(eth0, netns); return nil })
			n = nodeAtWith(n)
			n.machine = &fileMachine{bootID: tt.boot}
			note := `{"namespaces":"x","pid":4194304,"group":4194304,"at":1,"programs":[` + tt.programs + `]}`
			nodetest.OK(t, os.WriteFile(filepath.Join(n.Dir, records.LockName("c1")), []byte(note), 0o600))
			n.Trace()
			newSweeper(n).sweep(SweepStats{Removed: 1})
			n.WantTrace(tt.want...)
			n.wantRecords()
		})
	}
}

// A container may swap the names of its interfaces. Removing one attachment spares the interface of
// the other, which has the name, and removes its own by the MAC address.
func TestDelSparesTheInterfaceOfAnotherThatHasTheName(t *testing.T) {
	t.Parallel()
	const mac1, mac2 = "02:00:00:00:00:01", "02:00:00:00:00:02"
	result := func(name, mac string) string {
		return fmt.Sprintf(`{"cniVersion":"1.1.0","interfaces":[{"name":%q,"mac":%q,"sandbox":"/ns"}]}`, name, mac)
	}
	for name, tt := range map[string]struct {
		names [2]string // of the interfaces 1 and 2
		verb  string
		netns bool
		left  []hostLink
	}{
		"as they were":         {[2]string{"eth0", "net0"}, "DETACH", true, nil},
		"swapped":              {[2]string{"net0", "eth0"}, "DETACH", false, []hostLink{{name: "net0", mac: mac1}}},
		"swapped, both go":     {[2]string{"net0", "eth0"}, "DEL", true, nil},
		"with a name of a new": {[2]string{"eth0", "foo"}, "DETACH", true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, netns := newNode(t), newNetNS(t)
			n.printing("tuning", result("eth0", mac1))
			n.printing("macvlan", result("net0", mac2))
			n.addIn(eth0, netns)
			m := &fileMachine{container: []hostLink{{name: tt.names[0], mac: mac1}, {name: tt.names[1], mac: mac2}}}
			n.machine = m
			nodetest.OK(t, n.verb(t.Context(), tt.verb))
			nodetest.Equal(t, "DEL is given the namespace", n.Last("DEL macvlan").NetNS == netns, tt.netns)
			if tt.left != nil && !slices.Equal(m.container, tt.left) {
				t.Errorf("left %v", m.container)
			}
		})
	}
}

// fullDisk keeps the record of eth0 from being written, until room is called: a record with another
// name is written anew, and something has the name for that.
func (n *node) fullDisk() (room func()) {
	n.Helper()
	record := n.recordFile(eth0)
	full := filepath.Join(n.Dir, ".tmp-"+filepath.Base(record))
	nodetest.OK(n, errors.Join(os.Link(record, record+".copy"), os.Mkdir(full, 0o700)))
	return func() { nodetest.OK(n, errors.Join(os.Remove(record+".copy"), os.Remove(full))) }
}
