package scratch

import (
	"errors"
	"io/fs"
	"syscall"

	"github.com/metacni/metacni/internal/durable"
)

// minCompact is the size from which a record is written to a new file when notes
// have made it four times as large as the record.
const minCompact = 64 << 10

var errNoDir = errors.New("Store.Dir is empty")

// open opens the directory with [durable.OpenDir] or [durable.MakeDir].
func (s Store[T]) open(how func(string, durable.Hook) (*durable.Dir, error)) (*durable.Dir, error) {
	switch {
	case s.Dir == "":
		return nil, errNoDir
	case s.hook == nil:
		return how(s.Dir, nil)
	}
	return how(s.Dir, *s.hook)
}

// load reads k's record in the file name. It needs no lock: a file is replaced as a whole,
// and what is appended to it is ignored until it is complete. k may come from the name.
func load[T any](dir *durable.Dir, name string, k Key) (r Record[T], err error) {
	data, err := dir.ReadFile(name, maxFile)
	switch {
	case err == nil:
		r, err = decode[T](data, k)
	case errors.Is(err, durable.ErrNotRegular), errors.Is(err, durable.ErrTooLarge):
		err = corrupt(err)
	}
	if p := (*fs.PathError)(nil); err != nil && !errors.As(err, &p) {
		err = &fs.PathError{Op: "read", Path: dir.Path(name), Err: err}
	}
	return r, err
}

// read returns the record of k, which l knows from then on.
func (s Store[T]) read(l *Lock, k Key) (Record[T], error) {
	r, err := load[T](l.root, fileName(k), k)
	if err == nil {
		l.known[fileName(k)] = max(minCompact, l.known[fileName(k)])
	}
	return r, err
}

// found fails if there is no whole record of r's key. It sets a zero Created to that of the record,
// which it reads only for this, or if l does not know it.
func (s Store[T]) found(l *Lock, r *Record[T]) error {
	if !r.Created.IsZero() && l.known[fileName(r.Key)] > 0 {
		return nil
	}
	old, err := s.read(l, r.Key)
	if r.Created.IsZero() {
		r.Created = old.Created
	}
	return err
}

// note appends text, a line, to the record of r, or writes the whole of r in its place when
// the file has grown too long or has other names.
func (s Store[T]) note(l *Lock, r Record[T], text []byte) error {
	name := fileName(r.Key)
	text = append([]byte{'\n'}, text...) // which ends what a crash may have left of a line
	limit := l.known[name]
	done, err := l.root.Append(name, text, limit)
	if done {
		return nil
	}
	delete(l.known, name)
	if err != nil {
		return err
	}
	whole, err := encode(r)
	if err != nil {
		return err
	}
	if more := noteLimit(whole); more > limit {
		if done, err = l.root.Append(name, text, more); done {
			l.known[name] = more
		}
		if done || err != nil {
			return err
		}
	}
	return l.replace(name, whole)
}

// noteLimit returns how large notes may make the file of a record with the line whole.
// Up to maxLine, no record is larger than its file.
func noteLimit(whole []byte) int64 { return max(minCompact, min(4*int64(len(whole)), maxLine)) }

// replace writes text, a line, as the record in the file name, whatever is there.
func (l *Lock) replace(name string, text []byte) error {
	delete(l.known, name)             // until it has succeeded
	temp := durable.TempPrefix + name // which remove finds
	err := l.root.Replace(temp, name, text, 0o600)
	if errors.Is(err, fs.ErrExist) {
		// Whoever wrote to it is dead: nobody else has the lock.
		if err = l.root.Remove(temp); err == nil {
			err = l.root.Replace(temp, name, text, 0o600)
		}
	}
	if err == nil {
		l.known[name] = noteLimit(text)
	}
	return err
}

// remove removes the record in the file name, and what a Put that was killed has left.
func (l *Lock) remove(name string) error {
	delete(l.known, name)
	for _, name := range []string{durable.TempPrefix + name, name} {
		err := l.root.Remove(name)
		if errors.Is(err, syscall.EISDIR) {
			err = l.root.Rmdir(name)
		}
		if err := gone(err); err != nil {
			return err
		}
	}
	return nil
}

// gone passes over the absence of what was to be removed.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
