package api

import (
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

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
	"cmp", "context", "errors", "fmt", "log/slog", "maps", "net", "os", "os/exec", "path/filepath", "slices", "testing", "time",
	"github.com/containernetworking/cni/pkg/skel", "github.com/containernetworking/cni/pkg/types", "github.com/containernetworking/cni/pkg/version",
	module + "/delegate", module + "/delegate/delegatetest", module + "/delegate/lifecycle", module + "/delegate/plugin",
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
	if len(mains) < 8 {
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

// README.md lists the packages, and with each the packages of the SDK that are compiled into a
// program with it. A package that is named brings its own.
func TestReadmeSaysWhatComesWithAPackage(t *testing.T) {
	t.Parallel()
	deps, sdk := make(map[string][]string), make(map[string][]string) // at any depth
	for _, p := range rootPackages(t) {
		deps[short(p.ImportPath)] = p.Deps
		for _, dep := range p.Deps {
			if ours(dep) && !strings.Contains(dep, "/internal/") && short(dep) != "delegate/thick/wire" { // the messages of thick
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
		if with == "nothing" {
			for _, dep := range deps[name] {
				if first, _, _ := strings.Cut(dep, "/"); strings.Contains(first, ".") && !ours(dep) && !light.MatchString(dep) {
					t.Errorf("%s brings %s", name, dep)
				}
			}
		}
		slices.Sort(brought)
		nodetest.Equal(t, "what comes with "+name, slices.Compact(brought), slices.Sorted(slices.Values(sdk[name])))
		for _, other := range []string{"net/http", "skel", "netlink", "fsnotify"} {
			if strings.Contains(with, other) && !slices.ContainsFunc(deps[name], func(dep string) bool { return strings.HasSuffix(dep, other) }) {
				t.Errorf("%s does not bring %s", name, other)
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
