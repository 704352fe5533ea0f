package autoconf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/flock"
	"github.com/metacni/metacni/internal/inroot"
)

// lock takes the lock on the file at path in root, which it makes with its directory,
// without waiting. It is held until [flock.Release], or the end of the process. If someone else
// has it, lock fails with [ErrLocked] and what that program has said.
func lock(root, path, says string) (*os.File, error) {
	path, err := inroot.Resolve(root, path)
	if err != nil {
		return nil, err
	}
	// Not the directories above it: the one of configurations is for others to
	// make, who know its mode.
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	d, err := durable.OpenDir(filepath.Dir(path), nil)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	f, err := d.OpenFile(filepath.Base(path))
	if err != nil {
		return nil, err
	}
	held, err := flock.TryFile(f)
	if err != nil {
		return nil, err
	}
	if !held {
		if who, err := os.ReadFile(path); err == nil && len(who) > 0 {
			return nil, because{ErrLocked, errors.New(strings.TrimSpace(string(who)))}
		}
		return nil, ErrLocked
	}
	// It is for the error of another, who locks meanwhile, perhaps in another container, where the
	// number alone means another process. Nothing depends on it.
	host, _ := os.Hostname()
	_ = f.Truncate(0)
	_, _ = f.WriteAt(fmt.Appendf(nil, "%s, process %d on host %s, which %s\n", filepath.Base(os.Args[0]), os.Getpid(), host, says), 0)
	return f, nil
}
