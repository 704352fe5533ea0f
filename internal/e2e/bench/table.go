//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// A table prints as Markdown that is also readable as plain text. The first columns are
// text; the others are figures.
type table struct {
	text int
	head []string
	rows [][]string
}

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

// print prints title, an empty line, and t.
func (t *table) print(w io.Writer, title string) error {
	out := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintf(out, "\n%s\n\n", title)
	rule := slices.Repeat([]string{"---"}, t.text)
	rule = append(rule, slices.Repeat([]string{"--:"}, len(t.head)-t.text)...)
	for _, row := range append([][]string{t.head, rule}, t.rows...) {
		fmt.Fprintf(out, "| %s\t|\n", strings.Join(row, "\t| "))
	}
	return out.Flush()
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

// machine describes the machine in one line.
func (r *rig) machine() (string, error) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return "", err
	}
	f, err := os.Create(r.file("fsync"))
	if err != nil {
		return "", err
	}
	const syncs = 100
	start := time.Now()
	for range syncs {
		_, err = f.Write(make([]byte, 4096))
		if err = errors.Join(err, f.Sync()); err != nil {
			break
		}
	}
	took := time.Since(start).Seconds() * 1000 / syncs
	return fmt.Sprintf("%d CPUs, Linux %s, %s; an fsync takes %s ms; medians of %d rounds.",
		runtime.NumCPU(), unix.ByteSliceToString(uts.Release[:]), runtime.Version(), figure(took), r.rounds), errors.Join(err, f.Close())
}
