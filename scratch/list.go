package scratch

import (
	"context"
	"errors"
	"io/fs"
	"iter"

	"github.com/metacni/metacni/internal/cause"
	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/records"
)

// List returns every record, in the order of file names: by container, network
// and interface. It reads them without a lock, so that what is written meanwhile
// may or may not be in it.
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
	return s.ListChanged(ctx, nil)
}

// ListChanged is List without the records for which known returns true, which it does not read.
// known gets the key of a record as its file name has it, which may have hashes, and a text that
// changes whenever the record is written. It is called right before the record is yielded.
func (s Store[T]) ListChanged(ctx context.Context, known func(k Key, version string) bool) iter.Seq2[Record[T], error] {
	return func(yield func(Record[T], error) bool) { s.each(ctx, "", known, yield) }
}

// Container returns the records of one container, in the order of file names. With
// an error about records that cannot be read, it returns the others.
func (s Store[T]) Container(ctx context.Context, id string) (all []Record[T], err error) {
	if err := checkStoredContainer(id); err != nil {
		return nil, fail("list", Key{ContainerID: id}, err)
	}
	var errs []error
	s.each(ctx, id, nil, func(r Record[T], err error) bool {
		if err != nil {
			errs = append(errs, err)
		} else {
			all = append(all, r)
		}
		return true
	})
	return all, errors.Join(errs...)
}

// each yields the records of a container, or of all when id is empty, without the known ones.
func (s Store[T]) each(ctx context.Context, id string, known func(Key, string) bool, yield func(Record[T], error) bool) {
	const op = "list"
	whole, prefix := Key{ContainerID: id}, ""
	if id != "" {
		prefix = records.Part(id) + "@"
	}
	var names []string
	root, err := s.open(durable.OpenDir)
	if err == nil {
		defer root.Close()
		names, err = root.NamesWith(prefix)
	}
	if gone(err) != nil {
		yield(Record[T]{}, fail(op, whole, err))
		return
	}
	for _, name := range names {
		if ctx.Err() != nil {
			break
		}
		k, isRecord := parseName(name)
		if !isRecord {
			continue
		}
		if known != nil {
			info, err := root.Stat(name)
			if errors.Is(err, fs.ErrNotExist) || err == nil && known(k, info.Version) {
				continue
			}
		}
		r, err := load[T](root, name, k)
		if err != nil {
			r.Key = k
		}
		if !errors.Is(err, fs.ErrNotExist) && !yield(r, fail(op, k, err)) {
			return
		}
	}
	if ctx.Err() != nil {
		yield(Record[T]{}, fail(op, whole, cause.Of(ctx)))
	}
}
