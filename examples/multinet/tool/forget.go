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
	found, err := t.named(ctx, words)
	if err != nil {
		return err
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
	if now, err := t.named(ctx, words); err != nil || !slices.EqualFunc(now, found, finding.same) {
		return fmt.Errorf("%w: %w", errNotForgotten, errors.Join(err, errChanged))
	}
	out := newOutput("FORGOTTEN NETWORK INTERFACE STATE")
	var errs []error
	for _, f := range found {
		if err := store.Forget(l, f.Key); err != nil {
			errs = append(errs, err)
			continue
		}
		files := f.Sources // otherwise it would be taken over again
		for _, a := range f.Attached {
			files = append(files, a.Files...)
		}
		for _, file := range files {
			if err := os.Remove(file); !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
		out.add(viewKey(f.Key), f.Key.ContainerID, f.Key.Network, f.Key.IfName, f.state())
	}
	return errors.Join(append(errs, t.print(out))...)
}

// named returns the records of a container, or the one with a network and an interface. If
// there is none, it fails and lists the records that the container has.
func (t *tool) named(ctx context.Context, words []string) (found []finding, err error) {
	all, err := t.find(ctx)
	var others []string
	for _, f := range all {
		switch k := f.Key; {
		case k.ContainerID != words[0]:
		case len(words) == 1 || k.Network == words[1] && k.IfName == words[2]:
			found = append(found, f)
		default:
			others = append(others, k.Network+" "+k.IfName)
		}
	}
	if err != nil || found != nil {
		return found, err
	}
	text := strings.Join(words, " ")
	if others != nil {
		text += ": the container's records are of " + strings.Join(others, ", ")
	}
	return nil, fmt.Errorf("%s: %w", text, errNoRecord)
}

// agree asks whether to forget what was found.
func (t *tool) agree(found []finding) error {
	if !t.terminal {
		return fmt.Errorf("%w: there is no terminal to ask on, use --yes", errNotForgotten)
	}
	for _, f := range found {
		fmt.Fprintf(t.ask, "%s: %s\n", f.Key, f.state())
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
