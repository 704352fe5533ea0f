package scratch

import (
	"errors"
	"io/fs"

	"github.com/metacni/metacni/internal/durable"
)

// files is a Store without its type: what is done with a record's bytes.
type files struct {
	dir  string
	hook durable.Hook
}

const (
	// maxTries bounds how often a container's directory may vanish between
	// making it and writing in it, when others delete the container's other
	// records at the same time.
	maxTries = 100
	// A record file is written anew when notes have made it this large and
	// four times as large as the record.
	minCompact = 64 << 10
)

var errNoDir = errors.New("Store.Dir is empty")

func (f files) open() (*durable.Dir, error) {
	if f.dir == "" {
		return nil, errNoDir
	}
	return durable.OpenDir(f.dir, f.hook)
}

func (f files) make() (*durable.Dir, error) {
	if f.dir == "" {
		return nil, errNoDir
	}
	return durable.MakeDir(f.dir, f.hook)
}

// container opens a container's directory beside the store's.
func (f files) container(id string) (root, dir *durable.Dir, err error) {
	if root, err = f.open(); err != nil {
		return nil, nil, err
	}
	if dir, err = root.Open(dirName(id)); err != nil {
		root.Close()
		return nil, nil, err
	}
	return root, dir, nil
}

func (f files) replace(k Key, line []byte) error {
	for try := 1; ; try++ {
		err := f.tryReplace(k, line)
		if !errors.Is(err, fs.ErrNotExist) || try == maxTries {
			return err
		}
	}
}

func (f files) tryReplace(k Key, line []byte) error {
	root, err := f.make()
	if err != nil {
		return err
	}
	defer root.Close()
	name := dirName(k.ContainerID)
	made := true
	if err := root.Mkdir(name); errors.Is(err, fs.ErrExist) {
		made = false
	} else if err != nil {
		return err
	}
	dir, err := root.Open(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	found := false
	if !made {
		if err := notQuarantined(dir, k); err != nil {
			return err
		}
		_, err := dir.Stat(fileName(k))
		found = err == nil
	}
	if err := dir.WriteFile(fileName(k), line); err != nil {
		if made {
			_ = root.Rmdir(name) // the first error says more
		}
		return err
	}
	if found {
		return nil
	}
	// Also when the directory was there: who made it may have died before this.
	return root.Sync()
}

// notQuarantined returns ErrCorrupt when k's record has been set aside.
func notQuarantined(dir *durable.Dir, k Key) error {
	_, err := dir.Stat(corruptName(k))
	if err == nil {
		return &fs.PathError{Op: "set aside", Path: dir.Path(corruptName(k)), Err: ErrCorrupt}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// missing turns the absence of k's record into ErrCorrupt where that is why it
// is absent.
func missing(dir *durable.Dir, k Key, err error) error {
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if qerr := notQuarantined(dir, k); qerr != nil {
		return qerr
	}
	return err
}

func (f files) note(k Key, line []byte) error {
	root, dir, err := f.container(k.ContainerID)
	if err != nil {
		return err
	}
	defer root.Close()
	defer dir.Close()
	// The newline ends what a crash may have left of a line.
	done, err := dir.Append(fileName(k), append([]byte{'\n'}, line...), max(minCompact, 4*int64(len(line))))
	if err != nil {
		return missing(dir, k, err)
	}
	if done {
		return nil
	}
	return dir.WriteFile(fileName(k), line)
}

func (f files) get(k Key, parse func([]byte) error) error {
	root, dir, err := f.container(k.ContainerID)
	if err != nil {
		return err
	}
	defer root.Close()
	defer dir.Close()
	return missing(dir, k, load(dir, k, parse))
}

// load reads k's record and sets it aside when parse, or the file itself, says
// that it is damaged.
func load(dir *durable.Dir, k Key, parse func([]byte) error) error {
	name := fileName(k)
	for try := 1; ; try++ {
		data, id, err := dir.ReadFile(name, maxFile)
		switch {
		case err == nil:
			err = parse(data)
		case errors.Is(err, durable.ErrNotRegular), errors.Is(err, durable.ErrTooLarge):
			err = corrupt(err)
		}
		if !errors.Is(err, ErrCorrupt) {
			return err
		}
		now, serr := dir.Stat(name)
		gone := errors.Is(serr, fs.ErrNotExist)
		replaced := serr == nil && id != durable.ID{} && now.ID != id
		if try < maxTries && (gone || replaced) {
			continue // it is not what we have read any more
		}
		if rerr := dir.Rename(name, corruptName(k)); rerr != nil {
			return &fs.PathError{Op: "read", Path: dir.Path(name), Err: errors.Join(err, rerr)}
		}
		return &fs.PathError{Op: "read", Path: dir.Path(corruptName(k)), Err: err}
	}
}

// remove deletes k's record, its damaged record too when damaged is set, and
// the container's directory when nothing else is in it.
func (f files) remove(k Key, damaged bool) error {
	root, dir, err := f.container(k.ContainerID)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	defer dir.Close()
	if err := unlink(dir, fileName(k)); err != nil {
		return err
	}
	if damaged {
		if err := unlinkAny(dir, corruptName(k)); err != nil {
			return err
		}
	}
	return tidy(root, dir, dirName(k.ContainerID))
}

func unlink(dir *durable.Dir, name string) error {
	if err := dir.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// unlinkAny is unlink for what somebody else may have put there, a directory.
func unlinkAny(dir *durable.Dir, name string) error {
	info, err := dir.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && info.IsDir {
		return dir.Rmdir(name)
	}
	return unlink(dir, name)
}

// tidy removes a container's directory unless it holds anything but temporary
// files. If one of those is being written at the moment, its writer begins
// again.
func tidy(root, dir *durable.Dir, name string) error {
	err := root.Rmdir(name)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	names, err := dir.Names()
	if err != nil {
		return err
	}
	for _, n := range names {
		if !durable.IsTemp(n) {
			return nil
		}
	}
	for _, n := range names {
		if err := unlink(dir, n); err != nil {
			return err
		}
	}
	err = root.Rmdir(name)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) {
		return nil // somebody writes in it again, or was faster
	}
	return err
}
