// Package flock locks files with flock(2), and waits for such locks.
package flock

import (
	"context"
	"time"

	"github.com/metacni/metacni/internal/cause"
)

const (
	firstPause   = time.Millisecond
	longestPause = 25 * time.Millisecond
)

// Wait calls try until it reports that the lock is taken, or fails. Between two
// calls it pauses, for 25 ms at most. When ctx ends during a pause, Wait returns
// the reason; it calls try once whether ctx has ended or not.
func Wait(ctx context.Context, try func() (bool, error)) error {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		if done, err := try(); done || err != nil {
			return err
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
		if err := cause.Of(ctx); err != nil {
			return err
		}
	}
}
