package lifecycle

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/scratch"
)

// elsewhere returns a Removal of a's container, which another program has recorded.
func elsewhere(a Adoption, calls *int) Removal {
	return Removal{Key: a.Key, Adopt: func() (Adoption, error) {
		*calls++
		if !exists(a.Sources[0]) {
			return Adoption{}, &fs.PathError{Op: "open", Path: a.Sources[0], Err: fs.ErrNotExist}
		}
		return a, nil
	}}
}

// A DEL without a record removes what another program has recorded, also when the
// directory does not exist yet, and then nothing any more.
func TestDelWithoutARecordRemovesWhatAnotherProgramAttached(t *testing.T) {
	t.Parallel()
	for _, used := range []bool{false, true} {
		n := newNode(t)
		if used {
			n.add(key("c2", "eth0"))
			n.del(key("c2", "eth0"))
		}
		a, calls := n.foreign(eth0, newNetNS(t)), 0
		ran := len(n.trace())
		for range 2 {
			if err := n.Del(t.Context(), elsewhere(a, &calls)); err != nil {
				t.Error(err)
			}
			if got := n.trace()[ran:]; !slices.Equal(got, []string{"DEL macvlan net0", "DEL tuning eth0", "DEL bridge eth0"}) {
				t.Errorf("ran %q", got)
			}
		}
		n.wantNothing()
		if exists(a.Sources[0]) {
			t.Error("the other program's file is still there")
		}
	}
}

// A DEL that dies has recorded what it takes over: no plugin that has succeeded is
// told again.
func TestDelThatDiesAfterTakingOverIsContinued(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a, calls := n.foreign(eth0, newNetNS(t)), 0
	n.dieOn("DEL bridge")
	n.dies(func() error { return n.Del(t.Context(), elsewhere(a, &calls)) })
	n.wantRecords("c1/eth0 deleting")
	n.Exec.Plugins = plugins()
	ran := len(n.trace())
	if err := n.Del(t.Context(), elsewhere(a, &calls)); err != nil {
		t.Error(err)
	}
	if got := n.trace()[ran:]; !slices.Equal(got, []string{"DEL bridge eth0"}) || calls != 2 {
		t.Errorf("ran %q, asked %d times", got, calls)
	}
	n.wantNothing()
}

// A DEL from a queue removes what another program has attached before it, and nothing that
// was attached after it.
func TestQueuedDelGoesByTheTimeOfTheOtherProgram(t *testing.T) {
	t.Parallel()
	for name, adopted := range map[string]bool{"without a record": false, "adopted after the DEL": true} {
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
			ran := len(n.trace())
			n.Stale = func(recorded time.Time) (bool, error) { return recorded.After(queued), nil }
			if err := n.Del(t.Context(), elsewhere(a, &calls)); err != nil {
				t.Error(err)
			}
			if got := n.trace()[ran:]; (len(got) == 0) != later {
				t.Errorf("%s, attached later: %v: ran %q", name, later, got)
			}
		}
	}
}

// Nothing is asked for a record that is there.
func TestDelOfARecordAsksNoOtherProgram(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	err := n.Del(t.Context(), Removal{Key: eth0, Adopt: func() (Adoption, error) {
		t.Error("asked")
		return Adoption{}, errors.New("x")
	}})
	if err != nil {
		t.Error(err)
	}
	n.wantNothing()
}

// What cannot be read or recorded is no success.
func TestDelFailsIfItCannotTakeOver(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	broken := errors.New("broken entry")
	if err := n.Del(t.Context(), Removal{Key: eth0, Adopt: func() (Adoption, error) { return Adoption{}, broken }}); !errors.Is(err, broken) {
		t.Errorf("err = %v", err)
	}
	full := &scratch.Error{Op: "put", Err: &fs.PathError{Op: "open", Path: "x", Err: syscall.ENOSPC}}
	calls := 0
	r := elsewhere(n.foreign(eth0, newNetNS(t)), &calls)
	if err := n.answer(r, full); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("on a full disk: %v", err)
	}
	a, err := r.Adopt()
	if err == nil {
		err = os.Remove(a.Sources[0])
	}
	if err := errors.Join(err, n.answer(r, full)); err != nil {
		t.Errorf("without an entry: %v", err)
	}
}
