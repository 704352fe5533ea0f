package lifecycle

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/scratch"
)

// A story is what happens to a container whose networks change: what is wanted,
// ADD, DEL, more networks by request, and passes, in each of which plugins fail,
// the process dies and the context ends. Bytes say what happens next. When there
// are none left, nothing happens any more that was not wanted.
type story struct {
	*node
	data []byte
	list []string // what is wanted
	last []string // what was wanted before
	calm bool     // nothing fails
	gone []string // interfaces that a DEL has removed before it failed
	end  context.CancelFunc
}

// wantedInStories are added to the list or taken from it. CheckSelections lets no
// interface be asked for twice.
var wantedInStories = []string{
	"ipvlan", "ipvlan", "macvlan", "ipvlan-b", "ipvlan@hot0", "macvlan@hot0", "macvlan@hot1", "tuning@hot1", "ipvlan?x", "ipvlan@hot0?x",
}

func (s *story) next() byte {
	if len(s.data) == 0 {
		return 255
	}
	b := s.data[0]
	s.data = s.data[1:]
	return b
}

// change changes what is wanted, or changes it back.
func (s *story) change() {
	if s.next()%3 == 0 {
		s.list, s.last = s.last, s.list
		return
	}
	s.last = s.list
	if n := len(s.list); n > 0 && s.next()%2 == 0 {
		at := int(s.next()) % n
		s.list = slices.Delete(slices.Clone(s.list), at, at+1)
		return
	}
	w := wantedInStories[int(s.next())%len(wantedInStories)]
	list := slices.DeleteFunc(slices.Clone(s.list), func(other string) bool {
		return strings.Contains(w, "@") && wanted(other)[0].IfName == wanted(w)[0].IfName
	})
	s.list = slices.Insert(list, int(s.next())%(len(list)+1), w)
}

func (s *story) wanted(context.Context, Record) ([]Wanted, error) {
	switch s.next() % 32 {
	case 0:
		return nil, errors.New("it cannot be read")
	case 1:
		s.change()
	}
	return wanted(s.list...), nil
}

// plugin is any of the fakes, with what goes wrong with it.
func (s *story) plugin(p delegatetest.Plugin) delegatetest.Plugin {
	return func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
		s.gone = slices.DeleteFunc(s.gone, func(name string) bool { return name == c.IfName })
		how := s.next() % 32
		if s.calm {
			how = 31
		}
		switch how {
		case 0, 1:
			return nil, types.NewError(101, "no", "")
		case 2:
			runtime.Goexit()
		case 3:
			s.end()
			return nil, errors.New("signal: killed")
		}
		out, err := p(ctx, c)
		switch how {
		case 4:
			return []byte("{"), err
		case 6, 7, 8: // it has done its work all the same
			s.gone = append(s.gone, c.IfName)
			return nil, errors.New("no")
		case 5:
			s.end()
		}
		return out, err
	}
}

// add attaches what the configuration wants, and what is wanted now.
func (s *story) add(ctx context.Context) error {
	ws := wanted(s.list...)
	_, err := s.Add(ctx, eth0, Transaction{Plan: func(ctx context.Context, taken []string) ([]delegate.Attachment, error) {
		plan := []delegate.Attachment{
			attachment(network("cluster", "bridge"), "c1", "eth0"), attachment(network("default", "tuning"), "c1", "dflt0"),
		}
		for _, w := range ws {
			a, err := w.Plan(ctx, taken)
			if err != nil {
				return nil, err
			}
			a.ContainerID = "c1"
			plan, taken = append(plan, a), append(taken, a.IfName)
		}
		return plan, nil
	}})
	return err
}

// happens does what comes next. If the process dies, there is another one.
func (s *story) happens() {
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	s.end, s.calm = cancel, false
	died := make(chan bool)
	go func() {
		alive := false
		defer func() { died <- !alive }()
		switch s.next() % 16 {
		case 0, 1, 2:
			s.calm = s.next()%2 == 0
			_ = s.add(ctx)
		case 3:
			_ = s.Del(ctx, Removal{Key: eth0})
		case 4:
			_, _ = s.Attach(ctx, eth0, Transaction{Plan: Plan(attachment(network("green", "ipvlan"), "c1", "req0"))})
		case 5:
			_ = s.Detach(ctx, eth0, []string{"req0", "hot0", "net1"}[s.next()%3])
		default:
			s.change()
			r := keep()
			r.Wanted, r.Replace = s.wanted, s.next()%2 == 0
			before := len(s.exec.Calls())
			if done, err := s.Reconcile(ctx, eth0, r); err == nil {
				s.inStep(fmt.Sprintf("after %v, with the calls %q", reconciled(done), s.trace()[before:]))
			}
		}
		alive = true
	}()
	if <-died {
		again := nodeAt(s.t, s.Dir)
		again.exec = s.exec
		again.Invoker.Exec = s.exec
		s.node = again
	}
	s.nothingUnrecorded()
}

// nothingUnrecorded is what holds at any time.
func (s *story) nothingUnrecorded() {
	rs, err := s.Container(s.t.Context(), "c1")
	if err != nil {
		s.t.Fatal(err)
	}
	var known []string
	for _, r := range rs {
		for _, a := range r.Attached {
			for _, p := range a.Network.Plugins() {
				known = append(known, p.Type()+" c1 "+a.IfName)
			}
		}
	}
	for _, l := range s.exec.Live() {
		if !slices.Contains(known, l) {
			s.t.Fatalf("alive and not recorded: %s", l)
		}
	}
}

// inStep wants exactly the wanted networks attached, recorded and alive, beside
// those of the configuration, and that of another request.
func (s *story) inStep(when string) {
	rs, err := s.Container(s.t.Context(), "c1")
	if err != nil || len(rs) != 1 {
		s.t.Fatalf("%s: %v, %v", when, rs, err)
	}
	var got, alive []string
	own := 0
	for i, a := range rs[0].Attached {
		w, mine := recorded(a)
		switch {
		case mine && !rs[0].Whole(i):
			s.t.Errorf("%s: half %s", when, a.IfName)
		case mine:
			got = append(got, w.Network)
		case a.IfName == "eth0" || a.IfName == "dflt0":
			own++
		}
		if rs[0].Whole(i) {
			alive = append(alive, a.Network.Plugins()[0].Type()+" c1 "+a.IfName)
		}
	}
	var want []string
	for _, w := range wanted(s.list...) {
		want = append(want, w.Network)
		there := slices.ContainsFunc(rs[0].Attached, func(a delegate.Attached) bool {
			r, _ := recorded(a)
			return a.IfName == w.IfName && r.Network == w.Network
		})
		if w.IfName != "" && !there {
			s.t.Errorf("%s: %s is not at %s", when, w.Network, w.IfName)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) || own != 2 {
		s.t.Fatalf("%s: %q of the caller's are attached and %d others, wanted %q", when, got, own, s.list)
	}
	for _, a := range alive {
		if !slices.Contains(s.exec.Live(), a) || slices.Contains(s.gone, strings.Fields(a)[2]) {
			s.t.Errorf("%s: %s is recorded, and not alive", when, a)
		}
	}
}

func (s *story) run() {
	for name, p := range s.exec.Plugins {
		s.exec.Plugins[name] = s.plugin(p)
	}
	for len(s.data) > 0 {
		s.happens()
	}
	if _, err := s.Reconcile(s.t.Context(), eth0, keep()); errors.Is(err, ErrNotAdded) {
		if err := s.add(s.t.Context()); err != nil {
			s.t.Fatal(err)
		}
	}
	s.reconcile(keep(s.list...))
	s.inStep("at the end")
	s.wantRecords("c1/eth0 added")
	calls := s.trace()
	s.reconcile(keep(s.list...))
	s.wantTrace(calls...)
	s.del(eth0)
	s.wantNothing()
}

// Whatever is wanted one after the other, whatever fails and wherever it dies: a
// pass that succeeds, and so the first one after the failures have stopped, ends
// with exactly the wanted networks attached and recorded. At no time is anything
// alive that is not recorded, and a DEL leaves nothing.
func TestReconcileEndsWithWhatIsWanted(t *testing.T) {
	t.Parallel()
	base := fastDir(t)
	for i := range uint64(*modelOps/historyLen/10 + 60) {
		seed := *modelSeed + i
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 3))
			data := make([]byte, 50+r.IntN(200))
			for i := range data {
				data[i] = byte(r.Uint32()) //nolint:gosec // any
			}
			(&story{node: nodeAt(t, filepath.Join(base, fmt.Sprint(seed), "state")), data: data}).run()
		})
	}
}

// Whatever is recorded and whatever is wanted: what is not the caller's stays, what
// is recorded is wanted once at most, and when all that differs has been done,
// nothing differs any more.
func FuzzCompare(f *testing.F) {
	f.Add("ipvlan@hot0 ipvlan macvlan", "ipvlan=net1 green=req0 ipvlan@hot0=hot0 ipvlan?x=net2", false)
	f.Add("ipvlan@hot0?x ipvlan@net1 ipvlan?y", "ipvlan=net1 ipvlan@hot0=hot0! ipvlan?x=net2 ipvlan?y=net3", true)
	f.Add("a@eth0 a a", "a=eth0 a@eth0=eth0 a?b=a a=c a=d!", true)
	f.Fuzz(func(t *testing.T, want, have string, replace bool) {
		rec := Record{Key: eth0, State: scratch.Partial}
		record := func(w Wanted, ifname string, half bool) {
			origin, err := json.Marshal(asked{w.Network, w.IfName, w.Options})
			if err != nil {
				t.Fatal(err)
			}
			if w.Network == "green" { // another's
				origin = nil
			}
			rec.entries = append(rec.entries, entry{Half: half})
			rec.Attached = append(rec.Attached, delegate.Attached{Attachment: delegate.Attachment{IfName: ifname, Origin: origin}})
		}
		if strings.ContainsFunc(want+have, func(r rune) bool { return r >= 0x80 }) {
			return // what is not UTF-8 cannot be recorded
		}
		for text := range strings.FieldsSeq(have) {
			text, half := strings.CutSuffix(text, "!")
			what, ifname, _ := strings.Cut(text, "=")
			record(wanted(what)[0], ifname, half)
		}
		var ws []Wanted
		for _, w := range wanted(strings.Fields(want)...) {
			same := func(other Wanted) bool { return other.IfName == w.IfName && w.IfName != "" }
			if w.Network != "" && w.Network != "green" && w.IfName != eth0.IfName && !slices.ContainsFunc(ws, same) {
				ws = append(ws, w)
			}
		}
		r := Reconciliation{Recorded: recorded, Replace: replace}
		d := r.compare(rec, ws)
		mine := 0
		for i, a := range rec.Attached {
			_, own := recorded(a)
			own = own && a.IfName != eth0.IfName
			if own && rec.Whole(i) {
				mine++
			}
			if slices.Contains(d.unwanted, i) && !own && rec.Whole(i) {
				t.Errorf("%d is not the caller's", i)
			}
		}
		detached := 0
		for _, i := range slices.Backward(d.unwanted) {
			if rec.Whole(i) {
				detached++
			}
			rec.Attached, rec.entries = slices.Delete(rec.Attached, i, i+1), slices.Delete(rec.entries, i, i+1)
		}
		if mine-detached != len(ws)-len(d.missing) {
			t.Errorf("%d of %d are detached, and %d of %d attached", detached, mine, len(d.missing), len(ws))
		}
		for i, w := range d.missing {
			record(w, cmp.Or(w.IfName, fmt.Sprint("new", i)), false)
		}
		if again := r.compare(rec, ws); len(again.unwanted)+len(again.missing) > 0 {
			t.Errorf("still %d to be detached and %d to be attached", len(again.unwanted), len(again.missing))
		}
	})
}
