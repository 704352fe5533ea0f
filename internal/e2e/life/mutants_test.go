package life

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/metacni/metacni/internal/hosttest"
	"github.com/metacni/metacni/internal/mutant"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

var mutate = flag.Bool("mutants", false, "run TestEachLineOfTheJudgementIsNeeded")

// enough is how many runbooks may pass until a missing line is found.
const enough = 400

// A line decides about life.
type line struct {
	name string
	mutant.Mutant
}

// judgement lists the lines that decide about life. Each file has its Old once.
func judgement() []line {
	return []line{
		{"only a path that leads to the namespace counts", mutant.Mutant{
			File: "delegate/lifecycle/life.go", Old: `if path != "" && n.compare(o.look(path), o.boot()) == same {`, New: `if path != "" {`,
		}},
		{"a plugin gets no other namespace", mutant.Mutant{
			File: "delegate/lifecycle/life.go", Old: `	path := o.path(n)
	if n.Inode == 0 {
		path = o.given
	}
`, New: `	path := o.given
	if path == "" {
		path = n.Path
	}
`,
		}},
		{"the kernel's word counts only with the right to know", mutant.Mutant{
			File: "delegate/lifecycle/machine_linux.go", Old: `&& n.in(k.boot()) && may(unix.CAP_SYS_ADMIN):`, New: `&& n.in(k.boot()):`,
		}},
		{"a scan that does not see everything proves nothing", mutant.Mutant{
			File: "delegate/lifecycle/life.go", Old: `if seen.unseen != "" {`, New: `if false {`,
		}},
		{"a scan sees threads", mutant.Mutant{
			File: "delegate/lifecycle/scan_linux.go", Old: `				s.hit(inode, thread+"/ns/net")
`, New: ``,
		}},
		{"a scan sees mounts", mutant.Mutant{
			File: "delegate/lifecycle/scan_linux.go", Old: `s.add(m.inode, identity(m.fd))`, New: ``,
		}},
		{"a scan sees descriptors", mutant.Mutant{
			File: "delegate/lifecycle/descriptors_linux.go", Old: `				s.hit(inode, path)
`, New: `				_ = inode
`,
		}},
		{"a scan sees sockets", mutant.Mutant{
			File: "delegate/lifecycle/descriptors_linux.go", Old: `				s.readSocket(here, pid, tid, fd)
`, New: ``,
		}},
		{"a sweep removes only what is dead", mutant.Mutant{
			File: "delegate/lifecycle/sweep.go", Old: `if r := attached[i]; j.Life == Dead ||`, New: `if r := attached[i]; j.Life != Alive ||`,
		}},
		{"an ADD takes only the dead for removed", mutant.Mutant{
			File: "delegate/lifecycle/clear.go", Old: `o.judge(r.Value.Delegates).Life != Dead`, New: `o.judge(r.Value.Delegates).Life == Alive`,
		}},
		{"an ADD of another namespace removes nothing that lives", mutant.Mutant{
			File: "delegate/lifecycle/clear.go", Old: `if r.State.Attached() && `, New: `if r.State.Attached() && !o.elsewhere(r.Value.Delegates) && `,
		}},
		{"an address of another attachment is not ours", mutant.Mutant{
			File: "delegate/lifecycle/owners.go", Old: `return o.network == a.Network.Name() && o.address == ip && (!o.static || !static)`, New: `return false && static`,
		}},
		{"the record of a network that is configured is another attachment", mutant.Mutant{
			File: "delegate/lifecycle/lookup.go", Old: `case known && !configured, `, New: `case known || configured, `,
		}},
	}
}

// Without any of these lines a history or a cell of the cross is found in which something is taken
// from a container that lives, or is left of one that is gone.
func TestEachLineOfTheJudgementIsNeeded(t *testing.T) {
	for _, l := range judgement() {
		_, err := l.Overlay("../../..", t.TempDir())
		nodetest.OK(t, err)
	}
	if !*mutate {
		t.Skip("compiles multinet many times: -mutants")
	}
	hosttest.Need(t)
	for _, l := range judgement() {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			overlay, err := l.Overlay("../../..", dir)
			nodetest.OK(t, err)
			bin := filepath.Join(dir, "bin")
			nodetest.OK(t, os.Mkdir(bin, 0o755))
			for _, program := range []string{"bridge", "host-local", "firewall", "fake"} {
				nodetest.OK(t, os.Symlink(filepath.Join(hosttest.Programs(), program), filepath.Join(bin, program)))
			}
			nodetest.OK(t, buildMultinet(t.Context(), bin, "-overlay", overlay))
			all := cells(*seed)
			for i := range uint64(enough) {
				runbook, _ := all[i/2].runbook()
				if i%2 == 0 {
					runbook = generate(*seed+i, *length)
				}
				o := play(t.Context(), bin, runbook)
				nodetest.OK(t, o.broken)
				if o.Wrong != "" {
					t.Logf("found in the %d. runbook: %s", i+1, o.Wrong)
					return
				}
			}
			t.Errorf("not found in %d runbooks", enough)
		})
	}
}
