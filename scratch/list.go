package scratch

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"runtime"
	"slices"
	"strings"

	"github.com/metacni/metacni/internal/cause"
	"github.com/metacni/metacni/internal/durable"
)

// List returns every record, in the order of file names: by container, network
// and interface. It reads them without a lock, so that what is written meanwhile
// may or may not be in it. Where there are many, several goroutines read a few
// records ahead.
//
// A record that cannot be read is yielded as an [*Error] with its key, at every
// call: a damaged record is [ErrCorrupt], until [Store.Forget] deletes it, and
// a record of another version is [ErrVersion]. Of a name that is too long for a
// file name only the hash is known, "#" and 64 hexadecimal digits;
// [Store.Lock] and [Store.Forget] accept the hash in place of the name.
//
// When ctx ends List yields its error and stops. A missing directory is an
// empty one.
func (s Store[T]) List(ctx context.Context) iter.Seq2[Record[T], error] {
	return func(yield func(Record[T], error) bool) {
		s.files().each(ctx, "list", "", nil, func(r stored, err error) bool { return yield(typed[T](r), err) })
	}
}

// Select is [Store.List] for the records whose key want accepts. It finds most of
// the others by the names of their files, and does not read them. Several
// goroutines may call want at the same time. A record is also yielded, as an
// error, if it cannot be read and only the hash of a name is known.
func (s Store[T]) Select(ctx context.Context, want func(Key) bool) iter.Seq2[Record[T], error] {
	return func(yield func(Record[T], error) bool) {
		maybe := func(k Key) bool { return hashed(k.ContainerID) || hashed(k.Network) || want(k) }
		s.files().each(ctx, "list", "", maybe, func(r stored, err error) bool {
			return err == nil && !want(r.Key) || yield(typed[T](r), err)
		})
	}
}

// Container returns the records of one container, in the order of file names. With
// an error about records that cannot be read, it returns the others. It looks at
// the names of all records; see [Store.Records].
func (s Store[T]) Container(ctx context.Context, id string) ([]Record[T], error) {
	all, err := s.files().container(ctx, id)
	return allTyped[T](all), err
}

func allTyped[T any](all []stored) []Record[T] {
	var ts []Record[T]
	for _, r := range all {
		ts = append(ts, typed[T](r))
	}
	return ts
}

func (f files) container(ctx context.Context, id string) ([]stored, error) {
	if err := checkStoredContainer(id); err != nil {
		return nil, fail("list", Key{ContainerID: id}, err)
	}
	return collect(func(yield func(stored, error) bool) { f.each(ctx, "list", id, nil, yield) })
}

// Records is [Store.Container] for the container of l, which must be held. It is
// faster where l knows the container's records, as in the ADD of a new container:
// then Records does not look at the names of all records.
func (s Store[T]) Records(ctx context.Context, l *Lock) ([]Record[T], error) {
	all, err := s.files().records(ctx, l)
	return allTyped[T](all), err
}

func (f files) records(ctx context.Context, l *Lock) ([]stored, error) {
	const op = "list"
	if l == nil {
		return nil, fail(op, Key{}, errNotHeld)
	}
	if err := l.begin(f.dir, l.container); err != nil {
		return nil, fail(op, Key{ContainerID: l.container}, err)
	}
	defer l.end()
	var names []string
	if l.most == len(l.known) {
		for k := range l.known {
			names = append(names, fileName(k))
		}
		slices.Sort(names)
	} else {
		var err error
		if names, err = l.names(); err != nil {
			return nil, fail(op, Key{ContainerID: l.container}, err)
		}
		l.most = len(names)
	}
	return collect(func(yield func(stored, error) bool) {
		for _, name := range names {
			if ctx.Err() != nil {
				yield(stored{}, fail(op, Key{ContainerID: l.container}, cause.Of(ctx)))
				return
			}
			k, _ := parseName(name)
			e, found := f.readFile(op, l.root, name, k)
			if found && e.err == nil {
				l.known[e.Key] = extent{end: e.end}
			}
			if found && !yield(e.stored, e.err) {
				return
			}
		}
	})
}

// Unused returns the containers that have a lock and no record: an operation is
// running, or a process has died. A long ID is returned as its hash, "#" and 64
// hexadecimal digits. To remove the file of a lock that nobody holds, take the
// lock, call [Store.Records], and unlock.
func (s Store[T]) Unused() ([]string, error) {
	ids, err := s.files().unused()
	return ids, fail("list", Key{}, err)
}

func (f files) unused() (ids []string, err error) {
	root, err := f.open()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer root.Close()
	names, err := root.Names()
	if err != nil {
		return nil, err
	}
	used := make(map[string]bool)
	for _, name := range names {
		if k, ok := parseName(name); ok {
			used[part(k.ContainerID)] = true
		}
	}
	for _, name := range names {
		if id, ok := strings.CutSuffix(name, lockSuffix); ok && checkStoredContainer(id) == nil && !used[id] {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

func collect(each func(yield func(stored, error) bool)) ([]stored, error) {
	var (
		all  []stored
		errs []error
	)
	each(func(r stored, err error) bool {
		if err != nil {
			errs = append(errs, err)
		} else {
			all = append(all, r)
		}
		return true
	})
	return all, errors.Join(errs...)
}

const (
	// ahead is how many files a goroutine reads at a time, if there are more.
	ahead = 32
	// maxReaders bounds how many goroutines read.
	maxReaders = 8
)

// each yields the records of a container, or of all when id is empty, with keys
// that want accepts, which may be nil. A long name is a hash in such a key.
func (f files) each(ctx context.Context, op, id string, want func(Key) bool, yield func(stored, error) bool) {
	whole := Key{ContainerID: id}
	root, err := f.open()
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		yield(stored{}, fail(op, whole, err))
		return
	}
	defer root.Close()
	names, err := root.Names()
	if err != nil {
		yield(stored{}, fail(op, whole, err))
		return
	}
	mine := names
	if id != "" {
		mine = slices.DeleteFunc(slices.Clone(names), func(name string) bool {
			return !strings.HasPrefix(name, part(id)+"@")
		})
	}
	read := func(some []string) (es []entry) {
		add := func(r stored, err error) bool {
			es = append(es, entry{stored: r, err: err})
			return true
		}
		for _, name := range some {
			if ctx.Err() == nil {
				f.record(op, root, name, want, add)
			}
		}
		return es
	}
	size, readers := 1, 1
	if len(mine) > ahead {
		size, readers = ahead, min(runtime.GOMAXPROCS(0), maxReaders)
	}
	for es := range inOrder(slices.Collect(slices.Chunk(mine, size)), readers, read) {
		for i := 0; i < len(es) || ctx.Err() != nil; i++ {
			if ctx.Err() != nil {
				yield(stored{}, fail(op, whole, cause.Of(ctx)))
				return
			}
			if !yield(es[i].stored, es[i].err) {
				return
			}
		}
	}
}

// An entry is what a record's file holds.
type entry struct {
	stored
	end int64
	err error
}

// readFile reads the file name, of the record k, in dir. found is false when it is
// not there any more.
func (f files) readFile(op string, dir *durable.Dir, name string, k Key) (e entry, found bool) {
	e.end, e.err = load(dir, name, func(data []byte) (err error) {
		e.stored, err = decode(data, k, f.value)
		return err
	})
	if e.err != nil {
		e.stored = stored{Key: k}
	}
	found = !errors.Is(e.err, fs.ErrNotExist)
	e.err = fail(op, k, e.err)
	return e, found
}

// record yields the record in the file name, if it is one's that is wanted.
func (f files) record(op string, root *durable.Dir, name string, want func(Key) bool, yield func(stored, error) bool) {
	k, ok := parseName(name)
	if !ok || want != nil && !want(k) {
		return
	}
	if e, found := f.readFile(op, root, name, k); found {
		yield(e.stored, e.err)
	}
}
