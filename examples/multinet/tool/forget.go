package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/scratch"
)

var (
	errNotForgotten = errors.New("nothing was forgotten")
	errChanged      = errors.New("it has changed meanwhile")
)

// forget removes the records of a container, or the one of it that words goes
// on to name, once the operator has agreed. No plugin is run.
func (t *tool) forget(ctx context.Context, words []string) error {
	wanted := func(k scratch.Key) bool {
		return k.ContainerID == words[0] && (len(words) == 1 || k.Network == words[1] && k.IfName == words[2])
	}
	found, err := t.find(ctx, wanted)
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
	// Not while it was asked: the runtime would have to wait for people.
	ctx, cancel := context.WithTimeout(ctx, lifecycle.DefaultLockTimeout)
	defer cancel()
	l, err := store.Lock(ctx, words[0])
	if err != nil {
		return err
	}
	defer func() { _ = l.Unlock() }() // it ends with us at the latest
	if now, err := t.find(ctx, wanted); err != nil || !slices.EqualFunc(now, found, finding.same) {
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
		for _, source := range f.sources { // or it would be taken over again
			if err := os.Remove(source); !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
		gone = append(gone, viewKey(f.key))
		rows = append(rows, []string{f.key.ContainerID, f.key.Network, f.key.IfName, f.state})
	}
	return errors.Join(append(errs, t.print(gone, "FORGOTTEN NETWORK INTERFACE STATE", rows))...)
}

// unknown says that there is no record of words, and which ones the container
// has.
func (t *tool) unknown(ctx context.Context, words []string) error {
	others, err := t.find(ctx, func(k scratch.Key) bool { return k.ContainerID == words[0] })
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

// A finding is a record as it was found.
type finding struct {
	key     scratch.Key
	state   string
	updated time.Time // zero where it is damaged
	why     string    // it is damaged
	sources []string  // files it was adopted from
}

// same reports whether the record is as it was found.
func (f finding) same(was finding) bool {
	return f.key == was.key && f.state == was.state && f.updated.Equal(was.updated) && f.why == was.why
}

// find returns the records, damaged ones included, whose keys are wanted.
func (t *tool) find(ctx context.Context, wanted func(scratch.Key) bool) ([]finding, error) {
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
		return fmt.Errorf("%w: there is no terminal to ask on, and no --yes", errNotForgotten)
	}
	for _, f := range found {
		fmt.Fprintf(t.ask, "%s: %s\n", f.key, f.state)
	}
	fmt.Fprintf(t.ask, "What is attached stays attached, and DEL and GC will know nothing of it. Forget? [y/N] ")
	line := make([]byte, 80)
	n, _ := t.in.Read(line) // a terminal hands over lines; none is a no
	switch strings.TrimSpace(string(line[:n])) {
	case "y", "Y", "yes":
		return nil
	}
	return errNotForgotten
}

// state says how far a record has come.
func state(r lifecycle.Record) string {
	if r.State == scratch.Partial {
		return "incomplete" // one more network was being attached, or detached
	}
	return string(r.State)
}

// The views are what -o json prints. Programs rely on them.
type (
	keyView struct {
		Network   string `json:"network"`
		Container string `json:"container"`
		Interface string `json:"interface"`
	}
	recordView struct {
		keyView
		State       string           `json:"state"`
		Created     time.Time        `json:"created"`
		Updated     time.Time        `json:"updated"`
		Attachments []attachmentView `json:"attachments"`
	}
	attachmentView struct {
		Network   string          `json:"network"`
		Interface string          `json:"interface"`
		NetNS     string          `json:"netns,omitempty"`
		Plugins   []string        `json:"plugins"`
		Result    json.RawMessage `json:"result,omitempty"`
	}
	damagedView struct {
		keyView
		Error string `json:"error"`
	}
)

func viewKey(k scratch.Key) keyView { return keyView{k.Network, k.ContainerID, k.IfName} }

func view(r lifecycle.Record) recordView {
	v := recordView{keyView: viewKey(r.Key), State: state(r), Created: r.Created, Updated: r.Updated, Attachments: []attachmentView{}}
	for _, a := range r.Attached {
		av := attachmentView{Network: a.Network.Name(), Interface: a.IfName, NetNS: a.NetNS, Plugins: []string{}}
		for _, p := range a.Network.Plugins() {
			av.Plugins = append(av.Plugins, p.Type())
		}
		v.Attachments = append(v.Attachments, av)
	}
	return v
}
