package e2e

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// A figureKey is a case, such as "multinet ADD of 8", and what is counted, such as "fsyncs".
type figureKey struct{ of, what string }

// A figure is a count, and by how many percent it may be exceeded. With zero percent the
// count must be equal.
type figure struct{ count, percent int }

// figures are what a program costs.
type figures map[figureKey]figure

const figuresHead = `# What commands of the examples cost, in counts, with one delegate unless it says "of 8".
# A count may be exceeded by the percentage in the last column, without one it must be
# equal. TestCostIsAsCommitted compares. To accept other counts, in internal/e2e:
#
#     go test -run '^TestCostIsAsCommitted$' . -update
#
`

var figureLine = regexp.MustCompile(`(?m)^([^#\n]+?) +(\S+) +(\d+)(?: \+(\d+)%)?$`)

// readFigures returns the committed figures, in the form of String.
func readFigures(t *testing.T, path string) figures {
	t.Helper()
	text, err := os.ReadFile(path)
	nodetest.OK(t, err)
	fs := figures{}
	for _, m := range figureLine.FindAllStringSubmatch(string(text), -1) {
		count, _ := strconv.Atoi(m[3])
		percent, _ := strconv.Atoi(m[4]) // 0 if there is none
		fs[figureKey{m[1], m[2]}] = figure{count, percent}
	}
	return fs
}

// String returns the figures as sorted lines.
func (fs figures) String() string {
	var b strings.Builder
	b.WriteString(figuresHead)
	for _, key := range fs.keys() {
		line := fmt.Sprintf("%-22s %-16s %8d", key.of, key.what, fs[key].count)
		if p := fs[key].percent; p != 0 {
			line += fmt.Sprintf(" +%d%%", p)
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

func (fs figures) keys() []figureKey {
	return slices.SortedFunc(maps.Keys(fs), func(a, b figureKey) int {
		return cmp.Or(cmp.Compare(a.of, b.of), cmp.Compare(a.what, b.what))
	})
}

// only returns the figures that others has too.
func (fs figures) only(others figures) figures {
	some := maps.Clone(fs)
	maps.DeleteFunc(some, func(key figureKey, _ figure) bool { _, ok := others[key]; return !ok })
	return some
}

// compare returns one line for each figure of got that is not as committed.
func (fs figures) compare(got figures) (lines []string) {
	all := maps.Clone(fs)
	maps.Copy(all, got)
	for _, key := range all.keys() {
		want, committed := fs[key]
		now, measured := got[key]
		what := key.of + ": " + key.what
		by := now.count - want.count
		switch {
		case !measured:
			lines = append(lines, fmt.Sprintf("%s: committed, but not measured", what))
		case !committed:
			lines = append(lines, fmt.Sprintf("%s: %d, not committed", what, now.count))
		case by*100 > want.count*want.percent:
			line := fmt.Sprintf("%s grew from %d to %d, by %d", what, want.count, now.count, by)
			if want.percent > 0 {
				line += fmt.Sprintf(" (%d%%); it may grow by %d%%", by*100/max(want.count, 1), want.percent)
			}
			lines = append(lines, line)
		case by < 0 && want.percent == 0:
			lines = append(lines, fmt.Sprintf("%s fell from %d to %d, by %d: accept it", what, want.count, now.count, -by))
		}
	}
	return lines
}

// updated returns the figures to commit after got. A count within its tolerance, and the tolerance
// of a figure stay, so that only the lines change that must. A count that has grown by more than
// half of its tolerance does not: the next time it would exceed the tolerance by chance.
func (fs figures) updated(got figures) figures {
	next := maps.Clone(got)
	for key, now := range got {
		if old, ok := fs[key]; ok {
			if by := max(2*(now.count-old.count), old.count-now.count); by*100 <= old.count*old.percent {
				now.count = old.count
			}
			next[key] = figure{now.count, old.percent}
		}
	}
	return next
}

func TestFiguresSayWhatGrew(t *testing.T) {
	t.Parallel()
	of := func(what string, count, percent int) figures { return figures{{"p ADD", what}: {count, percent}} }
	for name, tt := range map[string]struct {
		committed, got, updated figures
		want                    string
	}{
		"equal":                {of("opens", 3, 0), of("opens", 3, 0), of("opens", 3, 0), ""},
		"exact, more":          {of("opens", 3, 0), of("opens", 4, 0), of("opens", 4, 0), "p ADD: opens grew from 3 to 4, by 1"},
		"exact, less":          {of("opens", 3, 0), of("opens", 1, 0), of("opens", 1, 0), "p ADD: opens fell from 3 to 1, by 2: accept it"},
		"half the tolerance":   {of("faults", 200, 10), of("faults", 210, 5), of("faults", 200, 10), ""},
		"the tolerance":        {of("faults", 200, 10), of("faults", 220, 5), of("faults", 220, 10), ""},
		"more than that":       {of("faults", 200, 10), of("faults", 230, 5), of("faults", 230, 10), "p ADD: faults grew from 200 to 230, by 30 (15%); it may grow by 10%"},
		"less by more than it": {of("faults", 200, 10), of("faults", 100, 5), of("faults", 100, 10), ""},
		"new":                  {figures{}, of("opens", 3, 0), of("opens", 3, 0), "p ADD: opens: 3, not committed"},
		"gone":                 {of("opens", 3, 0), figures{}, figures{}, "p ADD: opens: committed, but not measured"},
	} {
		nodetest.Equal(t, name, strings.Join(tt.committed.compare(tt.got), "\n"), tt.want)
		nodetest.Equal(t, name+", updated", tt.committed.updated(tt.got).String(), tt.updated.String())
		path := filepath.Join(t.TempDir(), "figures")
		nodetest.OK(t, os.WriteFile(path, []byte(tt.updated.String()), 0o600))
		nodetest.Equal(t, name+", read", readFigures(t, path).String(), tt.updated.String())
	}
}
