package adopt

import (
	"errors"
	"io/fs"
	"iter"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/internal/inroot"
)

// maxSize is the size in bytes over which a file is not read. Multus's state of
// some hundred networks fits.
const maxSize = 1 << 20

var errEmpty = errors.New("empty")

// failed returns the error of the file or directory at path.
func failed(path string, err error) error {
	code := types.ErrIOFailure
	var coded interface{ CNICode() uint } // the codes of a types.Error are about the runtime's call
	if errors.As(err, &coded) {
		code = coded.CNICode()
	}
	return fault.With(code, fault.Of("", path, inroot.Cause(err)))
}

// A file is a file that has been read.
type file struct {
	path    string // in the root
	data    []byte
	changed time.Time // zero where that is not known
}

// files lists the regular files of dir in root whose names are wanted, in the
// order of their names. A missing dir has none. Directories are left out. For
// anything else with a wanted name, such as a link or a FIFO, and for a file
// that is empty or too large, files yields an error.
func files(root, dir string, wanted func(name string) bool) iter.Seq2[file, error] {
	return func(yield func(file, error) bool) {
		d, err := durable.OpenDirIn(root, dir, nil)
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		var names []string
		if err == nil {
			defer d.Close()
			names, err = d.Names()
		}
		if err != nil {
			yield(file{}, failed(dir, err))
			return
		}
		for _, name := range names {
			if !wanted(name) {
				continue
			}
			f, err := readAt(d, filepath.Join(dir, name))
			if errors.Is(err, fs.ErrNotExist) {
				continue // a directory, or removed meanwhile
			}
			if !yield(f, err) {
				return
			}
		}
	}
}

// readFile reads the file at path in root, as files does. It fails with
// [fs.ErrNotExist] where there is none, or a directory.
func readFile(root, path string) (file, error) {
	d, err := durable.OpenDirIn(root, filepath.Dir(path), nil)
	if err != nil {
		return file{}, failed(path, err)
	}
	defer d.Close()
	return readAt(d, path)
}

// readAt reads the file at path, which is in d.
func readAt(d *durable.Dir, path string) (file, error) {
	name := filepath.Base(path)
	info, err := d.Stat(name)
	if err == nil && info.IsDir {
		err = fs.ErrNotExist
	}
	var data []byte
	if err == nil {
		data, err = d.ReadFile(name, maxSize)
	}
	if err == nil && len(data) == 0 {
		err = errEmpty
	}
	if err != nil {
		return file{path: path, changed: info.Changed}, failed(path, err)
	}
	return file{path, data, info.Changed}, nil
}
