package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
)

// A configuration file that is not a regular file is refused at once, with its path. A
// link to a regular file, as in a mounted ConfigMap, is read.
func TestConfigurationFileMustBeARegularFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, link, fifo := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	nodetest.OK(t, errors.Join(os.WriteFile(file, []byte(`{}`), 0o600), os.Symlink("file", link), syscall.Mkfifo(fifo, 0o600)))
	for _, path := range []string{file, link} {
		if _, err := readConfig([]string{"--config", path}, "/absent", nil); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, path := range []string{fifo, dir, os.DevNull} {
		_, err := readConfig([]string{"--config", path}, "/absent", nil)
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s: %v", path, err)
		}
	}
	absent := filepath.Join(dir, "absent")
	if _, err := readConfig([]string{"--config", absent}, "/absent", nil); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), absent) {
		t.Error(err)
	}
}
