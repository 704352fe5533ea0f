package durable

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestWatch(t *testing.T) {
	t.Parallel()
	base := filepath.Join(t.TempDir(), "d")
	d, err := MakeDir(base, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	write(t, filepath.Join(base, "before"), "")
	w, err := d.Watch()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	changed := func(do func() error) []string {
		t.Helper()
		if err := do(); err != nil {
			t.Fatal(err)
		}
		names, all := w.Changed()
		if all {
			t.Fatal("all may have changed")
		}
		return names
	}
	for _, tt := range []struct {
		what string
		do   func() error
		want []string
	}{
		{"nothing", func() error { return nil }, nil},
		{"a file written", func() error { return d.WriteFile("a", []byte("x")) }, []string{"a"}},
		{"a file appended to", func() error { _, err := d.Overwrite("a", 1, []byte("y"), 100); return err }, []string{"a"}},
		{"a file read", func() error { _, _, err := d.ReadFile("a", 100); return err }, nil},
		{"a file renamed", func() error { return d.Rename("a", "b") }, []string{"a", "b"}},
		{"a file removed", func() error { return d.Remove("before") }, []string{"before"}},
		{"a directory made", func() error { return os.Mkdir(filepath.Join(base, "sub"), 0o700) }, []string{"sub"}},
		{"a file in it", func() error { return os.WriteFile(filepath.Join(base, "sub", "x"), nil, 0o600) }, nil},
	} {
		got := changed(tt.do)
		var names []string
		for _, name := range got {
			if !IsTemp(name) && (len(names) == 0 || names[len(names)-1] != name) {
				names = append(names, name)
			}
		}
		if diff := cmp.Diff(tt.want, names); diff != "" {
			t.Errorf("%s: %s", tt.what, diff)
		}
	}
	if err := os.RemoveAll(base); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if names, all := w.Changed(); !all {
			t.Errorf("in a directory that is gone: %q", names)
		}
	}
}

// Where there can be no watch the error is that of the system.
func TestWatchFails(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"inotify_init1", "inotify_add_watch"} {
		d, err := OpenDir(t.TempDir(), func(now, _ string) error {
			if now == call {
				return unix.EMFILE
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if w, err := d.Watch(); err == nil {
			w.Close()
			t.Errorf("no %s: it is watched", call)
		}
	}
}
