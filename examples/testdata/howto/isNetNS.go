package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/metacni/metacni/ifname"
)

func TestIsNetNS(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := isNetNS(file); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := isNetNS(file); !errors.Is(err, ifname.ErrNetNS) {
		t.Error(err)
	}
	if err := isNetNS("/proc/self/ns/net"); errors.Is(err, ifname.ErrNetNS) { // it may need rights
		t.Error(err)
	}
}
