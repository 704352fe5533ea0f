//go:build linux

package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// A table prints as Markdown that is also readable as plain text. The first
// columns are text; the others are figures, aligned to the right.
type table struct {
	text int
	head []string
	rows [][]string
}

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

// print prints title, an empty line, and t.
func (t *table) print(w io.Writer, title string) error {
	widths := make([]int, len(t.head))
	for _, row := range append([][]string{t.head}, t.rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell), 3)
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s\n\n", title)
	line := func(cells []string) {
		for i, cell := range cells {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i < t.text {
				b.WriteString("| " + cell + pad + " ")
			} else {
				b.WriteString("| " + pad + cell + " ")
			}
		}
		b.WriteString("|\n")
	}
	line(t.head)
	for i, width := range widths {
		if i < t.text {
			b.WriteString("|" + strings.Repeat("-", width+2))
		} else {
			b.WriteString("|" + strings.Repeat("-", width+1) + ":")
		}
	}
	b.WriteString("|\n")
	for _, row := range t.rows {
		line(row)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// figure formats a number with at least three digits.
func figure(f float64) string {
	switch {
	case f >= 100:
		return fmt.Sprintf("%.0f", f)
	case f >= 10:
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.2f", f)
}

// times formats a figure and its ratio to floor.
func times(f, ratio float64) string { return fmt.Sprintf("%s (%.2f)", figure(f), ratio) }

// mb formats bytes as millions of bytes.
func mb(bytes float64) string { return figure(bytes / 1e6) }
