package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/thick/wire"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// damages returns the record data cut off and flipped at a sample of places, and as another
// version of the program might have written it.
func damages(data []byte) map[string][]byte {
	step := len(data) / 60
	if !*long {
		step = len(data) / 8
	}
	all := map[string][]byte{"version 1000": ofVersion(data, 1000)}
	for i := 0; i < len(data); i += step {
		all[fmt.Sprintf("cut at %d", i)] = data[:i]
		flipped := bytes.Clone(data)
		flipped[i] ^= 0xff
		all[fmt.Sprintf("byte %d flipped", i)] = flipped
	}
	return all
}

// ofVersion returns the record data with the number of another version. Each line has a
// checksum before its text.
func ofVersion(data []byte, version int) []byte {
	var lines [][]byte
	for line := range bytes.Lines(data) {
		if _, text, ok := bytes.Cut(bytes.TrimSpace(line), []byte(" ")); ok {
			text = regexp.MustCompile(`^\{"version":\d+`).ReplaceAll(text, fmt.Appendf(nil, `{"version":%d`, version))
			sum := sha256.Sum256(text)
			lines = append(lines, append([]byte(hex.EncodeToString(sum[:8])+" "), text...))
		}
	}
	return append(bytes.Join(lines, []byte("\n\n")), '\n')
}

// oddities returns, by kind, functions that create an unexpected file at a path. unharmed
// fails the test if a link was followed.
func (n *node) oddities() (kinds map[string]func(path string) error, unharmed func()) {
	victim := n.File("victim")
	nodetest.OK(n, os.WriteFile(victim, []byte("precious"), 0o600))
	unharmed = func() {
		n.Helper()
		if text, err := os.ReadFile(victim); err != nil || string(text) != "precious" {
			n.Errorf("the target of a link: %q, %v", text, err)
		}
		if _, err := os.Lstat(n.File("nothing")); err == nil {
			n.Error("the target of the dangling link was created")
		}
	}
	return map[string]func(string) error{
		"empty":         func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"FIFO":          func(path string) error { return unix.Mkfifo(path, 0o600) },
		"socket":        func(path string) error { return unix.Mknod(path, unix.S_IFSOCK|0o600, 0) },
		"full":          func(path string) error { return os.MkdirAll(filepath.Join(path, "inside"), 0o700) },
		"link":          func(path string) error { return os.Symlink(victim, path) },
		"dangling link": func(path string) error { return os.Symlink(n.File("nothing"), path) },
		"link to FIFO":  func(path string) error { return os.Symlink(n.File("fake", "ready"), path) },
		"hard link":     func(path string) error { return os.Link(victim, path) },
	}, unharmed
}

// TestDamageIsContained: a record is damaged, of another version, or another file is in its
// place. No command of its container hangs or panics. A DEL that succeeds has removed
// everything; otherwise every command answers code 5, runs nothing and changes nothing. GC
// reports it, the operator's commands work, and other containers are not affected. Once
// the record is back, so is the attachment.
func TestDamageIsContained(t *testing.T) {
	for _, s := range subjects()[:2] {
		t.Run(s.name, func(t *testing.T) {
			n := newNode(t)
			p, other := n.pod(s.conf(n)), n.pod(s.conf(n))
			n.ok("ADD", other)
			n.ok("ADD", p)
			path := n.recordFile(p, s.state)
			data, err := os.ReadFile(path)
			nodetest.OK(t, err)
			puts, unharmed := n.oddities()
			for name, text := range damages(data) {
				puts[name] = func(path string) error { return os.WriteFile(path, text, 0o600) }
			}
			whole := 0
			for name, put := range puts {
				nodetest.OK(t, os.RemoveAll(path))
				nodetest.OK(t, put(path))
				n.Forget()
				if a := n.call("DEL", p, withoutNetNS); a.Code == 0 { // a complete line is left
					whole++
					n.Trace(s.calls("DEL")...)
					nodetest.Equal(t, "attached", n.leaked(p), nil)
					n.ok("ADD", p)
				} else {
					n.failed(a, 5)
					before := n.List(n.File(s.state))
					for _, command := range []string{"DEL", "CHECK", "ADD"} {
						n.fails(5, command, p, nil)
					}
					n.Trace()
					n.fails(5, "GC", p, nil, valid(p, other))
					for _, words := range [][]string{{"list"}, {"damaged"}, {"show", p.ID}, {"gc", "--dry-run"}} {
						n.operator(-1, append(words, "--dir", n.File(s.state))...)
					}
					if r := n.operator(-1, "show", other.ID, "--dir", n.File(s.state)); !strings.Contains(r.Stdout, other.ID) {
						t.Errorf("show %s: %+v", other.ID, r)
					}
					nodetest.Equal(t, "attached", len(n.leaked(p)), len(s.fakes))
					nodetest.Equal(t, "state", n.List(n.File(s.state)), before)
					nodetest.OK(t, os.RemoveAll(path))
					nodetest.OK(t, os.WriteFile(path, data, 0o600))
					n.ok("CHECK", p)
				}
				n.ok("CHECK", other)
				unharmed()
				if t.Failed() {
					t.Fatal(name)
				}
			}
			if whole == 0 {
				t.Error("no damage has left a complete line")
			}
			n.ok("DEL", other)
			n.ok("DEL", p)
			n.nothingLeft()
		})
	}
}

// TestOtherFilesInPlaceOfALock: some other file is in the place of a container's lock, or of
// the state directory. No command hangs or follows a link, and a command that succeeds has
// done its work.
func TestOtherFilesInPlaceOfALock(t *testing.T) {
	for _, kind := range []string{"empty", "FIFO", "socket", "full", "link", "dangling link", "link to FIFO", "hard link"} {
		t.Run(kind, func(t *testing.T) {
			n := newNode(t)
			kinds, unharmed := n.oddities()
			p, lock := n.pod(n.multinet("1.1.0", n.Fake("a"))), ""
			lock = n.File("state", p.ID+"@lock")
			for _, command := range []string{"ADD", "CHECK", "DEL", "GC"} {
				n.ok("ADD", p)
				if command == "ADD" {
					n.ok("DEL", p)
				}
				nodetest.OK(t, os.RemoveAll(lock))
				nodetest.OK(t, kinds[kind](lock))
				a := n.call(command, p, valid())
				if attached := len(n.leaked(p)); a.Err != nil {
					n.failed(a, 5)
				} else if (command == "ADD" || command == "CHECK") != (attached == 1) {
					t.Errorf("%s succeeded with %d attached", command, attached)
				}
				unharmed()
				nodetest.OK(t, os.RemoveAll(lock))
				n.ok("DEL", p)
			}
			n.nothingLeft()

			if kind == "full" || kind == "dangling link" {
				return // as a directory, or none
			}
			nodetest.OK(t, os.RemoveAll(n.File("state")))
			nodetest.OK(t, kinds[kind](n.File("state")))
			n.Forget()
			for _, command := range []string{"ADD", "CHECK", "DEL", "GC"} {
				n.fails(5, command, p, nil, valid())
			}
			n.Trace()
			unharmed()
		})
	}
}

// TestHostileInputRunsNothing: annotations, container IDs, interface and network names
// cannot leave their directories or run another program. The error has the code of a
// mistake. No plugin runs, and no file is written.
func TestHostileInputRunsNothing(t *testing.T) {
	selects := func(s string) func(p *pod) { return func(p *pod) { p.selects(s) } }
	delegates := func(ds ...any) func(p *pod) { return func(p *pod) { p.Conf["delegates"] = ds } }
	for name, change := range map[string]func(p *pod){
		"network is a path":     selects("../net.d/blue"),
		"unknown network":       selects("unknown"),
		"annotation is garbage": selects("[{"),
		"annotation is deep":    selects(`[{"name":"blue","cni-args":` + strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000) + "}]"),
		"too many selections":   selects("blue" + strings.Repeat(",blue", 100)),
		"asked for net%d":       selects(`[{"name":"blue","interface":"net%d"}]`),
		"asked for ../net1":     selects(`[{"name":"blue","interface":"../net1"}]`),
		"asked for twice":       selects("blue@net1,blue@net1"),
		"asked for eth0":        selects("blue@eth0"),
		"annotation of numbers": func(p *pod) {
			p.Conf["runtimeConfig"] = object{"io.kubernetes.cri.pod-annotations": object{"k8s.v1.cni.cncf.io/networks": 7}}
		},
		"name of 16 bytes":       func(p *pod) { p.IfName = strings.Repeat("x", 16) },
		"name with a slash":      func(p *pod) { p.IfName = "a/b" },
		"container with a slash": func(p *pod) { p.ID = "a/b" },
		"container dot dot":      func(p *pod) { p.ID = ".." },
		"network with a slash":   func(p *pod) { p.Conf["name"] = "../x" },
		"type is a path":         delegates(object{"type": "../fake"}),
		"missing second plugin":  delegates(object{"type": "fake"}, object{"type": "missing"}),
		"delegates to itself":    delegates(object{"type": "multinet"}),
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.network("blue", n.with(n.Fake("blue"), object{"cniVersion": "1.0.0"}))
			p := n.pod(n.multinet("1.0.0", n.Fake("a")))
			change(p)
			before := n.List(n.Dir)
			a := n.call("ADD", p)
			if a.Err == nil || a.Err.Code != 4 && a.Err.Code != 6 && a.Err.Code != 7 {
				t.Errorf("ADD: %s", a.Stdout)
			}
			n.Trace()
			nodetest.OK(t, os.RemoveAll(n.File("state")))
			nodetest.Equal(t, "files", n.List(n.Dir), before)
		})
	}
}

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
		f, err := os.CreateTemp(n.File("disk"), "filler")
		if err == nil {
			err = errors.Join(d.write(f), f.Close())
		}
		if errors.Is(err, unix.ENOSPC) {
			return
		}
		nodetest.OK(n, err)
	}
	n.Until("no process writes to the disk", func() bool { // who reads /proc/PID/fd holds a file a moment longer
		err := unix.Mount("", n.File("disk"), "", unix.MS_REMOUNT|d.flags, "")
		if !errors.Is(err, unix.EBUSY) {
			nodetest.OK(n, err)
		}
		return err == nil
	})
}

func (d disk) mend(n *node) {
	n.Helper()
	nodetest.OK(n, unix.Mount("", n.File("disk"), "", unix.MS_REMOUNT, d.options))
	for _, name := range n.List(n.File("disk")) {
		if strings.HasPrefix(name, "filler") {
			nodetest.OK(n, os.Remove(n.File("disk", name)))
		}
	}
}

// keeps reports whether files cannot be removed.
func (d disk) keeps() bool { return d.flags != 0 }

// mount puts the state directory on a disk of its own.
func (n *node) mount(d disk) {
	n.Helper()
	n.Mkdir("disk", "state")
	nodetest.OK(n, unix.Mount("tmpfs", n.File("disk"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, d.options))
	n.Cleanup(func() { _ = unix.Unmount(n.File("disk"), unix.MNT_DETACH) })
	n.Mkdir("disk/state")
	nodetest.OK(n, unix.Mount(n.File("disk", "state"), n.File("state"), "", unix.MS_BIND, ""))
	n.Cleanup(func() { _ = unix.Unmount(n.File("state"), unix.MNT_DETACH) })
}

// TestBadDiskStopsADDButNotDEL: if nothing can be written, ADD fails with code 5, STATUS
// and the daemon's readiness say so. DEL and GC succeed, also where nothing was attached.
// Where the record cannot be removed, they run the plugins and fail with code 5. CHECK and
// the operator's commands work.
func TestBadDiskStopsADDButNotDEL(t *testing.T) {
	for _, d := range disks {
		t.Run(d.name, func(t *testing.T) {
			n := newNode(t)
			conf := n.multinet("1.1.0", n.Fake("a"), n.Fake("b"))
			n.mount(d)
			n.daemon(daemonConf{})
			p, stale, kept, late := n.pod(conf), n.pod(conf), n.pod(conf), n.pod(conf)
			thick := n.pod(n.thick("1.1.0", n.Fake("a")))
			for _, q := range []*pod{p, stale, kept} {
				n.ok("ADD", q)
			}
			n.ok("STATUS", p)
			n.ok("STATUS", thick)
			bad := func() { t.Helper(); d.spoil(n); n.Forget() }
			gone := func(q *pod, command string, a answer) {
				t.Helper()
				nodetest.Equal(t, "attached after "+command, n.leaked(q), nil)
				nodetest.Equal(t, "recorded after "+command, n.recorded(q, "state"), d.keeps())
				if d.keeps() {
					n.failed(a, 5)
				} else if a.Err != nil {
					t.Errorf("%s: %s", command, a.Stdout)
				}
			}

			bad()
			n.fails(50, "STATUS", p, []string{n.File("state")})
			n.fails(50, "STATUS", thick, []string{n.File("state")})
			r, err := n.ask(http.MethodGet, wire.PathReady, nil)
			if err != nil || r.Status != http.StatusServiceUnavailable || !strings.Contains(string(r.Body), n.File("state")) {
				t.Errorf("%d %s, %v", r.Status, r.Body, err)
			}
			bad()
			n.ok("CHECK", p)
			n.Trace("CHECK a eth0", "CHECK b net1")
			for _, words := range [][]string{{"list"}, {"damaged"}, {"show", p.ID}, {"gc", "--dry-run"}} {
				n.operate(0, words...)
			}
			bad()
			if a := n.call("ADD", late); a.Err != nil {
				n.failed(a, 5)
				nodetest.Equal(t, "attached after an ADD that failed", n.leaked(late), nil)
			} else if d.keeps() {
				t.Error("ADD succeeded although nothing can be written")
			} else {
				n.ok("DEL", late)
			}
			for _, name := range n.state() {
				if strings.HasPrefix(name, late.ID) {
					t.Errorf("left by an ADD that failed: %s", name)
				}
			}
			bad()
			n.ok("DEL", late, withoutNetNS) // it is not attached
			n.Trace()
			a := n.call("DEL", p)
			n.Trace("DEL b net1", "DEL a eth0")
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
			p := n.pod(n.multinet("1.1.0", n.Fake("a"), n.Fake("b", "ADD", "gate")))
			n.mount(d)
			n.killed("ADD", p)
			n.Cure()
			n.Open()
			if d.keeps() { // the disk cannot become read-only while the orphan has the lock open
				n.OrphansEnd()
			}
			d.spoil(n)
			a := n.call("DEL", p)
			nodetest.Equal(t, "attached", n.leaked(p), nil)
			if d.keeps() {
				n.failed(a, 5)
			} else if a.Err != nil {
				t.Errorf("DEL: %s", a.Stdout)
			}
			d.mend(n)
			n.ok("DEL", p)
			n.nothingLeft()
		})
	}
}
