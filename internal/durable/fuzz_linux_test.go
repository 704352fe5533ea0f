package durable

import (
	"os"
	"path/filepath"
	"testing"
)

// Whatever the name, WriteFile writes in its directory or not at all.
func FuzzWriteFileName(f *testing.F) {
	for _, name := range []string{"f", "", ".", "..", "../f", "/f", "a/b", "a\x00b", "\xff", "..."} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		above := t.TempDir()
		dir := filepath.Join(above, "dir")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		d := open(t, dir, nil)
		err := d.WriteFile(name, []byte("x"))
		names, nerr := d.Names()
		if nerr != nil || err == nil && (len(names) != 1 || names[0] != name) || err != nil && len(names) != 0 {
			t.Errorf("%q: %v; in the directory: %q, %v", name, err, names, nerr)
		}
		if list, err := os.ReadDir(above); err != nil || len(list) != 1 {
			t.Errorf("%q: above the directory: %v, %v", name, list, err)
		}
	})
}
