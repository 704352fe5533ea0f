package api

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
)

// An example exists to be copied: its directory must compile in a module that requires only
// the SDK. The examples with a go.mod of their own compile with it where they are, so a copy
// shows only which packages they import.
func TestCopiedExamplesBuild(t *testing.T) {
	t.Parallel()
	mains, err := filepath.Glob("../../examples/*/main.go")
	if err != nil || len(mains) < 8 {
		t.Fatalf("%d examples: %v", len(mains), err)
	}
	one := newModule(t, "example.com/copied") // all examples without a go.mod
	for _, main := range mains {
		example := filepath.Dir(main)
		if _, err := os.Stat(filepath.Join(example, "go.mod")); err != nil {
			copySources(t, example, filepath.Join(one, filepath.Base(example)))
			continue
		}
		copySources(t, example, t.TempDir())
	}
	run(t, one, "go", "vet", "-mod=mod", "./...")
}

// newModule makes an empty module in a directory that uses the SDK of this repository.
func newModule(t *testing.T, name string) (dir string) {
	t.Helper()
	sdk, err := filepath.Abs(root)
	nodetest.OK(t, err)
	dir = t.TempDir()
	run(t, dir, "go", "mod", "init", name)
	run(t, dir, "go", "mod", "edit", "-require=github.com/metacni/metacni@v0.0.0", "-replace=github.com/metacni/metacni="+sdk)
	return dir
}

// copySources copies a directory without its tests, as a reader would.
func copySources(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		rel, relErr := filepath.Rel(from, path)
		switch {
		case err != nil || relErr != nil:
			return fmt.Errorf("%w, %w", err, relErr)
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		case strings.HasSuffix(path, "_test.go") || !d.Type().IsRegular():
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if strings.HasSuffix(path, ".go") && strings.Contains(string(data), "metacni/metacni/internal/") {
			t.Errorf("%s imports an internal package of the SDK", path)
		}
		return os.WriteFile(filepath.Join(to, rel), data, 0o600)
	})
	nodetest.OK(t, err)
}

func run(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=", "GOPROXY=off", "GONOSUMDB=*", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
