package scratch

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
)

// Whatever is on disk, decode returns a record that a line of it says, of the
// right key, or ErrCorrupt (G11).
func FuzzDecode(f *testing.F) {
	k := Key{Network: "net", ContainerID: "c1", IfName: "eth0"}
	one, err := encode(Record[any]{Key: k, State: Planned, Value: map[string]any{"a": 1.0}})
	if err != nil {
		f.Fatal(err)
	}
	two, err := encode(Record[any]{Key: k, State: Added, Created: time.Unix(1, 0), Value: []any{nil, "\n"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(one)
	f.Add(append(append(one, '\n'), two...))
	f.Add(append(one, two[:len(two)/2]...))
	f.Add([]byte{})
	f.Add([]byte("\n\n\n"))
	f.Add([]byte("0123456789abcdef "))
	f.Add([]byte("null"))
	f.Add(one[prefix : len(one)-1])
	f.Fuzz(func(t *testing.T, data []byte) {
		if r, err := decode[any]([]byte(line(string(data))), func(got Key) bool { return got == k }); err == nil && r.Key != k {
			t.Errorf("with a fitting sum: %+v", r)
		}
		before := bytes.Clone(data)
		r, err := decode[any](data, func(got Key) bool { return got == k })
		if !bytes.Equal(before, data) {
			t.Error("the data was changed")
		}
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Error(err)
			}
			return
		}
		if r.Key != k || !r.State.valid() {
			t.Errorf("%+v", r)
		}
		said := false
		for line := range bytes.SplitSeq(data, []byte{'\n'}) {
			said = said || verify(line) == nil && bytes.Contains(line, []byte(r.State))
		}
		if !said {
			t.Error("no line says so")
		}
	})
}

// Two keys never share a file, names stay below the limit and cannot be
// anything but names, and they can be read back (G12, D9, D10).
func FuzzNames(f *testing.F) {
	long := strings.Repeat("x", 190)
	f.Add("a-b", "c", "eth0", "a", "b-c", "eth0")
	f.Add("a", "b", "c@d", "a", "b", "c%40d")
	f.Add(long, long, "e", long+"x", long+"x", "e")
	f.Add("#"+strings.Repeat("0", 64), "..", "/", "", ".", "a@lock")
	f.Fuzz(func(t *testing.T, n1, c1, i1, n2, c2, i2 string) {
		a, b := Key{n1, c1, i1}, Key{n2, c2, i2}
		if checkKey(a) != nil {
			return
		}
		dir, file := dirName(a.ContainerID), fileName(a)
		for _, name := range []string{dir, file, corruptName(a), lockName(a.ContainerID)} {
			if len(name) > 255 || strings.ContainsAny(name, "/\x00") || name[0] == '.' {
				t.Errorf("%q of %q", name, a)
			}
		}
		if strings.Contains(dir, "@") || !storedName(dir) {
			t.Errorf("directory %q could be a lock or foreign", dir)
		}
		for _, name := range []string{file, corruptName(a)} {
			network, ifName, corrupt, ok := parseFile(name)
			if !ok || corrupt != (name != file) || ifName != a.IfName || part(network) != part(a.Network) {
				t.Errorf("%q is read back as %q, %q, %v, %v", name, network, ifName, corrupt, ok)
			}
		}
		if checkKey(b) == nil && a != b && dirName(b.ContainerID) == dir && fileName(b) == file {
			t.Errorf("%q and %q share %s/%s", a, b, dir, file)
		}
	})
}

// A file name that is understood is one that fileName or corruptName makes.
func FuzzParseFile(f *testing.F) {
	for _, name := range []string{"net@eth0.json", "net@eth0.json.corrupt", "n@%2F.json", "n@%2f.json", "@.json", "#@x.json", "n@a@b.json", ".tmp-1"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		network, ifName, corrupt, ok := parseFile(name)
		if !ok {
			return
		}
		k := Key{Network: network, ContainerID: "c", IfName: ifName}
		if err := checkStoredKey(k); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		if made := fileName(k); !corrupt && made != name {
			t.Errorf("%q is read as %q, which has %q", name, k, made)
		}
		if made := corruptName(k); corrupt && made != name {
			t.Errorf("%q is read as %q, which has %q", name, k, made)
		}
	})
}

// Whatever a lock's file says, what is read of it cannot mean every process,
// or process 1 (G7).
func FuzzParseLock(f *testing.F) {
	f.Add([]byte(owner{process{10, 20}, 30}.String() + process{40, 50}.String()))
	f.Add([]byte("group -1 1\ngroup 0 1\ngroup 1 1\ngroup 9"))
	f.Fuzz(func(t *testing.T, data []byte) {
		o, groups := parseLock(data)
		if o != (owner{}) {
			groups = append(groups, o.process)
		}
		for _, g := range groups {
			if g.pid <= 1 || g.pid > 1<<31-1 {
				t.Errorf("%v", g)
			}
		}
	})
}

// Whatever a process is called, its numbers are not taken from its name.
func FuzzParseStat(f *testing.F) {
	f.Add("sh")
	f.Add(") Z 1 2 3 (")
	f.Add("\n")
	f.Fuzz(func(t *testing.T, comm string) {
		_, _ = parseStat([]byte(comm))
		got, ok := parseStat([]byte("41 (" + comm + ") S 1 42 3 4 5 6 7 8 9 10 11 12 13 14 15 16 2 18 777 20\n"))
		if want := (procStat{process{41, 777}, 'S', 42, 2}); !ok || got != want {
			t.Errorf("%q: %v, %v", comm, got, ok)
		}
	})
}
