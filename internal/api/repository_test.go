package api

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// A module that no target of the Makefile tests would rot.
func TestEachModuleIsTested(t *testing.T) {
	t.Parallel()
	lists := strings.Join(submatches(content(t, "Makefile"), `(?m)^(?:MODULES|E2E) := (.*)$`), " ") + " internal/evidence"
	patterns := regexp.MustCompile(`[a-z0-9*/]+`).FindAllString(strings.ReplaceAll(lists, "/go.mod", ""), -1)
	for _, dir := range nested(t) {
		if !slices.ContainsFunc(patterns, func(p string) bool { ok, _ := filepath.Match(p, dir); return ok }) {
			t.Errorf("the Makefile has %s in none of its lists of modules", dir)
		}
	}
}

func TestWorkflowsCallTargetsThatExist(t *testing.T) {
	t.Parallel()
	targets := submatches(content(t, "Makefile"), `(?m)^([a-z0-9]+):`)
	files := glob(t, ".github/workflows/*.yml")
	if len(files) == 0 {
		t.Fatal("no workflows")
	}
	for _, file := range files {
		workflow := content(t, file)
		for _, call := range submatches(workflow, `run: make ([a-z0-9 ]+)`) {
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

// newModule makes an empty module in a directory that uses the SDK of this repository.
func newModule(t *testing.T) (dir string) {
	t.Helper()
	sdk, err := filepath.Abs(root)
	nodetest.OK(t, err)
	// run is offline, and a module without our go.sum needs go.mod files that ours does not.
	graph := exec.CommandContext(t.Context(), "go", "mod", "graph")
	graph.Dir = sdk
	if out, err := graph.CombinedOutput(); err != nil {
		t.Fatalf("go mod graph: %v\n%s", err, out)
	}
	dir = t.TempDir()
	run(t, dir, "go", "mod", "init", "example.com/copies")
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

// Links of documents lead to files of the repository.
func TestDocumentsLinkToFilesThatExist(t *testing.T) {
	t.Parallel()
	for _, page := range files(t) {
		if filepath.Ext(page) != ".md" {
			continue
		}
		text := regexp.MustCompile("(?s)\n```.*?\n```|`[^`\n]*`").ReplaceAllString(content(t, page), "")
		for _, link := range submatches(text, `\]\(([^)#:]+)[^):]*\)`) {
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(page), link)); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
}

// Examples/README.md lists every example.
func TestExamplesAreListed(t *testing.T) {
	t.Parallel()
	page := content(t, "examples/README.md")
	for _, main := range glob(t, "examples/*/main.go") {
		name := filepath.Base(filepath.Dir(main))
		nodetest.Equal(t, fmt.Sprintf("examples/README.md lists %s", name), strings.Count(page, "\n| ["+name+"]("+name+") |"), 1)
	}
}
