package device

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"strconv"

	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/inroot"
)

// read returns the content of a regular file in a directory of the node, or nil if there is
// none.
func (d Dir) read(dir, name string) (data []byte, err error) {
	err = d.in(dir, func(dir *durable.Dir) error {
		data, _, err = dir.ReadFile(name, maxSize)
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
		return dir.Replace(durable.TempPrefix+strconv.FormatUint(rand.Uint64(), 16), name, data, 0o444)
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
	return inroot.With(d.Root, dir, func(path string) error {
		open, err := durable.OpenDir(path, nil)
		if err != nil {
			return err
		}
		defer open.Close()
		return do(open)
	})
}
