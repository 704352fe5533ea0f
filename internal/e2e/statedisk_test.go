package e2e

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A disk is a file system with a defect. It holds a state directory.
type disk struct {
	name    string
	options string                     // mount options of tmpfs
	spoil   func(w *world, dir string) // causes the defect; may be repeated
	mend    func(w *world, dir string)
	keeps   bool // its files cannot be removed
}

var disks = []disk{
	{
		name: "full", options: "size=256k",
		spoil: func(w *world, dir string) {
			w.fill(dir, func(f *os.File) error {
				for {
					if _, err := f.Write(make([]byte, os.Getpagesize())); err != nil {
						return err
					}
				}
			})
		},
		mend: func(w *world, dir string) { w.empty(dir) },
	},
	{
		name: "without a free inode", options: "nr_inodes=64",
		spoil: func(w *world, dir string) { w.fill(dir, func(*os.File) error { return nil }) },
		mend:  func(w *world, dir string) { w.empty(dir) },
	},
	{
		name: "full, and without a free inode", options: "size=256k,nr_inodes=64",
		spoil: func(w *world, dir string) {
			w.fill(dir, func(f *os.File) error {
				_, _ = f.Write(make([]byte, 256<<10))
				return nil
			})
		},
		mend: func(w *world, dir string) { w.empty(dir) },
	},
	{
		name:  "read-only",
		spoil: func(w *world, dir string) { w.remount(dir, unix.MS_RDONLY) },
		mend:  func(w *world, dir string) { w.remount(dir, 0) },
		keeps: true,
	},
}

// fill creates files beside dir until write, or creating a file, fails for want
// of space.
func (w *world) fill(dir string, write func(*os.File) error) {
	w.t.Helper()
	for {
		f, err := os.CreateTemp(dir, "filler")
		if err == nil {
			err = errors.Join(write(f), f.Close())
		}
		if errors.Is(err, unix.ENOSPC) {
			return
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) empty(dir string) {
	w.t.Helper()
	for _, name := range w.list(dir) {
		if strings.HasPrefix(name, "filler") {
			if err := os.Remove(dir + "/" + name); err != nil {
				w.t.Fatal(err)
			}
		}
	}
}

func (w *world) remount(dir string, flags uintptr) {
	w.t.Helper()
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|flags, ""); err != nil {
		w.t.Fatal(err)
	}
}

// mount puts the state directory on a disk of its own and returns the mount
// point.
func (w *world) mount(d disk) (dir string) {
	w.t.Helper()
	dir = w.file("disk")
	if err := os.Mkdir(dir, 0o700); err != nil {
		w.t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, d.options); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	for _, at := range []string{w.file("disk", "state"), w.file("state")} {
		if err := os.Mkdir(at, 0o700); err != nil {
			w.t.Fatal(err)
		}
	}
	if err := unix.Mount(w.file("disk", "state"), w.file("state"), "", unix.MS_BIND, ""); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = unix.Unmount(w.file("state"), unix.MNT_DETACH) })
	return dir
}

// TestBadDiskStopsADDButNotDEL: if nothing can be written, ADD fails with code
// 5. DEL and GC succeed. Where the record cannot be removed, they run the
// plugins and fail with code 5. CHECK and the operator's commands work.
func TestBadDiskStopsADDButNotDEL(t *testing.T) {
	for _, d := range disks {
		t.Run(d.name, func(t *testing.T) {
			w := newWorld(t)
			conf := w.multinet("1.1.0", w.fake("a"), w.fake("b"))
			dir := w.mount(d)
			p, stale, forgotten, kept, late := w.pod(conf), w.pod(conf), w.pod(conf), w.pod(conf), w.pod(conf)
			for _, q := range []*pod{p, stale, forgotten, kept} {
				w.ok("ADD", q)
			}
			bad := func() { t.Helper(); d.spoil(w, dir); w.forget() }
			gone := func(q *pod, command string, a answer) {
				t.Helper()
				same(t, "attached after "+command, nil, w.leaked(q))
				if !d.keeps {
					same(t, command+": success", true, a.err == nil)
					same(t, "recorded after "+command, false, w.recorded(q, "state"))
					return
				}
				w.failed(a, 5)
				same(t, "recorded after "+command, true, w.recorded(q, "state"))
			}

			bad()
			w.ok("CHECK", p)
			w.trace("CHECK a eth0", "CHECK b net1")
			for _, words := range [][]string{{"list"}, {"damaged"}, {"show", p.id}, {"gc", "--dry-run"}} {
				if r := w.operate(words...); r.code != 0 {
					t.Errorf("%v: %+v", words, r)
				}
			}
			bad()
			if a := w.call("ADD", late); a.err != nil {
				w.failed(a, 5)
				same(t, "attached after an ADD that failed", nil, w.leaked(late))
			} else if d.keeps {
				t.Error("ADD succeeded although nothing can be written")
			} else {
				w.ok("DEL", late)
			}
			for _, name := range w.state() {
				if strings.HasPrefix(name, late.id) {
					t.Errorf("left by an ADD that failed: %s", name)
				}
			}
			bad()
			a := w.call("DEL", p)
			w.trace("DEL b net1", "DEL a eth0")
			gone(p, "DEL", a)
			if d.keeps {
				bad()
				gone(p, "another DEL", w.call("DEL", p, withoutNetNS))
			}
			bad()
			gone(stale, "GC", w.call("GC", p, valid(kept, forgotten)))
			same(t, "attached", 2, len(w.leaked(kept)))
			bad()
			r := w.operate("forget", forgotten.id, "--yes")
			same(t, "exit status of forget", map[bool]int{false: 0, true: 1}[d.keeps], r.code)
			same(t, "recorded after forget", d.keeps, w.recorded(forgotten, "state"))

			d.mend(w, dir)
			for _, q := range []*pod{p, stale, kept, late} {
				w.ok("DEL", q)
			}
			if d.keeps {
				w.ok("DEL", forgotten)
			}
			for i, name := range w.leaked(forgotten) { // its record is gone
				same(t, fmt.Sprint("forgotten ", i), nil, os.Remove(w.file("fake", "live", name)))
			}
			w.nothingLeft()
			w.figures("the disk of the state directory is "+d.name, 10)
		})
	}
}

// TestDELOfNothingOnABadDisk: a DEL of a container that was never attached, or
// is already detached, succeeds even if nothing can be written.
func TestDELOfNothingOnABadDisk(t *testing.T) {
	for _, d := range disks {
		t.Run(d.name, func(t *testing.T) {
			w := newWorld(t)
			conf := w.multinet("1.1.0", w.fake("a"))
			dir := w.mount(d)
			other, never, was := w.pod(conf), w.pod(conf), w.pod(conf)
			w.ok("ADD", other)
			w.ok("ADD", was)
			w.ok("DEL", was)
			w.forget()
			for _, p := range []*pod{never, was} {
				d.spoil(w, dir)
				if a := w.call("DEL", p, withoutNetNS); a.err != nil {
					t.Errorf("DEL: %s", a.stdout)
				}
			}
			w.trace()
			d.mend(w, dir)
			w.ok("DEL", other)
			w.nothingLeft()
			w.figures("DEL of what is not there, the disk being "+d.name, 2)
		})
	}
}

// TestDELOnAFullDiskRemovesAKilledADD: DEL removes what a killed ADD has
// attached, even on a disk that has become full or read-only since.
func TestDELOnAFullDiskRemovesAKilledADD(t *testing.T) {
	for _, d := range disks {
		t.Run(d.name, func(t *testing.T) {
			w := newWorld(t)
			p := w.pod(w.multinet("1.1.0", w.fake("a"), w.fake("b", "ADD", "gate")))
			dir := w.mount(d)
			w.killed("ADD", p)
			w.cure()
			w.open()
			if d.keeps { // the disk cannot become read-only while the orphan has the lock open
				w.orphansEnd()
			}
			d.spoil(w, dir)
			a := w.call("DEL", p)
			same(t, "attached", nil, w.leaked(p))
			if d.keeps {
				w.failed(a, 5)
			} else if a.err != nil {
				t.Errorf("DEL: %s", a.stdout)
			}
			d.mend(w, dir)
			w.ok("DEL", p)
			w.nothingLeft()
			w.figures("SIGKILL in ADD, then DEL, the disk being "+d.name, 1)
		})
	}
}
