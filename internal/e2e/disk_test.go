package e2e

import (
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/thick/wire"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// A disk is a file system with a defect. It holds a state directory.
type disk struct {
	name    string
	options string                 // mount options of tmpfs
	write   func(f *os.File) error // into each of the files that fill the disk
	flags   uintptr                // with which it is mounted again, if nothing fills it
}

var disks = []disk{
	{name: "full", options: "size=256k", write: func(f *os.File) error {
		for {
			if _, err := f.Write(make([]byte, os.Getpagesize())); err != nil {
				return err
			}
		}
	}},
	{name: "without a free inode", options: "nr_inodes=64", write: func(*os.File) error { return nil }},
	{name: "full, and without a free inode", options: "size=256k,nr_inodes=64", write: func(f *os.File) error {
		_, _ = f.Write(make([]byte, 256<<10))
		return nil
	}},
	{name: "read-only", flags: unix.MS_RDONLY}, // its files cannot be removed
}

// spoil causes the defect. It may be repeated.
func (d disk) spoil(n *node) {
	n.Helper()
	for d.write != nil {
		f, err := os.CreateTemp(n.file("disk"), "filler")
		if err == nil {
			err = errors.Join(d.write(f), f.Close())
		}
		if errors.Is(err, unix.ENOSPC) {
			return
		}
		nodetest.OK(n, err)
	}
	n.until("no process writes to the disk", func() bool { // who reads /proc/PID/fd holds a file a moment longer
		err := unix.Mount("", n.file("disk"), "", unix.MS_REMOUNT|d.flags, "")
		if !errors.Is(err, unix.EBUSY) {
			nodetest.OK(n, err)
		}
		return err == nil
	})
}

func (d disk) mend(n *node) {
	n.Helper()
	nodetest.OK(n, unix.Mount("", n.file("disk"), "", unix.MS_REMOUNT, d.options))
	for _, name := range n.list(n.file("disk")) {
		if strings.HasPrefix(name, "filler") {
			nodetest.OK(n, os.Remove(n.file("disk", name)))
		}
	}
}

// keeps reports whether files cannot be removed.
func (d disk) keeps() bool { return d.flags != 0 }

// mount puts the state directory on a disk of its own.
func (n *node) mount(d disk) {
	n.Helper()
	n.mkdir("disk", "state")
	nodetest.OK(n, unix.Mount("tmpfs", n.file("disk"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, d.options))
	n.Cleanup(func() { _ = unix.Unmount(n.file("disk"), unix.MNT_DETACH) })
	n.mkdir("disk/state")
	nodetest.OK(n, unix.Mount(n.file("disk", "state"), n.file("state"), "", unix.MS_BIND, ""))
	n.Cleanup(func() { _ = unix.Unmount(n.file("state"), unix.MNT_DETACH) })
}

// TestBadDiskStopsADDButNotDEL: if nothing can be written, ADD fails with code 5, STATUS
// and the daemon's readiness say so. DEL and GC succeed, also where nothing was attached.
// Where the record cannot be removed, they run the plugins and fail with code 5. CHECK and
// the operator's commands work.
func TestBadDiskStopsADDButNotDEL(t *testing.T) {
	for _, d := range disks {
		t.Run(d.name, func(t *testing.T) {
			n := newNode(t)
			conf := n.multinet("1.1.0", n.fake("a"), n.fake("b"))
			n.mount(d)
			n.daemon(daemonConf{})
			p, stale, kept, late := n.pod(conf), n.pod(conf), n.pod(conf), n.pod(conf)
			thick := n.pod(n.thick("1.1.0", n.fake("a")))
			for _, q := range []*pod{p, stale, kept} {
				n.ok("ADD", q)
			}
			n.ok("STATUS", p)
			n.ok("STATUS", thick)
			bad := func() { t.Helper(); d.spoil(n); n.forget() }
			gone := func(q *pod, command string, a answer) {
				t.Helper()
				nodetest.Equal(t, "attached after "+command, n.leaked(q), nil)
				nodetest.Equal(t, "recorded after "+command, n.recorded(q, "state"), d.keeps())
				if d.keeps() {
					n.failed(a, 5)
				} else if a.err != nil {
					t.Errorf("%s: %s", command, a.stdout)
				}
			}

			bad()
			n.fails(50, "STATUS", p, []string{n.file("state")})
			n.fails(50, "STATUS", thick, []string{n.file("state")})
			r, err := n.ask(http.MethodGet, wire.PathReady, nil)
			if err != nil || r.status != http.StatusServiceUnavailable || !strings.Contains(string(r.body), n.file("state")) {
				t.Errorf("%d %s, %v", r.status, r.body, err)
			}
			bad()
			n.ok("CHECK", p)
			n.trace("CHECK a eth0", "CHECK b net1")
			for _, words := range [][]string{{"list"}, {"damaged"}, {"show", p.id}, {"gc", "--dry-run"}} {
				n.operate(0, words...)
			}
			bad()
			if a := n.call("ADD", late); a.err != nil {
				n.failed(a, 5)
				nodetest.Equal(t, "attached after an ADD that failed", n.leaked(late), nil)
			} else if d.keeps() {
				t.Error("ADD succeeded although nothing can be written")
			} else {
				n.ok("DEL", late)
			}
			for _, name := range n.state() {
				if strings.HasPrefix(name, late.id) {
					t.Errorf("left by an ADD that failed: %s", name)
				}
			}
			bad()
			n.ok("DEL", late, withoutNetNS) // it is not attached
			n.trace()
			a := n.call("DEL", p)
			n.trace("DEL b net1", "DEL a eth0")
			gone(p, "DEL", a)
			bad()
			gone(stale, "GC", n.call("GC", p, valid(kept)))
			nodetest.Equal(t, "attached", len(n.leaked(kept)), 2)

			d.mend(n)
			n.ok("STATUS", p)
			for _, q := range []*pod{p, stale, kept, late} {
				n.ok("DEL", q)
			}
			n.nothingLeft()
		})
	}
}

// TestDELOnAFullDiskRemovesAKilledADD: DEL removes what a killed ADD has
// attached, even on a disk that has become full or read-only since.
func TestDELOnAFullDiskRemovesAKilledADD(t *testing.T) {
	for _, d := range disks {
		t.Run(d.name, func(t *testing.T) {
			n := newNode(t)
			p := n.pod(n.multinet("1.1.0", n.fake("a"), n.fake("b", "ADD", "gate")))
			n.mount(d)
			n.killed("ADD", p)
			n.cure()
			n.open()
			if d.keeps() { // the disk cannot become read-only while the orphan has the lock open
				n.orphansEnd()
			}
			d.spoil(n)
			a := n.call("DEL", p)
			nodetest.Equal(t, "attached", n.leaked(p), nil)
			if d.keeps() {
				n.failed(a, 5)
			} else if a.err != nil {
				t.Errorf("DEL: %s", a.stdout)
			}
			d.mend(n)
			n.ok("DEL", p)
			n.nothingLeft()
		})
	}
}
