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
		{&Error{"publish", "/x", fs.ErrPermission}, `publish "/x": permission denied`, 5},
		{&Error{"read", "a\nb", errTooLarge}, `read "a\nb": larger than 1 MiB`, 5},
		{&Error{"use", "", because{ErrInvalid, errors.New("Dir: x")}}, `use: invalid: Dir: x`, 7},
		{&Error{"publish", "/x", because{ErrInvalid, &netconf.Error{Kind: netconf.ErrInvalid, Key: "name"}}}, `publish "/x": invalid configuration: key "name"`, 7},
		{&Error{"follow", "", ErrNoPrimary}, `follow: no primary network`, 7},
		{&Error{"read", "x", errOwn}, `read "x": has our own plugin, or refers to the published file`, 7},
		{&Error{"read", "x", errRefused}, `read "x": refused`, 7},
		{&Error{"read", "x", decode}, `read "x": cannot decode configuration: key "type"`, 6},
		{&Error{"follow", "", because{errBadPrimary, decode}}, `follow: the primary network cannot be used: cannot decode configuration: key "type"`, 6},
		{&Error{"follow", "", errors.Join(fs.ErrExist, errUndone)}, "follow: file already exists\nchanged or removed by others", 11},
		{&Error{"run", "", ErrNotReady}, `run: not ready: the readiness file does not exist`, 11},
		{&Error{"run", "", ErrReadinessLost}, `run: the readiness file was removed`, 11},
		{&Error{"lock", "", ErrLocked}, `lock: another manager is at work`, 11},
		{&Error{"run", "", context.DeadlineExceeded}, `run: context deadline exceeded`, 11},
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
