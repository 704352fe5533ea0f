package bounded

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestReadFileReadsRegularFilesOfABoundedSize(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := errors.Join(os.WriteFile(file, []byte("text"), 0o600), os.Symlink("file", filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"file", "link"} {
		if got, err := ReadFile(filepath.Join(dir, name)); err != nil || string(got) != "text" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if _, err := ReadFile(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	for size, ok := range map[int64]bool{limit: true, limit + 1: false} {
		if err := os.Truncate(file, size); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadFile(file); (err == nil) != ok || ok && int64(len(got)) != size {
			t.Errorf("%d bytes: %d, %v", size, len(got), err)
		}
	}
	for _, path := range []string{dir, os.DevNull} {
		if got, err := ReadFile(path); err == nil || !bytes.Equal(got, nil) {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
}

// A file without a size may be one of procfs, such as /proc/kmsg: reading it waits, or has effects.
func TestAFileWithoutASizeIsEmptyAndNotOpened(t *testing.T) {
	t.Parallel()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/proc/kmsg", link); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadFile(link); err != nil || len(got) > 0 {
		t.Errorf("%q, %v", got, err)
	}
}
