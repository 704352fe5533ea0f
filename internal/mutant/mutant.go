// Package mutant shows what a line of the code is for: it compiles the code without that line.
// Tests that then still pass do not guard it.
package mutant

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// A Mutant is the code of this module with one change.
type Mutant struct {
	File string // below the root of the module
	Old  string // occurs there once
	New  string // "" takes Old out
}

// Overlay writes the changed file into dir, and returns the path of a file there for the
// flag -overlay of the go command. root is the root of the module.
func (m Mutant) Overlay(root, dir string) (string, error) {
	path, err := filepath.Abs(filepath.Join(root, m.File))
	if err != nil {
		return "", err
	}
	source, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(source), m.Old); n != 1 {
		return "", fmt.Errorf("%s has %d times, not once: %s", m.File, n, m.Old)
	}
	changed, overlay := filepath.Join(dir, "mutant.go"), filepath.Join(dir, "overlay.json")
	text, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(changed, []byte(strings.Replace(string(source), m.Old, m.New, 1)), 0o600); err != nil {
		return "", err
	}
	return overlay, os.WriteFile(overlay, text, 0o600)
}
