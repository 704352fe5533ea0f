package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/bounds"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
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

// The files of an attachment are gone before its record is. Of the others see
// TestGuaranteesHoldInEveryHistory.
func TestFilesGoWithTheirAttachment(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		do   func(n *node, dir string) error
		left []string
	}{
		{"Release", func(n *node, dir string) error {
			return n.Release(n.Context(), eth0, func(_ context.Context, r Record) error {
				if diff := cmp.Diff([]string{filepath.Join(dir, "eth0")}, r.Attached[0].Files); diff != "" || len(files(n.TB, dir)) != 1 {
					n.Errorf("when the other program takes over: %s, left %q", diff, files(n.TB, dir))
				}
				return nil
			})
		}, nil},
		{"a Release that fails", func(n *node, _ string) error {
			return failing(n.Release(n.Context(), eth0, func(context.Context, Record) error { return errors.New("disk full") }))
		}, []string{"eth0"}},
		{"Del of files that are gone", func(n *node, dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "eth0")), n.Del(n.Context(), Removal{Key: eth0}))
		}, []string{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n, dir := newNode(t), t.TempDir()
			n.mustAdd(eth0, withFiles(pair(eth0), dir))
			nodetest.OK(t, tt.do(n, dir))
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
	nodetest.Code(t, err, types.ErrIOFailure)
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
		return []delegate.Attachment{attachment(nodetest.Network("green", "ipvlan"), "c1", "eth0")}, nil
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
	n.mustAdd(eth0, withFiles(pair(eth0), dir))
	file := filepath.Join(dir, "net0")
	nodetest.OK(t, errors.Join(os.Remove(file), os.MkdirAll(filepath.Join(file, "x"), 0o700)))
	n.del(eth0)
	n.wantRecords("c1/eth0 deleting")
	nodetest.OK(t, os.Remove(filepath.Join(file, "x")))
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
	n.mustAdd(eth0, withFiles(pair(eth0), dir))
	file := filepath.Join(dir, "net0")
	record := filepath.Join(n.Dir, "c1@multi@eth0.json")
	// A record with another name is written anew, and something has the name for that.
	full := filepath.Join(n.Dir, ".tmp-c1@multi@eth0.json")
	nodetest.OK(t, errors.Join(os.Remove(file), os.MkdirAll(filepath.Join(file, "x"), 0o700), os.Link(record, record+".copy"), os.Mkdir(full, 0o700)))
	if err := n.Del(t.Context(), Removal{Key: eth0}); err == nil {
		t.Error("success")
	}
	n.wantRecords("c1/eth0 added")
	nodetest.OK(t, errors.Join(os.RemoveAll(file), os.Remove(record+".copy"), os.Remove(full)))
	n.del(eth0)
	n.wantNothing()
}

// The record of an ADD that has failed stays while one of its files cannot be removed:
// only the record knows that the file is there.
func TestFailedAddKeepsTheRecordOfAFileThatCannotBeRemoved(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]func(*node, *Transaction){
		"a plugin": func(n *node, _ *Transaction) { n.FailOn("ADD macvlan", 101) },
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
			nodetest.Code(t, err, 101)
			nodetest.Says(t, err, "net0", "not empty")
			nodetest.OK(t, os.Remove(filepath.Join(dir, "net0", "x")))
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
	nodetest.OK(t, errors.Join(os.MkdirAll(dir, 0o700), os.Symlink("/run", filepath.Join(n.Root, "var-run"))))
	file := filepath.Join(dir, "eth0")
	tr := pair(eth0)
	tr.Plan = func(context.Context, []string) ([]delegate.Attachment, error) {
		a := attachment(nodetest.Network("blue", "bridge"), "c1", "eth0")
		a.Files = []string{"/var-run/files/eth0"}
		return []delegate.Attachment{a}, os.WriteFile(file, nil, 0o600)
	}
	n.mustAdd(eth0, tr)
	n.del(eth0)
	if exists(file) {
		t.Error("the file is still there")
	}
}

// deep returns JSON with the given number of levels.
func deep(levels int) string { return strings.Repeat("[", levels) + strings.Repeat("]", levels) }

// withResult returns a result with the given JSON in one of its keys.
func withResult(value string) string { return `{"cniVersion":"1.1.0","x":` + value + `}` }

// The deepest input that is accepted is recorded, read back and detached.
func TestDeepestAttachmentIsDetached(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	deepest := deep(bounds.Depth)
	net, err := nodetest.Parse(`{"cniVersion":"1.1.0","name":"blue","type":"bridge","x":` + deep(bounds.Depth-1) + `}`).
		EditPlugins(netconf.In("args", netconf.In("cni", netconf.Set("x", raw(deepest[6:len(deepest)-6])))))
	nodetest.OK(t, err)
	a := attachment(net, "c1", "eth0")
	a.Origin, a.CapabilityArgs = raw(deepest), map[string]raw{"x": raw(deepest)}
	n.printing("bridge", withResult(deep(bounds.Depth-1)))
	n.mustAdd(eth0, Transaction{Plan: Plan(a)})
	n.wantRecords("c1/eth0 added")
	other := nodeAt(t, n.Dir)
	nodetest.OK(t, other.Check(t.Context(), eth0))
	other.del(eth0)
	other.wantTrace("CHECK bridge eth0", "DEL bridge eth0")
	n.wantRecords()
}

// A result that cannot be recorded makes the ADD fail, and everything is undone.
func TestResultThatCannotBeReadBackIsUndone(t *testing.T) {
	t.Parallel()
	for name, result := range map[string]string{
		"deep":   withResult(deep(bounds.Depth)),
		"deeper": withResult(deep(9_999)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.printing("bridge", result)
			a := attachment(nodetest.Network("blue", "bridge"), "c1", "eth0")
			_, err := n.Add(t.Context(), eth0, Transaction{Plan: Plan(a)})
			nodetest.Code(t, err, 6)
			n.wantTrace("ADD bridge eth0", "DEL bridge eth0")
			n.wantNothing()
		})
	}
}

// Several results that are too large together make the ADD fail before the next plugin
// runs.
func TestResultsAreTooLargeTogether(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.printing("bridge", withResult(`"`+strings.Repeat("x", bounds.Record/2)+`"`))
	var plan []delegate.Attachment
	for i := range 3 {
		plan = append(plan, attachment(nodetest.Network(fmt.Sprint("n", i), "bridge"), "c1", fmt.Sprint("net", i)))
	}
	_, err := n.Add(t.Context(), eth0, Transaction{Plan: Plan(plan...)})
	nodetest.Code(t, err, 7)
	n.wantTrace("ADD bridge net0", "ADD bridge net1", "DEL bridge net1", "DEL bridge net0")
	n.wantNothing()
}
