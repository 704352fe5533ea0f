package device

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/internal/inroot"
)

// read returns the content of a regular file in a directory of the node, or nil if there is
// none.
func (d Dir) read(dir, name string) (data []byte, err error) {
	err = d.in(dir, func(dir *durable.Dir) error {
		data, err = dir.ReadFile(name, maxSize)
		return err
	})
	return data, unless(fs.ErrNotExist, err)
}

// unless returns err if it is not expected.
func unless(expected, err error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}

// write replaces a file, or removes it if data is nil. It makes the directory.
func (d Dir) write(file string, data []byte) error {
	dir, name := path.Split(file)
	resolved, err := inroot.Resolve(d.Root, dir)
	if err == nil {
		err = mkdirs(resolved)
	}
	if err != nil {
		return err
	}
	return d.in(dir, func(dir *durable.Dir) error {
		if data == nil {
			return unless(fs.ErrNotExist, dir.Remove(name))
		}
		return dir.Replace(durable.TempPrefix+d.prefix()+strconv.FormatUint(rand.Uint64(), 16), name, data, 0o444)
	})
}

// mkdirs makes the directory at dir, and those above it, so that everyone can read them,
// whatever the umask is. It does not change a directory that exists.
func mkdirs(dir string) error {
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrNotExist) && filepath.Dir(dir) != dir {
		if err := mkdirs(filepath.Dir(dir)); err != nil {
			return err
		}
		err = os.Mkdir(dir, 0o755)
	}
	if err != nil {
		return unless(fs.ErrExist, err)
	}
	return os.Chmod(dir, 0o755)
}

// in calls do with a directory of the node.
func (d Dir) in(dir string, do func(*durable.Dir) error) error {
	open, err := durable.OpenDirIn(d.Root, dir, nil)
	if err != nil {
		return err
	}
	defer open.Close()
	return do(open)
}

// grace is how old a file is at least that Sweep removes: the record of a younger one may
// not have been there when the records were read.
const grace = time.Hour

// Sweep removes the files of Dir's Owner which no attachment has and which are older than
// an hour, and returns their paths. used returns the attachments in all records of the
// Owner; if it fails nothing is removed, because files in use would be. It is called only
// if there are old files. Such files that nobody has are rare: a record that was deleted by
// hand leaves one. Sweep goes on past failures and joins the errors. No directory is no
// error.
func (d Dir) Sweep(used func() ([]delegate.Attachment, error)) (removed []string, err error) {
	err = d.in(d.cni(), func(dir *durable.Dir) error {
		names, err := dir.Names()
		errs := []error{err}
		var keep map[string]bool // nil as long as no file is old
		for _, name := range names {
			if !d.owns(name) {
				continue
			}
			info, err := dir.Stat(name)
			if err == nil && (!info.IsFile || time.Since(info.Changed) < grace) {
				continue
			}
			if err == nil && keep == nil {
				if keep, err = filesOf(used); err != nil {
					return errors.Join(append(errs, err)...)
				}
			}
			if err == nil && !keep[name] {
				if err = dir.Remove(name); err == nil {
					removed = append(removed, path.Join(d.cni(), name))
				}
			}
			errs = append(errs, unless(fs.ErrNotExist, err))
		}
		return errors.Join(errs...)
	})
	return removed, fault.Of("", "device information files", unless(fs.ErrNotExist, err))
}

// filesOf returns the names of the files that attachments have. In which directory does not
// matter: [Dir.Path] may have changed.
func filesOf(used func() ([]delegate.Attachment, error)) (map[string]bool, error) {
	all, err := used()
	names := make(map[string]bool)
	for _, a := range all {
		for _, file := range a.Files {
			names[path.Base(file)] = true
		}
	}
	return names, err
}
