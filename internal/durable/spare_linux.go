package durable

import (
	"bytes"
	"errors"
	"hash/fnv"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/flock"
)

const (
	// sparePrefix begins the names of the files that [Dir.Retire] keeps, and
	// lockPrefix of those that [Dir.RetireLock] keeps.
	sparePrefix = ".spare-"
	lockPrefix  = ".spare-lock-"
	spares      = 8        // of each kind
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
	if info.spare(0o600, maxSpare) && d.keep(name, sparePrefix) {
		return nil
	}
	return d.Remove(name)
}

// RetireLock removes the file name of a lock that is held through fd, unless the
// name is not that of the file id any more. It keeps a few for [Dir.OpenLock],
// because making a file can take a file system far longer than renaming: ext4
// without a journal looks for an inode that was not used in the last minutes.
func (d *Dir) RetireLock(fd int, id ID, name string, mode uint32) error {
	info, err := d.Stat(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.ID != id {
		return nil
	}
	if err != nil {
		return err
	}
	if info.spare(info.Mode, 0) {
		if info.Mode != mode {
			err = d.Chmod(fd, name, mode)
		}
		if err == nil && d.keep(name, lockPrefix) {
			return nil
		}
	}
	return d.Remove(name)
}

// keep gives the file name one of the names for kept files, if one is free.
func (d *Dir) keep(name, prefix string) bool {
	for i := range spares {
		err := d.moveAtOnce(d, name, spareName(prefix, name, i))
		if !errors.Is(err, fs.ErrExist) {
			return err == nil
		}
	}
	return false
}

// takeLock gives a kept lock's file the name, unless another has it, and returns
// the file open and locked: one that a child of a dead process still has locked is
// left alone. Without one fd is -1.
func (d *Dir) takeLock(name string, mode uint32) (fd int, id ID) {
	for i := range spares {
		spare := spareName(lockPrefix, name, i)
		fd, st, err := d.open(spare, unix.O_RDONLY|unix.O_NONBLOCK)
		if err != nil {
			continue // there is none, or it is somebody else's
		}
		id := IDOf(&st)
		if free, err := flock.Try(fd, true); err == nil && free && d.isSpare(spare, id, mode) && d.moveAtOnce(d, spare, name) == nil {
			return fd, id
		}
		_ = unix.Close(fd)
	}
	return -1, ID{}
}

// isSpare reports whether the name is still that of the file id, and of a kept lock's
// file. Who asks holds its lock, so nobody else renames it.
func (d *Dir) isSpare(name string, id ID, mode uint32) bool {
	info, err := d.Stat(name)
	return err == nil && info.ID == id && info.spare(mode, 0)
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
		spare := spareName(sparePrefix, name, i)
		switch info, err := d.Stat(spare); {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return -1, 0, err
		case !info.spare(0o600, maxSpare):
			continue // somebody else's
		}
		if err := d.Rename(spare, temp); errors.Is(err, fs.ErrNotExist) {
			continue // another was faster
		} else if err != nil {
			return -1, 0, err
		}
		fd, st, err := d.open(temp, unix.O_WRONLY|unix.O_NONBLOCK)
		if err == nil {
			if info := infoOf(&st); info.spare(0o600, maxSpare) {
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
func spareName(prefix, name string, i int) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	return prefix + strconv.Itoa((int(h.Sum32()%spares)+i)%spares)
}

// spare reports whether a file can be kept and used again: it has this mode and
// at most this size, nobody else owns it, and it has no other name.
func (i Info) spare(mode uint32, size int64) bool {
	return i.IsFile && i.Links == 1 && i.size <= size && i.Mode == mode && int(i.uid) == os.Geteuid()
}
