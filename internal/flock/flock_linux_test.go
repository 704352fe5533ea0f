package flock

import (
	"context"
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// ok ends the test if there is an error.
func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, path string) int {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	ok(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func TestLocksExcludeOthersUntilUnlocked(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/lock"
	a, b := open(t, path), open(t, path)
	for _, tt := range []struct {
		name        string
		first, next bool // exclusive
		free        bool
	}{
		{"exclusive, exclusive", true, true, false},
		{"exclusive, shared", true, false, false},
		{"shared, exclusive", false, true, false},
		{"shared, shared", false, false, true},
	} {
		if held, err := Try(a, tt.first); !held || err != nil {
			t.Fatalf("%s: first %t, %v", tt.name, held, err)
		}
		if held, err := Try(b, tt.next); held != tt.free || err != nil {
			t.Errorf("%s: next %t, %v", tt.name, held, err)
		}
		for _, fd := range []int{a, b} {
			ok(t, Unlock(fd))
		}
	}
}

func TestUnlockReleasesCopiesOfTheDescriptor(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/lock"
	a, b := open(t, path), open(t, path)
	child, err := unix.Dup(a)
	ok(t, err)
	defer unix.Close(child)
	if held, err := Try(a, true); !held || err != nil {
		t.Fatal(held, err)
	}
	ok(t, Unlock(a))
	if held, err := Try(b, true); !held || err != nil {
		t.Errorf("held %t, %v", held, err)
	}
}

func TestTryFailsOnABadDescriptor(t *testing.T) {
	t.Parallel()
	if held, err := Try(-1, true); held || !errors.Is(err, unix.EBADF) {
		t.Errorf("held %t, %v", held, err)
	}
}

func TestWaitEndsWithTryOrTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		if err := Wait(t.Context(), 0, func() (bool, error) { tries++; return tries == 10, nil }); err != nil || tries != 10 {
			t.Errorf("after %d tries: %v", tries, err)
		}
		if err := Wait(t.Context(), 0, func() (bool, error) { return false, os.ErrPermission }); !errors.Is(err, os.ErrPermission) {
			t.Errorf("err = %v", err)
		}
		stopped := errors.New("stopped")
		ctx, cancel := context.WithCancelCause(t.Context())
		tries = 0
		err := Wait(ctx, 0, func() (bool, error) {
			if tries++; tries == 3 {
				cancel(stopped)
			}
			return false, nil
		})
		if !errors.Is(err, context.Canceled) || !errors.Is(err, stopped) || tries != 3 {
			t.Errorf("after %d tries: %v", tries, err)
		}
		if err := Wait(ctx, 0, func() (bool, error) { return true, nil }); err != nil {
			t.Errorf("free, and the context has ended: %v", err)
		}
		err = Wait(t.Context(), time.Second, func() (bool, error) {
			time.Sleep(2 * time.Second) // of the bubble
			return true, nil
		})
		if err != nil {
			t.Errorf("free, and a try takes longer than the limit: %v", err)
		}
		if err := Wait(t.Context(), time.Second, func() (bool, error) { return false, nil }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("not free within the limit: %v", err)
		}
	})
}
