package inroot

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// A lookup that others interfere with is tried again, and not for ever.
func TestLookupIsTriedAgain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		errs  []error // one each time, the last one from then on
		tries int
		want  error
	}{
		{"at once", []error{nil}, 1, nil},
		{"renamed meanwhile", []error{unix.EAGAIN, unix.EAGAIN, nil}, 3, nil},
		{"interrupted", []error{unix.EINTR, nil}, 2, nil},
		{"not there", []error{unix.ENOENT}, 1, unix.ENOENT},
		{"renamed for ever", []error{unix.EAGAIN}, races, unix.EAGAIN},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tries := 0
			_, err := again(func() (int, error) {
				tries++
				return -1, tt.errs[min(tries, len(tt.errs))-1]
			})
			if tries != tt.tries || !errors.Is(err, tt.want) {
				t.Errorf("%d tries, want %d: %v", tries, tt.tries, err)
			}
		})
	}
}
