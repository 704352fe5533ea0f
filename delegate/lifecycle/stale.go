package lifecycle

import (
	"context"
	"errors"
	"time"
)

// errStale means that an attachment is not the one that Del was to remove.
var errStale = errors.New("recorded after the DEL")

type staleKey struct{}

// WithStale returns a context for [Manager.Del]. Use it for a DEL that may be older
// than the attachment, such as one from a queue. Del calls stale, while it has the
// lock of the container, with the time when the attachment was recorded. If stale
// returns true or an error, Del changes nothing and returns nil or the error.
func WithStale(ctx context.Context, stale func(recorded time.Time) (bool, error)) context.Context {
	return context.WithValue(ctx, staleKey{}, stale)
}

// checkStale returns errStale, or the error, of what ctx has from WithStale.
func checkStale(ctx context.Context, recorded time.Time) error {
	stale, ok := ctx.Value(staleKey{}).(func(time.Time) (bool, error))
	if !ok {
		return nil
	}
	is, err := stale(recorded)
	if err == nil && is {
		return errStale
	}
	return err
}
