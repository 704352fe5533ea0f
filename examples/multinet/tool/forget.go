package tool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/metacni/metacni/scratch"
)

var (
	errNotForgotten = errors.New("nothing was forgotten")
	errChanged      = errors.New("the record has changed meanwhile")
)

// forget removes the records of the container words[0] if the operator agrees, or only
// the one with the network and interface in words[1:]. It runs no plugin.
func (t *tool) forget(ctx context.Context, words []string) error {
	wanted := func(k scratch.Key) bool {
		return k.ContainerID == words[0] && (len(words) == 1 || k.Network == words[1] && k.IfName == words[2])
	}
	found, err := t.records(ctx, wanted)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return t.unknown(ctx, words)
	}
	if err := t.agree(found); err != nil {
		return err
	}
	store := scratch.Store[struct{}]{Dir: t.life.Dir}
	// Locked after the question, so that the runtime does not wait for people.
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	l, err := store.Lock(ctx, words[0])
	if err != nil {
		return err
	}
	defer func() { _ = l.Unlock() }() // it ends with this process at the latest
	if now, err := t.records(ctx, wanted); err != nil || !slices.EqualFunc(now, found, finding.same) {
		return fmt.Errorf("%w: %w", errNotForgotten, errors.Join(err, errChanged))
	}
	gone := []keyView{}
	var rows [][]string
	var errs []error
	for _, f := range found {
		if err := store.Forget(l, f.key); err != nil {
			errs = append(errs, err)
			continue
		}
		for _, source := range f.sources { // otherwise it would be taken over again
			if err := os.Remove(source); !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
		gone = append(gone, viewKey(f.key))
		rows = append(rows, []string{f.key.ContainerID, f.key.Network, f.key.IfName, f.state})
	}
	return errors.Join(append(errs, t.print(gone, "FORGOTTEN NETWORK INTERFACE STATE", rows))...)
}

// unknown returns the error that there is no record of words. It lists the records
// that the container has.
func (t *tool) unknown(ctx context.Context, words []string) error {
	others, err := t.records(ctx, func(k scratch.Key) bool { return k.ContainerID == words[0] })
	text := strings.Join(words, " ")
	if len(others) > 0 {
		var names []string
		for _, f := range others {
			names = append(names, f.key.Network+" "+f.key.IfName)
		}
		text += ": the container's records are of " + strings.Join(names, ", ")
	}
	return errors.Join(fmt.Errorf("%s: %w", text, errNoRecord), err)
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

// agree asks whether to forget what was found.
func (t *tool) agree(found []finding) error {
	if t.yes {
		return nil
	}
	if !t.terminal {
		return fmt.Errorf("%w: there is no terminal to ask on, use --yes", errNotForgotten)
	}
	for _, f := range found {
		fmt.Fprintf(t.ask, "%s: %s\n", f.key, f.state)
	}
	fmt.Fprintf(t.ask, "What is attached stays attached. Later DEL and GC will not clean it up. Forget? [y/N] ")
	line := make([]byte, 80)
	n, _ := t.in.Read(line) // a terminal returns a line; no line means no
	switch strings.TrimSpace(string(line[:n])) {
	case "y", "Y", "yes":
		return nil
	}
	return errNotForgotten
}
