package e2e

import (
	"bufio"
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
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

// parseFigures parses the text of String.
func parseFigures(text string) (figures, error) {
	fs := figures{}
	lines := bufio.NewScanner(strings.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		var f figure
		words, percent, found := strings.Cut(line, "+")
		fields, err := strings.Fields(words), error(nil)
		if found {
			f.percent, err = strconv.Atoi(strings.TrimSuffix(percent, "%"))
		}
		if err != nil || len(fields) < 3 {
			return nil, fmt.Errorf("line %d: %q", n, line)
		}
		last := len(fields) - 1
		if f.count, err = strconv.Atoi(fields[last]); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		key := figureKey{strings.Join(fields[:last-1], " "), fields[last-1]}
		if _, ok := fs[key]; ok {
			return nil, fmt.Errorf("line %d: %v is there twice", n, key)
		}
		fs[key] = f
	}
	return fs, lines.Err()
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

// updated returns the figures to commit after got. A count within its tolerance, more or
// less, and the tolerance of a figure stay, so that only the lines change that must.
func (fs figures) updated(got figures) figures {
	next := maps.Clone(got)
	for key, now := range got {
		if old, ok := fs[key]; ok {
			if by := max(now.count-old.count, old.count-now.count); by*100 <= old.count*old.percent {
				now.count = old.count
			}
			next[key] = figure{now.count, old.percent}
		}
	}
	return next
}

// readFigures returns the committed figures.
func readFigures(t *testing.T, path string) figures {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	fs, err := parseFigures(string(text))
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return fs
}
