package delegate_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/metacni/metacni/delegate"
)

// All that a plugin costs that does nothing, from fork to reaping.
func BenchmarkProcess(b *testing.B) {
	dir := b.TempDir()
	plugin := filepath.Join(dir, "plugin")
	if err := os.WriteFile(dir+"/main.go", []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	build := exec.CommandContext(b.Context(), "go", "build", "-o", plugin, dir+"/main.go")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	stdin := make([]byte, 2000)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := new(delegate.Process).ExecPlugin(b.Context(), plugin, stdin, nil); err != nil {
			b.Fatal(err)
		}
	}
}
