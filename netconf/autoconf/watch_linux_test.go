package autoconf

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A directory is watched again when its watch has ended, or when its path leads
// to another directory.
func TestWatchIsMadeAgain(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(w *watcher, dir string) error{
		"ended by the system": func(w *watcher, dir string) error { return w.inner.Remove(dir) },
		"replaced with its parent": func(_ *watcher, dir string) error {
			parent := filepath.Dir(dir)
			if err := os.Rename(parent, parent+".old"); err != nil {
				return err
			}
			return os.MkdirAll(dir, 0o700)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "etc", "net.d")
			ok(t, os.MkdirAll(dir, 0o700))
			w := newWatcher()
			defer w.Close()
			want := watched{}
			want.at(dir).all = true
			for i, change := range []bool{true, false} {
				if changed, err := w.Watch(want, ""); changed != change || err != nil {
					t.Errorf("time %d: %v, %v", i, changed, err)
				}
			}
			ok(t, lose(w, dir))
			if changed, err := w.Watch(want, ""); !changed || err != nil {
				t.Errorf("after the loss: %v, %v", changed, err)
			}
			for len(w.happened) > 0 {
				<-w.happened
			}
			put(t, dir, "10-x.conf", "")
			select {
			case <-w.Happened():
			case <-time.After(30 * time.Second):
				t.Error("not noticed")
			}
		})
	}
}
