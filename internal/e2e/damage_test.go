package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

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
	victim := n.file("victim")
	nodetest.OK(n, os.WriteFile(victim, []byte("precious"), 0o600))
	unharmed = func() {
		n.Helper()
		if text, err := os.ReadFile(victim); err != nil || string(text) != "precious" {
			n.Errorf("the target of a link: %q, %v", text, err)
		}
		if _, err := os.Lstat(n.file("nothing")); err == nil {
			n.Error("the target of the dangling link was created")
		}
	}
	return map[string]func(string) error{
		"empty":         func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"FIFO":          func(path string) error { return unix.Mkfifo(path, 0o600) },
		"socket":        func(path string) error { return unix.Mknod(path, unix.S_IFSOCK|0o600, 0) },
		"full":          func(path string) error { return os.MkdirAll(filepath.Join(path, "inside"), 0o700) },
		"link":          func(path string) error { return os.Symlink(victim, path) },
		"dangling link": func(path string) error { return os.Symlink(n.file("nothing"), path) },
		"link to FIFO":  func(path string) error { return os.Symlink(n.file("fake", "ready"), path) },
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
				n.forget()
				if a := n.call("DEL", p, withoutNetNS); a.code == 0 { // a complete line is left
					whole++
					n.trace(s.calls("DEL")...)
					nodetest.Equal(t, "attached", n.leaked(p), nil)
					n.ok("ADD", p)
				} else {
					n.failed(a, 5)
					before := n.list(n.file(s.state))
					for _, command := range []string{"DEL", "CHECK", "ADD"} {
						n.fails(5, command, p, nil)
					}
					n.trace()
					n.fails(5, "GC", p, nil, valid(p, other))
					for _, words := range [][]string{{"list"}, {"damaged"}, {"show", p.id}, {"gc", "--dry-run"}} {
						n.operator(-1, append(words, "--dir", n.file(s.state))...)
					}
					if r := n.operator(-1, "show", other.id, "--dir", n.file(s.state)); !strings.Contains(r.stdout, other.id) {
						t.Errorf("show %s: %+v", other.id, r)
					}
					nodetest.Equal(t, "attached", len(n.leaked(p)), len(s.fakes))
					nodetest.Equal(t, "state", n.list(n.file(s.state)), before)
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
			p, lock := n.pod(n.multinet("1.1.0", n.fake("a"))), ""
			lock = n.file("state", p.id+"@lock")
			for _, command := range []string{"ADD", "CHECK", "DEL", "GC"} {
				n.ok("ADD", p)
				if command == "ADD" {
					n.ok("DEL", p)
				}
				nodetest.OK(t, os.RemoveAll(lock))
				nodetest.OK(t, kinds[kind](lock))
				a := n.call(command, p, valid())
				if attached := len(n.leaked(p)); a.err != nil {
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
			nodetest.OK(t, os.RemoveAll(n.file("state")))
			nodetest.OK(t, kinds[kind](n.file("state")))
			n.forget()
			for _, command := range []string{"ADD", "CHECK", "DEL", "GC"} {
				n.fails(5, command, p, nil, valid())
			}
			n.trace()
			unharmed()
		})
	}
}

// TestHostileInputRunsNothing: annotations, container IDs, interface and network names
// cannot leave their directories or run another program. The error has the code of a
// mistake. No plugin runs, and no file is written.
func TestHostileInputRunsNothing(t *testing.T) {
	selects := func(s string) func(p *pod) { return func(p *pod) { p.selects(s) } }
	delegates := func(ds ...any) func(p *pod) { return func(p *pod) { p.conf["delegates"] = ds } }
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
			p.conf["runtimeConfig"] = object{"io.kubernetes.cri.pod-annotations": object{"k8s.v1.cni.cncf.io/networks": 7}}
		},
		"name of 16 bytes":       func(p *pod) { p.ifname = strings.Repeat("x", 16) },
		"name with a slash":      func(p *pod) { p.ifname = "a/b" },
		"container with a slash": func(p *pod) { p.id = "a/b" },
		"container dot dot":      func(p *pod) { p.id = ".." },
		"network with a slash":   func(p *pod) { p.conf["name"] = "../x" },
		"type is a path":         delegates(object{"type": "../fake"}),
		"missing second plugin":  delegates(object{"type": "fake"}, object{"type": "missing"}),
		"delegates to itself":    delegates(object{"type": "multinet"}),
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.network("blue", n.with(n.fake("blue"), object{"cniVersion": "1.0.0"}))
			p := n.pod(n.multinet("1.0.0", n.fake("a")))
			change(p)
			before := n.list(n.dir)
			a := n.call("ADD", p)
			if a.err == nil || a.err.Code != 4 && a.err.Code != 6 && a.err.Code != 7 {
				t.Errorf("ADD: %s", a.stdout)
			}
			n.trace()
			nodetest.OK(t, os.RemoveAll(n.file("state")))
			nodetest.Equal(t, "files", n.list(n.dir), before)
		})
	}
}
