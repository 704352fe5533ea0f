package museum

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/metacni/metacni/delegate/conform/host"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/internal/test/process"
)

var update = flag.Bool("update", false, "write the answers into README.md")

// An outage is a case of a public issue tracker.
type outage struct {
	issue string   // owner/repository#number
	title string   // of the issue
	lost  string   // what the operator lost
	on    []string // the subjects that have what the case is about
	shown string   // what shows that the case can fail, if no subject does
	// script does what the runtime and the machine did, and notes what is lost.
	script func(n *node)
}

// TestMuseum replays each outage with each subject that is there. Ours lose nothing, and
// README.md says what the others lose.
func TestMuseum(t *testing.T) {
	host.Need(t)
	there := subjects()
	all := outages()
	commonChains(t, there["cnitool"])

	var mu sync.Mutex
	answers := make([][columns][]string, len(all))
	t.Run("outages", func(t *testing.T) {
		for i, o := range all {
			for _, name := range o.on {
				s, ok := there[name]
				if !ok {
					continue
				}
				t.Run(o.issue+"/"+name, func(t *testing.T) {
					t.Parallel()
					n := newNode(t, s)
					n.boot(nil)
					o.script(n)
					answer := "holds"
					if len(n.lost) > 0 {
						answer = strings.Join(n.lost, ", ")
					}
					if s.column == ours {
						nodetest.Equal(t, "lost", n.lost, nil)
						answer = name
					}
					mu.Lock()
					defer mu.Unlock()
					answers[i][s.column] = append(answers[i][s.column], answer)
				})
			}
		}
	})
	if t.Failed() {
		return
	}

	page, err := os.ReadFile("README.md")
	nodetest.OK(t, err)
	head, rest, ok := strings.Cut(string(page), begin)
	old, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("README.md has no table")
	}
	table := rows(all, answers, strings.Split(old, "\n"))
	if *update {
		nodetest.OK(t, os.WriteFile("README.md", []byte(head+begin+table+end+tail), 0o644)) //nolint:gosec // a page
		return
	}
	nodetest.Equal(t, "table of README.md (make museum writes it)", strings.Split(old, "\n"), strings.Split(table, "\n"))
}

// The table is between these lines of README.md.
const (
	begin = "| outage | what was lost | ours | libcni (cnitool) | Multus | flannel's plugin | can fail |\n|---|---|---|---|---|---|---|\n"
	end   = "\nAll hold"
)

// rows returns the table. Columns of subjects that are not there are taken from old.
func rows(all []outage, answers [][columns][]string, old []string) string {
	var b strings.Builder
	for i, o := range all {
		link := fmt.Sprintf("[%s](https://github.com/%s)", o.issue, strings.Replace(o.issue, "#", "/issues/", 1))
		was := slices.IndexFunc(old, func(line string) bool { return strings.HasPrefix(line, "| "+link+" ") })
		var cells [columns]string
		shown := o.shown
		for c := range columns {
			cells[c] = "-"
			switch got := answers[i][c]; {
			case c == ours && len(got) > 0:
				slices.Sort(got)
				cells[c] = "hold: " + strings.Join(got, ", ")
			case len(got) > 0:
				cells[c] = got[0]
			case was >= 0 && o.about(c):
				cells[c] = strings.Split(old[was], " | ")[2+c]
			case o.about(c):
				cells[c] = "not run"
			}
			if c != ours && !slices.Contains([]string{"-", "holds", "not run"}, cells[c]) {
				shown = "as shown"
			}
		}
		fmt.Fprintf(&b, "| %s %s | %s | %s | %s |\n", link, o.title, o.lost, strings.Join(cells[:], " | "), shown)
	}
	return b.String()
}

// about reports whether the outage is about a subject of the column.
func (o outage) about(c column) bool {
	return slices.Contains(o.on, map[column]string{ours: o.on[0], libcni: "cnitool", multus: "Multus", flannel: "flannel's"}[c])
}

// commonChains lets the plugins make the chains that they have for all containers. Two that
// miss one at once both make it, and one of them fails.
func commonChains(t *testing.T, s subject) {
	t.Helper()
	n := newNode(t, s)
	p := n.pod(n.network(0, n.masked(0), n.firewall(), n.portmap()))
	p.ports = 8079
	n.ok("ADD", p)
	n.ok("DEL", p)
}

func TestMain(m *testing.M) {
	os.Exit(host.Tests{Needs: iptables, Build: build}.Main(m))
}

// iptables fails where the plugins cannot make rules.
func iptables(context.Context) error {
	for _, dir := range filepath.SplitList(process.Path) {
		if _, err := exec.LookPath(filepath.Join(dir, "iptables-save")); err == nil {
			return nil
		}
	}
	return errors.New("needs iptables and iptables-save")
}

// build builds our programs, cnitool and the reference plugins.
func build(ctx context.Context, dir string) error {
	const root, e2e = "../../..", "../../e2e"
	list := exec.CommandContext(ctx, "go", "list", "tool")
	list.Dir, list.Stderr = e2e, os.Stderr
	tools, err := list.Output()
	if err != nil {
		return fmt.Errorf("list the reference plugins: %w", err)
	}
	for module, packages := range map[string][]string{
		root:                        {"./examples/flannel", "./internal/test/process/fake"},
		root + "/examples/multinet": {"./cmd/..."},
		e2e:                         strings.Fields(string(tools)),
	} {
		if err := (process.Build{Env: []string{"CGO_ENABLED=0"}, Args: packages}).Run(ctx, module, dir); err != nil {
			return err
		}
	}
	return nil
}

// built returns the path of a program.
func built(name string) string { return filepath.Join(host.Programs(), name) }
