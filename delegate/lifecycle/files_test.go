package lifecycle

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
)

// withFiles gives each attachment that t plans a file in dir, named for its interface,
// which Prepare makes.
func withFiles(t Transaction, dir string) Transaction {
	plan := t.Plan
	t.Plan = func(ctx context.Context, taken []string) ([]delegate.Attachment, error) {
		as, err := plan(ctx, taken)
		for i := range as {
			as[i].Files = []string{filepath.Join(dir, as[i].IfName)}
		}
		return as, err
	}
	t.Prepare = func(_ context.Context, plan []delegate.Attachment) error {
		for _, a := range plan {
			if err := os.WriteFile(a.Files[0], []byte("{}"), 0o600); err != nil {
				return err
			}
		}
		return nil
	}
	return t
}

// Whatever removes an attachment removes its files with it, and not those of others.
func TestFilesGoWithTheirAttachment(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		do   func(n *node, dir string) error
		left []string
	}{
		{"nothing has happened", func(*node, string) error { return nil }, []string{"eth0", "net0"}},
		{"Del", func(n *node, _ string) error { return n.Del(n.t.Context(), Removal{Key: eth0}) }, nil},
		{"GC", func(n *node, _ string) error {
			return n.GC(n.t.Context(), Collection{Network: eth0.Network, Valid: []types.GCAttachment{}})
		}, nil},
		{"Detach", func(n *node, _ string) error { return n.Detach(n.t.Context(), eth0, "net0") }, []string{"eth0"}},
		{"Attach", func(n *node, dir string) error {
			_, err := n.Attach(n.t.Context(), eth0, withFiles(hotplug(eth0), dir))
			return err
		}, []string{"eth0", "hot0", "net0"}},
		{"Release", func(n *node, dir string) error {
			return n.Release(n.t.Context(), eth0, func(_ context.Context, r Record) error {
				if diff := cmp.Diff([]string{filepath.Join(dir, "eth0")}, r.Attached[0].Files); diff != "" || len(files(n.t, dir)) != 1 {
					n.t.Errorf("when the other program takes over: %s, left %q", diff, files(n.t, dir))
				}
				return nil
			})
		}, nil},
		{"a Release that fails", func(n *node, _ string) error {
			return failing(n.Release(n.t.Context(), eth0, func(context.Context, Record) error { return errors.New("disk full") }))
		}, []string{"eth0"}},
		{"an Attach that fails", func(n *node, dir string) error {
			n.failOn("ADD ipvlan", 11)
			_, err := n.Attach(n.t.Context(), eth0, withFiles(hotplug(eth0), dir))
			return failing(err)
		}, []string{"eth0", "net0"}},
		{"an Attach that is refused, because its interface is there", func(n *node, dir string) error {
			again := withFiles(Transaction{Plan: Plan(attachment(network("green", "ipvlan"), "c1", "net0"))}, dir)
			_, err := n.Attach(n.t.Context(), eth0, again)
			return failing(err)
		}, []string{"eth0", "net0"}},
		{"an Add again", func(n *node, dir string) error {
			_, err := n.Add(n.t.Context(), eth0, withFiles(pair(eth0), dir))
			return failing(err)
		}, []string{"eth0", "net0"}},
		{"a Del that fails", func(n *node, _ string) error {
			n.failOn("DEL bridge", 11)
			return failing(n.Del(n.t.Context(), Removal{Key: eth0}))
		}, []string{"eth0", "net0"}},
		{"a Detach that fails", func(n *node, _ string) error {
			n.failOn("DEL", 11)
			return failing(n.Detach(n.t.Context(), eth0, "net0"))
		}, []string{"eth0", "net0"}},
		{"Del of files that are gone", func(n *node, dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "eth0")), n.Del(n.t.Context(), Removal{Key: eth0}))
		}, []string{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n, dir := newNode(t), t.TempDir()
			if _, err := n.Add(t.Context(), eth0, withFiles(pair(eth0), dir)); err != nil {
				t.Fatal(err)
			}
			if err := tt.do(n, dir); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.Join(tt.left, " "), strings.Join(files(t, dir), " ")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// failing turns an error that a test wants into none.
func failing(err error) error {
	if err == nil {
		return errors.New("no error")
	}
	return nil
}

func TestFilesOfAnAddThatFailsAreRemoved(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"ADD bridge", "ADD tuning", "ADD macvlan"} {
		n, dir := newNode(t), t.TempDir()
		n.failOn(call, 11)
		_, err := n.Add(t.Context(), eth0, withFiles(pair(eth0), dir))
		wantCode(t, err, 11)
		n.wantNothing()
		if left := files(t, dir); len(left) > 0 {
			t.Errorf("%s fails: left %q", call, left)
		}
	}
}

// A crash may come when some files are there, or all of them and nothing else.
func TestFilesOfAnAddThatNeverEndsAreRemovedByDel(t *testing.T) {
	t.Parallel()
	for _, want := range [][]string{{"eth0"}, {"eth0", "net0"}} {
		n, dir := newNode(t), t.TempDir()
		tr := withFiles(pair(eth0), dir)
		prepare := tr.Prepare
		tr.Prepare = func(ctx context.Context, plan []delegate.Attachment) error {
			err := prepare(ctx, plan[:len(want)])
			if len(want) < len(plan) {
				runtime.Goexit()
			}
			return err
		}
		n.on("ADD", func(context.Context, delegatetest.Call) error { runtime.Goexit(); return nil })
		n.dies(func() error { _, err := n.Add(t.Context(), eth0, tr); return err })
		if diff := cmp.Diff(want, files(t, dir)); diff != "" {
			t.Fatal(diff)
		}
		again := nodeAt(t, n.Dir)
		again.del(eth0)
		if left := files(t, dir); len(left) > 0 {
			t.Errorf("left %q", left)
		}
	}
}

func TestPrepareRunsWhenThePlanIsRecordedAndBeforeItsPlugins(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	tr := pair(eth0)
	tr.Prepare = func(_ context.Context, plan []delegate.Attachment) error {
		n.wantRecords("c1/eth0 planned")
		n.wantTrace()
		if len(plan) != 2 || plan[0].IfName != "eth0" || plan[1].IfName != "net0" {
			t.Errorf("prepared %v", plan)
		}
		return types.NewError(types.ErrIOFailure, "no space", "")
	}
	_, err := n.Add(t.Context(), eth0, tr)
	wantCode(t, err, types.ErrIOFailure)
	n.wantTrace()
	n.wantNothing()

	prepare, prepared := tr.Prepare, 0
	tr.Prepare = func(ctx context.Context, plan []delegate.Attachment) error {
		if prepared++; prepared == 1 {
			return prepare(ctx, plan)
		}
		return nil
	}
	tr.Next = func(context.Context, error) ([]delegate.Attachment, error) {
		return []delegate.Attachment{attachment(network("green", "ipvlan"), "c1", "eth0")}, nil
	}
	if _, err := n.Add(t.Context(), eth0, tr); err != nil || prepared != 2 {
		t.Fatalf("another plan: %v, prepared %d times", err, prepared)
	}
	n.wantTrace("ADD ipvlan eth0")
}

// A file that cannot be removed must not keep the runtime from removing the container.
func TestAFileThatCannotBeRemovedIsTriedAgain(t *testing.T) {
	t.Parallel()
	n, dir := newNode(t), t.TempDir()
	if _, err := n.Add(t.Context(), eth0, withFiles(pair(eth0), dir)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "net0")
	if err := errors.Join(os.Remove(file), os.MkdirAll(filepath.Join(file, "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	n.del(eth0)
	n.wantRecords("c1/eth0 deleting")
	if err := os.Remove(filepath.Join(file, "x")); err != nil {
		t.Fatal(err)
	}
	calls := len(n.trace())
	n.del(eth0)
	n.wantRecords()
	if len(n.trace()) != calls {
		t.Errorf("ran %q again", n.trace()[calls:])
	}
	if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// If only a file is left, but the record cannot say so, DEL fails: a later one would run
// the plugins again, and what they have freed may belong to another container.
func TestAFileThatCannotBeRemovedIsTriedAgainOnAFullDisk(t *testing.T) {
	t.Parallel()
	n, dir := newNode(t), t.TempDir()
	if _, err := n.Add(t.Context(), eth0, withFiles(pair(eth0), dir)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "net0")
	record := filepath.Join(n.Dir, "c1@multi@eth0.json")
	// A record with another name is written anew, and something has the name for that.
	full := filepath.Join(n.Dir, ".tmp-c1@multi@eth0.json")
	if err := errors.Join(os.Remove(file), os.MkdirAll(filepath.Join(file, "x"), 0o700), os.Link(record, record+".copy"), os.Mkdir(full, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := n.Del(t.Context(), Removal{Key: eth0}); err == nil {
		t.Error("success")
	}
	n.wantRecords("c1/eth0 added")
	if err := errors.Join(os.RemoveAll(file), os.Remove(record+".copy"), os.Remove(full)); err != nil {
		t.Fatal(err)
	}
	n.del(eth0)
	n.wantNothing()
}

// The record of an ADD that has failed stays while one of its files cannot be removed:
// only the record knows that the file is there.
func TestFailedAddKeepsTheRecordOfAFileThatCannotBeRemoved(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]func(*node, *Transaction){
		"a plugin": func(n *node, _ *Transaction) { n.failOn("ADD macvlan", 101) },
		"Prepare": func(_ *node, tr *Transaction) {
			prepare := tr.Prepare
			tr.Prepare = func(ctx context.Context, plan []delegate.Attachment) error {
				return errors.Join(prepare(ctx, plan), types.NewError(101, "no", ""))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, dir := newNode(t), t.TempDir()
			tr := withFiles(pair(eth0), dir)
			prepare := tr.Prepare
			tr.Prepare = func(ctx context.Context, plan []delegate.Attachment) error {
				return errors.Join(prepare(ctx, plan), os.Remove(plan[1].Files[0]), os.MkdirAll(plan[1].Files[0]+"/x", 0o700))
			}
			fails(n, &tr)
			_, err := n.Add(t.Context(), eth0, tr)
			wantCode(t, err, 101)
			wantSaid(t, err, "net0", "not empty")
			if err := os.Remove(filepath.Join(dir, "net0", "x")); err != nil {
				t.Fatal(err)
			}
			calls := len(n.trace())
			n.del(eth0)
			n.wantNothing()
			if left := files(t, dir); len(left) > 0 || len(n.trace()) > calls {
				t.Errorf("left %q, ran %q", left, n.trace()[calls:])
			}
		})
	}
}

func TestFilesAreThoseOfTheNode(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Root = t.TempDir()
	dir := filepath.Join(n.Root, "run", "files")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.Symlink("/run", filepath.Join(n.Root, "var-run"))); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "eth0")
	tr := pair(eth0)
	tr.Plan = func(context.Context, []string) ([]delegate.Attachment, error) {
		a := attachment(network("blue", "bridge"), "c1", "eth0")
		a.Files = []string{"/var-run/files/eth0"}
		return []delegate.Attachment{a}, os.WriteFile(file, nil, 0o600)
	}
	if _, err := n.Add(t.Context(), eth0, tr); err != nil {
		t.Fatal(err)
	}
	n.del(eth0)
	if exists(file) {
		t.Error("the file is still there")
	}
}

func TestFilesMustBeAbsolutePaths(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"", "x", "../x", "/\xff"} {
		n := newNode(t)
		a := attachment(network("blue", "bridge"), "c1", "eth0")
		a.Files = []string{path}
		_, err := n.Add(t.Context(), eth0, Transaction{Plan: Plan(a)})
		if !errors.Is(err, ErrPlan) {
			t.Errorf("%q: %v", path, err)
		}
		n.wantNothing()
	}
}
