package scratch

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/metacni/metacni/internal/durable"
)

// Names that could be mistaken for one another have different files, on random
// keys from an alphabet chosen for confusion.
func TestNamesAreInjective(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	pick := func(alphabet []string, n int) string {
		var b strings.Builder
		for range 1 + rng.IntN(n) {
			b.WriteString(alphabet[rng.IntN(len(alphabet))])
		}
		return b.String()
	}
	names := []string{"a", "b", "-", ".", "_", "json", "a.json", "corrupt", "lock", strings.Repeat("a", 95)}
	ifNames := []string{"a", "b", "@", "%", "40", "25", "#", ".json", "é", "+"}
	seen := map[string]Key{}
	valid := 0
	for range 50_000 {
		k := Key{pick(names, 4), pick(names, 4), pick(ifNames, 4)}
		if checkKey(k) != nil {
			continue
		}
		valid++
		path := fileName(k)
		if other, found := seen[path]; found && other != k {
			t.Fatalf("%q and %q share %s", k, other, path)
		}
		seen[path] = k
	}
	if valid < 10_000 || len(seen) < 5000 {
		t.Errorf("%d valid keys, %d files: too few to tell", valid, len(seen))
	}
}

// File names are legible where they can be.
func TestFileNames(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		key  Key
		want string
	}{
		{Key{"net", "c0ffee", "eth0"}, "c0ffee@net@eth0.json"},
		{Key{"a-b.c_d", "c", "eth0.100"}, "c@a-b.c_d@eth0.100.json"},
		{Key{"n", "c", "a@b%c"}, "c@n@a%40b%25c.json"},
		{Key{"n", "c", "é"}, "c@n@%C3%A9.json"},
		{Key{strings.Repeat("n", 95), strings.Repeat("c", 95), "e"}, strings.Repeat("c", 95) + "@" + strings.Repeat("n", 95) + "@e.json"},
		{Key{strings.Repeat("n", 191), "c", "e"}, "c@#276ee9fcad693f2d09036448de7319fd5a7201a3e59b10c356534f899dd716b0@e.json"},
	} {
		if got := fileName(tt.key); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
	longest := Key{strings.Repeat("n", 95), strings.Repeat("c", 95), strings.Repeat("\u00e9", 7) + "@"}
	if n := len(durable.TempPrefix + fileName(longest)); checkKey(longest) != nil || n > 255 {
		t.Errorf("a file name of %d bytes", n)
	}
	for _, name := range []string{"", "c", "c@lock", "c@net", "c@net.json", "net@eth0.json", "@net@eth0.json", "c@@eth0.json", "c@net@.json", "c@net@a@b.json", "../c@net@e.json", ".c@net@e.json", "c@net@%zz.json", "c@net@%4.json", "c@net@e.corrupt", "c@#12@e.json", "c@" + strings.Repeat("n", 96) + "@e.json"} {
		if k, ok := parseName(name); ok {
			t.Errorf("%q is read as %q", name, k)
		}
	}
	if s := fmt.Sprint(Key{"n", "c", "e"}); s != "n/c/e" {
		t.Error(s)
	}
}
