package mutant

import (
	"os/exec"
	"path/filepath"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

func TestOverlayChangesWhatIsBuilt(t *testing.T) {
	t.Parallel()
	overlay, err := Mutant{"internal/mutant/mutant.go", "what a line of the code is for", "nothing"}.Overlay("../..", t.TempDir())
	nodetest.OK(t, err)
	out, err := exec.CommandContext(t.Context(), "go", "list", "-overlay", overlay, "-f", "{{.Doc}}", ".").Output()
	nodetest.OK(t, err)
	nodetest.Equal(t, "documentation", string(out), "Package mutant shows nothing: it compiles the code without that line.\n")
}

func TestTextThatIsNotThereOnceIsRefused(t *testing.T) {
	t.Parallel()
	for _, m := range []Mutant{
		{"internal/mutant/mutant.go", "no such " + "text", ""},
		{"internal/mutant/mutant.go", "return", ""},
		{"internal/mutant/missing.go", "", ""},
	} {
		if path, err := m.Overlay(filepath.Join("..", ".."), t.TempDir()); err == nil {
			t.Errorf("%+v: overlay %s, want an error", m, path)
		}
	}
}
