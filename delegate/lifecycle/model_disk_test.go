package lifecycle

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/scratch"
)

// stored says what is recorded.
func (w *world) stored() []string {
	var all []string
	for r, err := range w.m.store().List(w.t.Context()) {
		switch {
		case errors.Is(err, scratch.ErrCorrupt):
			all = append(all, fmt.Sprint(r.Key, " damaged"))
			continue
		case err != nil:
			all = append(all, err.Error())
			continue
		}
		var ls []piece
		for _, e := range r.Value.Delegates {
			ls = append(ls, pieceOf(e))
		}
		all = append(all, describeRecord(r.Key, r.State, ls))
	}
	slices.Sort(all)
	return all
}

func pieceOf(e entry) piece {
	l := piece{network: e.Network.Name(), ifname: e.IfName, half: e.Half}
	for i, p := range e.Network.Plugins() {
		l.plugins = append(l.plugins, p.Type())
		if slices.Contains(e.Gone, i) {
			l.gone = append(l.gone, p.Type())
		}
	}
	var result types100.Result
	if json.Unmarshal(e.Result, &result) == nil {
		l.result = result.Interfaces[0].Name
	}
	return l
}

// damage damages the file of a record, if there is one.
func (w *world) damage(o op) error {
	name := filepath.Join(w.dir, o.key.ContainerID+"@"+o.key.Network+"@"+o.key.IfName+".json")
	data, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if o.verb == "damage" {
		return os.WriteFile(name, [][]byte{nil, []byte("{}"), []byte("0123456789abcdef {}\n"), data[:1], []byte("null\n")}[o.shape], 0o600)
	}
	// A file that was another's ends in empty lines.
	for data = bytes.TrimRight(data, "\n"); !goodEnd(data); data = bytes.TrimRight(data, "\n") {
		end := bytes.LastIndexByte(data, '\n')
		if end < 0 {
			return nil // it is damaged already
		}
		data = data[:end]
	}
	middle := (len(data) + bytes.LastIndexByte(data, '\n')) / 2
	if o.shape%2 == 0 {
		return os.WriteFile(name, data[:middle], 0o600)
	}
	data[middle] ^= 0x04
	return os.WriteFile(name, data, 0o600)
}

// goodEnd reports whether the last line of a record file counts.
func goodEnd(data []byte) bool {
	sum, text, _ := bytes.Cut(data[bytes.LastIndexByte(data, '\n')+1:], []byte(" "))
	want := sha256.Sum256(text)
	return string(sum) == hex.EncodeToString(want[:8])
}

// forget is an operator who knows what the damaged record was about.
func (w *world) forget(ctx context.Context, k scratch.Key) error {
	if _, err := w.m.store().Get(k); !errors.Is(err, scratch.ErrCorrupt) {
		return nil // nothing for the operator to do
	}
	for _, l := range w.forgotten() {
		for _, p := range l.plugins {
			env := []string{"CNI_COMMAND=DEL", "CNI_CONTAINERID=" + k.ContainerID, "CNI_IFNAME=" + l.ifname}
			if _, err := w.exec.ExecPlugin(context.WithValue(ctx, byHand{}, true), "/"+p, nil, env); err != nil {
				return err
			}
		}
	}
	return (&node{Manager: w.m, Node: &nodetest.Node{TB: w.t}}).forget(k)
}

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
