package autoconf

import (
	"context"
	"errors"
	"io/fs"
	"testing"

	"github.com/metacni/metacni/netconf"
)

func TestError(t *testing.T) {
	t.Parallel()
	decode := &netconf.Error{Kind: netconf.ErrDecode, Key: "type"}
	tests := []struct {
		err  error
		text string
		code uint
	}{
		{&Error{"publish", "/x", fs.ErrPermission}, `autoconf: publish "/x": permission denied`, 5},
		{&Error{"read", "a\nb", ErrTooLarge}, `autoconf: read "a\nb": larger than 16 MiB`, 5},
		{&Error{"use", "", because{ErrInvalid, errors.New("Dir: x")}}, `autoconf: use: invalid: Dir: x`, 7},
		{&Error{"follow", "", ErrNoPrimary}, `autoconf: follow: no primary network`, 7},
		{&Error{"read", "x", ErrOwn}, `autoconf: read "x": is our own, or leads back to it`, 7},
		{&Error{"read", "x", ErrRefused}, `autoconf: read "x": refused`, 7},
		{&Error{"read", "x", decode}, `autoconf: read "x": netconf: cannot decode configuration: key "type"`, 6},
		{&Error{"follow", "", because{ErrBadPrimary, decode}}, `autoconf: follow: the primary network cannot be used: netconf: cannot decode configuration: key "type"`, 6},
		{&Error{"follow", "", errors.Join(fs.ErrExist, ErrUndone)}, "autoconf: follow: file already exists\nchanged or removed by others", 11},
		{&Error{"run", "", ErrNotReady}, `autoconf: run: not ready: the readiness file does not exist`, 11},
		{&Error{"run", "", ErrReadinessLost}, `autoconf: run: the readiness file was removed`, 11},
		{&Error{"lock", "", ErrLocked}, `autoconf: lock: another manager is at work`, 11},
		{&Error{"run", "", context.DeadlineExceeded}, `autoconf: run: context deadline exceeded`, 11},
	}
	for _, tt := range tests {
		var e *Error
		if !errors.As(tt.err, &e) || e.Error() != tt.text || e.CNICode() != tt.code {
			t.Errorf("%q, code %d; want %q, %d", tt.err, e.CNICode(), tt.text, tt.code)
		}
	}
	if fail("x", "", nil) != nil || join("x", "", nil, nil) != nil {
		t.Error("an error of nothing")
	}
}
