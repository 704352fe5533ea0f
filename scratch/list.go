package scratch

import (
	"errors"
	"io/fs"
	"iter"
	"strings"

	"github.com/metacni/metacni/internal/durable"
)

// List returns every record, in the order of file names: by container, network
// and interface. It reads them one by one, so that what is written meanwhile
// may or may not be in it. A damaged record is set aside and yielded as an
// [*Error] that is [ErrCorrupt], with what is known of its key, this time and
// every time until [Store.Forget]; so is every container that cannot be read,
// with the error that says why. A missing directory is an empty one.
func (s Store[T]) List() iter.Seq2[Record[T], error] {
	return func(yield func(Record[T], error) bool) {
		s.each("list", yield)
	}
}

// Container returns the records of one container, in the order of file names.
// What cannot be read is left out, and reported in an error beside what could.
// Its cost does not depend on how many containers there are.
func (s Store[T]) Container(id string) ([]Record[T], error) {
	if err := checkContainer(id); err != nil {
		return nil, fail("list", Key{ContainerID: id}, err)
	}
	root, dir, err := s.files().container(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fail("list", Key{ContainerID: id}, err)
	}
	defer root.Close()
	defer dir.Close()
	var (
		all  []Record[T]
		errs []error
	)
	s.records("list", dir, dirName(id), func(r Record[T], err error) bool {
		if err != nil {
			errs = append(errs, err)
		} else {
			all = append(all, r)
		}
		return true
	})
	return all, errors.Join(errs...)
}

// Damaged returns the keys of the records that have been set aside, in the
// order of file names, without reading any other. A name too long for a file
// name is only known by its hash, "#" and 64 hexadecimal digits, which
// [Store.Forget] accepts. It does not look for damage: List and Get do. What
// cannot be read is left out, and reported in an error beside the keys.
func (s Store[T]) Damaged() ([]Key, error) {
	var (
		keys []Key
		errs []error
	)
	err := s.files().containers(func(dir *durable.Dir, name string, err error) bool {
		var names []string
		if err == nil {
			names, err = dir.Names()
		}
		if err != nil {
			errs = append(errs, fail("damaged", Key{ContainerID: name}, err))
		}
		for _, n := range names {
			if network, ifName, corrupt, ok := parseFile(n); ok && corrupt {
				keys = append(keys, Key{Network: network, ContainerID: name, IfName: ifName})
			}
		}
		return true
	})
	return keys, errors.Join(append(errs, fail("damaged", Key{}, err))...)
}

// each yields the records of all containers.
func (s Store[T]) each(op string, yield func(Record[T], error) bool) {
	err := s.files().containers(func(dir *durable.Dir, name string, err error) bool {
		if err != nil {
			return yield(Record[T]{}, fail(op, Key{ContainerID: name}, err))
		}
		return s.records(op, dir, name, yield)
	})
	if err != nil {
		yield(Record[T]{}, fail(op, Key{}, err))
	}
}

// records yields the records in dir, a container's directory called name.
func (s Store[T]) records(op string, dir *durable.Dir, name string, yield func(Record[T], error) bool) bool {
	names, err := dir.Names()
	if err != nil {
		return yield(Record[T]{}, fail(op, Key{ContainerID: name}, err))
	}
	for _, n := range names {
		network, ifName, damaged, ok := parseFile(n)
		if !ok {
			continue
		}
		k := Key{Network: network, ContainerID: name, IfName: ifName}
		if damaged {
			if !yield(Record[T]{Key: k}, &Error{Op: op, Key: k, Path: dir.Path(n), Err: ErrCorrupt}) {
				return false
			}
			continue
		}
		var r Record[T]
		err := load(dir, k, func(data []byte) (err error) {
			r, err = decode[T](data, func(got Key) bool {
				return dirName(got.ContainerID) == name && fileName(got) == n
			})
			return err
		})
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted since the directory was read
		}
		if err != nil {
			r = Record[T]{Key: k}
		}
		if !yield(r, fail(op, k, err)) {
			return false
		}
	}
	return true
}

// containers calls visit with each container's directory until it returns
// false. What is not a container's directory is passed over.
func (f files) containers(visit func(dir *durable.Dir, name string, err error) bool) error {
	root, err := f.open()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	names, err := root.Names()
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.Contains(name, "@") || !storedName(name) {
			continue
		}
		dir, err := root.Open(name)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, durable.ErrNotDir) {
			continue
		}
		more := visit(dir, name, err)
		if err == nil {
			dir.Close()
		}
		if !more {
			return nil
		}
	}
	return nil
}
