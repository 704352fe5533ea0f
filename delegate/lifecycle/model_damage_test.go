package lifecycle

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"

	"github.com/metacni/metacni/scratch"
)

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
	return (&node{Manager: w.m, t: w.t}).forget(k)
}
