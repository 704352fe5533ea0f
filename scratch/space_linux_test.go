package scratch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/durable"
)

// detach is what a DEL does with a record.
func detach(s Store[value], k Key) error {
	return under(s, k.ContainerID, func(l *Lock) error {
		return s.Consume(context.Background(), l, k, func(_ context.Context, r Record[value]) error {
			r.State = Deleting
			return s.Note(l, r)
		})
	})
}

// Without a free inode a recorded container can be locked and deleted; what
// cannot be done says why.
func TestDeleteWithoutAFreeInode(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	put(t, s, k1, "one")
	hook := durable.Hook(func(call, _ string) error {
		if call == "create" || call == "mkdirat" {
			return unix.ENOSPC
		}
		return nil
	})
	s.hook = &hook
	if err := putRecord(s, k2, Planned, value{}); !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
	if err := putRecord(s, k3, Planned, value{}); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), filepath.Join(s.Dir, "c2@lock")+"): create: ") {
		t.Errorf("a lock that cannot be made: %v", err)
	}
	ok(t, detach(s, k1))
	// Not even the file of a new record has to be made.
	hook = func(call, name string) error {
		if call == "create" && name != "c1@lock" {
			return unix.ENOSPC
		}
		return nil
	}
	put(t, s, k1, "again")
	if got := text(s, k1); got != "planned again" {
		t.Error(got)
	}
}

// On a read-only file system the lock of a recorded container can be taken, for
// CHECK and for a DEL whose plugins can work.
func TestLockOnAReadOnlyFileSystem(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	put(t, s, k1, "one")
	hook := durable.Hook(func(call, _ string) error {
		if slices.Contains([]string{"create", "mkdirat", "write", "unlinkat", "renameat", "renameat2", "fchmod"}, call) {
			return unix.EROFS
		}
		return nil
	})
	s.hook = &hook
	used := false
	err := under(s, "c1", func(l *Lock) error {
		return s.Consume(t.Context(), l, k1, func(context.Context, Record[value]) error {
			used = true
			return nil
		})
	})
	if !used || !errors.Is(err, unix.EROFS) || text(s, k1) != "planned one" {
		t.Errorf("used: %v, %v", used, err)
	}
	ok(t, under(s, "c1", func(*Lock) error { return nil }))
	unlock, err := s.LockDir(t.Context(), true)
	ok(t, err)
	ok(t, unlock())
}

// The same on real file systems: one that is full, one without inodes, and one
// that has become read-only.
func TestRealFileSystemsWithoutSpace(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount")
	}
	for name, options := range map[string]string{"full": "size=64k", "no inodes": "nr_inodes=8"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
				t.Skip(err)
			}
			t.Cleanup(func() { ok(t, unix.Unmount(dir, unix.MNT_DETACH)) })
			s := Store[value]{Dir: dir}
			put(t, s, k1, "one")
			for i := 0; ; i++ {
				if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("fill", i)), make([]byte, 4096), 0o600); err != nil {
					break
				}
			}
			if err := putRecord(s, k3, Planned, value{strings.Repeat("x", 5000)}); !errors.Is(err, unix.ENOSPC) {
				t.Errorf("put: %v", err)
			}
			ok(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
			if got := text(s, k1); got != "planned one" {
				t.Error(got)
			}
			ok(t, under(s, "c1", func(*Lock) error { return nil }))
			if err := detach(s, k1); !errors.Is(err, unix.EROFS) {
				t.Errorf("read-only: %v", err)
			}
			ok(t, unix.Mount("", dir, "", unix.MS_REMOUNT, ""))
			ok(t, under(s, "c1", func(l *Lock) error {
				return s.Consume(t.Context(), l, k1, func(_ context.Context, r Record[value]) error {
					_ = s.Note(l, r) // a full disk must not keep a container from going
					return nil
				})
			}))
			if got := text(s, k1); got != "none" {
				t.Error(got)
			}
		})
	}
}

// A record in a file that held another's never shows anything of that, in any
// order of sizes; and where a loss of power brings the deleted record's name
// back, with that file, there is no record under it.
func TestRecycledFilesShowNothingOfTheFormerRecord(t *testing.T) {
	t.Parallel()
	sizes := []int{0, 10, 1000, 5000, 20_000}
	for _, before := range sizes {
		for _, after := range sizes {
			s := newStore(t)
			put(t, s, k3, strings.Repeat("former", before))
			for range 2 {
				ok(t, note(s, Record[value]{Key: k3, State: Added, Value: value{strings.Repeat("former", before)}}))
			}
			ok(t, note(s, Record[value]{Key: k3, State: Deleting}))
			was, err := os.Stat(recordPath(s, k3))
			ok(t, err)
			ok(t, del(s, k3))
			put(t, s, k1, strings.Repeat("new", after))
			data, err := os.ReadFile(recordPath(s, k1))
			ok(t, err)
			if strings.Contains(string(data), "former") || strings.Contains(string(data), `"c2"`) {
				t.Errorf("%d over %d: something is left", after, before)
			}
			reused := strings.Contains(string(data), `"reused":true`)
			if reused != (was.Size() <= 64<<10) {
				t.Errorf("%d over %d: recycled: %v", after, before, reused)
			}
			// The name comes back.
			if reused {
				ok(t, os.WriteFile(filepath.Join(s.Dir, "c2@lock"), nil, 0o600))
				ok(t, os.WriteFile(recordPath(s, k3), data, 0o600))
				if got := text(s, k3); got != "none" {
					t.Errorf("%d over %d: under the former name: %.20s", after, before, got)
				}
				put(t, s, k3, "later")
				if got := text(s, k3); got != "planned later" {
					t.Error(got)
				}
				ok(t, os.WriteFile(recordPath(s, k3), data, 0o600))
				ok(t, detach(s, k3))
			}
			if got := text(s, k1); got != "planned "+strings.Repeat("new", after) {
				t.Errorf("%d over %d: %.20s", after, before, got)
			}
			ok(t, detach(s, k1))
			if left := tree(t, s.Dir); len(left) != 0 {
				t.Errorf("left %q", left)
			}
		}
	}
}

// Notes are written over the padding, so that files which go from record to
// record do not grow.
func TestRecycledFilesDoNotGrow(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var first int64
	for i := range 50 {
		put(t, s, k1, strings.Repeat("x", 3000))
		ok(t, note(s, Record[value]{Key: k1, State: Added, Value: value{strings.Repeat("y", 3000)}}))
		if got := text(s, k1); got != "added "+strings.Repeat("y", 3000) {
			t.Fatal(got)
		}
		ok(t, detach(s, k1))
		names := spares(t, s)
		if len(names) != 1 {
			t.Fatal(names)
		}
		info, err := os.Stat(names[0])
		ok(t, err)
		if i == 1 { // the first had no mark of reuse
			first = info.Size()
		}
		if i > 1 && info.Size() > first+100 { // times have more digits or fewer
			t.Fatalf("cycle %d: %d bytes, the second had %d", i, info.Size(), first)
		}
	}
}

// WriteFile replaces a file of any format, whole and with mode 0600.
func TestWriteFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "state.json")
	for _, want := range []string{"one", "two, longer", ""} {
		ok(t, WriteFile(path, []byte(want)))
		info, err := os.Stat(path)
		ok(t, err)
		if data, err := os.ReadFile(path); string(data) != want || err != nil || info.Mode() != 0o600 {
			t.Errorf("%q, %v, mode %v", data, err, info.Mode())
		}
	}
	ok(t, os.Symlink(path, filepath.Join(dir, "link")))
	ok(t, WriteFile(filepath.Join(dir, "link"), []byte("not followed")))
	if data, err := os.ReadFile(path); len(data) != 0 || err != nil {
		t.Errorf("a link was followed: %q, %v", data, err)
	}
	for _, bad := range []string{"", dir + "/", filepath.Join(dir, "none", "f"), filepath.Join(dir, "state.json", "f")} {
		if err := WriteFile(bad, nil); err == nil || code(err) != 5 {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if left := tree(t, dir); !slices.Equal(left, []string{"link", "state.json"}) {
		t.Errorf("left %q", left)
	}
}
