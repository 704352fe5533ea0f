package autoconf

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/metacni/metacni/internal/bounds"
	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/inroot"
)

// defaultMode is [Manager.Mode] when that is zero.
const defaultMode = 0o600

// sizeLimit is the size in bytes over which a file is not read.
const sizeLimit = bounds.Network

// The published file is a list, which every runtime reads. Earlier versions of this
// package, and other programs, have published a lone plugin in the former form.
const (
	extension = ".conflist"
	former    = ".conf"
)

// An output is where a document is published.
type output struct {
	root string // in which dir is
	dir  string
	name string // without extension
	mode fs.FileMode
	own  own
	hook durable.Hook // for tests
}

// A disk is what was found in the directory of the published file.
type disk struct {
	forms  map[string]form // by extension; those that are there
	first  string          // a file that runtimes take before ours, by name
	noDir  bool            // the directory is missing
	others []string        // names of temporary files that were left behind
	err    error           // why the directory cannot be read
}

// A form is one of the files.
type form struct {
	regular bool
	mode    fs.FileMode
	data    []byte
	err     error // why it cannot be read
}

// is reports whether f is the document d.
func (f form) is(d document, mode fs.FileMode) bool {
	return f.regular && f.err == nil && f.mode == mode && bytes.Equal(f.data, d.data)
}

// holds reports whether d is published.
func (k disk) holds(d document, mode fs.FileMode) bool {
	f, ok := k.forms[extension]
	return ok && f.is(d, mode)
}

// stale reports whether the former form is there and ours to remove.
func (k disk) stale(o own) bool { return k.forms[former].removable(o) }

// removable reports whether f is ours to remove.
func (f form) removable(o own) bool { return f.regular && f.err == nil && o.owns(f.data) }

// before returns the name of a file that runtimes take before the published
// one, if there is one.
func (k disk) before(name string, o own) string {
	if k.first != "" && k.first < name+extension {
		return k.first
	}
	if f, ok := k.forms[former]; ok && !f.removable(o) {
		return name + former
	}
	return ""
}

// ours reports whether there is something for remove to remove.
func (k disk) ours(o own) bool {
	for _, f := range k.forms {
		if f.removable(o) {
			return true
		}
	}
	return false
}

func (o output) file(ext string) string { return filepath.Join(o.dir, o.name+ext) }

// temporary begins the names of files that are being written. No runtime reads
// a file so called, and no other program's begin so.
func (o output) temporary() string { return "." + o.name + ".tmp-" }

// open opens the directory.
func (o output) open() (d *durable.Dir, err error) {
	err = inroot.With(o.root, o.dir, func(path string) error {
		d, err = durable.OpenDir(path, o.hook)
		return err
	})
	return d, err
}

// look reads what there is.
func (o output) look() disk {
	k := disk{forms: map[string]form{}}
	d, err := o.open()
	var names []string
	if err == nil {
		defer d.Close()
		names, err = d.Names() // sorted
	}
	if err != nil {
		return disk{noDir: errors.Is(err, fs.ErrNotExist), err: fail("read", o.dir, err)}
	}
	for _, name := range names {
		ext := filepath.Ext(name)
		switch {
		case strings.HasPrefix(name, o.temporary()):
			k.others = append(k.others, name)
		case name == o.name+former || name == o.name+extension:
			if f := read(d, name); !errors.Is(f.err, fs.ErrNotExist) {
				k.forms[ext] = f
			}
		case k.first == "" && isConfig(name) && name < o.name+extension:
			if info, err := d.Stat(name); err == nil && !info.IsDir {
				k.first = name
			}
		}
	}
	return k
}

func read(d *durable.Dir, name string) form {
	info, err := d.Stat(name)
	if err != nil {
		return form{err: err}
	}
	f := form{regular: info.IsFile, mode: fs.FileMode(info.Mode).Perm()}
	if f.regular {
		f.data, _, f.err = d.ReadFile(name, sizeLimit)
	}
	return f
}

// publish makes the file what doc says, and removes its former form if that is
// ours. A reader of the directory sees the old file or the new, at any
// moment, and so does whoever comes after a loss of power.
func (o output) publish(doc document, k disk) error {
	d, err := o.open()
	if err != nil {
		return fail("publish", o.file(extension), err)
	}
	defer d.Close()
	for _, name := range k.others {
		_ = d.Remove(name) // a file that a crash has left behind, and that harms nobody
	}
	if !k.holds(doc, o.mode) {
		// The temporary file is in the same directory: containerd does not notice a
		// file that is renamed from another one.
		temp := o.temporary() + strconv.FormatUint(rand.Uint64(), 16)
		if err := d.Replace(temp, o.name+extension, doc.data, uint32(o.mode)); err != nil {
			return fail("publish", o.file(extension), err)
		}
	}
	// Only now: there has to be one of them at any moment.
	if k.stale(o.own) {
		return fail("remove", o.file(former), o.unlink(d, o.name+former))
	}
	return nil
}

func (o output) unlink(d *durable.Dir, name string) error {
	if err := d.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return d.Sync()
}

// remove removes what is ours: both forms, and temporary files.
func (o output) remove(k disk) error {
	if k.noDir {
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
	var errs []error
	for _, name := range k.others {
		errs = append(errs, fail("remove", filepath.Join(o.dir, name), o.unlink(d, name)))
	}
	// First the one that runtimes take second.
	for _, ext := range []string{extension, former} {
		f, ok := k.forms[ext]
		switch {
		case !ok:
		case f.err != nil:
			errs = append(errs, fail("remove", o.file(ext), f.err))
		case !f.regular:
			errs = append(errs, fail("remove", o.file(ext), errNotRegular))
		case f.removable(o.own):
			errs = append(errs, fail("remove", o.file(ext), o.unlink(d, o.name+ext)))
		}
	}
	return errors.Join(errs...)
}
