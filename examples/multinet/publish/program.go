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

// programMode is that of a program everybody may run.
const programMode = 0o755

// Program makes the file at target a copy of the program at path, which is there
// whole at every moment. One that is a copy already is not written. The runtime
// may be running the old one meanwhile, and goes on with it.
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
	// Another who installs at this moment may take what is being written for
	// what a crash has left, once.
	for range 10 {
		if err = replace(target, from); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return err
}

// replace makes the file at target one that holds what from does.
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
		// Nobody has it open for writing any more: it can be run.
		err = os.Rename(temp.Name(), target)
	}
	if err != nil {
		return errors.Join(err, ignore(os.Remove(temp.Name()), fs.ErrNotExist))
	}
	return syncDir(dir)
}

// isCopy reports whether the file at target is what from holds, and can be run.
// It leaves from at its beginning.
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
		m, _ := io.ReadFull(to, b) // what cannot be read differs
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

// fill makes to, durably, a program of what from holds, and closes it.
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

// temporaries says how the files are called that become target.
func temporaries(target string) (dir, prefix string) {
	return filepath.Dir(target), "." + filepath.Base(target) + ".tmp-"
}

// removeTemporaries removes what a crash has left.
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

// syncDir makes a change of names in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
