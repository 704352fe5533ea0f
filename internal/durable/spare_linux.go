package durable

import (
	"bytes"
	"errors"
	"hash/fnv"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// sparePrefix begins the names of the files that [Dir.Retire] keeps.
	sparePrefix = ".spare-"
	spares      = 8
	maxSpare    = 64 << 10 // bytes
)

// Retire removes the file name, which may be anything but a directory. It does
// not sync d: after a loss of power the file may be there again. It keeps a few
// small files for [Dir.Recycle], because freeing blocks can take a file system
// far longer than renaming.
func (d *Dir) Retire(name string) error {
	info, err := d.Stat(name)
	if err != nil {
		return err
	}
	if info.spare() {
		for i := range spares {
			err := d.Move(d, name, spareName(name, i))
			if err == nil {
				return nil
			}
			if !errors.Is(err, fs.ErrExist) {
				break // it has to be removed, then
			}
		}
	}
	return d.Remove(name)
}

// Recycle is [Dir.WriteFile] into a file that [Dir.Retire] kept, if there is
// one, and into a new one otherwise. Only one caller at a time may write name.
//
// text returns the data, which is padded with newlines when the file was
// longer. reused says that the file is a kept one. After a loss of power such a
// file can be found under its former name, whose removal was not synced: with
// the data of now, with what it held then, or with some of either. So text
// has to tell whose data it is.
func (d *Dir) Recycle(name string, text func(reused bool) []byte) error {
	if !plain(name) {
		return d.fail("renameat", name, unix.EINVAL)
	}
	temp := TempPrefix + name
	fd, size, err := d.takeSpare(name, temp)
	if err != nil {
		return err
	}
	reused := fd >= 0
	if !reused {
		if fd, err = d.create(temp); errors.Is(err, fs.ErrExist) {
			// Whoever wrote to it is dead: nobody else writes name now.
			if err = d.Remove(temp); err == nil {
				fd, err = d.create(temp)
			}
		}
		if err != nil {
			return err
		}
	}
	data := text(reused)
	if pad := int(size) - len(data); pad > 0 {
		data = append(bytes.Clone(data), bytes.Repeat([]byte{'\n'}, pad)...)
	}
	return d.publish(fd, temp, name, data)
}

// takeSpare renames a kept file to temp and opens it. Without one fd is -1.
func (d *Dir) takeSpare(name, temp string) (fd int, size int64, err error) {
	for i := range spares {
		spare := spareName(name, i)
		switch info, err := d.Stat(spare); {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return -1, 0, err
		case !info.spare():
			continue // somebody else's
		}
		if err := d.Rename(spare, temp); errors.Is(err, fs.ErrNotExist) {
			continue // another was faster
		} else if err != nil {
			return -1, 0, err
		}
		fd, st, err := d.open(temp, unix.O_WRONLY|unix.O_NONBLOCK)
		if err == nil {
			if info := infoOf(&st); info.spare() {
				return fd, st.Size, nil
			}
			err = d.close(fd, temp)
		}
		_ = d.Remove(temp) // the first error says more
		if err != nil {
			return -1, 0, err
		}
	}
	return -1, 0, nil
}

// spareName returns the ith of the names that a file called name is kept
// under: all of them, in an order of its own.
func spareName(name string, i int) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	return sparePrefix + strconv.Itoa((int(h.Sum32()%spares)+i)%spares)
}

// spare reports whether a file can be kept and written to again: nobody else
// can read it, or has another name for it.
func (i Info) spare() bool {
	return i.IsFile && i.Links == 1 && i.size <= maxSpare && i.Mode == 0o600 && int(i.uid) == os.Geteuid()
}
