package autoconf

import (
	"bytes"
	"cmp"
	"errors"
	"io/fs"
	"math/rand/v2"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/metacni/metacni/internal/bounds"
	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/inroot"
)

// extension is that of the published file: it holds a list, which every runtime reads.
const extension = ".conflist"

// An output is where a document is published.
type output struct {
	m    *Manager
	dir  string // in Root
	name string // with its extension
}

// A disk is what was found in the directory of the published file.
type disk struct {
	content   []byte // of the file, if it is a regular one
	wrongMode bool
	ours      bool     // the file is ours to remove
	unusable  error    // why the file cannot be read, or is no file
	first     string   // a file that runtimes take before ours, by name
	leftovers []string // names of temporary files
	err       error    // why the directory cannot be read
}

// holds reports whether d is published.
func (k disk) holds(d document) bool {
	return !d.isZero() && !k.wrongMode && bytes.Equal(k.content, d.data)
}

func (o output) mode() fs.FileMode { return cmp.Or(o.m.Mode, defaultMode) }

func (o output) file() string { return filepath.Join(o.dir, o.name) }

// temporary begins the names of files that are being written. No runtime reads
// a file so called, and no other program's begin so.
func (o output) temporary() string { return "." + strings.TrimSuffix(o.name, extension) + ".tmp-" }

// isConfig reports whether runtimes read a file of that name.
func isConfig(name string) bool {
	return slices.Contains([]string{".conf", ".conflist", ".json"}, path.Ext(name))
}

// open opens the directory.
func (o output) open() (d *durable.Dir, err error) {
	err = inroot.With(o.m.Root, o.dir, func(path string) error {
		d, err = durable.OpenDir(path, o.m.hook)
		return err
	})
	return d, err
}

// look reads what there is.
func (o output) look() (k disk) {
	d, err := o.open()
	var names []string
	if err == nil {
		defer d.Close()
		names, err = d.Names() // sorted
	}
	if err != nil {
		return disk{err: fail("read", o.dir, err)}
	}
	for _, name := range names {
		switch {
		case strings.HasPrefix(name, o.temporary()):
			k.leftovers = append(k.leftovers, name)
		case name == o.name:
			k.content, k.wrongMode, k.unusable = o.read(d)
			k.ours = k.content != nil && o.owns(k.content)
		case k.first == "" && isConfig(name) && name < o.name:
			if info, err := d.Stat(name); err == nil && !info.IsDir {
				k.first = name
			}
		}
	}
	return k
}

// read reads the published file, or what has its name.
func (o output) read(d *durable.Dir) (content []byte, wrongMode bool, err error) {
	info, err := d.Stat(o.name)
	if err == nil && !info.IsFile {
		err = errNotRegular
	}
	if err == nil {
		content, err = d.ReadFile(o.name, bounds.Network)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil // it was removed meanwhile
	}
	if err != nil {
		return nil, false, err
	}
	return content, fs.FileMode(info.Mode).Perm() != o.mode(), nil
}

// publish makes the file what doc says. A reader of the directory sees the old file or
// the new, at any moment, and so does whoever comes after a loss of power.
func (o output) publish(doc document, k disk) error {
	d, err := o.open()
	if err != nil {
		return fail("publish", o.file(), err)
	}
	defer d.Close()
	for _, name := range k.leftovers {
		_ = d.Remove(name) // a crash has left it behind, and it harms nobody
	}
	// The temporary file is in the same directory: containerd does not notice a
	// file that is renamed from another one.
	temp := o.temporary() + strconv.FormatUint(rand.Uint64(), 16)
	return fail("publish", o.file(), d.Replace(temp, o.name, doc.data, uint32(o.mode())))
}

// remove removes what is ours: the file, and temporary files.
func (o output) remove(k disk) error {
	if errors.Is(k.err, fs.ErrNotExist) {
		return nil
	}
	if k.err != nil {
		return k.err
	}
	d, err := o.open()
	if err != nil {
		return fail("remove", o.dir, err)
	}
	defer d.Close()
	errs := []error{fail("remove", o.file(), k.unusable)}
	names := k.leftovers
	if k.ours {
		names = append(names, o.name)
	}
	for _, name := range names {
		err := d.Remove(name)
		if err == nil {
			err = d.Sync()
		}
		if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fail("remove", filepath.Join(o.dir, name), err))
		}
	}
	return errors.Join(errs...)
}
