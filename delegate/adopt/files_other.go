//go:build !linux

package adopt

import (
	"errors"
	"iter"
)

func files(_, dir string, _ func(string) bool) iter.Seq2[file, error] {
	return func(yield func(file, error) bool) { yield(file{}, &Error{dir, errors.ErrUnsupported}) }
}

func readFile(_, path string) (file, error) {
	return file{}, &Error{path, errors.ErrUnsupported}
}
