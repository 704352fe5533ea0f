package lifecycle

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/records"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// put writes a record as value says, which need not be one.
func (n *node) put(k scratch.Key, state scratch.State, created time.Time, value string, changes ...string) {
	n.Helper()
	raw := scratch.Store[text]{Dir: n.Dir}
	l, err := raw.Lock(n.Context(), k.ContainerID)
	nodetest.OK(n.TB, err)
	r := scratch.Record[text]{Key: k, State: state, Created: created, Value: text{RawMessage: json.RawMessage(value)}}
	err = raw.Put(l, r)
	for _, c := range changes {
		r.Value.noted = json.RawMessage(c)
		err = errors.Join(err, raw.Note(l, r))
	}
	nodetest.OK(n.TB, errors.Join(err, l.Unlock()))
}

// A text is a record's value as it stands on disk.
type text struct {
	json.RawMessage
	noted json.RawMessage
}

func (t *text) Noted() any {
	if t.noted == nil {
		return nil
	}
	return t.noted
}

func (*text) Make(records.Change) error { return nil }

// What the runtime calls valid and nobody has recorded under our network is passed on
// once, whatever else is recorded of its container. Whether its container is attached to
// further networks nobody knows: those are not told, and GC says so.
func TestGCPassesOnWhatIsNotRecorded(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	n.add(scratch.Key{Network: "other", ContainerID: "c2", IfName: "eth0"})
	valid := validFor(eth0, key("c2", "eth0"), key("c1", "eth7"), key("c0", "eth0"), key("c0", "eth0"))
	err := n.GC(t.Context(), GCRequest{Network: "multi", Valid: valid, Networks: []netconf.Network{nodetest.Network("new", "ipvlan"), nodetest.Network("more", "tuning")}})
	nodetest.Code(t, err, 11)
	nodetest.Says(t, err, `"more", "red"`, "c0 (eth0), c1 (eth7)")
	nodetest.Equal(t, "told", n.gcs(), []string{"new ipvlan", "blue bridge", "blue tuning"})
	wantValid(t, n.Last("GC bridge"), "c0 eth0", "c1 eth0", "c1 eth7", "c2 eth0")
	wantValid(t, n.Last("GC ipvlan"), "c0 eth0", "c1 eth7", "c2 eth0")
	// Once all are recorded, by whatever network, everybody is told.
	n.add(key("c0", "eth0"))
	nodetest.OK(t, n.GC(t.Context(), GCRequest{Network: "multi", Valid: validFor(eth0, key("c0", "eth0"), key("c2", "eth0"))}))
	wantValid(t, n.Last("GC macvlan"), "c0 net0", "c1 net0", "c2 eth0", "c2 net0")
	n.del(key("c0", "eth0"))
	// Of the other network the record of c2 is stale, and the same is passed on.
	nodetest.OK(t, n.GC(t.Context(), GCRequest{Network: "other", Valid: validFor(eth0)}))
	n.wantRecords("c1/eth0 added")
}

// A network with disableGC, in the configuration or in a record, is left alone: its
// attachments stay, also those of stale records. What else such a record has goes.
func TestGCLeavesNetworksWithDisableGCAlone(t *testing.T) {
	t.Parallel()
	mute := nodetest.Parse(`{"cniVersion":"1.1.0","name":"red","disableGC":true,"plugins":[{"type":"macvlan"}]}`)
	for name, tt := range map[string]struct {
		recorded netconf.Network
		nets     []netconf.Network
	}{
		"recorded":   {mute, nil},
		"configured": {nodetest.Network("red", "macvlan"), []netconf.Network{nodetest.Network("blue", "bridge", "tuning"), mute}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.mustAdd(eth0, Transaction{Plan: Plan(attachment(nodetest.Network("blue", "bridge", "tuning"), "c1", "eth0"), attachment(tt.recorded, "c1", "net0"))})
			n.mustAdd(key("c2", "eth0"), Transaction{Plan: Plan(attachment(tt.recorded, "c2", "eth0"))})
			for range 2 {
				nodetest.OK(t, n.GC(t.Context(), GCRequest{Network: "multi", Valid: noneValid, Networks: tt.nets}))
				n.wantRecords("c1/eth0 added", "c2/eth0 added")
				nodetest.Equal(t, "alive", n.Exec.Live(), []string{"macvlan c1 net0", "macvlan c2 eth0"})
			}
			n.del(eth0)
			n.del(key("c2", "eth0"))
			n.wantNothing()
		})
	}
}

// A stale record is removed only as GC has found it, or if a DEL has begun to remove it: one that
// is made again or added to before GC has its container's lock stays, and its plugins are told of
// it.
func TestGCKeepsWhatChangesBeforeItsLock(t *testing.T) {
	t.Parallel()
	c2, c4 := key("c2", "eth0"), key("c4", "eth0")
	for name, tt := range map[string]struct {
		change func(n *node)
		stays  string // container
	}{
		"attached to":                {func(n *node) { n.mustAttach(c2, hotplug(c2)) }, "c2"},
		"detached from":              {func(n *node) { nodetest.OK(n, n.Detach(n.Context(), c2, "net0")) }, "c2"},
		"made again":                 {func(n *node) { n.del(c2); n.add(c2) }, "c2"},
		"deleted":                    {func(n *node) { n.del(c2) }, ""},
		"deleted, and another added": {func(n *node) { n.del(c2); n.add(c4) }, "c4"},
		"half deleted":               {func(n *node) { n.halfDelete(c2) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			meanwhile := nodeAt(t, n.Dir)
			n.add(eth0)
			n.add(c2)
			n.On("DEL bridge", func(_ context.Context, c delegatetest.Invocation) error {
				if c.ContainerID == "c1" {
					tt.change(meanwhile)
				}
				return nil
			})
			n.Trace()
			blue := []netconf.Network{nodetest.Network("blue", "bridge", "tuning")}
			nodetest.OK(t, n.GC(t.Context(), GCRequest{Network: "multi", Valid: noneValid, Networks: blue}))
			var left, told []string
			if tt.stays != "" {
				left, told = []string{tt.stays + "/eth0 added"}, []string{tt.stays + " eth0"}
				if ran := strings.Join(n.Trace(), ", "); strings.Contains(ran, "of c2") {
					t.Errorf("GC ran %s", ran)
				}
			}
			n.wantRecords(left...)
			wantValid(t, n.Last("GC bridge"), told...)
		})
	}
}

// What is being deleted is somebody's while the runtime calls it valid, or when
// it has been added again since GC's own DEL of it failed: the plugins are told
// of it. They are not told of what GC could not delete.
func TestGCTellsOfWhatIsBeingDeleted(t *testing.T) {
	t.Parallel()
	c2, c3 := key("c2", "eth0"), key("c3", "eth0")
	for name, tt := range map[string]struct {
		valid []scratch.Key
		again bool
		code  uint
		told  []string
	}{
		"valid":       {[]scratch.Key{eth0, c2, c3}, false, 0, []string{"c1 eth0", "c2 eth0", "c3 eth0"}},
		"stale":       {[]scratch.Key{c2, c3}, false, 101, []string{"c2 eth0", "c3 eth0"}},
		"added again": {[]scratch.Key{c3}, true, 101, []string{"c1 eth0", "c3 eth0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			for _, k := range []scratch.Key{eth0, c2, c3} {
				n.add(k)
			}
			sick := true
			n.On("DEL bridge", func(_ context.Context, c delegatetest.Invocation) error {
				switch {
				case c.ContainerID == "c1" && sick:
					return types.NewError(101, "no", "")
				case c.ContainerID == "c2" && tt.again:
					sick = false
					nodeAt(t, n.Dir).add(eth0)
				}
				return nil
			})
			nodetest.Code(t, n.Del(t.Context(), eth0, DelRequest{}), 101)
			nodetest.Code(t, n.GC(t.Context(), GCRequest{Network: "multi", Valid: validFor(tt.valid...)}), tt.code)
			wantValid(t, n.Last("GC bridge"), tt.told...)
		})
	}
}

// What is attached before plugins are told is in what they are told; what comes
// while they are told waits, and runs no plugin until they have been.
func TestAttachWaitsWhilePluginsAreTold(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	c2 := key("c2", "eth0")
	n.add(eth0)
	n.add(c2)
	inAttach, outAttach := n.Gate("ADD ipvlan hot0")
	inGC, outGC := n.Gate("GC bridge")
	var all sync.WaitGroup
	all.Go(func() { n.attach() }) // is half done when GC comes
	<-inAttach
	all.Go(func() {
		nodetest.OK(t, n.GC(t.Context(), GCRequest{Network: "multi", Valid: validFor(eth0, c2)}))
	})
	<-inGC
	outAttach() // what is recorded already need not wait
	hasty := nodeAt(t, n.Dir)
	hasty.LockTimeout = time.Millisecond
	_, err := hasty.Attach(t.Context(), c2, hotplug(c2))
	nodetest.Code(t, err, 11)
	_, err = hasty.Add(t.Context(), key("c3", "eth0"), pair(key("c3", "eth0")))
	nodetest.Code(t, err, 11)
	hasty.LockTimeout = 0
	nodetest.OK(t, hasty.Check(t.Context(), c2, "")) // what attaches nothing does not wait
	hasty.WantTrace("CHECK bridge eth0 of c2", "CHECK tuning eth0 of c2", "CHECK macvlan net0 of c2")
	n.mustAttach(c2, Transaction{Plan: func(context.Context, []string) ([]delegate.Attachment, error) {
		outGC()
		return []delegate.Attachment{attachment(nodetest.Network("gold", "tuning"), "c2", "hot1")}, nil
	}})
	all.Wait()
	trace := n.Exec.Trace()
	for _, told := range []string{"GC bridge", "GC tuning", "GC macvlan", "GC ipvlan"} {
		if i := slices.Index(trace, told); i < 0 || i > slices.Index(trace, "ADD tuning hot1") {
			t.Errorf("%s is not before the ADD in %q", told, trace)
		}
	}
	wantValid(t, n.Last("GC ipvlan"), "c1 hot0")
	n.wantRecords("c1/eth0 added", "c2/eth0 added")
}

// While attachments are being recorded nobody is told: GC waits, and says so.
func TestGCWaitsForWhatIsBeingRecorded(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	l, err := n.lockDir(t.Context(), false)
	nodetest.OK(t, err)
	n.LockTimeout = time.Millisecond
	err = n.verb(t.Context(), "GC of none")
	nodetest.Code(t, err, 11)
	wantError(t, err, opGC, scratch.Key{Network: "multi"})
	nodetest.Equal(t, "told", n.gcs(), nil)
	n.LockTimeout = 0
	unlockDir(l)
	nodetest.OK(t, n.verb(t.Context(), "GC of none"))
	nodetest.Equal(t, "told", len(n.gcs()), 3)
}

// A plugin whose GC hangs is ended after a second if an ADD waits for it. The ADD gets its turn, and
// the next network is told of what it has recorded.
func TestHangingGCDoesNotFailAnADD(t *testing.T) {
	t.Parallel()
	dir := newNode(t).Dir
	synctest.Test(t, func(t *testing.T) {
		n, other := nodeAt(t, dir), nodeAt(t, dir)
		n.add(eth0)
		k := key("c2", "eth0")
		added := make(chan error, 1)
		n.On("GC bridge", func(ctx context.Context, _ delegatetest.Invocation) error {
			go func() {
				start := time.Now()
				_, err := other.Add(t.Context(), k, pair(k))
				if waited := time.Since(start); waited > 2*time.Second {
					err = fmt.Errorf("the ADD has waited %v: %w", waited, err)
				}
				added <- err
			}()
			<-ctx.Done()
			return ctx.Err()
		})
		n.Exec.Plugins["tuning"] = delegatetest.HangOn("GC", n.Exec.Plugins["tuning"])
		nodetest.Code(t, n.GC(t.Context(), GCRequest{Network: "multi", Valid: validFor(eth0)}), types.ErrTryAgainLater)
		nodetest.OK(t, <-added)
		wantValid(t, n.Last("GC macvlan"), "c1 net0", "c2 net0")
	})
}

// validFor is a runtime's list.
func validFor(ks ...scratch.Key) []types.GCAttachment {
	valid := noneValid
	for _, k := range ks {
		valid = append(slices.Clip(valid), types.GCAttachment{ContainerID: k.ContainerID, IfName: k.IfName})
	}
	return valid
}

// wantValid wants the plugin of a GC call to have been told of these
// attachments, "container ifname", under both keys.
func wantValid(tb testing.TB, c delegatetest.Invocation, want ...string) {
	tb.Helper()
	var conf struct {
		A []types.GCAttachment `json:"cni.dev/valid-attachments"`
		B []types.GCAttachment `json:"cni.dev/attachments"`
	}
	nodetest.OK(tb, json.Unmarshal(c.Stdin, &conf))
	if conf.A == nil {
		tb.Errorf("%s: no list", c)
	}
	var got []string
	for _, a := range conf.A {
		got = append(got, a.ContainerID+" "+a.IfName)
	}
	nodetest.Equal(tb, c.String()+": told", got, want)
	nodetest.Equal(tb, c.String()+": the other key", conf.B, conf.A)
}

// gcs are the GC calls, which hold each plugin's network in the order told.
func (n *node) gcs() []string {
	var all []string
	for _, c := range n.Exec.Calls() {
		if c.Command == "GC" {
			all = append(all, nodetest.Stdin(n.TB, c)["name"].(string)+" "+c.Plugin)
		}
	}
	return all
}

// Without a list nothing is stale, nobody is told anything: section 4 of the
// specification. An empty list is a list.
func TestGCWithoutAListDeletesNothing(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	n.Trace()
	err := n.GC(t.Context(), GCRequest{Network: "multi", Networks: []netconf.Network{nodetest.Network("blue", "bridge")}})
	nodetest.Code(t, err, 7)
	nodetest.Is(t, err, errNoList)
	nodetest.Says(t, err, `network "multi": no list of valid attachments`, `GC needs "cni.dev/valid-attachments"`)
	for _, bad := range []string{"", "../x"} {
		nodetest.Code(t, n.GC(t.Context(), GCRequest{Network: bad, Valid: noneValid}), 7)
	}
	n.WantTrace()
	nodetest.OK(t, n.verb(t.Context(), "GC"))
	n.wantNothing()
}

// A network is told once, though each container has it in another edition;
// networks that share a name are not one. Networks of others' records are not
// ours to tell.
func TestGCTellsEachNetworkOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	add := func(k scratch.Key, confs ...string) {
		t.Helper()
		var as []delegate.Attachment
		for i, conf := range confs {
			as = append(as, attachment(nodetest.Parse("{"+conf+"}"), k.ContainerID, k.IfName+string(rune('a'+i))))
		}
		n.mustAdd(k, Transaction{Plan: Plan(as...)})
	}
	c2 := key("c2", "eth0")
	add(eth0, `"cniVersion":"1.1.0","name":"n","type":"bridge","edition":1`, `"cniVersion":"1.1.0","name":"n","type":"macvlan"`)
	add(c2, `"cniVersion":"1.1.0","name":"n","type":"bridge","edition":2`, `"cniVersion":"1.1.0","name":"mute","disableGC":true,"plugins":[{"type":"ipvlan"}]`, `"cniVersion":"0.4.0","name":"old","type":"tuning"`)
	add(scratch.Key{Network: "other", ContainerID: "c3", IfName: "eth0"}, `"cniVersion":"1.1.0","name":"theirs","type":"tuning"`, `"cniVersion":"1.1.0","name":"n","type":"bridge"`)
	nodetest.OK(t, n.GC(t.Context(), GCRequest{Network: "multi", Valid: validFor(eth0, c2)}))
	nodetest.Equal(t, "told", n.gcs(), []string{"n bridge", "n macvlan"})
	for _, p := range []string{"bridge", "macvlan"} { // too many rather than too few
		wantValid(t, n.Last("GC "+p), "c1 eth0a", "c1 eth0b", "c2 eth0a", "c3 eth0b")
	}
	// Several of the configuration with one name are all told.
	nets := []netconf.Network{nodetest.Network("n", "bridge"), nodetest.Network("n", "bridge", "bridge")}
	nodetest.OK(t, n.GC(t.Context(), GCRequest{Network: "multi", Valid: validFor(eth0, c2), Networks: nets}))
	nodetest.Equal(t, "told", n.gcs()[2:], []string{"n bridge", "n bridge", "n bridge", "n macvlan"})
}

// A directory without records, or without itself, is in order.
func TestGCOfNothing(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	c := GCRequest{Network: "multi", Valid: noneValid, Networks: []netconf.Network{nodetest.Network("blue", "bridge")}}
	nodetest.OK(t, n.GC(t.Context(), c))
	wantValid(t, n.Last("GC bridge"))
	n.wantNothing()
	nodetest.OK(t, errors.Join(os.Remove(n.Dir), os.WriteFile(n.Dir, nil, 0o600)))
	nodetest.Code(t, n.GC(t.Context(), c), 5)
	n.WantTrace("GC bridge")
}

// While a damaged record may be of a valid attachment nobody is told what is
// valid; stale ones are collected all the same.
func TestGCNamesTheDamaged(t *testing.T) {
	t.Parallel()
	stale, valid := key("c2", "eth0"), key("c3", "eth0")
	for name, tt := range map[string]struct {
		damaged scratch.Key
		valid   []types.GCAttachment
		told    int
	}{
		"valid":         {eth0, validFor(valid, eth0), 0},
		"stale":         {eth0, validFor(valid), 3},
		"of another":    {scratch.Key{Network: "other", ContainerID: "c1", IfName: "eth0"}, validFor(valid), 0},
		"of long names": {key("c"+strings.Repeat("x", 300), "eth0"), validFor(valid), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.add(tt.damaged)
			found, err := filepath.Glob(filepath.Join(n.Dir, "*.json"))
			nodetest.OK(t, errors.Join(err, os.WriteFile(found[0], []byte("x"), 0o600)))
			n.add(stale)
			n.add(valid)
			for range 2 { // it is named every time
				told := len(n.gcs())
				err := n.GC(t.Context(), GCRequest{Network: "multi", Valid: tt.valid})
				nodetest.Code(t, err, 5)
				nodetest.Is(t, err, scratch.ErrCorrupt)
				if nodetest.Equal(t, "told", len(n.gcs())-told, tt.told); tt.told == 0 {
					nodetest.Says(t, err, "plugins were not told")
				}
			}
			if got := n.records(); len(got) != 2 || !slices.Contains(got, "c3/eth0 added") {
				t.Errorf("records: %q", got)
			}
			// Until the operator has dealt with it.
			for _, err := range n.store().List(t.Context()) {
				if e := (*scratch.Error)(nil); errors.As(err, &e) {
					nodetest.OK(t, n.forget(e.Key))
				}
			}
			err = n.GC(t.Context(), GCRequest{Network: "multi", Valid: tt.valid})
			want := []string{"c3 eth0"}
			if len(tt.valid) > 1 {
				want = []string{"c1 eth0", "c3 eth0"} // of which nothing is recorded any more
				nodetest.Says(t, err, `"red"`, "c1 (eth0)")
			} else {
				nodetest.OK(t, err)
			}
			wantValid(t, n.Last("GC bridge"), want...)
		})
	}
}

// GC ends with its context, which is said once.
func TestGCEndsWithItsContext(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for _, c := range []string{"c1", "c2", "c3"} {
		n.add(key(c, "eth0"))
	}
	ctx, cancel := context.WithCancel(t.Context())
	n.On("DEL bridge", func(context.Context, delegatetest.Invocation) error { cancel(); return nil })
	err := n.verb(ctx, "GC")
	nodetest.Code(t, err, 11)
	nodetest.Is(t, err, context.Canceled)
	nodetest.Equal(t, "times it is said", strings.Count(err.Error(), "canceled"), 1)
	n.wantRecords("c2/eth0 added", "c3/eth0 added")
	nodetest.Equal(t, "told", n.gcs(), nil)
}

// sweeping is a Sweeper on a node.
type sweeping struct {
	*Sweeper
	n    *node
	told []string
}

func newSweeper(n *node) *sweeping {
	s := &sweeping{n: n, Sweeper: &Sweeper{Manager: n.Manager}}
	s.Tell = func(swept SweepResult) {
		said := "removed " + swept.Key.ContainerID
		if swept.Err != nil {
			said = fmt.Sprintf("%s in %s", swept.Key.ContainerID, s.tries[swept.Key].wait)
		}
		s.told = append(s.told, said)
	}
	return s
}

func (s *sweeping) sweep(want SweepStats) {
	s.n.Helper()
	got, err := s.Sweep(s.n.Context())
	nodetest.OK(s.n, err)
	nodetest.Equal(s.n, "says why, of a container", []bool{got.Why != "", got.Container != ""}, []bool{got.Unknown > 0, got.Unknown > 0})
	got.Container, got.Why = "", ""
	nodetest.Equal(s.n, "swept", got, want)
}

// come lets the time of each next try come.
func (s *sweeping) come() {
	for _, t := range s.tries {
		t.at = time.Time{}
	}
}

func (s *sweeping) wantTold(want ...string) {
	s.n.Helper()
	nodetest.Equal(s.n, "told", s.told, want)
}

// addIn attaches what pair plans, in a namespace.
func (n *node) addIn(k scratch.Key, netns string) {
	n.Helper()
	plan := pairIn(k, netns)
	n.mustAdd(k, plan)
}

// A sweep removes what nobody will ask for any more, and leaves alone what is
// attached.
func TestSweepRemovesWhatIsStaleAlone(t *testing.T) {
	t.Parallel()
	n, alive, gone := newNode(t), newNetNS(t), newNetNS(t)
	n.addIn(key("alive", "eth0"), alive)
	n.addIn(key("unseen", "eth0"), filepath.Join(t.TempDir(), "ns")) // there never was one
	n.addIn(key("gone", "eth0"), gone)
	unlink(t, gone)
	n.add(key("deleting", "eth0"))
	n.halfDelete(key("deleting", "eth0"))
	n.Exec.Plugins = plugins()
	n.dieOn("ADD macvlan")
	n.dies(func() error { n.addIn(key("planned", "eth0"), alive); return nil })
	n = nodeAtWith(n)
	n.wantRecords("alive/eth0 added", "deleting/eth0 deleting", "gone/eth0 added", "planned/eth0 planned", "unseen/eth0 added")

	s := newSweeper(n)
	s.sweep(SweepStats{Removed: 3, Unknown: 1})
	n.wantRecords("alive/eth0 added", "unseen/eth0 added")
	slices.Sort(s.told)
	s.wantTold("removed deleting", "removed gone", "removed planned")
	n.Trace()
	s.sweep(SweepStats{Unknown: 1})
	n.WantTrace()
	s.Unknown = func(AddRecord) bool { return true } // says the operator
	s.sweep(SweepStats{Removed: 1})
	n.del(key("alive", "eth0"))
	n.wantNothing()
}

// nodeAtWith is another process that works with what is alive on n.
func nodeAtWith(n *node) *node {
	m := nodeAt(n.TB, n.Dir)
	n.Exec.Plugins = plugins()
	m.Node, m.Invoker.Exec = n.Node, n.Exec
	return m
}

// A process that dies before its first record leaves a lock and half a record, or half a file of its
// own. Nobody will come for them again but a sweep or a GC, which spare what is in use.
func TestWhatTheDeadHaveLeftIsRemoved(t *testing.T) {
	t.Parallel()
	for name, tidy := range map[string]func(*node){
		"sweep": func(n *node) { newSweeper(n).sweep(SweepStats{Unknown: 1}) },
		"GC": func(n *node) {
			nodetest.OK(t, n.GC(t.Context(), GCRequest{Network: "multi", Valid: validFor(key("alive", "eth0"))}))
		},
	} {
		n := newNode(t)
		n.add(key("alive", "eth0"))
		for _, c := range []string{"dead", "busy"} {
			n.add(key(c, "eth0"))
			nodetest.OK(t, os.Remove(n.recordFile(key(c, "eth0"))))
		}
		for _, left := range []string{".tmp-dead@multi@eth0.json", ".tmp-early@multi@eth0.json", ".tmp-busy@multi@eth0.json", ".tmp-f00", "foreign"} {
			nodetest.OK(t, os.WriteFile(filepath.Join(n.Dir, left), []byte("half"), 0o600))
		}
		l, err := n.store().Lock(t.Context(), "busy")
		nodetest.OK(t, err)
		tidy(n)
		want := []string{".tmp-busy@multi@eth0.json", ".tmp-f00", "alive@lock", "alive@multi@eth0.json", "busy@lock", "foreign"}
		nodetest.Equal(t, "files after "+name, n.files(), want)
		nodetest.OK(t, l.Unlock())
		tidy(n)
		nodetest.Equal(t, "files after another "+name, n.files(), slices.Concat(want[1:4], want[5:]))
	}
}

// What the end of the sweep has kept from being removed has not failed.
func TestSweepThatIsEnded(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	n.halfDelete(eth0)
	ctx, cancel := context.WithCancel(t.Context())
	n.On("DEL bridge eth0", func(context.Context, delegatetest.Invocation) error { cancel(); return nil })
	s := newSweeper(n)
	if got, err := s.Sweep(ctx); got != (SweepStats{Waiting: 1}) || !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v", got, err)
	}
	s.wantTold()
}

// What cannot be removed is left alone for longer each time, and said once.
func TestSweepBacksOff(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	n.halfDelete(eth0)
	s := newSweeper(n)
	s.Wait = time.Minute
	for _, minutes := range []float64{1, 2, 4, 8, 10, 10} {
		s.sweep(SweepStats{Failed: 1})
		if got := s.tries[eth0].wait; got.Minutes() != minutes || time.Until(s.tries[eth0].at) > got {
			t.Errorf("waits for %s, want %v minutes", got, minutes)
		}
		s.sweep(SweepStats{Waiting: 1})
		s.come()
	}
	s.wantTold("c1 in 1m0s")
	n.Exec.Plugins["bridge"] = delegatetest.FailOn("DEL", 102, "for another reason", n.Exec.Plugins["bridge"])
	s.sweep(SweepStats{Failed: 1})
	s.wantTold("c1 in 1m0s", "c1 in 10m0s")
	n.Exec.Plugins = plugins()
	n.del(eth0) // by somebody else
	s.sweep(SweepStats{})
	n.wantNothing()
}

// A sweep does not wait for another operation, nor count it as a failure.
func TestSweepLeavesAloneWhatOthersWorkOn(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	in, out := n.Gate("ADD macvlan")
	done := make(chan error)
	go func() { done <- n.verb(t.Context(), "ADD") }()
	<-in
	s := newSweeper(n)
	s.sweep(SweepStats{Waiting: 1})
	out()
	nodetest.OK(t, <-done)
	s.sweep(SweepStats{Unknown: 1})
	n.wantRecords("c1/eth0 added")
	s.wantTold()
}

// Several attachments are removed at the same time by one pass, which shares nothing that
// it writes.
func TestSweepRemovesSeveralAtOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	var all sync.WaitGroup
	all.Add(sweepers) // none goes on before all are there
	n.On("DEL macvlan", func(context.Context, delegatetest.Invocation) error {
		all.Done()
		all.Wait()
		return nil
	})
	for i := range sweepers {
		netns := newNetNS(t)
		n.addIn(key(fmt.Sprint("c", i), "eth0"), netns)
		unlink(t, netns)
	}
	newSweeper(n).sweep(SweepStats{Removed: sweepers})
	n.wantNothing()
}

// What never was attached because of a mistake in its configuration goes once
// that is mended, although the mistake is on record. Another network of the same
// name is no mended one. Of what goes the plugins that are gone already are not run again.
func TestSweepWithMendedConfiguration(t *testing.T) {
	t.Parallel()
	ipam := func(typ string) netconf.Network {
		return nodetest.Parse(fmt.Sprintf(`{"cniVersion":"1.1.0","name":"red","plugins":[{"type":"macvlan","ipam":{"type":%q}},{"type":"tuning"}]}`, typ))
	}
	now := func(n netconf.Network, err error) func(*sweeping) {
		return func(s *sweeping) {
			s.Current = func(delegate.Attachment) (netconf.Network, error) { return n, err }
		}
	}
	for name, tt := range map[string]struct {
		mend func(*sweeping)
		want SweepStats
	}{
		"as it is configured now": {now(ipam("host-local"), nil), SweepStats{Removed: 1}},
		"as another container has it": {func(s *sweeping) {
			s.n.mustAdd(key("c2", "eth0"), Transaction{Plan: inNetNS(Plan(attachment(ipam("host-local"), "c2", "eth0")), newNetNS(s.n.TB))})
		}, SweepStats{Removed: 1}},
		"not mended":      {now(ipam("host-lcl"), nil), SweepStats{Failed: 1}},
		"another network": {now(nodetest.Network("red", "ipvlan"), nil), SweepStats{Failed: 1}},
		"no network":      {now(netconf.Network{}, netconf.ErrNotFound), SweepStats{Failed: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.On("", func(_ context.Context, c delegatetest.Invocation) error {
				if c.Plugin == "macvlan" && !strings.Contains(string(c.Stdin), "host-local") {
					return types.NewError(101, "no such IPAM", "")
				}
				return nil
			})
			_, err := n.Add(t.Context(), eth0, Transaction{Plan: Plan(
				attachment(nodetest.Network("blue", "bridge"), "c1", "eth0"), attachment(ipam("host-locl"), "c1", "net0"),
			)})
			nodetest.Code(t, err, 101)
			n.wantRecords("c1/eth0 leftover")
			s := newSweeper(n)
			s.sweep(SweepStats{Failed: 1})
			tt.mend(s)
			s.come()
			n.Trace()
			s.sweep(tt.want)
			if tt.want.Removed > 0 {
				n.WantTrace("DEL macvlan net0", "DEL macvlan net0") // as it was, and as it is now
			}
		})
	}
}

// What was attached is never removed with another configuration, even if the plugins are
// the same and would succeed; also if another program has attached it, and nobody has kept
// its result.
func TestSweepKeepsToWhatWasAttached(t *testing.T) {
	t.Parallel()
	for _, adopted := range []bool{true, false} {
		n, netns := newNode(t), newNetNS(t)
		n.On("DEL macvlan", func(_ context.Context, c delegatetest.Invocation) error {
			if !strings.Contains(string(c.Stdin), "mode") {
				return errors.New("not now")
			}
			return nil
		})
		if adopted {
			a := n.foreign(eth0, netns)
			for i := range a.Attached {
				a.Attached[i].Result, a.Attached[i].Added = nil, false
			}
			n.adopt(a, true)
		} else {
			n.addIn(eth0, netns)
		}
		unlink(t, netns)
		s := newSweeper(n)
		s.Current = func(delegate.Attachment) (netconf.Network, error) {
			return nodetest.Parse(`{"cniVersion":"1.1.0","name":"red","plugins":[{"type":"macvlan","mode":"l2"}]}`), nil
		}
		s.sweep(SweepStats{Failed: 1})
		n.wantRecords("c1/eth0 deleting")
	}
}

// fill records attachments, and returns the list of them: it adds one, and copies
// its record, without waiting for the disk. Their network namespace is gone, so
// that another program may have removed them.
func (n *node) fill(records int) (list []types.GCAttachment) {
	n.Helper()
	first := key("c0", "eth0")
	added := nodeAt(n.TB, n.Dir)
	added.del(first)
	added.printing("bridge", ipsOf("10.0.0.2/24"))
	added.printing("tuning", ipsOf("10.0.0.2/24"))
	added.addIn(first, "/nonexistent/ns")
	text, err := os.ReadFile(n.recordFile(first))
	nodetest.OK(n.TB, err)
	for i := range records {
		k := key(fmt.Sprint("c", i), "eth0")
		if list = append(list, types.GCAttachment{ContainerID: k.ContainerID, IfName: k.IfName}); i == 0 {
			continue
		}
		var out strings.Builder
		for line := range strings.Lines(string(text)) {
			if _, text, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
				text = strings.Replace(text, `"container":"c0"`, fmt.Sprintf(`"container":%q`, k.ContainerID), 1)
				fmt.Fprintf(&out, "%.8x %s\n", sha256.Sum256([]byte(text)), text)
			}
		}
		err := errors.Join(os.WriteFile(n.recordFile(k), []byte(out.String()), 0o600), os.WriteFile(filepath.Join(n.Dir, k.ContainerID+"@lock"), nil, 0o600))
		nodetest.OK(n.TB, err)
	}
	return list
}

// A clock that has been wrong keeps no record from being collected, nor does a noted change that
// this program does not understand.
func TestGCCollectsStrangeRecords(t *testing.T) {
	t.Parallel()
	const value = `{"delegates":[{"network":{"cniVersion":"1.1.0","name":"blue","type":"bridge"},"ifname":"eth0","result":{"cniVersion":"1.1.0"}}]}`
	n := newNode(t)
	n.put(eth0, scratch.Added, time.Now().AddDate(100, 0, 0), value)
	n.put(key("c2", "eth0"), scratch.Added, time.Time{}, value, `{"at":1}`)
	n.wantRecords("c1/eth0 added", "c2/eth0 added")
	nodetest.OK(t, n.verb(t.Context(), "GC"))
	n.WantTrace("DEL bridge eth0", "DEL bridge eth0 of c2")
	n.wantNothing()
}

// A record that cannot be read is said once, and so is a directory that cannot be read: nothing
// would be swept there.
func TestSweepSaysOnceWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		spoil func(n *node)
		err   error
	}{
		"a record":      {func(n *node) { n.add(eth0); n.damage(eth0) }, scratch.ErrCorrupt},
		"the directory": {func(n *node) { write(n.TB, n.Dir) }, syscall.ENOTDIR},
	} {
		n := newNode(t)
		tt.spoil(n)
		s := newSweeper(n)
		var told []error
		s.Tell = func(swept SweepResult) { told = append(told, swept.Err) }
		s.sweep(SweepStats{Unreadable: 1})
		s.sweep(SweepStats{Unreadable: 1})
		if len(told) != 1 || !errors.Is(told[0], tt.err) || strings.Contains(told[0].Error(), `""`) {
			t.Errorf("%s: told %q", name, told)
		}
	}
}

// What is half deleted, and dead by an operator's word as well, is one attachment.
func TestSweepCountsEachAttachmentOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	n.halfDeleteFirst()
	n.FailOn("DEL bridge eth0", 102)
	s := newSweeper(n)
	s.sweep(SweepStats{Failed: 1, Unknown: 1})
	s.Unknown = func(AddRecord) bool { return true }
	s.sweep(SweepStats{Waiting: 1})
}
