package api

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
)

// dependabot updates the directories that its configuration lists, and no others.
func TestDependabotKnowsEveryModule(t *testing.T) {
	t.Parallel()
	_, listed, _ := strings.Cut(content(t, ".github/dependabot.yml"), "directories:\n")
	listed, _, _ = strings.Cut(listed, "schedule:")
	got := submatches(listed, `(?m)^ +- /(.*)$`)
	want := append([]string{""}, nested(t)...)
	nodetest.Equal(t, "modules (-) and what dependabot.yml lists (+)", got, want)
}

// Each module is linted: the loops over modules find it at its depth, or name it.
func TestEveryModuleIsLinted(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"Makefile", ".ci/run"} {
		text := content(t, file)
		for _, dir := range nested(t) {
			if strings.Count(dir, "/") != 1 && !strings.Contains(text, dir) {
				t.Errorf("%s knows nothing of %s", file, dir)
			}
		}
		if !strings.Contains(text, "*/*/go.mod") {
			t.Errorf("%s has no loop over modules", file)
		}
	}
}

func TestWorkflowsCallTargetsThatExist(t *testing.T) {
	t.Parallel()
	targets := submatches(content(t, "Makefile"), `(?m)^([a-z]+):`)
	files := glob(t, ".github/workflows/*.yml")
	if len(files) == 0 {
		t.Fatal("no workflows")
	}
	for _, file := range files {
		workflow := content(t, file)
		for _, call := range submatches(workflow, `run: make ([a-z ]+)`) {
			for target := range strings.FieldsSeq(call) {
				if !slices.Contains(targets, target) {
					t.Errorf("%s: the Makefile has no target %s", file, target)
				}
			}
		}
		for _, script := range submatches(workflow, `run: (\.ci/[a-z-]+)`) {
			if _, err := os.Stat(filepath.Join(root, script)); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
}

// The owner of an action can move its tag to other code; a commit stays the same.
func TestWorkflowsPinActionsAndBoundThemselves(t *testing.T) {
	t.Parallel()
	pinned := regexp.MustCompile(`@[0-9a-f]{40} # v[0-9.]+$`)
	for _, file := range glob(t, ".github/workflows/*.yml") {
		workflow := content(t, file)
		for _, action := range submatches(workflow, `(?m)uses: (.*)$`) {
			if !pinned.MatchString(action) {
				t.Errorf("%s: %s is not pinned to a commit", file, action)
			}
		}
		for _, key := range []string{"\npermissions:\n  contents: read\n", "\nconcurrency:\n"} {
			if !strings.Contains(workflow, key) {
				t.Errorf("%s lacks %q", file, key)
			}
		}
		nodetest.Equal(t, fmt.Sprintf("%s: jobs", file), strings.Count(workflow, "runs-on:"), strings.Count(workflow, "timeout-minutes:"))
	}
}

func TestImagesHoldProgramsOfTheRelease(t *testing.T) {
	t.Parallel()
	programs := strings.Fields(submatches(content(t, ".ci/release"), `(?m)^programs=\((.*)\)$`)[0])
	var names []string
	for _, dir := range programs {
		if _, err := os.Stat(filepath.Join(root, dir, "main.go")); err != nil {
			t.Errorf(".ci/release builds it: %v", err)
		}
		names = append(names, filepath.Base(dir))
	}
	files := glob(t, "examples/*/Dockerfile")
	if len(files) == 0 {
		t.Fatal("no images")
	}
	for _, file := range files {
		inside := make(map[string]bool)
		for _, line := range submatches(content(t, file), `(?m)^COPY (.*)$`) {
			from, to, _ := strings.Cut(line, " ")
			name, ok := strings.CutSuffix(from, "-linux-${TARGETARCH}")
			if !ok || !slices.Contains(names, name) {
				t.Errorf("%s copies %s, which is not in a release", file, from)
			}
			inside[to] = true
		}
		dir := filepath.Dir(file)
		manifests := append(glob(t, dir+"/daemonset.yaml"), glob(t, dir+"/deploy/*/daemonset.yaml")...)
		if len(manifests) != 1 {
			t.Fatalf("%s is for %q, want one manifest", file, manifests)
		}
		commands := submatches(content(t, manifests[0]), `command: \[([^,]*),`)
		if len(commands) == 0 {
			t.Errorf("%s runs nothing", manifests[0])
		}
		for _, command := range commands {
			if !inside[command] {
				t.Errorf("%s runs %s, which is not in the image of %s", manifests[0], command, file)
			}
		}
	}
}

// A document that names a test promises that there is one.
func TestDocumentsNameTestsThatExist(t *testing.T) {
	t.Parallel()
	named, defined := make(map[string]string), make(map[string]bool)
	for _, file := range files(t) {
		ext := filepath.Ext(file)
		if strings.HasSuffix(file, "_test.go") || ext == ".md" { // a document may show a test to copy
			for _, name := range submatches(content(t, file), `(?m)^func (\w+)\(`) {
				defined[name] = true
			}
		}
		if ext == ".md" || filepath.Base(file) == "required.txt" {
			for _, name := range submatches(content(t, file), `\b((?:Test|Benchmark|Fuzz)[A-Z]\w+)`) {
				named[name] = file
			}
		}
	}
	for name, file := range named {
		if !defined[name] {
			t.Errorf("%s names %s, which does not exist", file, name)
		}
	}
}

// A commit with a built program stays in the history for ever.
func TestRepositoryHoldsNoBuiltPrograms(t *testing.T) {
	t.Parallel()
	tracked, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "-z").Output()
	if err != nil {
		t.Skip("not a checkout of git: ", err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(tracked), "\x00"), "\x00") {
		if data, err := os.ReadFile(filepath.Join(root, name)); err == nil && bytes.HasPrefix(data, []byte("\x7fELF")) {
			t.Errorf("%s is a built program", name)
		}
	}
}

// nested returns the directories of the nested modules, sorted. Those in testdata are
// data of tests.
func nested(t *testing.T) []string {
	t.Helper()
	var dirs []string
	for _, file := range files(t) {
		dir, found := strings.CutSuffix(filepath.ToSlash(file), "/go.mod")
		if found && !strings.Contains(dir, "/testdata/") {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// content returns the text of a file of the repository.
func content(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, name))
	nodetest.OK(t, err)
	return string(data)
}

// files returns the paths of all files of the repository.
func files(t *testing.T) (paths []string) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(root), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == ".git" {
			return fs.SkipDir
		}
		if err == nil && d.Type().IsRegular() {
			paths = append(paths, path)
		}
		return err
	})
	nodetest.OK(t, err)
	return paths
}

// glob returns the files of the repository that match the pattern, sorted.
func glob(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, pattern))
	nodetest.OK(t, err)
	for i, file := range files {
		if files[i], err = filepath.Rel(root, file); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// submatches returns the text of expr's first group for each match in s.
func submatches(s, expr string) []string {
	var found []string
	for _, m := range regexp.MustCompile(expr).FindAllStringSubmatch(s, -1) {
		found = append(found, m[1])
	}
	return found
}
