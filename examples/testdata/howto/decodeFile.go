package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFileIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mine.json")
	if err := os.WriteFile(file, []byte(`{"mtu":"big"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := decodeFile[struct{ MTU int }](file); err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "mtu") {
		t.Error(err)
	}
}
