package scratch

import (
	"errors"
	"io/fs"
	"strings"

	"github.com/metacni/metacni/internal/durable"
)

// The former layout had a directory for each container, with a file
// NETWORK@IFNAME.json for each record, which was renamed to
// NETWORK@IFNAME.json.corrupt when it was found damaged. Whoever takes the
// container's lock moves them out, and until then, or where the file system is
// read-only, they are read where they are.

// inFormer calls f with the directory that k's container has in the former
// layout, and the name that k's record has there, without a suffix. Without
// the directory the error is fs.ErrNotExist.
func inFormer(root *durable.Dir, k Key, f func(dir *durable.Dir, base string) error) error {
	dir, err := root.Open(formerDir(k.ContainerID))
	if errors.Is(err, durable.ErrNotDir) {
		return &fs.PathError{Op: "open", Path: root.Path(formerDir(k.ContainerID)), Err: fs.ErrNotExist} // somebody else's file
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return f(dir, formerName(k))
}

func loadFormer(root *durable.Dir, k Key, parse parser) (end int64, err error) {
	err = inFormer(root, k, func(dir *durable.Dir, base string) error {
		end, err = load(dir, base+recordSuffix, parse)
		return missing(dir, base+corruptSuffix, err)
	})
	return end, err
}

func noteFormer(root *durable.Dir, k Key, whole func() ([]byte, error), parse parser) error {
	end, err := loadFormer(root, k, parse)
	if err != nil {
		return err
	}
	line, err := whole() // version 1 had no changes
	if err != nil {
		return err
	}
	return inFormer(root, k, func(dir *durable.Dir, base string) error {
		done, err := dir.Overwrite(base+recordSuffix, end, append([]byte{'\n'}, line...), max(minCompact, 4*int64(len(line))))
		if err != nil || done {
			return err
		}
		return dir.WriteFile(base+recordSuffix, line)
	})
}

func removeFormer(root *durable.Dir, k Key, parse parser) error {
	if _, err := loadFormer(root, k, parse); err != nil {
		return err
	}
	return inFormer(root, k, func(dir *durable.Dir, base string) error {
		if err := dir.Remove(base + recordSuffix); err != nil {
			return err
		}
		_ = root.Rmdir(formerDir(k.ContainerID)) // fails while there is another
		return nil
	})
}

// takeOver moves the container's records out of the former layout. While that
// fails l.former is set.
func (l *Lock) takeOver() error {
	if !l.former {
		return nil
	}
	name := formerDir(l.container)
	dir, err := l.root.Open(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, durable.ErrNotDir) {
		l.former = false
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Names()
	if err != nil {
		return err
	}
	records := 0
	for _, n := range names {
		if _, _, ok := parseRest(n, formerMaxPart); ok {
			records++
		}
	}
	if records > 0 {
		if err := l.grow(records); err != nil {
			return err
		}
	}
	for _, n := range names {
		if err := l.move(dir, n); err != nil {
			return err
		}
	}
	if records > 0 {
		if err := l.root.Sync(); err != nil {
			return err
		}
	}
	l.former = false
	_ = l.root.Rmdir(name) // fails while somebody else's files are in it
	return nil
}

// move moves one file out of a container's directory of the former layout.
func (l *Lock) move(dir *durable.Dir, name string) error {
	if durable.IsTemp(name) {
		return gone(dir.Remove(name))
	}
	k, damaged, ok := parseRest(name, formerMaxPart)
	if !ok {
		return nil
	}
	k.ContainerID = l.container
	to := fileName(k)
	if damaged {
		to = corruptName(k)
	}
	return gone(l.root.Move(dir, name, to))
}

// openFormer opens a container's directory of the former layout and returns
// the file names of the records in it. Where there is none dir is nil.
func openFormer(root *durable.Dir, name string) (names []string, dir *durable.Dir, err error) {
	dir, err = root.Open(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, durable.ErrNotDir) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	all, err := dir.Names()
	if err != nil {
		dir.Close()
		return nil, nil, err
	}
	for _, n := range all {
		if _, _, ok := parseRest(n, formerMaxPart); ok {
			names = append(names, n)
		}
	}
	return names, dir, nil
}

// isFormerDir reports whether name can be a container's directory in the
// former layout.
func isFormerDir(name string) bool {
	return !strings.Contains(name, "@") && storedName(name, formerMaxPart)
}
