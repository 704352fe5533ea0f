package matrix

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/metacni/metacni/delegate/conform"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

const (
	begin = "<!-- The rest is written by make matrix. -->\n"
	page  = "README.md"
)

// writePage replaces the part of the page that says what was found.
func writePage(reports map[string]*report) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	head, _, ok := strings.Cut(string(text), begin)
	if !ok {
		return fmt.Errorf("%s has no line %q", page, begin)
	}
	var b strings.Builder
	b.WriteString(head + begin)
	fmt.Fprintf(&b, "\n## Results of %s\n\n", time.Now().UTC().Format("2 January 2006"))
	if err := results(&b, reports); err != nil {
		return err
	}
	reasons(&b)
	notRun(&b, reports)
	return os.WriteFile(page, []byte(b.String()), 0o644) //nolint:gosec // a page
}

// results writes a line for each plugin that was run. Versions with the same results share one.
func results(b *strings.Builder, reports map[string]*report) error {
	could, all := map[string]bool{}, map[string]bool{}
	var lines table
	for _, p := range plugins() {
		all[p.executable()] = true
		r := reports[p.id()]
		if r == nil || r.cannot != "" {
			continue
		}
		could[p.executable()] = true
		found, err := findings(p)
		if err != nil {
			return err
		}
		lines.add(p, r.Kind.Name+" | "+found)
	}
	fmt.Fprintf(b, "%d of %d plugins could be run on this machine, some in two versions or ways; their findings have %d causes.\n\n",
		len(could), len(all), len(causes()))
	b.WriteString("| plugin | module and version | taken for | findings |\n|---|---|---|---|\n")
	lines.write(b)
	return nil
}

// findings returns the checks that fail with a plugin, each with a link to its cause.
func findings(p plugin) (string, error) {
	var links []string
	failing := expected(p)
	for _, check := range conform.Checks() {
		if !slices.Contains(failing, check.Name) {
			continue
		}
		c, err := causeOf(p, check.Name)
		if err != nil {
			return "", err
		}
		links = append(links, fmt.Sprintf("[%s](issues/%s.md)", check.Name, c.draft))
	}
	return strings.Join(links, ", "), nil
}

// A table is lines about plugins.
type table []*line

type line struct {
	plugin
	versions []string
	text     string
}

// add adds a line, or the version to a line with the same text.
func (t *table) add(p plugin, text string) {
	for _, l := range *t {
		if l.name == p.name && l.module == p.module && l.text == text {
			l.versions = append(l.versions, p.version)
			return
		}
	}
	*t = append(*t, &line{p, []string{p.version}, text})
}

func (t table) write(b *strings.Builder) {
	for _, l := range t {
		fmt.Fprintf(b, "| %s | %s %s | %s |\n", l.name, l.module, strings.Join(l.versions, ", "), l.text)
	}
}

// reasons writes a line for each cause.
func reasons(b *strings.Builder) {
	b.WriteString("\n## Why each finding is true\n\n| draft of an issue | plugins and checks | specification 1.1 | why |\n|---|---|---|---|\n")
	for _, c := range causes() {
		var who []string
		for _, name := range slices.Sorted(maps.Keys(c.fails)) {
			who = append(who, name+": "+strings.Join(c.fails[name], ", "))
		}
		if len(c.fails) == len(everyone("")) {
			who = []string{"each plugin that could be run: " + c.fails[plugins()[0].name][0]}
		}
		fmt.Fprintf(b, "| [%s](issues/%s.md) | %s | %s | %s |\n", c.draft, c.draft, strings.Join(who, "<br>"), c.section, c.verdict)
	}
}

// notRun writes which plugins and checks were not run, and what was missing.
func notRun(b *strings.Builder, reports map[string]*report) {
	var none, some table
	for _, p := range plugins() {
		r := reports[p.id()]
		if r == nil {
			continue
		}
		if r.cannot != "" {
			said, _, _ := strings.Cut(r.cannot, ": the plugin lacks")
			needs := p.needs
			if r.unbuilt {
				needs, said = "its module, from a proxy or in METACNI_CLONES", "cannot be built"
			}
			none.add(p, cell(needs)+" | "+cell(said))
			continue
		}
		checks := map[string][]string{} // by reason
		for _, c := range r.with("not run") {
			if !strings.HasPrefix(c.Detail, "the check ") {
				checks[c.Detail] = append(checks[c.Detail], c.Name)
			}
		}
		for _, why := range slices.Sorted(maps.Keys(checks)) {
			some.add(p, strings.Join(checks[why], ", ")+" | "+cell(why))
		}
	}
	b.WriteString("\n## Plugins that could not be run\n\n| plugin | module and version | it needs | it says |\n|---|---|---|---|\n")
	none.write(b)
	b.WriteString("\n## Checks that were not made\n\nwithout those that are not made after a finding of the same cause.\n\n| plugin | module and version | checks | why |\n|---|---|---|---|\n")
	some.write(b)
}

// cell returns text as the cell of a table.
func cell(text string) string {
	return strings.NewReplacer("|", "\\|", "<", "&lt;", "\n", "<br>").Replace(strings.TrimSpace(text))
}

// TestPageIsWhatTheCausesSay: a row of README.md about a plugin has the findings that causes_test.go has
// for it, and the causes are those of that file. So the page and the causes can only be edited
// together, and TestMatrix shows for each plugin that it can run that the causes are true.
//
// Which plugins could be run, what they were taken for, and which checks were not made is what make
// matrix has found on the day that the page names, on a machine with the module proxy, clones of the
// modules that it does not serve, and iptables.
func TestPageIsWhatTheCausesSay(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(page)
	nodetest.OK(t, err)
	var why strings.Builder
	reasons(&why)
	for _, part := range []string{fmt.Sprintf("; their findings have %d causes.\n", len(causes())), why.String()} {
		if !strings.Contains(string(text), part) {
			t.Errorf("README.md is not what make matrix writes: it lacks\n%s", part)
		}
	}
	_, table, _ := strings.Cut(string(text), "| taken for | findings |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := 0
	for _, p := range plugins() {
		want, err := findings(p)
		nodetest.OK(t, err)
		for line := range strings.Lines(table + "\n") {
			cells := strings.SplitN(strings.TrimSuffix(line, " |\n"), " | ", 4)
			if len(cells) == 4 && cells[0] == "| "+p.name && strings.HasPrefix(cells[1], p.module+" ") && strings.Contains(cells[1]+",", " "+p.version+",") {
				nodetest.Equal(t, "findings in the row of "+p.id(), cells[3], want)
				rows++
			}
		}
	}
	if rows < 30 {
		t.Errorf("%d rows", rows)
	}
}

// TestEachFindingHasADraft: each cause is of plugins of the table and has a draft that README.md
// links to, and there is no other draft.
func TestEachFindingHasADraft(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(page)
	nodetest.OK(t, err)
	var names []string
	for _, p := range plugins() {
		names = append(names, p.name)
	}
	var drafts []string
	for _, c := range causes() {
		drafts = append(drafts, filepath.Join("issues", c.draft+".md"))
		if link := fmt.Sprintf("(issues/%s.md)", c.draft); !strings.Contains(string(text), link) {
			t.Errorf("README.md has no link %s (make matrix writes it)", link)
		}
		for name := range c.fails {
			if !slices.Contains(names, name) {
				t.Errorf("%s: there is no plugin %q", c.draft, name)
			}
		}
	}
	slices.Sort(drafts)
	files, err := filepath.Glob("issues/*.md")
	nodetest.OK(t, err)
	nodetest.Equal(t, "drafts", files, drafts)
}
