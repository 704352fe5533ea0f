package matrix

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

var (
	all    = flag.Bool("all", false, "run all plugins, download what they need, and leave the reports of conform beside them in the user's cache")
	update = flag.Bool("update", false, "write what was found into README.md")
)

// A report is the output of conform -json.
type report struct {
	Kind struct {
		Name string `json:"name"`
		Why  string `json:"why"`
	} `json:"kind"`
	Checks []check `json:"checks"`

	cannot  string // why there is no report
	unbuilt bool   // whether there is no plugin
}

type check struct {
	Name   string `json:"name"`
	Result string `json:"result"`
	Detail string `json:"detail"`
	Where  string `json:"where"`
}

// with returns the checks of a result.
func (r *report) with(result string) (all []check) {
	for _, c := range r.Checks {
		if c.Result == result {
			all = append(all, c)
		}
	}
	return all
}

// TestMatrix runs conform with the plugins. Each fails the checks of its causes, and no other.
func TestMatrix(t *testing.T) {
	t.Parallel()
	if testing.Short() && !*all {
		t.Skip("builds and runs plugins")
	}
	if *update && !*all {
		t.Fatal("-update needs -all")
	}
	b := newBuilder(t)
	b.conform(t)

	var mu sync.Mutex
	reports := map[string]*report{}
	t.Run("plugins", func(t *testing.T) {
		for _, p := range plugins() {
			if !*all && !b.has(p) {
				continue
			}
			t.Run(p.id(), func(t *testing.T) {
				t.Parallel()
				r := b.run(t, p)
				mu.Lock()
				reports[p.id()] = r
				mu.Unlock()
				if r.cannot != "" && !*all && os.Getenv("METACNI_E2E") == "require" {
					t.Fatal(r.cannot)
				}
				if r.cannot != "" {
					t.Skip(r.cannot)
				}
				var failed []string
				for _, c := range r.with("failed") {
					failed = append(failed, c.Name)
					t.Logf("%s: %s (%s)", c.Name, c.Detail, c.Where)
				}
				slices.Sort(failed)
				nodetest.Equal(t, "failed checks", failed, expected(p))
			})
		}
	})
	if *update {
		nodetest.OK(t, writePage(reports))
	}
}

// quick are the packages of the plugins that are run without -all, one or two of each kind.
var quick = []string{"main/loopback", "main/macvlan", "meta/sbr", "meta/tuning", "ipam/host-local"}

// A builder builds plugins.
type builder struct {
	bin   string            // a directory of executables
	clone map[string]string // directories of git, by module
	ready map[string]bool   // executables that exist
	mu    sync.Mutex        // one build at a time
}

// newBuilder returns a builder. With -all it keeps what it has built in the user's cache.
// METACNI_CLONES has clones for modules that no proxy serves here: MODULE=DIRECTORY, separated
// by spaces.
func newBuilder(t *testing.T) *builder {
	t.Helper()
	b := &builder{bin: t.TempDir(), clone: map[string]string{}, ready: map[string]bool{}}
	for clone := range strings.FieldsSeq(os.Getenv("METACNI_CLONES")) {
		module, dir, _ := strings.Cut(clone, "=")
		b.clone[module] = dir
	}
	if *all {
		cache, err := os.UserCacheDir()
		nodetest.OK(t, err)
		b.bin = filepath.Join(cache, "metacni", "matrix")
		nodetest.OK(t, os.MkdirAll(b.bin, 0o700))
		return b
	}
	args := []string{"build", "-trimpath", "-buildvcs=false", "-o", b.bin + "/"}
	for _, pkg := range quick {
		args = append(args, reference+"/plugins/"+pkg)
		b.ready[filepath.Base(pkg)] = true
	}
	nodetest.OK(t, b.do("../../e2e", "go", args...))
	return b
}

// conform builds the command. It looks into the directories of its source, so that a cached
// result of the test ends when they change.
func (b *builder) conform(t *testing.T) {
	t.Helper()
	for _, dir := range []string{"../../../delegate/conform", "../../../delegate/conform/cmd/conform", "../../../delegate/conform/host", "../../../delegate/conform/internal/realhost"} {
		_, err := os.ReadDir(dir)
		nodetest.OK(t, err)
	}
	nodetest.OK(t, b.do("../../..", "go", "build", "-buildvcs=false", "-o", filepath.Join(b.bin, "conform"), "./delegate/conform/cmd/conform"))
}

// executable returns the name of p's executable.
func (p plugin) executable() string {
	name, _, _ := strings.Cut(p.name, " (")
	return name
}

// id names the plugin and its version.
func (p plugin) id() string { return p.name + " " + p.version }

// has reports whether the plugin needs no build.
func (b *builder) has(p plugin) bool { return p.version == ours && b.ready[p.executable()] }

// path returns the path of the executable, which it builds if need be.
func (b *builder) path(p plugin) (string, error) {
	if b.has(p) {
		return filepath.Join(b.bin, p.executable()), nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	dir := filepath.Join(b.bin, strings.ReplaceAll(p.module, "/", "_")+"@"+p.version)
	path := filepath.Join(dir, p.executable())
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	source, err := os.MkdirTemp("", "matrix-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(source) }()
	if err := b.fetch(p, source); err != nil {
		return "", err
	}
	args := []string{"build", "-trimpath", "-buildvcs=false", "-o", path}
	if _, err := os.Stat(filepath.Join(source, p.dir, "vendor", "github.com")); err != nil { // an archive of a module has none
		args = append(args, "-mod=mod")
	}
	cmd := b.command(filepath.Join(source, p.dir), "go", append(args, "./"+p.pkg)...)
	if !p.cgo {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=0")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return path, nil
}

// fetch copies the source of the plugin's module, or of its repository, to dir.
func (b *builder) fetch(p plugin, dir string) error {
	if clone := b.clone[p.module]; clone != "" {
		return b.do(dir, "sh", "-c", `git --git-dir="$0" archive "$1" | tar -x`, clone, p.version)
	}
	out, err := b.command(dir, "go", "mod", "download", "-json", p.module+"@"+p.version).Output()
	var module struct{ Dir, Error string }
	if err := errors.Join(json.Unmarshal(out, &module), err); err != nil || module.Error != "" {
		return fmt.Errorf("download: %s %w", module.Error, err)
	}
	p.dir = filepath.Join(dir, p.dir)
	return b.do(dir, "sh", "-c", `mkdir -p "$1" && cp -R "$0/." "$1" && chmod -R u+w "$1"`, module.Dir, p.dir)
}

// command returns a command that runs in a directory.
func (b *builder) command(dir, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	return cmd
}

// do runs a command.
func (b *builder) do(dir, name string, args ...string) error {
	if out, err := b.command(dir, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// run runs conform with a plugin.
func (b *builder) run(t *testing.T, p plugin) *report {
	t.Helper()
	path, err := b.path(p)
	if err != nil {
		return &report{cannot: fmt.Sprintf("cannot be built: %v", err), unbuilt: true}
	}
	dir := t.TempDir()
	expand := func(text string) string { return strings.ReplaceAll(text, "{bin}", filepath.Dir(path)) }
	args := []string{"-json", "-netns", "-conf", write(t, dir, "conf.json", expand(p.conf))}
	for name, text := range p.files {
		write(t, filepath.Join(dir, "files"), name, text)
	}
	if p.files != nil {
		args = append(args, "-files", filepath.Join(dir, "files"))
	}
	for typ, result := range p.fakes {
		args = append(args, "-fake", typ+"="+write(t, dir, typ+".json", result))
	}
	for _, flag := range p.flags {
		args = append(args, expand(flag))
	}
	var stdout, stderr strings.Builder
	cmd := b.command(dir, filepath.Join(b.bin, "conform"), append(args, path)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if *all {
		write(t, filepath.Join(b.bin, "reports"), p.id()+".json", stdout.String())
	}
	r := &report{}
	if err := json.Unmarshal([]byte(stdout.String()), r); err != nil {
		r.cannot = fmt.Sprintf("no report: %v: %s", err, stderr.String())
	}
	for _, c := range r.Checks {
		if c.Name == "add" && c.Result == "not run" {
			r.cannot = c.Detail
		}
	}
	return r
}

// write writes a file and returns its path.
func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	nodetest.OK(t, os.MkdirAll(filepath.Dir(path), 0o700))
	nodetest.OK(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}
