package bench

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/internal/test/process"
)

// A page has the results of the benchmarks, in order.
type page struct{ results []result }

// A result is of a command of all contenders in one case.
type result struct {
	benchCase
	command string
	rows    []row
}

// A row has the costs of a command of one contender.
type row struct {
	name             string
	floor            bool
	median, p95, p99 float64 // ms
	cpu              float64 // ms a pod
	memory           int     // kB
}

// add adds the results of a case, which it returns: of ADD, and of DEL.
func (p *page) add(c benchCase, all []*entrant) []result {
	order := slices.SortedFunc(slices.Values(all), func(a, b *entrant) int { return cmp.Compare(a.ID, b.ID) })
	for _, command := range []string{"ADD", "DEL"} {
		r := result{c, command, nil}
		for _, e := range order {
			sum := e.costs[command]
			slices.Sort(sum.took)
			r.rows = append(r.rows, row{
				e.label, e.floor, percentile(sum.took, 0.5), percentile(sum.took, 0.95), percentile(sum.took, 0.99),
				ms(sum.cpu) / float64(len(sum.took)), sum.memory,
			})
		}
		p.results = append(p.results, r)
	}
	return p.results[len(p.results)-2:]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// percentile returns a percentile of sorted times, in milliseconds.
func percentile(sorted []time.Duration, part float64) float64 {
	return ms(sorted[max(0, int(math.Ceil(part*float64(len(sorted))))-1)])
}

// floor returns the least of what the floors have cost.
func (r result) floor(of func(row) float64) float64 {
	least := math.Inf(1)
	for _, row := range r.rows {
		if row.floor {
			least = min(least, of(row))
		}
	}
	return least
}

// number formats a time in milliseconds with three digits.
func number(ms float64) string {
	switch {
	case ms < 10:
		return fmt.Sprintf("%.2f", ms)
	case ms < 100:
		return fmt.Sprintf("%.1f", ms)
	}
	return fmt.Sprintf("%.0f", ms)
}

// names are of one delegate and of several.
var names = map[string][2]string{
	"noop":     {"one plugin that does nothing", "plugins that do nothing"},
	"resident": {"one resident plugin", "resident plugins"},
	"bridge":   {"one bridge network", "bridge networks"},
}

// commands returns a table of the medians of single commands, of all cases or those in only.
func (p *page) commands(only ...benchCase) string {
	var b strings.Builder
	for _, r := range p.results {
		if r.pods > 1 || only != nil && !slices.Contains(only, r.benchCase) {
			continue
		}
		if b.Len() == 0 {
			b.WriteString("| |")
			for _, row := range r.rows {
				fmt.Fprintf(&b, " %s |", row.name)
			}
			b.WriteString("\n|---|" + strings.Repeat("--:|", len(r.rows)) + "\n")
		}
		what := names[r.typ][0]
		if r.count > 1 {
			what = fmt.Sprintf("%d %s", r.count, names[r.typ][1])
		}
		fmt.Fprintf(&b, "| %s of %s |", r.command, what)
		for _, row := range r.rows {
			fmt.Fprintf(&b, " %s |", number(row.median))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// bursts returns a table of the bursts.
func (p *page) bursts() string {
	var b strings.Builder
	b.WriteString("| | | median | p95 | p99 | p95 by the floor's | p99 by the floor's | CPU a pod | peak memory, MB |\n|---|---|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, r := range p.results {
		if r.pods == 1 {
			continue
		}
		what := r.title()
		p95, p99 := r.floor(func(r row) float64 { return r.p95 }), r.floor(func(r row) float64 { return r.p99 })
		for _, row := range r.rows {
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %.2f | %.2f | %s | %.1f |\n", what, row.name,
				number(row.median), number(row.p95), number(row.p99), row.p95/p95, row.p99/p99, number(row.cpu), float64(row.memory)/1000)
			what = ""
		}
	}
	return b.String()
}

func (r result) title() string {
	return strings.TrimSuffix(fmt.Sprintf("%s of %d at once, %d networks", r.command, r.pods, r.count), map[bool]string{true: "s"}[r.count == 1])
}

// picture returns an SVG of the bursts: a bar to the median, and a line to the 99th percentile
// with a mark at the 95th.
func (p *page) picture() string {
	const left, width, line = 180, 520, 18.0
	var b strings.Builder
	y := 0.0
	text := func(class string, x, y float64, s string) {
		fmt.Fprintf(&b, "<text class=%q x=\"%.0f\" y=\"%.0f\">%s</text>\n", class, x, y, s)
	}
	for _, r := range p.results {
		if r.pods == 1 {
			continue
		}
		most := 0.0
		for _, row := range r.rows {
			most = max(most, row.p99)
		}
		y += 2 * line
		text("title", left, y-5, r.title()+", ms")
		for _, row := range r.rows {
			at := func(ms float64) float64 { return left + ms/most*width }
			class := map[bool]string{true: "floor", false: "ours"}[row.floor]
			text("name", left-8, y+13, row.name)
			fmt.Fprintf(&b, "<rect class=%q x=\"%d\" y=\"%.0f\" width=\"%.1f\" height=\"12\"/>\n", class, left, y+3, at(row.median)-left)
			fmt.Fprintf(&b, "<path d=\"M%.1f %.0fH%.1fM%.1f %.0fv8M%.1f %.0fv8\"/>\n", at(row.median), y+9, at(row.p99), at(row.p95), y+5, at(row.p99), y+5)
			text("value", at(row.p99)+6, y+13, number(row.p99))
			y += line
		}
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" font-family="sans-serif" font-size="12">
<style>
text { fill: #333 } .name { text-anchor: end } .title { font-weight: bold }
.floor { fill: #999 } .ours { fill: #4a7ebb } path { stroke: #333; fill: none }
@media (prefers-color-scheme: dark) { text { fill: #ddd } path { stroke: #ddd } }
</style>
%s</svg>
`, left+width+60, y+line, b.String())
}

// ownPage has the results.
const ownPage = "README.md"

// write writes the results into README.md, its picture and the README of the repository.
func (p *page) write(tb testing.TB) {
	tb.Helper()
	where := machine(tb)
	nodetest.Section(tb, ownPage, "machine", where)
	nodetest.Section(tb, ownPage, "commands", p.commands())
	nodetest.Section(tb, ownPage, "bursts", p.bursts())
	nodetest.OK(tb, os.WriteFile("bench.svg", []byte(p.picture()), 0o600))
	nodetest.Section(tb, "../../../README.md", "make bench", where+"\n"+p.commands(benchCase{"bridge", 1, 1}, benchCase{"bridge", 8, 1}, benchCase{"noop", 1, 1}, benchCase{"noop", 8, 1}))
}

// machine says on what the results were measured. Machines differ most in how long they take to
// start a program.
func machine(tb testing.TB) string {
	tb.Helper()
	var u unix.Utsname
	_ = unix.Uname(&u)
	linux, _, _ := strings.Cut(unix.ByteSliceToString(u.Release[:]), "-")
	var took []time.Duration
	for range 31 {
		start := time.Now()
		nodetest.OK(tb, exec.CommandContext(tb.Context(), "true").Run())
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	return fmt.Sprintf("%s, %d CPUs, Linux %s, %s; the program true takes %s ms.\n",
		time.Now().Format("January 2006"), runtime.NumCPU(), linux, runtime.Version(), number(percentile(took, 0.5)))
}

// The tables and the picture of two contenders.
func TestPageOfTheBenchmarksShowsEachContender(t *testing.T) {
	t.Parallel()
	took := func(each ...time.Duration) map[string]*cost {
		return map[string]*cost{"ADD": {each, 30 * time.Millisecond, 7000}, "DEL": {each, 30 * time.Millisecond, 7000}}
	}
	all := []*entrant{
		{contender: contender{label: "ours"}, node: node{&process.Node{ID: 2}}, costs: took(9*time.Millisecond, 6*time.Millisecond, 3*time.Millisecond)},
		{contender: contender{label: "libcni", floor: true}, node: node{&process.Node{ID: 1}}, costs: took(2*time.Millisecond, 4*time.Millisecond, 6*time.Millisecond)},
	}
	var p page
	p.add(benchCase{"bridge", 1, 1}, all)
	p.add(benchCase{"noop", 8, 1}, all)
	p.add(benchCase{"bridge", 4, 3}, all)
	nodetest.Equal(t, "commands", p.commands(benchCase{"bridge", 1, 1}), `| | libcni | ours |
|---|--:|--:|
| ADD of one bridge network | 4.00 | 6.00 |
| DEL of one bridge network | 4.00 | 6.00 |
`)
	nodetest.Equal(t, "bursts", p.bursts(), `| | | median | p95 | p99 | p95 by the floor's | p99 by the floor's | CPU a pod | peak memory, MB |
|---|---|--:|--:|--:|--:|--:|--:|--:|
| ADD of 3 at once, 4 networks | libcni | 4.00 | 6.00 | 6.00 | 1.00 | 1.00 | 10.0 | 7.0 |
|  | ours | 6.00 | 9.00 | 9.00 | 1.50 | 1.50 | 10.0 | 7.0 |
| DEL of 3 at once, 4 networks | libcni | 4.00 | 6.00 | 6.00 | 1.00 | 1.00 | 10.0 | 7.0 |
|  | ours | 6.00 | 9.00 | 9.00 | 1.50 | 1.50 | 10.0 | 7.0 |
`)
	for _, want := range []string{`<text class="name" x="172" y="49">libcni</text>`, `<rect class="ours" x="180" y="57" width="346.7" height="12"/>`, "prefers-color-scheme: dark"} {
		if !strings.Contains(p.picture(), want) {
			t.Errorf("the picture lacks %s:\n%s", want, p.picture())
		}
	}
}
