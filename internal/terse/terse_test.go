package terse_test

import (
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
		"one, with spaces ":      "one, with spaces ",
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
