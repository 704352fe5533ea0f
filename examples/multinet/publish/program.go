package publish

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/metacni/metacni/internal/durable"
)

// programMode is the mode of a program that everybody may run.
const programMode = 0o755

// Program copies the program at path to target. The file at target is complete at
// every moment, and may be running. It is not written if it is a copy already.
func Program(path, target string) error {
	program, err := os.ReadFile(path)
	if err == nil && !isCopy(program, target) {
		err = replace(target, program)
	}
	if err != nil {
		return fmt.Errorf("copy the program to %q: %w", target, err)
	}
	return nil
}

// isCopy reports whether the file at target is program, and can be run.
func isCopy(program []byte, target string) bool {
	info, err := os.Lstat(target)
	if err != nil || info.Mode() != programMode {
		return false
	}
	there, err := os.ReadFile(target)
	return err == nil && bytes.Equal(there, program)
}

// replace replaces the file at target by program.
func replace(target string, program []byte) error {
	d, err := durable.OpenDir(filepath.Dir(target), nil)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := removeTemporaries(target); err != nil {
		return err
	}
	name := filepath.Base(target)
	for again := 0; ; again++ {
		err := d.Replace(temporary(target)+strconv.FormatUint(rand.Uint64(), 16), name, program, programMode)
		// A concurrent installation may take the temporary file for a leftover and
		// remove it.
		if again == 10 || !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
}

// RemoveProgram removes the program at target, if it is there.
func RemoveProgram(target string) error {
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return removeTemporaries(target)
}

// temporary is how the names of temporary files for target begin.
func temporary(target string) string { return "." + filepath.Base(target) + ".tmp-" }

// removeTemporaries removes temporary files that a crash has left.
func removeTemporaries(target string) error {
	entries, err := os.ReadDir(filepath.Dir(target))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), temporary(target)) {
			continue
		}
		if e := os.Remove(filepath.Join(filepath.Dir(target), entry.Name())); !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}
