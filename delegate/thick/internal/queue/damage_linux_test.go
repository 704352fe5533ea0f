package queue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/nodetest"
)

// Whichever byte is changed, and wherever the file ends, what it says is done
// as it was written, or not at all.
func TestDamageAtEveryByte(t *testing.T) {
	t.Parallel()
	name, data, err := encode(request("c1"))
	nodetest.OK(t, err)
	for n := range data {
		if _, err := decode(name, data[:n]); err == nil {
			t.Errorf("%d of %d bytes", n, len(data))
		}
		for _, flip := range []byte{1, 2, 4, 8, 16, 32, 64, 128, 255, data[n], data[n] ^ '\n'} {
			if flip == 0 {
				continue
			}
			damaged := bytes.Clone(data)
			damaged[n] ^= flip
			if r, err := decode(name, damaged); err == nil {
				t.Errorf("byte %d ^ %#x: %v", n, flip, r)
			}
		}
	}
	if _, err := decode(name, append(bytes.Clone(data), '\n')); err == nil {
		t.Error("one byte more")
	}
	for _, text := range []string{"", "null", "{}", "[1]", string(data[sumLen:]), head([]byte("{null")) + "null", head([]byte(`{]`)) + "]"} {
		if _, err := decode(name, []byte(text)); err == nil {
			t.Errorf("%q", text)
		}
	}
}

// A damaged file is set aside, told of until somebody removes it, and stops no
// other.
func TestDamagedFiles(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(path string) error{
		"empty":     func(p string) error { return os.Truncate(p, 0) },
		"cut off":   func(p string) error { return os.Truncate(p, 90) },
		"zeros":     func(p string) error { return os.WriteFile(p, make([]byte, 300), 0o600) },
		"too large": func(p string) error { return os.Truncate(p, maxFile+1) },
		"directory": func(p string) error { return errors.Join(os.Remove(p), os.Mkdir(p, 0o700)) },
		"link": func(p string) error {
			return errors.Join(os.Rename(p, filepath.Join(p, "../../x")), os.Symlink("../x", p))
		},
		"pipe": func(p string) error { return errors.Join(os.Remove(p), unix.Mkfifo(p, 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := marked(t)
			bad := fill(t, dir, 3)[1]
			nodetest.OK(t, damage(filepath.Join(dir, bad)))
			aside := damagedName(bad)
			for i, want := range []int{2, 0, 0} {
				n := 0
				left, err := pass(t.Context(), dir, func(context.Context, wire.Request) error { n++; return nil })
				if left != 0 || n != want || !errors.Is(err, ErrDamaged) || code(t, err) != 5 || !strings.Contains(err.Error(), aside) {
					t.Errorf("time %d: %d done, %d left, %v", i, n, left, err)
				}
			}
			if names := entries(t, dir); !slices.Contains(names, aside) || slices.Contains(names, bad) {
				t.Errorf("%q", names)
			}
			nodetest.OK(t, os.Remove(filepath.Join(dir, aside)))
			if left, err := pass(t.Context(), dir, done); left != 0 || err != nil {
				t.Error(left, err)
			}
		})
	}
}

// A disk that damages everything fills neither the queue nor itself, and nothing
// of what it has damaged is deleted.
func TestDamagedFilesAreBounded(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	for i := range Cap + maxDamaged {
		nodetest.OK(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%064x%s", i, entrySuffix)), nil, 0o600))
	}
	left, err := pass(t.Context(), dir, done)
	if left != 0 || !errors.Is(err, ErrDamaged) {
		t.Error(left, err)
	}
	if names := entries(t, dir); len(names) != Cap+maxDamaged || slices.ContainsFunc(names, isEntry) {
		t.Errorf("%d: %q", len(names), names)
	}
	if err := In(dir).Put(t.Context(), request("c1"), away); !errors.Is(err, ErrFull) {
		t.Error(err)
	}
	nodetest.OK(t, os.Remove(filepath.Join(dir, damagedName(fmt.Sprintf("%064x", 7)))))
	nodetest.OK(t, In(dir).Put(t.Context(), request("c1"), away))
	left, err = pass(t.Context(), dir, done)
	if left != 0 || !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "and 311 more") {
		t.Error(left, err)
	}
}

// What is not the queue's own is left alone and told of. What a dead writer left
// is removed.
func TestForeignFiles(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	fill(t, dir, 1)
	foreign := []string{"README", "x.json", strings.Repeat("g", 64) + ".json", strings.Repeat("0", 64), strings.Repeat("0", 64) + ".json~"}
	for _, name := range append(foreign, durable.TempPrefix+"1") {
		nodetest.OK(t, os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600))
	}
	if _, odd, err := In(dir).List(t.Context()); !errors.Is(odd, ErrForeign) || !strings.Contains(odd.Error(), `"README"`) || err != nil {
		t.Error(odd, err)
	}
	if got := containers(t, dir); len(got) != 1 {
		t.Error(got)
	}
	slices.Sort(foreign)
	nodetest.Equal(t, "got", entries(t, dir), foreign)
}

// A file of a later version stays as it is, for a daemon of that version. It is
// told of and not done.
func TestFilesOfAnotherVersion(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	name := fill(t, dir, 1)[0]
	for _, text := range []string{"{}", `{"version":2,"del":{"container":"c1"}}`} {
		nodetest.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		left, err := pass(t.Context(), dir, func(context.Context, wire.Request) error { t.Error("done"); return nil })
		if left != 1 || !errors.Is(err, ErrVersion) || code(t, err) != 5 {
			t.Error(left, err)
		}
		if data, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(data) != text {
			t.Errorf("%q, %v", data, err)
		}
		if owed, err := In(dir).Has(name); !owed || err != nil {
			t.Error(owed, err)
		}
	}
	// A shim that knows its own version only does not take it for a DEL that
	// will be done.
	nodetest.OK(t, In(dir).Put(t.Context(), request("c0"), away))
	if got := containers(t, dir); !slices.Equal(got, []string{"c0"}) {
		t.Error(got)
	}
}

// A request is not done under the name of another attachment's: an ADD of that
// one would wait for the wrong file, and an ADD of its own would not wait.
func TestFileOfAnotherName(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	names := fill(t, dir, 2)
	nodetest.OK(t, os.Rename(filepath.Join(dir, names[0]), filepath.Join(dir, names[1])))
	left, err := pass(t.Context(), dir, func(context.Context, wire.Request) error { t.Error("done"); return nil })
	if left != 0 || !errors.Is(err, ErrDamaged) {
		t.Error(left, err)
	}
}
