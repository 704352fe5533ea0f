package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/scratch"
)

// withFile returns a with a file, see [world.prepare].
func (w *world) withFile(a delegate.Attachment) delegate.Attachment {
	a.Files = []string{filepath.Join(w.dir+"-files", a.ContainerID+"@"+a.IfName)}
	return a
}

// prepare makes the files of a plan.
func (w *world) prepare(ctx context.Context, plan []delegate.Attachment) error {
	for _, a := range plan {
		rs, _ := w.m.store().Container(ctx, a.ContainerID) // which cannot be read is in damaged
		leftovers := slices.ContainsFunc(rs, func(r scratch.Record[record]) bool { return r.State == scratch.Leftover || r.Value.Leftovers != nil })
		if !leftovers && !w.damaged[a.ContainerID] && exists(a.Files[0]) {
			return errors.New("the file of what was there before is left")
		}
		f, err := os.Create(a.Files[0])
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return nil
}

// files says which files are there without a record, and which attachment has lost its
// own. Nothing is said of containers with a record that was damaged.
func (w *world) files() (wrong string) {
	recorded := make(map[string]bool)
	for r, err := range w.m.store().List(w.t.Context()) {
		if err != nil || w.damaged[r.Key.ContainerID] {
			continue
		}
		for _, e := range slices.Concat(r.Value.Delegates, r.Value.Leftovers) {
			recorded[filepath.Base(e.Files[0])] = true
		}
		for _, e := range r.Value.Delegates {
			if r.State == scratch.Added && !exists(e.Files[0]) {
				wrong += fmt.Sprintf("; %s has no file", e.IfName)
			}
		}
	}
	names, err := os.ReadDir(w.dir + "-files")
	if err != nil {
		return "; " + err.Error()
	}
	for _, name := range names {
		container, _, _ := strings.Cut(name.Name(), "@")
		if !recorded[name.Name()] && !w.damaged[container] {
			wrong += "; no record has the file " + name.Name()
		}
	}
	return wrong
}
