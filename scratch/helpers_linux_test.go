package scratch

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

var (
	k2 = Key{Network: "net", ContainerID: "c1", IfName: "net1"}
	k3 = Key{Network: "other", ContainerID: "c2", IfName: "eth0"}
)

func newStore(t *testing.T) Store[value] {
	t.Helper()
	return Store[value]{Dir: t.TempDir()}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// under calls f with the lock of a container.
func under[T any](s Store[T], id string, f func(*Lock) error) error {
	l, err := s.Lock(context.Background(), id)
	if err != nil {
		return err
	}
	return errors.Join(f(l), l.Unlock())
}

func putRecord[T any](s Store[T], k Key, st State, v T) error {
	return update(s, Record[T]{Key: k, State: st, Value: v})
}

func update[T any](s Store[T], r Record[T]) error {
	return under(s, r.Key.ContainerID, func(l *Lock) error { return s.Put(l, r) })
}

func note[T any](s Store[T], r Record[T]) error {
	return under(s, r.Key.ContainerID, func(l *Lock) error { return s.Note(l, r) })
}

func del[T any](s Store[T], k Key) error {
	return under(s, k.ContainerID, func(l *Lock) error { return s.Delete(l, k) })
}

func forget[T any](s Store[T], k Key) error {
	return under(s, k.ContainerID, func(l *Lock) error { return s.Forget(l, k) })
}

func put(t *testing.T, s Store[value], k Key, text string) {
	t.Helper()
	ok(t, putRecord(s, k, Planned, value{text}))
}

// text is what is stored under k, or the name of the error.
func text(s Store[value], k Key) string {
	r, err := s.Get(k)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "none"
	case errors.Is(err, ErrCorrupt):
		return "corrupt"
	case errors.Is(err, ErrVersion):
		return "version"
	case err != nil:
		return err.Error()
	}
	return string(r.State) + " " + r.Value.Text
}

// damaged returns the keys that List has of damaged records, and its other
// errors.
func damaged[T any](ctx context.Context, s Store[T]) (keys []Key, err error) {
	for _, rerr := range s.List(ctx) {
		if e := (*Error)(nil); errors.Is(rerr, ErrCorrupt) && errors.As(rerr, &e) {
			keys = append(keys, e.Key)
		} else {
			err = errors.Join(err, rerr)
		}
	}
	return keys, err
}

// tree lists what is under dir.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	ok(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if path != dir {
			all = append(all, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	}))
	return all
}

func code(err error) uint {
	var c interface{ CNICode() uint }
	if errors.As(err, &c) {
		return c.CNICode()
	}
	return 0
}
