package delegate

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Without a descriptor that tells of an exit, and with one that tells too
// early, a child is looked after all the same: before Linux 5.3.
func TestChildWithoutPidfd(t *testing.T) {
	t.Parallel()
	grace := func(context.Context) time.Duration { return time.Minute }
	for _, tt := range []struct {
		name string
		old  func(*testing.T, *child)
	}{
		{"none", func(_ *testing.T, c *child) { c.shut(exited); c.watch() }},
		{"always ready", func(t *testing.T, c *child) {
			t.Helper()
			c.shut(exited)
			fd, err := unix.Eventfd(1, unix.EFD_CLOEXEC)
			if err != nil {
				t.Fatal(err)
			}
			c.set(exited, fd)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := &Process{}
			c, err := p.start(t.Context(), "/bin/cat", nil)
			if err != nil {
				t.Fatal(err)
			}
			defer c.close()
			tt.old(t, c)
			status, end := c.attend(t.Context(), []byte("text"), grace)
			c.drain(time.Minute)
			if got := c.stdout.kept.String(); status != nil || end != nil || got != "text" {
				t.Errorf("%v, %v, printed %q", status, end, got)
			}
		})
		t.Run(tt.name+", stopped", func(t *testing.T) {
			t.Parallel()
			p := &Process{}
			c, err := p.start(t.Context(), "/bin/cat", nil)
			if err != nil {
				t.Fatal(err)
			}
			defer c.close()
			tt.old(t, c)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			status, end := c.attend(ctx, make([]byte, 1<<20), grace) // more than the pipe takes
			if status == nil || end == nil {
				t.Errorf("%v, %v, want it to have been stopped", status, end)
			}
		})
	}
}
