package api

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// An example exists to be copied: its directory must build in a fresh module
// that requires only the SDK.
func TestCopiedExamplesBuild(t *testing.T) {
	t.Parallel()
	mains, err := filepath.Glob("../../examples/*/main.go")
	if err != nil || len(mains) < 8 {
		t.Fatalf("%d examples: %v", len(mains), err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, main := range mains {
		example := filepath.Dir(main)
		t.Run(filepath.Base(example), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			copySources(t, example, dir)
			if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil { // examples without a go.mod of their own
				run(t, dir, "go", "mod", "init", "example.com/copied")
				run(t, dir, "go", "mod", "edit", "-require=github.com/metacni/metacni@v0.0.0")
			}
			for _, module := range []string{"", "/delegate/kube", "/delegate/kube/dra"} {
				run(t, dir, "go", "mod", "edit", "-replace=github.com/metacni/metacni"+module+"="+root+module)
			}
			run(t, dir, "go", "build", "-mod=mod", "-buildvcs=false", "-o", os.DevNull, "./...")
		})
	}
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
	if err != nil {
		t.Fatal(err)
	}
}

func run(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=", "GOPROXY=off", "GONOSUMDB=*", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
