package api

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/build"
	"go/doc"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

var update = flag.Bool("update", false, "rewrite testdata")

const (
	module = "github.com/metacni/metacni"
	root   = "../.."
)

// importable returns the directories of the modules that users can import too: those in delegate.
func importable(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(root + "/delegate/*/go.mod")
	if err != nil || len(files) == 0 {
		t.Fatalf("modules in delegate: %v, %v", files, err)
	}
	var dirs []string
	for _, file := range files {
		dirs = append(dirs, "delegate/"+filepath.Base(filepath.Dir(file)))
	}
	return dirs
}

// TestAPI compares the exported identifiers of each package and their comments
// with testdata. The text is similar to that of `go doc -all`. Every exported field has a comment.
func TestAPI(t *testing.T) {
	t.Parallel()
	golden := map[string]bool{}
	for _, dir := range packages(t) {
		name := strings.ReplaceAll(dir, "/", "_") + ".txt"
		golden[name] = true
		t.Run(dir, func(t *testing.T) {
			t.Parallel()
			p, fset := load(t, dir)
			fieldsAreDocumented(t, p, fset)
			got := text(t, p, fset)
			file := filepath.Join("testdata", name)
			if *update {
				nodetest.OK(t, os.WriteFile(file, got, 0o644))
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatalf("%v: run make api", err)
			}
			if !bytes.Equal(want, got) {
				t.Errorf("the API has changed; if this is intended, run make api:\n%s", changes(string(want), string(got)))
			}
		})
	}
	entries, err := os.ReadDir("testdata")
	nodetest.OK(t, err)
	for _, e := range entries {
		if !golden[e.Name()] {
			t.Errorf("testdata/%s belongs to no package", e.Name())
		}
	}
}

// changes lists the lines that only one of the two texts contains.
func changes(before, after string) string {
	var b strings.Builder
	for _, c := range []struct{ sign, in, out string }{{"- ", before, after}, {"+ ", after, before}} {
		other := strings.Split(c.out, "\n")
		for line := range strings.Lines(c.in) {
			if !slices.Contains(other, strings.TrimSuffix(line, "\n")) {
				b.WriteString(c.sign + line)
			}
		}
	}
	return b.String()
}

// fieldsAreDocumented requires a comment on every exported field. The linter revive
// does for all other exported identifiers.
func fieldsAreDocumented(t *testing.T, p *doc.Package, fset *token.FileSet) {
	t.Helper()
	for _, typ := range p.Types {
		for _, s := range typ.Decl.Specs {
			st, ok := s.(*ast.TypeSpec).Type.(*ast.StructType)
			if !ok {
				continue
			}
			for i, f := range st.Fields.List {
				// A comment above a group of fields documents all of them,
				// and the type's comment documents the first group.
				run := i == 0 || fset.Position(f.Pos()).Line == fset.Position(st.Fields.List[i-1].End()).Line+1
				if f.Doc == nil && f.Comment == nil && !run && len(f.Names) > 0 && f.Names[0].IsExported() {
					t.Errorf("%s: %s.%s has no comment", fset.Position(f.Pos()), typ.Name, f.Names[0].Name)
				}
			}
		}
	}
}

// Each package has an example, at most one exported error type, and a line in the comment of the
// root package, which lists no others.
func TestEachPackageHasWhatTheRulesAsk(t *testing.T) {
	t.Parallel()
	listed := submatches(content(t, "doc.go"), `(?m)^//   - (?:\[)?`+module+`/([a-z/]+)`)
	for _, dir := range packages(t) {
		p, _ := load(t, dir)
		if p.Name == "main" {
			continue
		}
		if i := slices.Index(listed, dir); i >= 0 {
			listed = slices.Delete(listed, i, i+1)
		} else {
			t.Errorf("doc.go does not list %s", dir)
		}
		if !slices.ContainsFunc(glob(t, dir+"/*_test.go"), func(file string) bool {
			return strings.Contains(content(t, file), "\nfunc Example")
		}) {
			t.Errorf("%s has no example", dir)
		}
		for _, typ := range p.Types {
			if typ.Name != "Error" && slices.ContainsFunc(typ.Methods, func(m *doc.Func) bool { return m.Name == "Error" }) {
				t.Errorf("%s has the error type %s, want Error", dir, typ.Name)
			}
		}
	}
	nodetest.Equal(t, "doc.go lists more", listed, nil)
}

// packages lists the directories of the packages that users can import.
func packages(t *testing.T) (dirs []string) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(root), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		switch base := d.Name(); {
		case path == ".":
			return nil // the root package exports nothing: it is documentation
		case base == "examples", base == "internal", base == "testdata", strings.HasPrefix(base, "."), strings.HasPrefix(base, "_"):
			return fs.SkipDir
		}
		if _, err := fs.Stat(os.DirFS(root), path+"/go.mod"); err == nil && !slices.Contains(importable(t), path) {
			return fs.SkipDir
		}
		sources, err := fs.Glob(os.DirFS(root), path+"/*.go")
		if len(sources) > 0 {
			dirs = append(dirs, path)
		}
		return err
	})
	nodetest.OK(t, err)
	if len(dirs) == 0 {
		t.Fatal("no packages found")
	}
	return dirs
}

// load reads the documentation of a package as it is on Linux, on any system.
func load(t *testing.T, dir string) (*doc.Package, *token.FileSet) {
	t.Helper()
	ctx := build.Default
	ctx.GOOS, ctx.GOARCH, ctx.CgoEnabled = "linux", "amd64", false
	pkg, err := ctx.ImportDir(filepath.Join(root, dir), 0)
	nodetest.OK(t, err)
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range pkg.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(pkg.Dir, name), nil, parser.ParseComments)
		nodetest.OK(t, err)
		files = append(files, f)
	}
	p, err := doc.NewFromFiles(fset, files, module+"/"+dir)
	nodetest.OK(t, err)
	return p, fset
}

// text prints a package's exported declarations with their comments, sorted by
// kind and name. It copies comments unformatted, as releases of Go format them
// differently.
func text(t *testing.T, p *doc.Package, fset *token.FileSet) []byte {
	t.Helper()
	var b bytes.Buffer
	w := writer{t: t, b: &b, fset: fset}
	fmt.Fprintf(&b, "package %s // import %q\n\n%s", p.Name, p.ImportPath, p.Doc)
	w.values("CONSTANTS", p.Consts)
	w.values("VARIABLES", p.Vars)
	w.section("FUNCTIONS", len(p.Funcs))
	w.funcs(p.Funcs)
	w.section("TYPES", len(p.Types))
	slices.SortFunc(p.Types, func(a, b *doc.Type) int { return cmp.Compare(a.Name, b.Name) })
	for _, typ := range p.Types {
		w.decl(typ.Decl, typ.Doc)
		w.values("", typ.Consts)
		w.values("", typ.Vars)
		w.funcs(typ.Funcs)
		w.funcs(typ.Methods)
	}
	return b.Bytes()
}

type writer struct {
	t    *testing.T
	b    *bytes.Buffer
	fset *token.FileSet
}

func (w writer) section(title string, n int) {
	if title != "" && n > 0 {
		fmt.Fprintf(w.b, "\n%s\n\n", title)
	}
}

func (w writer) values(title string, vs []*doc.Value) {
	w.section(title, len(vs))
	for _, v := range vs {
		w.decl(v.Decl, v.Doc)
	}
}

func (w writer) funcs(fs []*doc.Func) {
	for _, f := range fs {
		w.decl(f.Decl, f.Doc)
	}
}

func (w writer) decl(d ast.Decl, comment string) {
	w.t.Helper()
	switch d := d.(type) {
	case *ast.FuncDecl:
		d.Doc = nil
	case *ast.GenDecl:
		d.Doc = nil
	}
	format := printer.Config{Mode: printer.UseSpaces | printer.TabIndent, Tabwidth: 8} // as gofmt
	if err := format.Fprint(w.b, w.fset, d); err != nil {
		w.t.Fatal(err)
	}
	fmt.Fprintln(w.b)
	for line := range strings.Lines(comment) {
		if strings.TrimSpace(line) != "" {
			line = "    " + line
		}
		w.b.WriteString(line)
	}
	fmt.Fprintln(w.b)
}
