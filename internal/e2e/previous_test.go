package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// previous is the directory of the programs of the previous release, below that of ours.
const previous = "previous"

// buildPrevious builds the programs of the commit in previous.txt into dir. It takes their
// sources out of the repository's history.
func buildPrevious(ctx context.Context, dir string) error {
	text, err := os.ReadFile("previous.txt")
	if err != nil {
		return err
	}
	lines := strings.Fields(string(text))
	commit := lines[len(lines)-1]
	root, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	run := func(dir, name string, args ...string) error {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
		}
		return nil
	}
	source := filepath.Join(dir, "source")
	if err := os.MkdirAll(source, 0o700); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(source) }()
	tar := filepath.Join(dir, "source.tar")
	// The user who runs the tests may be another than the owner of the clone.
	if err := run(root, "git", "-c", "safe.directory=*", "archive", "-o", tar, commit); err != nil {
		return fmt.Errorf("needs the commit %s of internal/e2e/previous.txt, which the clone does not have; fetch the whole history: %w", commit, err)
	}
	if err := cmp.Or(run(source, "tar", "-xf", tar), os.Remove(tar)); err != nil {
		return err
	}
	for module, packages := range map[string][]string{
		".":                  {"./examples/multinet", "./examples/multinet-shim", "./examples/resident"},
		"examples/multinetd": {"."},
	} {
		args := append([]string{"build", "-trimpath", "-buildvcs=false", "-o", dir + "/"}, packages...)
		if err := run(filepath.Join(source, module), "go", args...); err != nil {
			return fmt.Errorf("the programs of the commit %s cannot be built: %w", commit, err)
		}
	}
	return nil
}

// bothWays runs do twice: with files of the previous release for our programs, and the other way
// round. do sets n.from to one of the two.
func bothWays(t *testing.T, do func(n *node, writer, reader string)) {
	t.Helper()
	for _, way := range []struct{ name, writer, reader string }{{"previous to ours", previous, ""}, {"ours to previous", "", previous}} {
		t.Run(way.name, func(t *testing.T) {
			n := newNode(t)
			switch why, err := os.ReadFile(built(previous + ".missing")); {
			case errors.Is(err, fs.ErrNotExist): // nothing is missing
			case os.Getenv("METACNI_E2E") == "require":
				t.Fatalf("%s, %v", why, err)
			default:
				t.Skipf("%s", why)
			}
			do(n, way.writer, way.reader)
		})
	}
}
