package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/metacni/metacni/delegate/delegatetest"
)

// The executable does as well.
func TestConformBinary(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts some hundred processes")
	}
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "flannel") // see TestMain
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	delegatetest.Conform(t, delegatetest.Binary{
		Path: path, Env: []string{"GOCOVERDIR=" + dir, "GORACE=atexit_sleep_ms=0"}, // for a test binary that is measured
	}, conformConfig)
}
