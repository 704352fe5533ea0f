package bounds

import (
	"strings"
	"testing"
)

func TestDeeperCountsOpenBrackets(t *testing.T) {
	t.Parallel()
	nested := func(levels int) string { return strings.Repeat("[", levels) + strings.Repeat("]", levels) }
	for _, tt := range []struct {
		name, text string
		depth      int
		want       bool
	}{
		{"nothing", "", 0, false},
		{"a scalar", "1", 0, false},
		{"one level", "[]", 0, true},
		{"at the limit", nested(Depth), Depth, false},
		{"above the limit", nested(Depth + 1), Depth, true},
		{"side by side", `{"a":[[]],"b":[[]]}`, 3, false},
		{"brackets in a string", `{"a":"[[[[\"[[\\"}`, 1, false},
		{"after a string", `["\\",[[]]]`, 2, true},
		{"not JSON", `]]][[[`, 0, false},
		{"a string without an end", `["[[\`, 1, false},
	} {
		if got := Deeper([]byte(tt.text), tt.depth); got != tt.want {
			t.Errorf("%s: Deeper = %t, want %t", tt.name, got, tt.want)
		}
	}
}
