package power

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate/conform/host"
	"github.com/metacni/metacni/internal/mutant"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

var update = flag.Bool("update", false, "count all crashes that break a promise, for the table in README.md")

// root is that of the module of the SDK.
const root = "../../.."

// A syncing is a place in the code that syncs.
type syncing struct {
	what     string        // is synced
	mutant   mutant.Mutant // does not
	scenario string        // that shows it
	reason   string        // in place of a scenario
}

func syncings() []syncing {
	const (
		files   = "internal/durable/file_linux.go"
		dirs    = "internal/durable/dir_linux.go"
		queue   = "delegate/thick/internal/queue/queue.go"
		program = "examples/multinet/publish/program.go"
	)
	return []syncing{
		{"a file, before it has its name", mutant.Mutant{File: files, Old: `d.at("fsync", temp, func() error { return unix.Fsync(fd) })`, New: "nil"}, "records", ""},
		{"its directory, once it has its name", mutant.Mutant{File: files, Old: "although the data is on disk.\n\treturn d.Sync()", New: "\n\treturn nil"}, "records", ""},
		{"the queue, for a DEL that another shim has just put there", mutant.Mutant{File: queue, Old: "the directory yet.\n\t\t\treturn dir.Sync()", New: "\n\t\t\treturn nil"}, "queue", ""},
		{"the directory of the published configuration, once that is removed", mutant.Mutant{File: "netconf/autoconf/disk.go", Old: "err = d.Sync()", New: "err = nil"}, "configuration", ""},
		{"a program, before it has its name", mutant.Mutant{File: program, Old: "temp.Sync(), "}, "program", ""},
		{"its directory, once it has its name", mutant.Mutant{File: program, Old: "dir.Sync(), "}, "program", ""},
		{"a directory, once another was made in it", mutant.Mutant{File: dirs, Old: "return parent.Sync()"}, "", "fsync(2) asks for it; these file systems do it with the first file that is synced in the other"},
		{"a directory: what the others call", mutant.Mutant{File: dirs, Old: "return unix.Fsync(d.fd)"}, "", "see the others"},
		{"a file that STATUS writes and removes", mutant.Mutant{File: files, Old: `d.at("fsync", tryName, func() error { return unix.Fsync(fd) })`}, "", "shows that the disk is full: the write itself may succeed"},
	}
}

// Without any of the syncs, a crash breaks a promise.
func TestEachSyncIsNeeded(t *testing.T) {
	host.Need(t)
	for _, s := range syncings() {
		if s.reason != "" {
			continue
		}
		t.Run(s.mutant.File+"/"+s.what, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			overlay, err := s.mutant.Overlay(root, dir)
			nodetest.OK(t, err)
			program := filepath.Join(dir, "mutant.test")
			build := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", overlay, "-o", program, ".") //nolint:gosec // a mutant
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("build: %v\n%s", err, out)
			}
			systems, some := fileSystems()[:1], 1
			if *update {
				systems, some = fileSystems(), -1
			}
			row := fmt.Sprintf("| %s | %s | %s |", s.what, s.mutant.File, s.scenario)
			for _, fs := range systems {
				if !fs.has(scenarioOf(s.scenario)) {
					row += " |"
					continue
				}
				crashes, broken := newHistory(t, fs, scenarioOf(s.scenario), program).crash(some)
				if len(broken) == 0 {
					t.Errorf("%s: none of %d crashes breaks a promise without it", fs.name, crashes)
				}
				row += fmt.Sprintf(" %d of %d |", len(broken), crashes)
			}
			if *update {
				t.Log(row)
			}
		})
	}
}

// The table has every sync of the code, and the page has the table.
func TestEverySyncIsInTheTable(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("README.md")
	nodetest.OK(t, err)
	want := make(map[string]int)
	for _, s := range syncings() {
		want[s.mutant.File]++
		row := fmt.Sprintf("\n| %s | %s | %s", s.what, s.mutant.File, s.scenario+s.reason)
		if !strings.Contains(string(page), row) {
			t.Errorf("README.md does not have: %s", row[1:])
		}
		_, err := s.mutant.Overlay(root, t.TempDir()) // the text is in the code, once
		nodetest.OK(t, err)
	}
	sync := regexp.MustCompile(`Fsync\(|\.Sync\(\)|Fdatasync\(|Syncfs\(|O_SYNC|O_DSYNC`)
	got := make(map[string]int)
	nodetest.OK(t, fs.WalkDir(os.DirFS(root), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == "internal/e2e" || d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != "." {
			if err == nil {
				err = fs.SkipDir
			}
			return err
		}
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(filepath.Join(root, path))
		if n := len(sync.FindAll(text, -1)); n > 0 {
			got[path] = n
		}
		return err
	}))
	nodetest.Equal(t, "syncs by file", got, want)
}
