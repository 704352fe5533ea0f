package adopt

import (
	"errors"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/inroot"
)

// files lists the regular files of dir in root whose names are wanted, in the
// order of their names. A missing dir has none. Directories are passed over. An
// error is yielded for everything else with a wanted name, such as a link or a
// FIFO, and for a file that is empty or too large.
func files(root, dir string, wanted func(name string) bool) iter.Seq2[file, error] {
	return func(yield func(file, error) bool) {
		d, err := openDir(root, dir)
		var entries []os.DirEntry
		if err == nil {
			defer d.Close() //nolint:errcheck // nothing was written
			entries, err = d.ReadDir(-1)
		}
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				yield(file{}, &Error{dir, cause(err)})
			}
			return
		}
		slices.SortFunc(entries, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
		for _, entry := range entries {
			if entry.IsDir() || !wanted(entry.Name()) {
				continue
			}
			f, err := readAt(d, filepath.Join(dir, entry.Name()), entry.Name())
			if errors.Is(err, fs.ErrNotExist) {
				continue // removed meanwhile
			}
			if !yield(f, err) {
				return
			}
		}
	}
}

// readFile reads the file at path in root, as files does. Without one, and where
// a directory is in its place, it fails with [fs.ErrNotExist].
func readFile(root, path string) (file, error) {
	d, err := openDir(root, filepath.Dir(path))
	if err != nil {
		return file{}, &Error{path, cause(err)}
	}
	defer d.Close() //nolint:errcheck // nothing was written
	return readAt(d, path, filepath.Base(path))
}

// openDir opens the directory dir in root.
func openDir(root, dir string) (d *os.File, err error) {
	err = inroot.With(root, dir, func(path string) error {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err == nil {
			d = os.NewFile(uintptr(fd), dir)
		}
		return err
	})
	return d, err
}

// readAt reads the file called name in d. With an error it returns what else is
// known of the file. It neither follows a link nor waits
// for the other end of a FIFO.
func readAt(d *os.File, path, name string) (file, error) {
	data, changed, err := read(int(d.Fd()), name)
	if err != nil {
		err = &Error{path, cause(err)}
	}
	return file{path, data, changed}, err
}

func read(dir int, name string) ([]byte, time.Time, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) { // a link, a socket
		err = errNotRegular
	}
	if err != nil {
		return nil, time.Time{}, err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, time.Time{}, err
	}
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return nil, time.Time{}, fs.ErrNotExist
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, time.Time{}, errNotRegular
	case st.Size > maxSize:
		return nil, time.Time{}, errTooLarge
	}
	data := make([]byte, st.Size+1) // one more than there should be, to see that it has not grown
	n := 0
	for n < len(data) {
		got, err := unix.Read(fd, data[n:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, time.Time{}, err
		}
		if got == 0 {
			break
		}
		n += got
	}
	changed := time.Unix(st.Mtim.Unix())
	if n == 0 {
		return nil, changed, errEmpty
	}
	return data[:n], changed, nil
}

// cause returns the reason in err without its path, which [Error] has.
func cause(err error) error {
	var e *fs.PathError
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}
