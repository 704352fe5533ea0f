package lifecycle

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/bounds"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/scratch"
)

// foreign attaches what pair plans without a record, as another program does,
// and returns what is to be adopted. It has one file that says so.
func (n *node) foreign(k scratch.Key, netns string) Adoption {
	n.Helper()
	plan, err := inNetNS(pair(k).Plan, netns)(n.Context(), nil)
	nodetest.OK(n.TB, err)
	as, err := n.invoker().AddAll(n.Context(), plan)
	nodetest.OK(n.TB, err)
	source := filepath.Join(n.TempDir(), "entry")
	nodetest.OK(n.TB, os.WriteFile(source, nil, 0o600))
	return Adoption{Key: k, Attached: as, Sources: []string{source}}
}

func (n *node) adopt(a Adoption, want bool) {
	n.Helper()
	if got, err := n.Adopt(n.Context(), a); err != nil || got != want {
		n.Fatalf("adopted %v, want %v: %v", got, want, err)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// What another program has attached is as good as what Add has, once it is
// adopted.
func TestAdoptedIsAttached(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	netns := newNetNS(t)
	a := n.foreign(eth0, netns)
	calls := len(n.trace())
	n.adopt(a, true)
	n.adopt(a, false)
	n.wantRecords("c1/eth0 added")
	if len(n.trace()) != calls {
		t.Errorf("ran %q", n.trace()[calls:])
	}

	nodetest.OK(t, n.Check(t.Context(), eth0))
	if prev := nodetest.Stdin(t, n.Last("CHECK bridge"))["prevResult"]; prev == nil {
		t.Error("CHECK without the result of ADD")
	}
	n.attach()
	nodetest.OK(t, n.GC(t.Context(), Collection{Network: "multi", Valid: validFor(eth0)}))
	n.wantRecords("c1/eth0 added")
	_, err := n.Add(t.Context(), eth0, pair(eth0))
	if !errors.Is(err, ErrAdded) {
		t.Error(err)
	}
	n.del(eth0)
	if got := n.Last("DEL bridge"); nodetest.Stdin(t, got)["prevResult"] == nil || got.NetNS != netns {
		t.Errorf("DEL in %q of %s", got.NetNS, got.Stdin)
	}
	n.wantNothing()
	if exists(a.Sources[0]) {
		t.Error("the other program's file is still there")
	}
	n.adopt(a, false) // what has been deleted is not adopted again
	n.wantNothing()
}

// A container that the other program has attached anew, in another namespace, is no longer
// the adopted one: a DEL would remove what it has now. This happens under podman, whose
// containers keep their ID and their network when they are started again.
func TestAdoptedIsForgottenOnceItIsAttachedAnew(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		anew   bool
		remove func(*node) error
	}{
		{"sweep", true, func(n *node) error { newSweeper(n).sweep(Sweep{Removed: 1}); return nil }},
		{"DEL", true, func(n *node) error { return n.Del(n.Context(), Removal{Key: eth0}) }},
		{"GC", true, func(n *node) error {
			return n.GC(n.Context(), Collection{Network: "multi", Valid: noneValid})
		}},
		{"not attached anew", false, func(n *node) error { newSweeper(n).sweep(Sweep{Removed: 1}); return nil }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			netns := newNetNS(t)
			a := n.foreign(eth0, netns)
			n.adopt(a, true)
			more := hotplug(eth0)
			more.Plan = inNetNS(more.Plan, netns)
			n.mustAttach(eth0, more)
			later := time.Now().Add(time.Second)
			nodetest.OK(t, os.Chtimes(a.Sources[0], later, later))
			if err := n.Check(t.Context(), eth0); err != nil {
				t.Errorf("while the namespace exists: %v", err)
			}
			unlink(t, netns)
			if !tt.anew {
				nodetest.OK(t, os.Chtimes(a.Sources[0], time.Unix(1, 0), time.Unix(1, 0)))
			}
			calls := len(n.trace())
			nodetest.OK(t, tt.remove(n))
			want := []string{"DEL ipvlan hot0"} // what we have attached ourselves
			if !tt.anew {
				want = append(want, "DEL macvlan net0", "DEL tuning eth0", "DEL bridge eth0")
			}
			got := slices.DeleteFunc(n.trace()[calls:], func(call string) bool { return !strings.HasPrefix(call, "DEL") })
			nodetest.Equal(t, "calls", got, want)
			n.wantRecords()
			if exists(a.Sources[0]) != tt.anew {
				t.Errorf("the other program's file exists: %v", !tt.anew)
			}
		})
	}
}

// Nothing is adopted over what is known, and nothing that could not be deleted.
func TestWhatMustNotBeAdoptedIsNot(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		do   func(*node, *Adoption)
		err  error
	}{
		{"recorded", func(n *node, _ *Adoption) { n.add(eth0) }, nil},
		{"one of its interfaces recorded", func(n *node, _ *Adoption) {
			k := scratch.Key{Network: "other", ContainerID: "c1", IfName: "net0"}
			n.Helper()
			n.mustAdd(k, Transaction{Plan: Plan(attachment(nodetest.Network("green", "ipvlan"), "c1", "net0"))})
		}, nil},
		{"source gone", func(n *node, a *Adoption) { unlink(n.TB, a.Sources[0]) }, nil},
		{"damaged record", func(n *node, _ *Adoption) { n.add(eth0); n.damage(eth0) }, scratch.ErrCorrupt},
		{"nothing attached", func(_ *node, a *Adoption) { a.Attached = nil }, ErrPlan},
		{"another container's", func(_ *node, a *Adoption) { a.Attached[1].ContainerID = "c2" }, ErrPlan},
		{"a result that is too deep", func(_ *node, a *Adoption) { a.Attached[0].Result = raw(withResult(deep(bounds.Depth))) }, os.ErrNotExist},
		{"name that is none", func(_ *node, a *Adoption) { a.Attached[1].IfName = "a/b" }, os.ErrNotExist},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			a := n.foreign(eth0, "")
			tt.do(n, &a)
			before := n.records()
			got, err := n.Adopt(t.Context(), a)
			if got || (err == nil) != (tt.err == nil) || tt.err != nil && tt.err != os.ErrNotExist && !errors.Is(err, tt.err) {
				t.Errorf("adopted %v, %v", got, err)
			}
			if after := n.records(); !slices.Equal(before, after) {
				t.Errorf("records %q, then %q", before, after)
			}
		})
	}
}

// Of a container that is gone the rest is removed, once.
func TestAdoptedOfAContainerThatIsGone(t *testing.T) {
	t.Parallel()
	for _, said := range []bool{true, false} {
		n := newNode(t)
		netns := newNetNS(t)
		a := n.foreign(eth0, netns)
		if a.Gone = said; !said {
			unlink(t, netns)
		}
		n.adopt(a, true)
		n.wantRecords("c1/eth0 deleting")
		nodetest.OK(t, n.GC(t.Context(), Collection{Network: "multi", Valid: []types.GCAttachment{}}))
		n.wantNothing()
		n.adopt(a, false)
	}
}

// A result that nobody has kept is no reason to leave the attachment alone.
func TestAdoptedWithoutResults(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a := n.foreign(eth0, "")
	for i := range a.Attached {
		a.Attached[i].Result, a.Attached[i].Added = nil, false
	}
	n.adopt(a, true)
	n.wantRecords("c1/eth0 added")
	n.attach()
	n.wantRecords("c1/eth0 added")
	n.del(eth0)
	n.wantNothing()
}

// A file of the other program that cannot be removed, in a directory that is
// read-only to us, keeps no container from going. The record stays, so that nobody
// adopts again what is detached, until a sweep has removed the file.
func TestDelOfAdoptedWhoseFileStays(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a := n.foreign(eth0, newNetNS(t))
	n.adopt(a, true)
	unlink(t, a.Sources[0])
	nodetest.OK(t, os.MkdirAll(filepath.Join(a.Sources[0], "x"), 0o700))
	n.del(eth0)
	n.wantRecords("c1/eth0 deleting")
	calls := len(n.trace())
	n.del(eth0)
	n.adopt(a, false)
	s := newSweeper(n)
	s.sweep(Sweep{Failed: 1})
	s.come()
	unlink(t, filepath.Join(a.Sources[0], "x"))
	s.sweep(Sweep{Removed: 1})
	n.wantNothing()
	if len(n.trace()) != calls {
		t.Errorf("run again: %q", n.trace()[calls:])
	}
}

// What is given back keeps its own interface, for another program to delete, and
// nothing else.
func TestReleasedIsNotDeleted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	netns := newNetNS(t)
	a := n.foreign(eth0, netns)
	n.adopt(a, true)
	var kept []Record
	keep := func(_ context.Context, r Record) error { kept = append(kept, r); return nil }
	for range 2 {
		nodetest.OK(t, n.Release(t.Context(), eth0, keep))
	}
	if len(kept) != 1 || len(kept[0].Attached) != 1 || kept[0].Attached[0].IfName != "eth0" || kept[0].Attached[0].Result == nil {
		t.Errorf("kept %+v", kept)
	}
	if want := []string{"bridge c1 eth0", "tuning c1 eth0"}; !slices.Equal(n.Exec.Live(), want) {
		t.Errorf("alive %q, want %q", n.Exec.Live(), want)
	}
	if files := n.files(); len(files) > 0 || exists(a.Sources[0]) {
		t.Errorf("left %q", files)
	}
	nodetest.OK(t, n.invoker().DelAll(t.Context(), kept[0].Attached))
	n.wantNothing()
}

// What is not attached is removed whole: nobody else would.
func TestReleasedOfWhatIsNotAttached(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(n *node, netns string){
		"container gone": func(n *node, netns string) { unlink(n.TB, netns) },
		"deleting": func(n *node, _ string) {
			n.FailOn("DEL bridge", 101)
			nodetest.Code(n.TB, n.Del(n.Context(), Removal{Key: eth0}), 101)
			n.Exec.Plugins = plugins()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			netns := newNetNS(t)
			n.adopt(n.foreign(eth0, netns), true)
			leave(n, netns)
			err := n.Release(t.Context(), eth0, func(context.Context, Record) error { t.Error("kept"); return nil })
			if err != nil {
				t.Error(err)
			}
			n.wantNothing()
		})
	}
}

// Until all of it has succeeded, an attachment is not given back.
func TestReleaseThatFails(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	n.FailOn("DEL macvlan", 101)
	keep := func(context.Context, Record) error { return errors.New("disk full") }
	nodetest.Code(t, n.Release(t.Context(), eth0, keep), 101)
	n.wantRecords("c1/eth0 partial")
	n.Exec.Plugins = plugins()
	nodetest.Says(t, n.Release(t.Context(), eth0, keep), "disk full")
	n.wantRecords("c1/eth0 added")
	n.del(eth0)
	n.wantNothing()
}
