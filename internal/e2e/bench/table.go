//go:build linux

package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// A table prints as Markdown that is also readable as plain text. The first columns are
// text; the others are figures, aligned to the right.
type table struct {
	text int
	head []string
	rows [][]string
}

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

// print prints title, an empty line, and t.
func (t *table) print(w io.Writer, title string) error {
	rule := slices.Repeat([]string{"---"}, t.text)
	rule = append(rule, slices.Repeat([]string{"--:"}, len(t.head)-t.text)...)
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s\n\n", title)
	for _, row := range append([][]string{t.head, rule}, t.rows...) {
		for i, cell := range row {
			width := 0
			for _, other := range append([][]string{t.head, rule}, t.rows...) {
				width = max(width, utf8.RuneCountInString(other[i]))
			}
			pad := strings.Repeat(" ", width-utf8.RuneCountInString(cell))
			if i < t.text {
				b.WriteString("| " + cell + pad + " ")
			} else {
				b.WriteString("| " + pad + cell + " ")
			}
		}
		b.WriteString("|\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// compared returns a cell for each list of values: the median and, from the second on, the
// median of the ratios to the first.
func compared(all [][]float64) []string {
	cells := []string{figure(median(all[0]))}
	for _, values := range all[1:] {
		ratios := make([]float64, len(values))
		for i, v := range values {
			ratios[i] = v / all[0][i]
		}
		cells = append(cells, fmt.Sprintf("%s (%.2f)", figure(median(values)), median(ratios)))
	}
	return cells
}

// median returns the median of at least one value.
func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
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

// mb formats bytes as millions of bytes.
func mb(bytes float64) string { return figure(bytes / 1e6) }

// size returns the size of a program.
func (r *rig) size(program string) (string, error) {
	info, err := os.Stat(r.file("bin", program))
	if err != nil {
		return "", err
	}
	return mb(float64(info.Size())), nil
}

// machine describes the machine in one line.
func (r *rig) machine() (string, error) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return "", err
	}
	var took []float64
	for range 11 {
		f, err := os.CreateTemp(r.work, "fsync-")
		if err != nil {
			return "", err
		}
		_, err = f.Write(make([]byte, 4096))
		start := time.Now()
		if err == nil {
			err = f.Sync()
		}
		took = append(took, ms(time.Since(start)))
		_, _ = f.Close(), os.Remove(f.Name())
		if err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d CPUs, Linux %s, %s; an fsync takes %s ms; medians of %d rounds.",
		runtime.NumCPU(), unix.ByteSliceToString(uts.Release[:]), runtime.Version(), figure(median(took)), r.rounds), nil
}
