//go:build linux

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// A reporter prints figures as Markdown, and what is going on.
type reporter struct{ out, progress io.Writer }

func (r reporter) say(format string, args ...any) {
	fmt.Fprintf(r.progress, "%s "+format+"\n", append([]any{time.Now().Format(time.TimeOnly)}, args...)...)
}

// table prints a title and a table. Its first column is text, the others are figures.
func (r reporter) table(title string, head []string, rows ...[]string) {
	widths := make([]int, len(head))
	for _, row := range append([][]string{head}, rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell), 3)
		}
	}
	var b strings.Builder
	for i, row := range slices.Concat([][]string{head, nil}, rows) {
		b.WriteByte('|')
		for k, width := range widths {
			switch {
			case i == 1 && k == 0:
				b.WriteString(strings.Repeat("-", width+2))
			case i == 1:
				b.WriteString(strings.Repeat("-", width+1) + ":")
			case k == 0:
				b.WriteString(" " + row[k] + strings.Repeat(" ", width-utf8.RuneCountInString(row[k])) + " ")
			default:
				b.WriteString(" " + strings.Repeat(" ", width-utf8.RuneCountInString(row[k])) + row[k] + " ")
			}
			b.WriteByte('|')
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(r.out, "\n%s\n\n%s", title, b.String())
}

// requests prints the requests of a span.
func (r reporter) requests(title string, t tally, units int, unit string) {
	r.table(title, []string{"request", "answer", "number", "per " + unit}, t.rows(units)...)
}

// figure formats a number with at least three digits.
func figure(f float64) string {
	switch {
	case f == 0:
		return "0"
	case f >= 100:
		return fmt.Sprintf("%.0f", f)
	case f >= 10:
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.2f", f)
}

func seconds(d time.Duration) string { return figure(d.Seconds()) }
func millis(d time.Duration) string  { return figure(float64(d) / float64(time.Millisecond)) }
func mb(bytes float64) string        { return figure(bytes / 1e6) }
func kb(bytes float64) string        { return figure(bytes / 1e3) }

// three formats the least, the median and the greatest of durations, in milliseconds.
func three(all []time.Duration) []string {
	if len(all) == 0 {
		return []string{"–", "–", "–"}
	}
	s := slices.Sorted(slices.Values(all))
	return []string{millis(s[0]), millis(s[len(s)/2]), millis(s[len(s)-1])}
}
