package scratch

import (
	"bytes"
	"errors"
	"io/fs"
	"strings"

	"github.com/metacni/metacni/internal/durable"
)

// files is a Store without its type: what is done with a record's bytes.
type files struct {
	dir   string
	hook  durable.Hook
	value valuer // of the store's type
}

// A parser reads a record's file. Damage is ErrCorrupt.
type parser func(data []byte) error

// minCompact is the size from which a record is written to a new file when notes
// have made it four times as large as the record.
const minCompact = 64 << 10

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

// held calls f while l cannot be released. l must be the lock for k.
func (f files) held(l *Lock, k Key, do func() error) error {
	if err := l.begin(f.dir, k.ContainerID); err != nil {
		return err
	}
	defer l.end()
	return do()
}

// parser returns a parser for k's record that stores it in r unless that is nil.
func (f files) parser(k Key, r *stored) parser {
	return func(data []byte) error {
		got, err := decode(data, k, f.value)
		if r != nil {
			*r = got
		}
		return err
	}
}

func (f files) put(l *Lock, r stored) error {
	line, err := encode(r)
	if err != nil {
		return err
	}
	return f.held(l, r.Key, func() error { return l.put(r.Key, line, f.parser(r.Key, nil)) })
}

// note appends what encode makes of r, and writes all of r where it gets too
// long for that.
func (f files) note(l *Lock, r stored, encoded func(stored) ([]byte, error)) error {
	line, err := encoded(r)
	if err != nil {
		return err
	}
	whole := func() ([]byte, error) { return encode(r) }
	return f.held(l, r.Key, func() error { return l.note(r.Key, line, whole, f.parser(r.Key, nil)) })
}

func (f files) remove(l *Lock, k Key) error {
	if err := checkKey(k); err != nil {
		return err
	}
	return f.held(l, k, func() error { return l.remove(k, f.parser(k, nil)) })
}

func (f files) forget(l *Lock, k Key) error {
	if err := checkStoredKey(k); err != nil {
		return err
	}
	return f.held(l, k, func() error { return l.forget(k, onlyVersion(k)) })
}

// read reads k's record under its lock.
func (f files) read(l *Lock, k Key) (r stored, err error) {
	if err := checkKey(k); err != nil {
		return r, err
	}
	err = f.held(l, k, func() error { return l.read(k, f.parser(k, &r)) })
	return r, err
}

// get reads k's record without a lock.
func (f files) get(k Key) (r stored, err error) {
	if err := checkKey(k); err != nil {
		return r, err
	}
	root, err := f.open()
	if err != nil {
		return r, err
	}
	defer root.Close()
	_, err = load(root, fileName(k), f.parser(k, &r))
	return r, err
}

// load reads the record in the file name and returns where its text ends. It needs
// no lock: a file is replaced as a whole, and what is appended to it is ignored until
// it is complete.
func load(dir *durable.Dir, name string, parse parser) (end int64, err error) {
	data, _, err := dir.ReadFile(name, maxFile)
	switch {
	case err == nil:
		err = parse(data)
	case errors.Is(err, durable.ErrNotRegular), errors.Is(err, durable.ErrTooLarge):
		err = corrupt(err)
	}
	if err == nil {
		// With the newline that ends the last line, if it is there.
		return int64(min(len(bytes.TrimRight(data, "\n"))+1, len(data))), nil
	}
	if p := (*fs.PathError)(nil); !errors.As(err, &p) {
		err = &fs.PathError{Op: "read", Path: dir.Path(name), Err: err}
	}
	return 0, err
}

// put writes line as k's record, in place of one that parse accepts.
func (l *Lock) put(k Key, line []byte, parse parser) error {
	_, err := l.load(k, parse)
	if errors.Is(err, fs.ErrNotExist) {
		err = l.grow()
	}
	if err != nil {
		return err
	}
	return l.replace(k, line)
}

// replace writes line as k's record, whatever is there.
func (l *Lock) replace(k Key, line []byte) error {
	delete(l.known, k) // until it has succeeded
	name := fileName(k)
	temp := durable.TempPrefix + name // which remove finds
	err := l.root.Replace(temp, name, line, 0o600)
	if errors.Is(err, fs.ErrExist) {
		// Whoever wrote to it is dead: nobody else has the lock.
		if err = l.root.Remove(temp); err == nil {
			err = l.root.Replace(temp, name, line, 0o600)
		}
	}
	if err == nil {
		l.known[k] = extent{int64(len(line)), noteLimit(line)}
	}
	return err
}

// load reads k's record, unless its end is known.
func (l *Lock) load(k Key, parse parser) (extent, error) {
	if at, ok := l.known[k]; ok {
		return at, nil
	}
	end, err := load(l.root, fileName(k), parse)
	if err == nil {
		l.saw(k, end)
	}
	return extent{end: end}, err
}

// read reads k's record, and calls parse in any case.
func (l *Lock) read(k Key, parse parser) error {
	delete(l.known, k)
	_, err := l.load(k, parse)
	return err
}

// note appends line to k's record, or writes the whole record in its place when
// it has grown too long.
func (l *Lock) note(k Key, line []byte, whole func() ([]byte, error), parse parser) error {
	at, err := l.load(k, parse)
	if err != nil {
		return err
	}
	// The newline ends what a crash may have left of a line.
	text := append([]byte{'\n'}, line...)
	end := at.end + int64(len(text))
	if at.limit = max(at.limit, minCompact); end > at.limit {
		if line, err = whole(); err != nil {
			return err
		}
		at.limit = noteLimit(line)
	}
	done, err := l.root.Overwrite(fileName(k), at.end, text, at.limit)
	switch {
	case err != nil:
		delete(l.known, k)
		return err
	case done:
		l.known[k] = extent{end, at.limit}
		return nil
	}
	return l.replace(k, line)
}

// noteLimit returns how large notes may make the file of a record with the line whole.
// Up to maxLine, no record is larger than its file.
func noteLimit(whole []byte) int64 { return max(minCompact, min(4*int64(len(whole)), maxLine)) }

// remove deletes k's record, unless parse refuses it.
func (l *Lock) remove(k Key, parse parser) error {
	l.removed = true
	name := fileName(k)
	_, err := l.load(k, parse)
	found := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	delete(l.known, k)
	// What a Put that was killed has left.
	if err := gone(l.root.Remove(durable.TempPrefix + name)); err != nil {
		return err
	}
	if err := gone(l.root.Remove(name)); err != nil {
		return err
	}
	if found && l.most > 0 {
		l.most--
	}
	return nil
}

// forget deletes k's record, damaged or not. Only parse can refuse it.
func (l *Lock) forget(k Key, parse parser) error {
	name := fileName(k)
	if _, err := load(l.root, name, parse); errors.Is(err, ErrVersion) {
		return err
	}
	l.known, l.most, l.removed = map[Key]extent{}, unknownMost, true
	for _, name := range []string{durable.TempPrefix + name, name} {
		if err := unlinkAny(l.root, name); err != nil {
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

// unlinkAny removes what has the name, an empty directory included.
func unlinkAny(dir *durable.Dir, name string) error {
	info, err := dir.Stat(name)
	if err == nil && info.IsDir {
		return gone(dir.Rmdir(name))
	}
	if err == nil {
		err = dir.Remove(name)
	}
	return gone(err)
}

// names returns the file names of the container's records.
func (l *Lock) names() ([]string, error) {
	all, err := l.root.Names()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, name := range all {
		if _, ok := parseName(name); ok && strings.HasPrefix(name, part(l.container)+"@") {
			names = append(names, name)
		}
	}
	return names, nil
}

// onlyVersion is a parser that accepts what is damaged: it knows the versions
// alone.
func onlyVersion(k Key) parser {
	return func(data []byte) error {
		if _, err := decode(data, k, func([]byte) (any, error) { return nil, nil }); errors.Is(err, ErrVersion) {
			return err
		}
		return nil
	}
}
