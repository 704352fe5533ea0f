package realhost

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Mounts makes the mounts of a host, on its thread: /run and /var/lib/cni are empty, except for the
// paths in keep.
func Mounts(keep []string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, dir := range []string{"/run", "/var/lib/cni"} {
		if err := cover(dir, keep); err != nil {
			return fmt.Errorf("mount an empty %s: %w", dir, err)
		}
	}
	for _, dir := range []string{nsDir, "/run/lock"} {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	// On most machines, /var/run is a link to /run.
	run, err := os.Stat("/run")
	if err != nil {
		return err
	}
	if old, err := os.Stat("/var/run"); err == nil && !os.SameFile(old, run) {
		if err := unix.Mount("/run", "/var/run", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mount /run over /var/run: %w", err)
		}
	}
	return nil
}

// cover mounts an empty file system over dir. The paths in keep that are in dir stay
// visible. If there is no dir, cover makes it, without making it on the machine: it covers
// the parent and keeps all that is in it.
func cover(dir string, keep []string) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		parent := filepath.Dir(dir)
		if parent == "/" {
			return err
		}
		entries, err := os.ReadDir(parent)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		var siblings []string
		for _, e := range entries {
			siblings = append(siblings, filepath.Join(parent, e.Name()))
		}
		if err := cover(parent, siblings); err != nil {
			return err
		}
		return os.Mkdir(dir, 0o755)
	}
	old, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = old.Close() }()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return err
	}
	for _, path := range keep {
		if in, ok := strings.CutPrefix(path, dir+"/"); ok {
			if err := restore(fmt.Sprintf("/proc/thread-self/fd/%d/%s", old.Fd(), in), path); err != nil {
				return fmt.Errorf("keep %s: %w", path, err)
			}
		}
	}
	return nil
}

// restore makes the covered file or directory old visible at path.
func restore(old, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	info, err := os.Lstat(old)
	if err != nil {
		return err
	}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(old)
		if err != nil {
			return err
		}
		return os.Symlink(target, path)
	case info.IsDir():
		err = os.MkdirAll(path, 0o755)
	default:
		err = os.WriteFile(path, nil, 0o600)
	}
	if err != nil {
		return err
	}
	return unix.Mount(old, path, "", unix.MS_BIND|unix.MS_REC, "")
}
