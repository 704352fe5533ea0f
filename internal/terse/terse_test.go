package terse_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/metacni/metacni/internal/terse"
)

func TestID(t *testing.T) {
	t.Parallel()
	digits := strings.Repeat("0123456789abcdef", 4)
	for id, want := range map[string]string{
		digits:                          "0123456789ab",
		digits[1:]:                      digits[1:],
		digits + "0":                    digits + "0",
		strings.ToUpper(digits):         strings.ToUpper(digits),
		"g" + digits[1:]:                "g" + digits[1:],
		digits[:32] + "-" + digits[33:]: digits[:32] + "-" + digits[33:],
		"c1":                            "c1",
		"":                              "",
	} {
		if got := terse.ID(id); got != want {
			t.Errorf("%q is shown as %q, want %q", id, got, want)
		}
	}
}

func TestLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                       "",
		" one; with spaces ; ":   "one; with spaces",
		"one\n":                  "one",
		"one\ntwo":               "one; two",
		"\none\r\n\n \n\ttwo \n": "one; two",
		"one\n; two":             "one; two",
		"\n":                     "",
	} {
		if got := terse.Line(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

// An attempt names what was attempted, and why it failed.
type attempt struct {
	what string
	err  error
}

func (e *attempt) Error() string { return e.what + ": " + e.err.Error() }
func (e *attempt) Unwrap() error { return e.err }

// However the errors are wrapped and joined, each that is known is told in other
// words, and all other words stay.
func TestWithinRetellsEveryKnownErrorInTheTree(t *testing.T) {
	t.Parallel()
	busy := &attempt{"ADD c1", errors.New("busy")}
	full := &attempt{"ADD c1", errors.New("disk\n\n full ")}
	for want, err := range map[string]error{
		"busy":                            busy,
		"disk; full":                      full,
		"other":                           errors.New("other"),
		"first: busy, later":              fmt.Errorf("first: %w, later", busy),
		"busy; busy":                      errors.Join(busy, busy),
		"other; busy; disk; full":         errors.Join(errors.New("other"), busy, full),
		"x: y: busy; disk; full":          fmt.Errorf("x: %w", &attempt{"y", errors.Join(busy, full)}),
		"busy then disk; full":            fmt.Errorf("%w then %w", busy, full),
		"ADD c1: busy is not of the tree": fmt.Errorf("%w is not of the tree", errors.New(busy.Error())),
	} {
		got := terse.Within(err, func(err error) (string, bool) {
			a, ok := err.(*attempt)
			if !ok || a.what != "ADD c1" {
				return "", false
			}
			return a.err.Error(), true
		})
		if got != want {
			t.Errorf("%q becomes %q, want %q", err, got, want)
		}
	}
}
