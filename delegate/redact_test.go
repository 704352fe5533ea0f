package delegate

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/fault"
)

// What an error says is hidden as far as it may be from the configuration, and
// no further: that depends on whose words they are.
func TestWhoseWordsAreHidden(t *testing.T) {
	t.Parallel()
	conf := []byte(`{"name":"storage","type":"bridge-one","prevResult":{"x":"fd00::1234"},"mtu":123456,"path":"/run/one-path","authToken":"hunter2-hunter2","api_Key":"line one 1\nline two 2","in":[{"PASSWORD":{"of":"deep-secret"}}],"q":"a\"quote<\\"}`)
	coded := func(code uint, msg, details string) error { return types.NewError(code, msg, details) }
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"not run":            {notRun(errors.New("fork/exec /run/one-path: hunter2-hunter2")), "fork/exec /run/one-path: hunter2-hunter2"},
		"plain":              {errors.New("no /run/one-path, mtu 123456, hunter2-hunter2"), "no (hidden), mtu (hidden), (hidden)"},
		"name and type":      {errors.New("storage: bridge-one: fd00::1234"), "storage: bridge-one: fd00::1234"},
		"a line":             {errors.New("x line two 2"), "x (hidden)"},
		"quoted":             {fmt.Errorf("x %q", "a\"quote<\\"), `x "(hidden)"`},
		"escaped":            {errors.New(`x a\"quote\u003c\\`), `x (hidden)`},
		"quoted as JSON":     {errors.New(`x a\"quote<\\`), `x (hidden)`},
		"coded":              {coded(101, "no /run/one-path, mtu 123456", "hunter2-hunter2"), "no /run/one-path, mtu 123456; (hidden)"},
		"coded, deep":        {coded(101, "deep-secret", ""), "(hidden)"},
		"coded, a line":      {coded(101, "x line one 1", ""), "x (hidden)"},
		"coded, all of it":   {coded(101, "got "+string(conf), ""), "got (hidden)"},
		"code 0":             {coded(0, "no /run/one-path", ""), "no (hidden)"},
		"coded, and wrapped": {fmt.Errorf("exit 1: %w", coded(101, "deep-secret of /run/one-path", "")), "exit 1: (hidden) of /run/one-path"},
		"nothing to hide":    {errors.New("exit status 1"), "exit status 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := redacted(tt.err, conf)
			if got.Error() != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
			if tt.err.Error() == tt.want && got != tt.err {
				t.Errorf("%#v is another error", got)
			}
			var said *types.Error
			if _, direct := tt.err.(*types.Error); direct && !errors.As(got, &said) {
				t.Errorf("%#v is no plugin's error", got)
			}
			if now, was := fault.Code(got, 0), fault.Code(tt.err, 0); now != was {
				t.Errorf("code %d, was %d", now, was)
			}
		})
	}
}

// Of unexpected text the beginning is quoted, up to where it might be a part of
// the configuration, and without what is in that.
func TestNoiseIsQuotedAsFarAsItIsSafe(t *testing.T) {
	t.Parallel()
	conf := []byte(`{"type":"p","key":"hunter2{hunter2"}`)
	for text, want := range map[string]string{
		"loading":                     `"loading"`,
		"loading {\"key\":7}":         `"loading "`,
		"loading [1]":                 `"loading "`,
		"{}":                          "more JSON",
		"[":                           "more JSON",
		"key hunter2{hunter2 {":       `"key (hidden) "`,
		strings.Repeat("x", 100):      `"` + strings.Repeat("x", 64) + `"`,
		strings.Repeat("x", 64) + "{": `"` + strings.Repeat("x", 64) + `"`,
		strings.Repeat("x", 58) + "hunter2{hunter2": `"` + strings.Repeat("x", 58) + `(hidde"`,
	} {
		if got := noise([]byte(text), conf); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}
