package publish

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// programMode is the mode of a program that everybody may run.
const programMode = 0o755

// Program copies the program at path to target. The file at target is complete at
// every moment, and may be running. Program removes what a crash has left, and tries again
// if a concurrent installation has taken its temporary file for that.
func Program(path, target string) error {
	program, err := os.ReadFile(path)
	if err == nil {
		err = removeTemporaries(target)
	}
	if err == nil {
		err = rewrite(target, program)
		for again := 0; again < 10 && errors.Is(err, fs.ErrNotExist); again++ {
			err = rewrite(target, program)
		}
	}
	if err != nil {
		return fmt.Errorf("copy the program to %q: %w", target, err)
	}
	return nil
}

// rewrite writes program to a temporary file, syncs and renames it to target.
func rewrite(target string, program []byte) error {
	temp, err := os.CreateTemp(filepath.Dir(target), temporary(target)+"*")
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
		_ = os.Remove(temp.Name()) // the first error says more
		return err
	}
	dir, err := os.Open(filepath.Dir(target))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
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
func removeTemporaries(target string) (err error) {
	dir := filepath.Dir(target)
	left, _ := fs.Glob(os.DirFS(dir), temporary(target)+"*") // the pattern is right
	for _, name := range left {
		if e := os.Remove(filepath.Join(dir, name)); !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}
