package api

import (
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
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
	var programs []string
	for word := range strings.FieldsSeq(submatches(content(t, ".ci/release"), `(?m)^programs=\((.*)\)$`)[0]) {
		before, all, _ := strings.Cut(strings.TrimSuffix(word, "}"), "{")
		for name := range strings.SplitSeq(all, ",") {
			programs = append(programs, before+name)
		}
	}
	var names []string
	for _, dir := range programs {
		if _, err := os.Stat(filepath.Join(root, dir, "main.go")); err != nil {
			t.Errorf(".ci/release builds it: %v", err)
		}
		names = append(names, filepath.Base(dir))
	}
	files := glob(t, "examples/multinet/cmd/*/Dockerfile")
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
		manifest := "examples/multinet/deploy/multinet.yaml"
		if filepath.Base(filepath.Dir(file)) == "multinetd" {
			manifest = "examples/multinet/deploy/daemon/daemonset.yaml"
		}
		commands := submatches(content(t, manifest), `command: \[([^],]*)`)
		if len(commands) == 0 {
			t.Errorf("%s runs nothing", manifest)
		}
		for _, command := range commands {
			if !inside[command] {
				t.Errorf("%s runs %s, which is not in the image of %s", manifest, command, file)
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

// A page names nothing of a public package, such as `netconf.Parse`, that is not there. CHANGELOG.md
// has former names, too.
func TestDocumentsNameWhatPackagesHave(t *testing.T) {
	t.Parallel()
	apis := make(map[string]string) // by the name of the package
	for _, file := range glob(t, "internal/api/testdata/*.txt") {
		api := content(t, file)
		apis[submatches(api, `^package (\w+) //`)[0]] += api
	}
	for _, page := range files(t) {
		if filepath.Ext(page) != ".md" || page == "CHANGELOG.md" {
			continue
		}
		for _, name := range regexp.MustCompile(`\b([a-z]\w*)\.([A-Z]\w*)`).FindAllStringSubmatch(strings.Join(submatches(content(t, page), "`([^`\n]+)`"), "\n"), -1) {
			if api, ours := apis[name[1]]; ours && !regexp.MustCompile(`\b`+name[2]+`\b`).MatchString(api) {
				t.Errorf("%s names %s, which does not exist", page, name[0])
			}
		}
	}
}

// Examples/README.md lists every example and every product.
func TestExamplesAreListed(t *testing.T) {
	t.Parallel()
	page := content(t, "examples/README.md")
	for _, file := range append(glob(t, "examples/*/main.go"), glob(t, "examples/*/README.md")...) {
		name := filepath.Base(filepath.Dir(file))
		nodetest.Equal(t, fmt.Sprintf("examples/README.md lists %s", name), strings.Count(page, "\n| ["+name+"]("+name+") |"), 1)
	}
}

const howto = "examples/HOWTO.md"

// An answer is read while somebody waits. One that is longer belongs in a document of its own.
func TestAnswersAreShort(t *testing.T) {
	t.Parallel()
	const limit = 15
	answers := strings.Split(content(t, howto), "\n### ")[1:]
	if len(answers) < 20 {
		t.Fatalf("%s has %d answers", howto, len(answers))
	}
	for _, answer := range answers {
		question, text, _ := strings.Cut(answer, "\n")
		text, _, _ = strings.Cut(text, "\n## ")
		var lines int
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "```") {
				lines++
			}
		}
		if lines == 0 || lines >= limit {
			t.Errorf("%s: %q has %d lines of text and code, want fewer than %d", howto, question, lines, limit)
		}
	}
}

// Somebody who searches the page for an error must find it: what it quotes, the code has.
func TestErrorsOfThePageAreThoseOfTheCode(t *testing.T) {
	t.Parallel()
	var code strings.Builder
	for _, file := range files(t) {
		if filepath.Ext(file) == ".go" && !strings.HasSuffix(file, "_test.go") {
			code.WriteString(content(t, file))
		}
	}
	page, sources := content(t, howto), code.String()
	for _, text := range []string{
		"already added, DEL must come first", "another operation on the container", "has not ended",
		"another operation on the records", "corrupt record", "record of an unknown version", "the plugin has no step",
		"not found in ", "no list of valid attachments, nothing was deleted", "config version does not allow",
	} {
		for name, in := range map[string]string{howto: page, "the code": sources} {
			if !strings.Contains(in, text) {
				t.Errorf("%s has no %q", name, text)
			}
		}
	}
}

// around is the code around a snippet: what the page says that the reader has.
var around = map[string]string{
	"networks": "func networks(context.Context, *plugin.Call) ([]netconf.Network, error) { return nil, nil }",
	"mine":     "var mine = plugin.Plugin{Networks: networks}",
	"addRule":  "func addRule(context.Context, *plugin.Call) error { return nil }",
	"delRule":  "func delRule(context.Context, *plugin.Call) error { return nil }",
	"allow":    "func allow(net.IP) error { return nil }",
	"cmdAdd":   "func cmdAdd(*skel.CmdArgs) error { return nil }",
	"cmdDel":   "func cmdDel(*skel.CmdArgs) error { return nil }",
	"main":     "func main() {}",
}

// imported are the packages that snippets and the code around them name without an import.
var imported = []string{
	"cmp", "context", "encoding/json", "errors", "fmt", "log/slog", "maps", "net", "os", "os/exec", "path/filepath", "slices", "testing", "time",
	"github.com/containernetworking/cni/pkg/skel", "github.com/containernetworking/cni/pkg/types", "github.com/containernetworking/cni/pkg/version",
	module + "/delegate", module + "/delegate/conform", module + "/delegate/delegatetest", module + "/delegate/lifecycle", module + "/delegate/plugin",
	module + "/delegate/thick", module + "/delegate/thick/shim", module + "/ifname", module + "/netconf", module + "/netconf/nad", module + "/scratch",
}

// What a reader copies compiles in a module that requires only the SDK: each snippet of the page, the
// program of README.md, and the directory of each example. The examples with a go.mod of their own
// compile with it where they are, so a copy shows only which packages they import.
func TestCopiesCompile(t *testing.T) {
	t.Parallel()
	dir := newModule(t)
	copySnippets(t, dir)
	copyReadme(t, dir)
	mains := glob(t, "examples/*/main.go")
	if len(mains) < 6 {
		t.Fatalf("%d examples", len(mains))
	}
	for _, main := range mains {
		example, to := filepath.Dir(main), filepath.Join(dir, filepath.Base(filepath.Dir(main)))
		if _, err := os.Stat(filepath.Join(root, example, "go.mod")); err == nil {
			to = t.TempDir()
		}
		copySources(t, filepath.Join(root, example), to)
	}
	run(t, dir, "go", "vet", "-mod=mod", "./...")
}

// copySnippets makes each snippet a package below dir. The test of a snippet is in
// examples/testdata/howto, under the name of its function.
func copySnippets(t *testing.T, dir string) {
	t.Helper()
	snippets, tested := submatches(content(t, howto), "(?s)\n```go\n(.*?)\n```\n"), 0
	if len(snippets) < 10 {
		t.Fatalf("%s has %d snippets", howto, len(snippets))
	}
	for i, snippet := range snippets {
		at := filepath.Join(dir, fmt.Sprintf("snippet%02d", i+1))
		nodetest.OK(t, os.Mkdir(at, 0o700))
		nodetest.OK(t, os.WriteFile(filepath.Join(at, "main.go"), []byte(program(t, snippet)), 0o600))
		for _, name := range submatches(snippet, `(?m)^func (\w+)`) {
			test, err := os.ReadFile(filepath.Join(root, "examples/testdata/howto", name+".go"))
			if err == nil {
				tested++
				nodetest.OK(t, os.WriteFile(filepath.Join(at, "main_test.go"), test, 0o600))
			}
		}
	}
	nodetest.Equal(t, "snippets with a test", tested, len(glob(t, "examples/testdata/howto/*.go")))
}

// copyReadme makes the program of README.md a package below dir.
func copyReadme(t *testing.T, dir string) {
	t.Helper()
	code := submatches(content(t, "README.md"), "(?s)```go\n(package main\n.*?)```")
	nodetest.Equal(t, "programs in README.md", len(code), 1)
	nodetest.OK(t, os.Mkdir(filepath.Join(dir, "readme"), 0o700))
	nodetest.OK(t, os.WriteFile(filepath.Join(dir, "readme", "main.go"), []byte(code[0]), 0o600))
}

// program returns the program of the declarations in snippet: with the code around them, and
// with imports.
func program(t *testing.T, snippet string) string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "", "package main\n"+snippet, parser.SkipObjectResolution)
	if err != nil {
		t.Fatalf("%v in\n%s", err, snippet)
	}
	code := snippet + "\n"
	formatted, err := format.Source([]byte(code))
	nodetest.OK(t, err)
	nodetest.Equal(t, "snippet after gofmt", string(formatted), code)
	for name, declaration := range around {
		if !declares(file, name) {
			code += declaration + "\n"
		}
	}
	head := "package main\n"
	for _, path := range imported {
		if regexp.MustCompile(`\b` + filepath.Base(path) + `\.`).MatchString(code) {
			head += fmt.Sprintf("import %q\n", path)
		}
	}
	if strings.Contains(code, "types100.") {
		head += "import types100 \"github.com/containernetworking/cni/pkg/types/100\"\n"
	}
	return head + code
}

// declares reports whether file declares name.
func declares(file *ast.File, name string) bool {
	return slices.ContainsFunc(file.Decls, func(d ast.Decl) bool {
		switch d := d.(type) {
		case *ast.FuncDecl:
			return d.Name.Name == name
		case *ast.GenDecl:
			v, ok := d.Specs[0].(*ast.ValueSpec)
			return ok && v.Names[0].Name == name
		}
		return false
	})
}

// Links of the pages that a newcomer reads lead to headings that exist, in the same document or
// in another.
func TestPagesLinkToHeadingsThatExist(t *testing.T) {
	t.Parallel()
	for _, page := range append(glob(t, "examples/guide/*.md"), "README.md", "examples/README.md", howto) {
		text := regexp.MustCompile("(?s)\n```.*?\n```|`[^`\n]*`").ReplaceAllString(content(t, page), "")
		for _, m := range regexp.MustCompile(`\]\(([^)#:]*)#([^)]+)\)`).FindAllStringSubmatch(text, -1) {
			to := page
			if m[1] != "" {
				to = filepath.Join(filepath.Dir(page), m[1])
			}
			if filepath.Ext(to) != ".md" {
				to = filepath.Join(to, "README.md") // what a directory shows
			}
			if !slices.Contains(anchors(t, to), m[2]) {
				t.Errorf("%s links to %s#%s, a heading that does not exist", page, to, m[2])
			}
		}
	}
}

// anchors returns the anchors of the headings of a document.
func anchors(t *testing.T, page string) (all []string) {
	t.Helper()
	text := regexp.MustCompile("(?s)\n```.*?\n```").ReplaceAllString(content(t, page), "")
	for _, heading := range submatches(text, `(?m)^#+ (.*)$`) {
		all = append(all, anchor(heading))
	}
	return all
}

// light are the modules that README.md names once, for all packages.
var light = regexp.MustCompile(`^(github\.com/containernetworking/cni|golang\.org/x/sys)/`)

// words name, in README.md, other code that is compiled into a program with a package.
var words = map[string]*regexp.Regexp{
	"net/http": regexp.MustCompile(`^net/http$`), "skel": regexp.MustCompile(`^github\.com/containernetworking/cni/pkg/skel$`),
	"netlink": regexp.MustCompile(`^github\.com/vishvananda/`), "pkg/ns": regexp.MustCompile(`^github\.com/containernetworking/plugins/pkg/ns$`),
	"fsnotify": regexp.MustCompile(`^github\.com/fsnotify/`), "jrpc2": regexp.MustCompile(`^(github\.com/creachadair|golang\.org/x/sync)/`),
}

// README.md lists the packages, and with each the packages of the SDK that are compiled into a
// program with it, and what else is; all of it, in both directions. A package that is named brings
// its own.
func TestReadmeSaysWhatComesWithAPackage(t *testing.T) {
	t.Parallel()
	deps, sdk := make(map[string][]string), make(map[string][]string) // at any depth
	for _, p := range rootPackages(t) {
		deps[short(p.ImportPath)] = p.Deps
		for _, dep := range p.Deps {
			if ours(dep) && !strings.Contains(dep, "/internal/") && short(dep) != "delegate/thick/wire" { // a part of thick
				sdk[short(p.ImportPath)] = append(sdk[short(p.ImportPath)], short(dep))
			}
		}
	}
	table := regexp.MustCompile(`(?m)^\| .* \| \[(.*)\]\((.*)\) \| (.*) \|$`).FindAllStringSubmatch(content(t, "README.md"), -1)
	var named []string
	for _, row := range table {
		name, with := row[1], row[3]
		named = append(named, name)
		nodetest.Equal(t, "link to "+name, row[2], name)
		if with == "a module of its own" {
			continue
		}
		var brought []string
		if strings.HasSuffix(with, "the first four") {
			brought = append(brought, named[:4]...)
		}
		for _, other := range submatches(with, "`([^`]*)`") {
			brought = append(append(brought, other), sdk[other]...)
		}
		for _, dep := range deps[name] {
			first, _, _ := strings.Cut(dep, "/")
			known := func(word *regexp.Regexp) bool { return word.MatchString(dep) }
			if strings.Contains(first, ".") && !ours(dep) && !light.MatchString(dep) && !slices.ContainsFunc(slices.Collect(maps.Values(words)), known) {
				t.Errorf("%s brings %s, for which README.md has no word", name, dep)
			}
		}
		slices.Sort(brought)
		nodetest.Equal(t, "what comes with "+name, slices.Compact(brought), slices.Sorted(slices.Values(sdk[name])))
		brings := func(name, word string) bool {
			return slices.ContainsFunc(deps[name], func(dep string) bool { return words[word].MatchString(dep) })
		}
		for word := range words {
			named, comes := strings.Contains(with, word), brings(name, word)
			if named && !comes {
				t.Errorf("%s does not bring %s", name, word)
			}
			if comes && !named && !slices.ContainsFunc(brought, func(other string) bool { return brings(other, word) }) {
				t.Errorf("%s brings %s", name, word)
			}
		}
	}
	for _, dir := range packages(t) {
		if !slices.ContainsFunc(named, func(name string) bool { return dir == name || strings.HasPrefix(dir, name+"/") }) {
			t.Errorf("README.md does not list %s", dir)
		}
	}
}

// anchor returns the anchor that GitHub gives a heading: lower case, without punctuation, a
// hyphen for each space.
func anchor(heading string) string {
	heading = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(heading, "$1")
	heading = regexp.MustCompile(`[^\p{L}\p{N}_ -]`).ReplaceAllString(strings.ToLower(heading), "")
	return strings.ReplaceAll(heading, " ", "-")
}
