package tool

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/metacni/metacni/delegate/lifecycle"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/scratch"
)

// onRecords returns a runner of a command that works on the records in a directory. The first
// of its arguments is a container.
func (t *tool) onRecords(flags *flag.FlagSet, do runner) runner {
	t.life = &lifecycle.Manager{}
	flags.StringVar(&t.life.Dir, "dir", multinet.DefaultStateDir, "state `directory` (cniDir)")
	t.formFlag(flags)
	return func(ctx context.Context, words []string) (err error) {
		if err := existing("dir", t.life.Dir, multinet.DefaultStateDir); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("there is no directory %q: --dir must be the cniDir of the network", t.life.Dir)
		}
		if len(words) > 0 {
			if words[0], err = t.container(ctx, words[0]); err != nil {
				return err
			}
		}
		return do(ctx, words)
	}
}

// attachments accepts the records of attachments: others only note that an ADD was refused.
func attachments(r lifecycle.AddRecord) bool { return !r.Refused }

// A finding is a record, or the key of one that cannot be read, and why.
type finding struct {
	lifecycle.AddRecord

	damage error
}

// state returns the state as operators see it.
func (f finding) state() string {
	if f.damage != nil {
		return "damaged"
	}
	return state(f.AddRecord)
}

// same reports whether the record has not changed since was.
func (f finding) same(was finding) bool {
	return f.Key == was.Key && f.state() == was.state() && f.Updated.Equal(was.Updated) && fmt.Sprint(f.damage) == fmt.Sprint(was.damage)
}

// find returns all records, damaged ones included. The error is about other failures.
func (t *tool) find(ctx context.Context) (found []finding, err error) {
	var errs []error
	for r, err := range t.life.Records(ctx) {
		if err == nil || errors.Is(err, scratch.ErrCorrupt) {
			found = append(found, finding{r, err})
		} else {
			errs = append(errs, err)
		}
	}
	return found, errors.Join(errs...)
}

// records returns the records that wanted accepts, even if others cannot be read: the error
// is about these.
func (t *tool) records(ctx context.Context, wanted func(lifecycle.AddRecord) bool) (all []lifecycle.AddRecord, err error) {
	found, err := t.find(ctx)
	errs := []error{err}
	for _, f := range found {
		if f.damage == nil && wanted(f.AddRecord) {
			all = append(all, f.AddRecord)
		}
		errs = append(errs, f.damage)
	}
	return all, errors.Join(errs...)
}

var errNoRecord = errors.New("there is no record of it")

// of returns the records of a container, as records does. Without any it fails with
// errNoRecord.
func (t *tool) of(ctx context.Context, container string) ([]lifecycle.AddRecord, error) {
	all, err := t.records(ctx, func(r lifecycle.AddRecord) bool { return attachments(r) && r.Key.ContainerID == container })
	if all == nil {
		err = errors.Join(fmt.Errorf("container %q: %w", container, errNoRecord), err)
	}
	return all, err
}

// shown is how many characters of a container's ID errors and tables show.
const shown = 12

// container returns the ID of the container with records that is word or begins with
// word, if that has as many characters as are shown. It returns word if there is none.
func (t *tool) container(ctx context.Context, word string) (string, error) {
	found, _ := t.find(ctx) // the command reports errors
	whole := word
	for _, f := range found {
		switch id := f.Key.ContainerID; {
		case id == word:
			return word, nil
		case len(word) < shown || !strings.HasPrefix(id, word) || id == whole:
		case whole != word:
			return "", fmt.Errorf("%q begins the IDs of more than one container", word)
		default:
			whole = id
		}
	}
	return whole, nil
}

// damaged prints the records that cannot be read. It does not fail if there are some.
func (t *tool) damaged(flags *flag.FlagSet) runner {
	return t.onRecords(flags, func(ctx context.Context, _ []string) error {
		found, err := t.find(ctx)
		found = slices.DeleteFunc(found, func(f finding) bool { return f.damage == nil })
		out := newOutput("CONTAINER NETWORK INTERFACE WHY")
		for _, f := range found {
			out.add(damagedView{viewKey(f.Key), f.damage.Error()}, f.Key.ContainerID, f.Key.Network, f.Key.IfName, f.damage.Error())
		}
		return errors.Join(t.print(out), err)
	})
}
