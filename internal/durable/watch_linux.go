package durable

import (
	"encoding/binary"
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// A Watch tells which entries of a directory have changed. Close it. It is for
// one goroutine at a time.
type Watch struct {
	fd   int
	path string // of the directory
	id   ID
	lost bool // there will be no more events
}

const (
	entryEvents = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE
	lastEvents  = unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_UNMOUNT | unix.IN_IGNORED
)

// Watch watches d from now on. It fails where the system has no inotify(7) or too
// many users of it.
func (d *Dir) Watch() (*Watch, error) {
	var st unix.Stat_t
	if err := d.do("fstat", ".", func() error { return unix.Fstat(d.fd, &st) }); err != nil {
		return nil, err
	}
	w := &Watch{fd: -1, path: d.path, id: IDOf(&st)}
	err := d.do("inotify_init1", ".", func() (err error) {
		w.fd, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		return err
	})
	if err != nil {
		return nil, err
	}
	err = d.do("inotify_add_watch", ".", func() error {
		_, err := unix.InotifyAddWatch(w.fd, d.path, unix.IN_ONLYDIR|entryEvents|lastEvents)
		return err
	})
	if err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// Close ends the watch.
func (w *Watch) Close() { _ = unix.Close(w.fd) }

// Changed returns the entries that were made, written to, renamed or removed
// since the last call, some of them several times. It sees what had happened when
// it was called, whoever did it. all is true if it does not know, and every entry
// may have changed.
func (w *Watch) Changed() (names []string, all bool) {
	// While somebody has it open there is no event of the directory's end.
	var st unix.Stat_t
	w.lost = w.lost || unix.Stat(w.path, &st) != nil || IDOf(&st) != w.id
	buf := make([]byte, 16<<10)
	for !w.lost {
		n, err := unix.Read(w.fd, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return names, all
		case err != nil || n <= 0:
			w.lost = true
		}
		for event := buf[:max(n, 0)]; len(event) >= unix.SizeofInotifyEvent; {
			mask := binary.NativeEndian.Uint32(event[4:])
			end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(event[12:]))
			if name := strings.TrimRight(string(event[unix.SizeofInotifyEvent:end]), "\x00"); name != "" {
				names = append(names, name)
			}
			all = all || mask&unix.IN_Q_OVERFLOW != 0
			w.lost = w.lost || mask&lastEvents != 0
			event = event[end:]
		}
	}
	return nil, true
}
