package lifecycle

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/metacni/metacni/internal/inroot"
)

// removeFiles removes what a record or an attachment leaves in the file system. It
// ignores files that do not exist.
func (m *Manager) removeFiles(paths []string) error {
	var errs []error
	for _, path := range paths {
		if err := m.inDir(path, os.Remove); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// inDir calls do with a path to the file at path in Root. It opens only the
// directory, so that a symbolic link at path is not followed.
func (m *Manager) inDir(path string, do func(path string) error) error {
	return inroot.With(m.Root, filepath.Dir(path), func(dir string) error {
		return do(filepath.Join(dir, filepath.Base(path)))
	})
}

// lstat is [os.Lstat] of the file at path in Root.
func (m *Manager) lstat(path string) (info fs.FileInfo, err error) {
	err = m.inDir(path, func(path string) error {
		info, err = os.Lstat(path)
		return err
	})
	return info, err
}

func (m *Manager) missing(path string) bool {
	_, err := m.lstat(path)
	return err != nil
}
