package bounds

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

func TestDeeperCountsOpenBrackets(t *testing.T) {
	t.Parallel()
	nested := func(levels int) string { return strings.Repeat("[", levels) + strings.Repeat("]", levels) }
	for _, tt := range []struct {
		name, text string
		depth      int
		want       bool
	}{
		{"nothing", "", 0, false},
		{"a scalar", "1", 0, false},
		{"one level", "[]", 0, true},
		{"at the limit", nested(Depth), Depth, false},
		{"above the limit", nested(Depth + 1), Depth, true},
		{"side by side", `{"a":[[]],"b":[[]]}`, 3, false},
		{"brackets in a string", `{"a":"[[[[\"[[\\"}`, 1, false},
		{"after a string", `["\\",[[]]]`, 2, true},
		{"not JSON", `]]][[[`, 0, false},
		{"a string without an end", `["[[\`, 1, false},
	} {
		if got := Deeper([]byte(tt.text), tt.depth); got != tt.want {
			t.Errorf("%s: Deeper = %t, want %t", tt.name, got, tt.want)
		}
	}
}

// A file without a size may be one of procfs, such as /proc/kmsg: reading it waits, or has effects.
func TestAFileWithoutASizeIsEmptyAndNotOpened(t *testing.T) {
	t.Parallel()
	if got, err := ReadFS(closed{fstest.MapFS{"empty": &fstest.MapFile{}}}, "empty", Network); err != nil || len(got) > 0 {
		t.Errorf("%q, %v", got, err)
	}
	dir := t.TempDir()
	if err := os.Symlink("/proc/kmsg", filepath.Join(dir, "10-log.conf")); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadFS(os.DirFS(dir), "10-log.conf", Network); len(got) > 0 {
		t.Errorf("%q, %v", got, err)
	}
}

// closed is a file system whose files cannot be opened.
type closed struct{ fstest.MapFS }

func (closed) Open(name string) (fs.File, error) { return nil, errors.New(name + " is opened") }
