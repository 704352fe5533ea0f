//go:build !linux

package durable

import (
	"errors"
	"io/fs"
	"os"
)

// A Dir is an open directory. There is none on this system: [OpenDir] and
// [MakeDir] answer [errors.ErrUnsupported], and so do all methods.
type Dir struct{}

// OpenDir returns [errors.ErrUnsupported].
func OpenDir(string, Hook) (*Dir, error) { return nil, errors.ErrUnsupported }

// MakeDir returns [errors.ErrUnsupported].
func MakeDir(string, Hook) (*Dir, error) { return nil, errors.ErrUnsupported }

// Close does nothing.
func (d *Dir) Close() {}

// Path returns name.
func (d *Dir) Path(name string) string { return name }

// Rmdir returns [errors.ErrUnsupported].
func (d *Dir) Rmdir(string) error { return errors.ErrUnsupported }

// Remove returns [errors.ErrUnsupported].
func (d *Dir) Remove(string) error { return errors.ErrUnsupported }

// Rename returns [errors.ErrUnsupported].
func (d *Dir) Rename(string, string) error { return errors.ErrUnsupported }

// Sync returns [errors.ErrUnsupported].
func (d *Dir) Sync() error { return errors.ErrUnsupported }

// Stat returns [errors.ErrUnsupported].
func (d *Dir) Stat(string) (Info, error) { return Info{}, errors.ErrUnsupported }

// Names returns [errors.ErrUnsupported].
func (d *Dir) Names() ([]string, error) { return nil, errors.ErrUnsupported }

// NamesWith returns [errors.ErrUnsupported].
func (d *Dir) NamesWith(...string) ([]string, error) { return nil, errors.ErrUnsupported }

// OpenFile returns [errors.ErrUnsupported].
func (d *Dir) OpenFile(string) (*os.File, error) { return nil, errors.ErrUnsupported }

// WriteFile returns [errors.ErrUnsupported].
func (d *Dir) WriteFile(string, []byte) error { return errors.ErrUnsupported }

// Replace returns [errors.ErrUnsupported].
func (d *Dir) Replace(string, string, []byte, uint32) error { return errors.ErrUnsupported }

// Append returns [errors.ErrUnsupported].
func (d *Dir) Append(string, []byte, int64) (bool, error) { return false, errors.ErrUnsupported }

// Flock returns [errors.ErrUnsupported].
func (d *Dir) Flock(bool) (bool, error) { return false, errors.ErrUnsupported }

// Unflock returns [errors.ErrUnsupported].
func (d *Dir) Unflock() error { return errors.ErrUnsupported }

// OpenLock returns [errors.ErrUnsupported].
func (d *Dir) OpenLock(string) (int, ID, error) { return -1, ID{}, errors.ErrUnsupported }

// TryWrite returns [errors.ErrUnsupported].
func (d *Dir) TryWrite() error { return errors.ErrUnsupported }

// ReadFile returns [errors.ErrUnsupported].
func (d *Dir) ReadFile(string, int64) ([]byte, error) { return nil, errors.ErrUnsupported }

// Trusted returns [errors.ErrUnsupported].
func Trusted(fs.FileInfo) error { return errors.ErrUnsupported }

// Dup returns nil.
func Dup(int, string) *os.File { return nil }

// Close does nothing.
func Close(int) {}
