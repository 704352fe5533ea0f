// Package cause says in errors why a context ended.
package cause

import (
	"context"
	"errors"
	"fmt"
)

// Of returns why ctx ended: an error in which errors.Is finds both ctx.Err()
// and [context.Cause]. It returns nil while ctx has not ended.
func Of(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if err == nil || errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// Add returns err with the reason why ctx ended after it. It returns err
// unchanged when err is nil, when ctx has not ended, and when errors.Is finds
// ctx.Err() in err already.
func Add(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil || errors.Is(err, ctx.Err()) {
		return err
	}
	return fmt.Errorf("%w: %w", err, Of(ctx))
}
