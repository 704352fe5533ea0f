//go:build linux

package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// What a picture measures, in pixels.
const (
	panelWidth, panelHeight = 330.0, 210.0
	left, top, right, under = 52.0, 34.0, 18.0, 44.0
)

// strokes are the contenders' colours and dashes.
var strokes = []struct{ colour, dash string }{ //nolint:gochecknoglobals // a table
	{"#6e7781", ""},
	{"#bf8700", ""},
	{"#0969da", ""},
	{"#8250df", "5 3"},
	{"#cf222e", ""},
	{"#1a7f37", ""},
	{"#bf3989", "5 3"},
	{"#953800", "2 3"}, // mostPeers
}

// A panel is the cost of one command with one kind of delegates.
type panel struct {
	title string
	ns    []int
	lines [][]float64 // of each contender, for each of ns; NaN if it was left out
}

// panels returns the panels of tasks, ADD and DEL of each kind next to each
// other.
func panels(contenders []contender, tasks []*task) []panel {
	var all []panel
	for _, kind := range []string{noop, bridge} {
		add := panel{title: "ADD, " + kind, lines: make([][]float64, len(contenders))}
		del := panel{title: "DEL, " + kind, lines: make([][]float64, len(contenders))}
		for _, t := range tasks {
			if t.kind != kind {
				continue
			}
			add.ns, del.ns = append(add.ns, t.n), append(del.ns, t.n)
			for i := range contenders {
				add.lines[i] = append(add.lines[i], point(t.add[i]))
				del.lines[i] = append(del.lines[i], point(t.del[i]))
			}
		}
		if len(add.ns) > 0 {
			all = append(all, add, del)
		}
	}
	return all
}

// point returns the median time of samples, or NaN if there are none.
func point(samples []sample) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	return median(of(samples, wall))
}

// draw returns an SVG of the panels, two in a row, below the names of the contenders. It
// has a light background of its own, for dark pages.
func draw(contenders []contender, all []panel) []byte {
	rows, w := (len(all)+1)/2, 2*(left+panelWidth+right)
	var names strings.Builder
	x, y := left, 20.0
	for i, c := range contenders {
		width := 60 + 7*float64(len(c.name))
		if i > 0 && x+width > w {
			x, y = left, y+20
		}
		fmt.Fprintf(&names, `<path d="M%g %gh24" %s/>`, x, y, stroke(i))
		fmt.Fprintf(&names, `<text x="%g" y="%g">%s</text>`+"\n", x+30, y+4, html.EscapeString(c.name))
		x += width
	}
	legend := y + 20
	h := legend + float64(rows)*(top+panelHeight+under)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" viewBox="0 0 %g %g" font-family="sans-serif" font-size="12" fill="#1f2328">`+"\n", w, h, w, h)
	b.WriteString(`<title>What attaching and detaching costs against the number of delegates</title>` + "\n")
	fmt.Fprintf(&b, `<rect width="%g" height="%g" rx="6" fill="#ffffff"/>`+"\n", w, h)
	b.WriteString(names.String())
	for i, p := range all {
		col, row := float64(i%2), float64(i/2)
		fmt.Fprintf(&b, `<g transform="translate(%g %g)">`+"\n", left+col*(left+panelWidth+right), legend+top+row*(top+panelHeight+under))
		p.draw(&b)
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return []byte(b.String())
}

// draw draws p with its origin in the upper left corner of its axes.
func (p panel) draw(b *strings.Builder) {
	most := 0.0
	for _, line := range p.lines {
		for _, v := range line {
			if !math.IsNaN(v) {
				most = max(most, v)
			}
		}
	}
	step, most := ticks(most)
	x := func(n int) float64 { return panelWidth * float64(n) / float64(p.ns[len(p.ns)-1]) }
	y := func(ms float64) float64 { return panelHeight * (1 - ms/most) }

	fmt.Fprintf(b, `<text y="-12" font-weight="bold">%s</text>`+"\n", html.EscapeString(p.title))
	for i := 0; float64(i)*step <= most*1.0001; i++ {
		v := float64(i) * step
		fmt.Fprintf(b, `<path d="M0 %.1fH%g" stroke="#d0d7de"/><text x="-6" y="%.1f" text-anchor="end">%.4g</text>`+"\n", y(v), panelWidth, y(v)+4, v)
	}
	for _, n := range p.ns {
		fmt.Fprintf(b, `<path d="M%.1f %gv4" stroke="#1f2328"/><text x="%.1f" y="%g" text-anchor="middle">%d</text>`+"\n", x(n), panelHeight, x(n), panelHeight+17, n)
	}
	fmt.Fprintf(b, `<path d="M0 0V%gH%g" fill="none" stroke="#1f2328"/>`+"\n", panelHeight, panelWidth)
	fmt.Fprintf(b, `<text x="%g" y="%g" text-anchor="middle">N, delegates</text>`+"\n", panelWidth/2, panelHeight+34)
	fmt.Fprintf(b, `<text transform="translate(-38 %g) rotate(-90)" text-anchor="middle">ms, median</text>`+"\n", panelHeight/2)
	for i, line := range p.lines {
		var d strings.Builder
		for j, v := range line {
			if math.IsNaN(v) {
				continue
			}
			fmt.Fprintf(&d, "%c%.1f %.1f", "ML"[min(d.Len(), 1)], x(p.ns[j]), y(v))
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="2.5" fill="%s"/>`, x(p.ns[j]), y(v), strokes[i].colour)
		}
		if d.Len() > 0 {
			fmt.Fprintf(b, `<path d="%s" %s/>`+"\n", d.String(), stroke(i))
		}
	}
}

func stroke(i int) string {
	return fmt.Sprintf(`fill="none" stroke="%s" stroke-width="2" stroke-dasharray="%s"`, strokes[i].colour, strokes[i].dash)
}

// ticks returns a step of 1, 2 or 5 times a power of ten, and its first
// multiple that is at least most, so that there are four to ten steps.
func ticks(most float64) (step, end float64) {
	most = max(most, 1e-3)
	step = math.Pow(10, math.Floor(math.Log10(most)))
	switch {
	case most/step < 2:
		step /= 5
	case most/step < 4:
		step /= 2
	}
	return step, step * math.Ceil(most/step)
}
