package publish

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// programMode is the mode of a program that everybody may run.
const programMode = 0o755

// Program copies the program at path to target. The file at target is complete at
// every moment, and may be running. It is not written if it is a copy already.
func Program(path, target string) error {
	program, err := os.ReadFile(path)
	if err == nil && !isCopy(program, target) {
		err = removeTemporaries(target)
		// A concurrent installation may take the temporary file for a leftover and
		// remove it.
		err = errors.Join(err, replace(target, program))
		for again := 0; errors.Is(err, fs.ErrNotExist) && again < 10; again++ {
			err = replace(target, program)
		}
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
	dir, prefix := temporaries(target)
	temp, err := os.CreateTemp(dir, prefix+"*")
	if err != nil {
		return err
	}
	_, err = temp.Write(program)
	// It is closed before it has its name, so that it can be run.
	err = errors.Join(err, temp.Chmod(programMode), temp.Sync(), temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), target)
	}
	if err != nil {
		return errors.Join(err, remove(temp.Name()))
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// RemoveProgram removes the program at target, if it is there.
func RemoveProgram(target string) error {
	if err := remove(target); err != nil {
		return err
	}
	return removeTemporaries(target)
}

// remove removes a file, if it is there.
func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// temporaries returns the directory and the name prefix of temporary files for target.
func temporaries(target string) (dir, prefix string) {
	return filepath.Dir(target), "." + filepath.Base(target) + ".tmp-"
}

// removeTemporaries removes temporary files that a crash has left.
func removeTemporaries(target string) error {
	dir, prefix := temporaries(target)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), prefix) {
			err = errors.Join(err, remove(filepath.Join(dir, entry.Name())))
		}
	}
	return err
}
