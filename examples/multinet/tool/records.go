package tool

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/multinet/multinet"
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

var errNoRecord = errors.New("there is no record of it")

// of calls do with each record of a container; see each.
func (t *tool) of(ctx context.Context, container string, do func(lifecycle.Record) error) error {
	found := false
	err := t.each(ctx, func(r lifecycle.Record) error {
		if r.Key.ContainerID != container {
			return nil
		}
		found = true
		return do(r)
	})
	if !found {
		return errors.Join(fmt.Errorf("container %q: %w", container, errNoRecord), err)
	}
	return err
}

// each calls do with each record, even if others are damaged or do has failed.
func (t *tool) each(ctx context.Context, do func(lifecycle.Record) error) error {
	var errs []error
	for r, err := range t.life.Records(ctx) {
		if err == nil {
			err = do(r)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// A finding is what is known of a record.
type finding struct {
	key     scratch.Key
	state   string
	updated time.Time // zero where it is damaged
	why     string    // why it cannot be read, if it is damaged
	sources []string  // files it was adopted from
}

// same reports whether the record has not changed since was.
func (f finding) same(was finding) bool {
	return f.key == was.key && f.state == was.state && f.updated.Equal(was.updated) && f.why == was.why
}

// records returns the records, damaged ones included, whose keys wanted accepts.
func (t *tool) records(ctx context.Context, wanted func(scratch.Key) bool) ([]finding, error) {
	var found []finding
	var errs []error
	for r, err := range t.life.Records(ctx) {
		switch {
		case err != nil && !errors.Is(err, scratch.ErrCorrupt):
			errs = append(errs, err)
		case !wanted(r.Key):
		case err != nil:
			found = append(found, finding{key: r.Key, state: "damaged", why: err.Error()})
		default:
			found = append(found, finding{key: r.Key, state: state(r), updated: r.Updated, sources: r.Sources})
		}
	}
	return found, errors.Join(errs...)
}

// container returns the ID of the container with records that is word or begins with
// word, which errors shorten to 12 characters. It returns word if there is none.
func (t *tool) container(ctx context.Context, word string) (string, error) {
	const shown = 12
	found, _ := t.records(ctx, func(k scratch.Key) bool { // the command reports errors
		return k.ContainerID == word || len(word) >= shown && strings.HasPrefix(k.ContainerID, word)
	})
	whole := word
	for _, f := range found {
		switch id := f.key.ContainerID; {
		case id == word:
			return word, nil
		case whole != word && whole != id:
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
		found, err := t.records(ctx, func(scratch.Key) bool { return true })
		all := []damagedView{}
		var rows [][]string
		for _, f := range found {
			if f.why != "" {
				all = append(all, damagedView{viewKey(f.key), f.why})
				rows = append(rows, []string{f.key.ContainerID, f.key.Network, f.key.IfName, f.why})
			}
		}
		return errors.Join(t.print(all, "CONTAINER NETWORK INTERFACE WHY", rows), err)
	})
}
