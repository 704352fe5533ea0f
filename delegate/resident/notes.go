package resident

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/metacni/metacni/internal/durable"
)

// A noteDir is a directory of notes, see Host.StateDir. A note is an empty file that is
// named like a type. The empty noteDir keeps no notes.
type noteDir string

// keep notes types. It does not write a note again, so that a resident can come back
// when the disk is full.
func (d noteDir) keep(types []string) error {
	if d == "" {
		return nil
	}
	dir, err := durable.MakeDir(string(d), nil)
	if err != nil {
		return err
	}
	defer dir.Close()
	for _, typ := range types {
		if info, err := dir.Stat(typ); err == nil && info.IsFile {
			continue
		}
		if err := dir.WriteFile(typ, nil); err != nil {
			return err
		}
	}
	return nil
}

// list returns the types that are noted. It makes the directory.
func (d noteDir) list() ([]string, error) {
	if d == "" {
		return nil, nil
	}
	dir, err := durable.MakeDir(string(d), nil)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Names()
	return slices.DeleteFunc(names, func(name string) bool { return !isType(name) }), err // such as temporary files
}

// remove removes the note of a type. It does not matter if that fails: the next Start
// reserves the type again.
func (d noteDir) remove(typ string) {
	if d != "" {
		_ = os.Remove(filepath.Join(string(d), typ))
	}
}

// released reports whether the note of a type has been removed.
func (d noteDir) released(typ string) bool {
	if d == "" {
		return false
	}
	_, err := os.Lstat(filepath.Join(string(d), typ))
	return errors.Is(err, fs.ErrNotExist)
}
