package adopt

import (
	"errors"
	"time"
)

// maxSize is the most that a file may hold: a configuration, a result and
// arguments, and some hundred delegates of Multus.
const maxSize = 1 << 20

// A file is a file that has been read.
type file struct {
	path    string // in the root
	data    []byte
	changed time.Time
}

var (
	errNotRegular = errors.New("not a regular file")
	errTooLarge   = errors.New("larger than 1 MiB")
	errEmpty      = errors.New("empty")
)
