package peers

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// rows are the rows of a table of README.md that a test has met.
type rows struct {
	sync.Mutex
	met map[string]int
}

func (r *rows) meet(row string) {
	r.Lock()
	defer r.Unlock()
	if r.met == nil {
		r.met = map[string]int{}
	}
	r.met[row]++
}

// check fails unless the section of README.md has a row for each of want and no other, and each was
// met.
func (r *rows) check(t *testing.T, section string, want []string) {
	t.Helper()
	page, err := os.ReadFile("README.md")
	nodetest.OK(t, err)
	_, text, ok := strings.Cut(string(page), "\n## "+section+"\n")
	if !ok {
		t.Fatalf("README.md has no section %q", section)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	var written []string
	for line := range strings.Lines(text) {
		if first, _, ok := strings.Cut(strings.TrimPrefix(line, "| "), " |"); ok && strings.HasPrefix(line, "| ") {
			written = append(written, first)
		}
	}
	if len(written) > 0 {
		written = written[1:] // the head
	}
	slices.Sort(want)
	slices.Sort(written)
	want = slices.Compact(want)
	nodetest.Equal(t, "rows of "+section, written, want)
	for _, row := range want {
		if r.met[row] == 0 {
			t.Errorf("no input shows the difference %q", row)
		}
	}
	t.Logf("%s: %v", section, r.met)
}

// A generator makes up input as people and plugins write it, most of it good.
type generator struct{ *rand.Rand }

func (g generator) oneIn(n int) bool { return g.IntN(n) == 0 }

// pick returns one of good, now and then one of bad.
func (g generator) pick(good, bad []string) string {
	if len(bad) > 0 && g.oneIn(40) {
		return bad[g.IntN(len(bad))]
	}
	return good[g.IntN(len(good))]
}

// object returns the JSON of keys in a random order.
func (g generator) object(keys [][2]string) string {
	g.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	var parts []string
	for _, k := range keys {
		parts = append(parts, fmt.Sprintf("%q:%s", k[0], k[1]))
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// plain returns v as JSON has it.
func plain(t *testing.T, v any) any {
	t.Helper()
	text, err := json.Marshal(v)
	nodetest.OK(t, err)
	var p any
	nodetest.OK(t, json.Unmarshal(text, &p))
	return p
}
