package publish

import (
	"bytes"
	"errors"
	"fmt"
	"io"
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
	if err := copyTo(path, target); err != nil {
		return fmt.Errorf("copy the program to %q: %w", target, err)
	}
	return nil
}

func copyTo(path, target string) error {
	from, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	if same, err := isCopy(from, target); same || err != nil {
		return err
	}
	if err := removeTemporaries(target); err != nil {
		return err
	}
	// A concurrent installation may take the temporary file for a leftover and
	// remove it.
	for range 10 {
		if err = replace(target, from); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return err
}

// replace replaces the file at target by a copy of from.
func replace(target string, from *os.File) error {
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return err
	}
	dir, prefix := temporaries(target)
	temp, err := os.CreateTemp(dir, prefix+"*")
	if err != nil {
		return err
	}
	if err = fill(temp, from); err == nil {
		// It is closed, so that it can be run.
		err = os.Rename(temp.Name(), target)
	}
	if err != nil {
		return errors.Join(err, ignore(os.Remove(temp.Name()), fs.ErrNotExist))
	}
	return syncDir(dir)
}

// isCopy reports whether the file at target is a copy of from that can be run. It
// leaves from at its beginning.
func isCopy(from *os.File, target string) (bool, error) {
	ours, err := from.Stat()
	if err != nil {
		return false, err
	}
	theirs, err := os.Lstat(target)
	if err != nil || os.SameFile(ours, theirs) {
		return err == nil, ignore(err, fs.ErrNotExist)
	}
	if theirs.Mode() != programMode || theirs.Size() != ours.Size() {
		return false, nil
	}
	to, err := os.Open(target)
	if err != nil {
		return false, err
	}
	defer func() { _ = to.Close() }()
	a, b := make([]byte, 64<<10), make([]byte, 64<<10)
	for {
		n, err := io.ReadFull(from, a)
		m, _ := io.ReadFull(to, b) // a file that cannot be read is different
		ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		switch {
		case err != nil && !ended:
			return false, err
		case !bytes.Equal(a[:n], b[:m]):
			_, err = from.Seek(0, io.SeekStart)
			return false, err
		case ended:
			return true, nil
		}
	}
}

// ignore returns err unless it is expected.
func ignore(err, expected error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}

// fill copies from to to, makes it a program, waits for the disk and closes it.
func fill(to, from *os.File) error {
	_, err := io.Copy(to, from)
	if err == nil {
		err = to.Chmod(programMode)
	}
	if err == nil {
		err = to.Sync()
	}
	return errors.Join(err, to.Close())
}

// RemoveProgram removes the program at target, if it is there.
func RemoveProgram(target string) error {
	err := ignore(os.Remove(target), fs.ErrNotExist)
	if err == nil {
		err = removeTemporaries(target)
	}
	return err
}

// temporaries returns the directory and the name prefix of temporary files for target.
func temporaries(target string) (dir, prefix string) {
	return filepath.Dir(target), "." + filepath.Base(target) + ".tmp-"
}

// removeTemporaries removes temporary files that a crash has left.
func removeTemporaries(target string) error {
	dir, prefix := temporaries(target)
	entries, err := os.ReadDir(dir)
	err = ignore(err, fs.ErrNotExist)
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), prefix) {
			err = errors.Join(err, ignore(os.Remove(filepath.Join(dir, entry.Name())), fs.ErrNotExist))
		}
	}
	return err
}

// syncDir waits until changes of names in dir are on disk.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
