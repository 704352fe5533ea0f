package scratch

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// Names that could be mistaken for one another have different files, on random
// keys from an alphabet chosen for confusion (D6, D9).
func TestD9NamesAreInjective(t *testing.T) {
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
		path := dirName(k.ContainerID) + "/" + fileName(k)
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
		{Key{"net", "c0ffee", "eth0"}, "c0ffee/net@eth0.json"},
		{Key{"a-b.c_d", "c", "eth0.100"}, "c/a-b.c_d@eth0.100.json"},
		{Key{"n", "c", "a@b%c"}, "c/n@a%40b%25c.json"},
		{Key{"n", "c", "é"}, "c/n@%C3%A9.json"},
		{Key{strings.Repeat("n", 190), "c", "e"}, "c/" + strings.Repeat("n", 190) + "@e.json"},
		{Key{strings.Repeat("n", 191), "c", "e"}, "c/#276ee9fcad693f2d09036448de7319fd5a7201a3e59b10c356534f899dd716b0@e.json"},
	} {
		got := dirName(tt.key.ContainerID) + "/" + fileName(tt.key)
		if got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
	for _, name := range []string{"", "net", "net.json", "@eth0.json", "net@.json", "net@a@b.json", "../net@e.json", ".net@e.json", "net@%zz.json", "net@%4.json", "net@e.corrupt", "#12@e.json", strings.Repeat("n", 191) + "@e.json"} {
		if network, ifName, _, ok := parseFile(name); ok {
			t.Errorf("%q is read as %q, %q", name, network, ifName)
		}
	}
	if s := fmt.Sprint(Key{"n", "c", "e"}); s != "n/c/e" {
		t.Error(s)
	}
}
