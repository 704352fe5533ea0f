package durable

import (
	"cmp"
	"errors"
	"io/fs"
	"math/rand/v2"
	"strconv"

	"golang.org/x/sys/unix"
)

// WriteFile replaces the file name by one with this data and mode 0600.
//
// A reader sees the old file or the new one, never a part, and so does whoever
// comes after a crash at any point. When WriteFile returns nil the new file
// survives a loss of power, provided that d itself does; when it returns an
// error the old file or the new one is there. A crash may leave a temporary
// file, see [IsTemp], which the next WriteFile of name replaces. Of those who write
// one file at the same time the last one wins.
func (d *Dir) WriteFile(name string, data []byte) error {
	if !plain(name) {
		return d.fail("renameat", name, unix.EINVAL)
	}
	temp := TempPrefix + "=" + name
	temp = temp[:min(len(temp), unix.NAME_MAX)]
	fd, err := d.lockTemp(temp)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.ELOOP) { // another writer's, or a link
		return d.Replace(TempPrefix+strconv.FormatUint(rand.Uint64(), 16), name, data, 0o600)
	}
	if err != nil {
		return err
	}
	lock := Dup(fd, temp) // until the file has its name
	if lock == nil {
		err = unix.EMFILE
	} else {
		defer func() { _ = lock.Close() }()
		err = unix.Ftruncate(fd, 0)
	}
	if err != nil {
		Close(fd)
		return d.fail("ftruncate", temp, err)
	}
	return d.fill(fd, temp, name, data, 0o600)
}

// lockTemp makes the file temp, or opens what a writer has left that died, and takes its flock(2),
// which a writer has until the file has its name. What somebody else has made is replaced.
func (d *Dir) lockTemp(temp string) (fd int, err error) {
	for {
		fd, err := d.create(temp, unix.O_WRONLY|unix.O_NONBLOCK)
		if err != nil {
			return -1, err
		}
		var own, named unix.Stat_t
		if err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err == nil {
			err = unix.Fstat(fd, &own)
		}
		if err == nil {
			err = unix.Fstatat(d.fd, temp, &named, unix.AT_SYMLINK_NOFOLLOW)
		}
		if err == nil && IDOf(&own) == IDOf(&named) {
			if own.Mode&0o077 == 0 && own.Nlink == 1 && own.Uid == uint32(unix.Geteuid()) {
				return fd, nil
			}
			err = d.Remove(temp)
		}
		Close(fd)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // another writer has renamed it
			return -1, d.fail("flock", temp, err)
		}
	}
}

// Replace is [Dir.WriteFile] with another mode, whatever the umask, and with
// temp as the name of the temporary file, which must be free.
func (d *Dir) Replace(temp, name string, data []byte, mode uint32) error {
	if !plain(name) {
		return d.fail("renameat", name, unix.EINVAL)
	}
	fd, err := d.create(temp, unix.O_WRONLY|unix.O_EXCL)
	if err != nil {
		return err
	}
	return d.fill(fd, temp, name, data, mode)
}

// fill makes fd, the new file temp, the file name. It closes fd.
func (d *Dir) fill(fd int, temp, name string, data []byte, mode uint32) (err error) {
	if mode != 0o600 {
		err = d.at("fchmod", temp, func() error { return unix.Fchmod(fd, mode) })
	}
	if err == nil {
		err = d.write(fd, temp, data)
	}
	if err == nil { // a rename may reach the disk before the data does
		err = d.at("fsync", temp, func() error { return unix.Fsync(fd) })
	}
	err = cmp.Or(err, d.close(fd, temp))
	if err == nil {
		err = d.Rename(temp, name)
	}
	if err != nil {
		_ = d.Remove(temp) // the first error says more
		return err
	}
	// Without this the rename may be lost although the data is on disk.
	return d.Sync()
}

// tryName is the file that TryWrite writes, and trySize its size: some file systems
// have room for less without a free block.
const (
	tryName = TempPrefix + "try"
	trySize = 4 << 10
)

// TryWrite writes a file, syncs and removes it, to find out whether that is possible. The file
// has one name, so that what a crash leaves behind is gone with the next TryWrite. Several at
// once, and whoever removes temporary files, do no harm.
func (d *Dir) TryWrite() error {
	fd, _, err := d.open(tryName, unix.O_WRONLY|unix.O_CREAT|unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	err = d.write(fd, tryName, make([]byte, trySize))
	if err == nil { // which allocates the blocks: a write may succeed on a full disk
		err = d.at("fsync", tryName, func() error { return unix.Fsync(fd) })
	}
	err = cmp.Or(err, d.close(fd, tryName))
	if removed := d.Remove(tryName); err == nil && !errors.Is(removed, fs.ErrNotExist) {
		err = removed
	}
	return err
}

// create makes the file name. With O_EXCL it must not be there.
func (d *Dir) create(name string, flags int) (fd int, err error) {
	err = d.at("create", name, func() (err error) {
		fd, err = unix.Openat(d.fd, name, flags|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		return err
	})
	return fd, err
}

// Append writes data to the end of the file name, with one write, and does not sync: what
// is written survives the end of the process, but a loss of power may take it away, whole or
// in part. A process that dies while it writes may leave a part, too.
//
// It reports false, having written nothing, when the file would become larger than limit,
// or when it has other hard links, which a write would reach: replace it
// then. A missing file is [io/fs.ErrNotExist].
func (d *Dir) Append(name string, data []byte, limit int64) (bool, error) {
	fd, st, err := d.open(name, unix.O_WRONLY|unix.O_APPEND|unix.O_NONBLOCK)
	if err != nil {
		return false, err
	}
	if st.Size+int64(len(data)) > limit || st.Nlink != 1 {
		return false, d.close(fd, name)
	}
	err = cmp.Or(d.write(fd, name, data), d.close(fd, name))
	return err == nil, err
}

// ReadFile returns the content of the regular file name.
// More than limit bytes are [ErrTooLarge]; a link, a directory, a FIFO and the
// like are [ErrNotRegular]; a missing file is [io/fs.ErrNotExist].
func (d *Dir) ReadFile(name string, limit int64) ([]byte, error) {
	// O_NONBLOCK: a FIFO under this name must not hang us.
	fd, st, err := d.open(name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	defer Close(fd)
	if st.Size > limit {
		return nil, d.fail("read", name, ErrTooLarge)
	}
	// One byte more than there is, so that the end shows in the same read.
	data := make([]byte, 0, st.Size+1)
	for {
		if len(data) == cap(data) {
			data = append(data, 0)[:len(data)] // it has grown meanwhile
		}
		var n int
		err := d.at("read", name, func() (err error) {
			n, err = unix.Read(fd, data[len(data):cap(data)])
			return err
		})
		if err != nil {
			return nil, err
		}
		data = data[:len(data)+n]
		if n == 0 || len(data) < cap(data) && int64(len(data)) >= st.Size {
			return data, nil
		}
		if int64(len(data)) > limit {
			return nil, d.fail("read", name, ErrTooLarge)
		}
	}
}

func (d *Dir) write(fd int, name string, data []byte) error {
	for len(data) > 0 {
		err := d.at("write", name, func() error {
			n, err := unix.Write(fd, data)
			data = data[max(n, 0):]
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// close closes fd whatever the hook says: a test may take the call's success
// away, not leave a file open.
func (d *Dir) close(fd int, name string) error {
	Step("close", name)
	err := cmp.Or(d.hooked("close", name), unix.Close(fd))
	if err != nil && !errors.Is(err, unix.EINTR) { // after EINTR the file is closed all the same
		return d.fail("close", name, err)
	}
	return nil
}
