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

// Nothing of a removed record can be read in the directory, however it was written
// and whatever a crash has left of it.
func TestRemovedRecordsCannotBeRead(t *testing.T) {
	t.Parallel()
	const secret = "correct horse battery staple"
	for name, write := range map[string]func(s Store[value]) error{
		"put":   func(Store[value]) error { return nil },
		"again": func(s Store[value]) error { return putRecord(s, k1, Added, value{secret + " new"}) },
		"notes": func(s Store[value]) error {
			for range 2 * minCompact / len(secret) {
				if err := note(s, Record[value]{Key: k1, State: Added, Value: value{secret}}); err != nil {
					return err
				}
			}
			return nil
		},
		"a crash": func(s Store[value]) error {
			return os.WriteFile(filepath.Join(s.Dir, durable.TempPrefix+fileName(k1)), []byte(secret), 0o600)
		},
	} {
		s := newStore(t)
		put(t, s, k3, "another")
		put(t, s, k1, secret)
		ok(t, write(s))
		ok(t, detach(s, k1))
		put(t, s, k2, "later")
		for _, file := range tree(t, s.Dir) {
			data, err := os.ReadFile(filepath.Join(s.Dir, file))
			ok(t, err)
			if strings.Contains(string(data), secret) {
				t.Errorf("%s: %s has the secret", name, file)
			}
		}
		ok(t, detach(s, k2))
		if left := tree(t, s.Dir); !slices.Equal(left, []string{"c2@lock", fileName(k3)}) {
			t.Errorf("%s: left %q", name, left)
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
