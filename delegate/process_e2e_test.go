//go:build e2e && linux

package delegate_test

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/metacni/metacni/delegate"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// The child alone changes its root: plugins run in two of them side by side,
// each in a directory of its own root, and this process stays where it is.
func TestPluginRunsInItsRoot(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to change the root directory of a child")
	}
	before := whereabouts(t)
	roots := map[string]*delegate.Process{}
	for _, who := range []string{"one", "two"} {
		root, _ := jail(t)
		furnish(t, root)
		// What is not in this process's tree, and of which each root has its own.
		if err := errors.Join(
			os.WriteFile(root+"/who", []byte(who+"\n"), 0o600),
			os.WriteFile(root+"/opt/cni/bin/only-"+who, []byte("#!/bin/sh\necho $0\n"), 0o755),
		); err != nil {
			t.Fatal(err)
		}
		roots[who] = &delegate.Process{Root: root}
	}
	var wg sync.WaitGroup
	for who, p := range roots {
		for i := range 8 {
			wg.Go(func() {
				name := []string{"plugin", "absolute", "upwards"}[i%3]
				want := `{"who":"` + who + `","in":"/"}`
				if i == 7 {
					name, want = "only-"+who, "/opt/cni/bin/only-"+who
				}
				path, err := p.FindInPath(name, []string{"/opt/cni/bin"})
				if err != nil {
					t.Error(err)
					return
				}
				out, err := p.ExecPlugin(t.Context(), path, nil, nil)
				if err != nil || strings.TrimSpace(string(out)) != want {
					t.Errorf("%s printed %q, want %s: %v", name, out, want, err)
				}
				nodetest.Equal(t, "this process was at", whereabouts(t), before)
			})
		}
	}
	wg.Wait()
	for who := range roots {
		if _, err := new(delegate.Process).FindInPath("only-"+who, []string{"/opt/cni/bin"}); !errors.Is(err, delegate.ErrPluginNotFound) {
			t.Errorf("only-%s is found without a root: %v", who, err)
		}
		for other, p := range roots {
			if _, err := p.FindInPath("only-"+who, []string{"/opt/cni/bin"}); (err == nil) != (who == other) {
				t.Errorf("only-%s in the root of %s: %v", who, other, err)
			}
		}
	}
}

// furnish copies a shell with its libraries into root, or skips the test.
func furnish(t *testing.T, root string) {
	t.Helper()
	ldd, err := exec.CommandContext(t.Context(), "ldd", "/bin/sh").Output()
	if err != nil {
		t.Skipf("needs ldd(1), to copy a shell with its libraries: %v", err)
	}
	for _, path := range append([]string{"/bin/sh"}, regexp.MustCompile(`/[^ ]+`).FindAllString(string(ldd), -1)...) {
		data, err := os.ReadFile(path)
		if err == nil {
			err = errors.Join(os.MkdirAll(filepath.Dir(root+path), 0o755), os.WriteFile(root+path, data, 0o755))
		}
		nodetest.OK(t, err)
	}
}

// whereabouts are the root and the working directory of each thread of this
// process.
func whereabouts(t *testing.T) string {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*")
	if err != nil {
		t.Error(err)
	}
	seen := make(map[string]bool)
	for _, task := range append(tasks, "/proc/self") {
		root, err := os.Readlink(task + "/root")
		cwd, err2 := os.Readlink(task + "/cwd")
		if errors.Join(err, err2) == nil { // a thread may have ended
			seen[root+" "+cwd] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(seen)), ", ")
}
