package tool

import (
	"context"
	"errors"
	"flag"
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

// forget removes the records of a container if the operator agrees, or only the one with a
// network and an interface. It runs no plugin.
func (t *tool) forget(flags *flag.FlagSet) runner {
	yes := flags.Bool("yes", false, "do not ask")
	return t.onRecords(flags, func(ctx context.Context, words []string) error { return t.forgetRecords(ctx, words, *yes) })
}

func (t *tool) forgetRecords(ctx context.Context, words []string, yes bool) error {
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
	if !yes {
		if err := t.agree(found); err != nil {
			return err
		}
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

// agree asks whether to forget what was found.
func (t *tool) agree(found []finding) error {
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
