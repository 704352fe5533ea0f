package api

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// rules is the import graph: which packages of the SDK each package may import
// directly. Arrows only point down; a leaf imports no sibling. A package
// without a rule may import nothing of the module.
var rules = map[string][]string{
	"": nil, // the root package is only documentation

	// Leaves.
	"netconf": {"internal/rawjson", "internal/bounds", "internal/fault", "internal/kubename"},
	"status":  {"internal/rawjson", "internal/fault", "internal/terse"},
	"ifname":  {"internal/dump"},
	"scratch": {"internal/rawjson", "internal/bounds", "internal/durable", "internal/terse", "internal/cause", "internal/flock", "internal/records"},

	"delegate/thick/internal/override": {"internal/rawjson", "netconf"},
	"delegate/thick/internal/queue":    {"delegate/thick/wire", "internal/durable", "internal/fault", "internal/flock"},

	"internal/bounds":    nil,
	"internal/kubename":  nil,
	"internal/cause":     nil,
	"internal/dump":      nil,
	"internal/fault":     {"internal/terse"},
	"internal/flock":     {"internal/cause"},
	"internal/durable":   {"internal/flock", "internal/inroot"},
	"internal/inroot":    nil,
	"internal/peer":      nil,
	"internal/printed":   nil,
	"internal/proctree":  nil,
	"internal/records":   nil,
	"internal/rawjson":   nil,
	"internal/redact":    {"internal/rawjson"},
	"internal/terse":     nil,
	"internal/thread":    nil,
	"internal/turns":     nil,
	"internal/test/kube": nil,
	"internal/test/node": {"delegate/delegatetest", "netconf", "status"},

	"internal/test/process":      {"internal/flock", "internal/dump", "internal/test/node", "delegate/conform/host"},
	"internal/test/process/fake": nil,

	"internal/mutant": nil,
	"internal/api":    nil,

	"internal/testreport": nil,

	"delegate":                           {"internal/rawjson", "netconf", "internal/bounds", "internal/flock", "internal/inroot", "internal/proctree", "internal/redact", "internal/terse", "internal/thread", "internal/cause", "internal/fault"},
	"delegate/plugin":                    {"delegate", "delegate/lifecycle", "netconf", "scratch", "ifname", "status", "internal/cause", "internal/flock", "internal/inroot", "internal/rawjson"},
	"delegate/delegatetest":              {"delegate", "internal/printed"},
	"delegate/conform":                   {"delegate", "delegate/conform/internal/realhost", "delegate/delegatetest", "internal/printed", "netconf"},
	"delegate/conform/host":              {"delegate/conform/internal/realhost", "internal/dump"},
	"delegate/conform/internal/realhost": {"internal/dump", "internal/thread"},
	"delegate/device":                    {"delegate", "netconf", "netconf/nad", "status", "internal/durable", "internal/fault", "internal/inroot"},
	"delegate/lifecycle":                 {"delegate", "scratch", "internal/rawjson", "internal/bounds", "internal/durable", "internal/fault", "internal/flock", "internal/records", "netconf", "ifname", "status", "internal/inroot", "internal/terse", "internal/thread", "internal/cause", "internal/dump"},
	"delegate/adopt":                     {"delegate", "delegate/lifecycle", "scratch", "netconf", "internal/durable", "internal/fault", "internal/inroot"},
	"delegate/thick":                     {"delegate", "delegate/lifecycle", "delegate/plugin", "netconf", "status", "delegate/thick/wire", "delegate/thick/internal/override", "delegate/thick/internal/queue", "internal/fault", "internal/peer", "internal/cause", "internal/flock", "internal/turns", "internal/terse"},
	"delegate/thick/shim":                {"delegate/plugin", "status", "delegate/thick/wire", "delegate/thick/internal/override", "delegate/thick/internal/queue", "internal/fault", "internal/redact", "internal/cause", "internal/terse"},
	"delegate/thick/wire":                nil,
	"delegate/resident":                  {"delegate", "delegate/plugin", "netconf", "status", "delegate/thick/wire", "internal/cause", "internal/durable", "internal/fault", "internal/peer", "internal/proctree", "internal/turns"},
	"delegate/otel":                      {"delegate", "delegate/plugin", "netconf/nad", "status"},
	"netconf/nad":                        {"internal/rawjson", "netconf", "internal/bounds", "internal/durable", "internal/fault", "internal/kubename"},
	"netconf/autoconf":                   {"netconf", "internal/bounds", "internal/durable", "internal/fault", "internal/inroot", "internal/flock"},

	"delegate/conform/cmd/conform": {"delegate/conform", "delegate/conform/host", "delegate/delegatetest"},

	"delegate/kube/internal/apierr":               nil,
	"delegate/kube/internal/bounded":              nil,
	"delegate/kube/internal/coded":                nil,
	"delegate/kube/internal/queue":                nil,
	"delegate/kube":                               {"delegate/kube/internal/...", "netconf", "netconf/nad", "status"},
	"delegate/kube/podresources":                  {"delegate/device", "delegate/kube/internal/...", "netconf/nad"},
	"delegate/kube/podresources/podresourcestest": nil,
	"delegate/kube/webhook":                       {"delegate/kube/internal/...", "netconf", "netconf/nad"},
	"delegate/kube/dra":                           {"delegate", "delegate/kube", "delegate/kube/internal/...", "delegate/lifecycle", "netconf", "netconf/nad", "scratch", "status"},
	"delegate/kube/dra/dratest":                   nil,

	"examples/...": {"..."},
}

// bans lists packages that may not be compiled into ours, at any depth, except
// into those in except. A pattern that ends in "/..." is a whole tree. If direct
// is set, only imports by our own packages are banned, as other packages have
// good reason for theirs.
var bans = []struct {
	pkg, why string
	except   []string
	direct   bool // ban only imports by our own packages
}{
	{module + "/internal/test/kube", "only tests", nil, false},
	// The messages of resident need expvar, which needs net/http.
	{"net/http", "thin binaries stay small", []string{"internal/test/kube", "internal/test/process", "delegate/thick", "delegate/resident", "delegate/kube/...", "delegate/otel"}, false},
	{"github.com/creachadair/...", "only residents exchange messages", []string{"delegate/resident", "examples/..."}, false},
	{"encoding/xml", "thin binaries stay small", []string{"delegate/conform/cmd/conform", "delegate/kube/dra"}, false},
	{"testing", "only tests", []string{"internal/test/node", "internal/test/process", "examples/internal/programtest"}, false},
	{"log", "log/slog, through an injected logger", nil, true},
	{"flag", "the command line belongs to main", []string{"examples/...", "internal/testreport", "internal/test/process", "delegate/conform/host", "delegate/conform/cmd/conform"}, true},
	{"github.com/containernetworking/cni/libcni", "the oracle of tests, no more", nil, false},
	{"github.com/containernetworking/cni/pkg/invoke", "it brings OpenTelemetry; delegate.Exec has its methods", nil, false},
	{"github.com/containernetworking/cni/pkg/skel", "for mains", []string{"examples/...", "delegate/thick", "delegate/thick/shim", "delegate/resident", "delegate/plugin", "delegate/conform"}, false},
	{"k8s.io/...", "no Kubernetes", []string{"delegate/kube/..."}, false},
	{"sigs.k8s.io/...", "no Kubernetes", []string{"delegate/kube/...", "examples/policy"}, false},
	{"sigs.k8s.io/knftables/...", "one example has rules", []string{"examples/policy"}, false},
	{"github.com/pelletier/...", "only the doctor reads files of runtimes", []string{"examples/multinet/cmd/multinet", "examples/multinet/doctor", "examples/multinet/tool"}, false},
	{"sigs.k8s.io/controller-runtime/...", "client-go is enough", nil, false},
	{"github.com/k8snetworkplumbingwg/...", "netconf/nad reads definitions", nil, false},
	{"k8s.io/client-go/...", "a webhook reads what it is sent, and asks nobody", []string{"delegate/kube", "delegate/kube/internal/queue", "delegate/kube/dra"}, false},
	{"google.golang.org/grpc/...", "only the kubelet is asked so", []string{"delegate/kube/podresources/...", "delegate/kube/dra/..."}, false},
	{"k8s.io/dynamic-resource-allocation/...", "a daemon without claims does not contain their driver", []string{"delegate/kube/dra"}, false},
	{"github.com/containerd/...", "nested modules only", nil, false},
	{"go.opentelemetry.io/...", "one package traces, with the API alone", []string{"delegate/otel", "delegate/kube/dra"}, false},
	{"go.opentelemetry.io/otel/sdk/...", "a program makes the provider", nil, false},
	{"github.com/prometheus/...", "nested modules only", nil, false},
	{"google.golang.org/...", "nested modules only", []string{"delegate/kube/..."}, false},
	{"github.com/fsnotify/...", "one package watches directories", []string{"netconf/autoconf", "examples/...", "delegate/kube/dra"}, false},
	{"github.com/vishvananda/netlink/...", "names in use, and telling namespaces apart", []string{"ifname", "delegate/lifecycle", "examples/...", "internal/dump", "delegate/conform/...", "internal/test/process"}, false},
	{"github.com/containernetworking/plugins/...", "names in use, and telling namespaces apart", []string{"ifname", "delegate/lifecycle", "delegate/adopt", "examples/...", "delegate/conform/...", "internal/test/process"}, false},
}

// requirements are the direct dependencies of the root module. The commit that
// adds one gives the reason.
var requirements = []string{
	"github.com/containernetworking/cni",
	"github.com/containernetworking/plugins", // pkg/ns
	"github.com/creachadair/jrpc2",           // delegate/resident
	"github.com/fsnotify/fsnotify",           // netconf/autoconf
	"github.com/google/go-cmp",               // tests
	"github.com/vishvananda/netlink",         // ifname, examples
	"golang.org/x/sys",
	"sigs.k8s.io/knftables", // examples/policy only
}

// listed is a package in the output of go list.
type listed struct {
	ImportPath    string
	Imports, Deps []string
}

// rootPackages are those of the root module.
func rootPackages(t *testing.T) []listed {
	t.Helper()
	rootOnce.Do(func() { rootListed = list[listed](t, "list", "-json=ImportPath,Imports,Deps", "./...") })
	return rootListed
}

var (
	rootOnce   sync.Once
	rootListed []listed
)

// The versions of the modules of a user's build may differ, and what is internal changes with each:
// only tests of a module that is published may import what is internal to another.
func TestPublishedModulesNeedNothingInternalOfOthers(t *testing.T) {
	t.Parallel()
	for _, dir := range importable(t) {
		for _, p := range list[listed](t, "list", "-C", dir, "-json=ImportPath,Imports", "./...") {
			for _, imp := range p.Imports {
				if inside, of := short(imp), dir+"/"; ours(imp) && strings.Contains(inside, "internal/") && !strings.HasPrefix(inside, of) {
					t.Errorf("%s imports %s", short(p.ImportPath), inside)
				}
			}
		}
	}
}

func TestImportGraph(t *testing.T) {
	t.Parallel()
	pkgs := slices.Clone(rootPackages(t))
	for _, dir := range importable(t) {
		pkgs = append(pkgs, list[listed](t, "list", "-C", dir, "-deps=false", "-json=ImportPath,Imports,Deps", "./...")...)
	}
	pkgs = append(pkgs, list[listed](t, "list", "-C", "examples/multinet", "-deps=false", "-json=ImportPath,Imports,Deps",
		"./cmd/multinet", "./cmd/multinet-shim", "./doctor", "./help", "./plugin", "./publish", "./tool")...) // the thin programs
	if len(pkgs) < 5 {
		t.Fatalf("go list found only %d packages", len(pkgs))
	}
	for _, p := range pkgs {
		name := short(p.ImportPath)
		allowed, known := find(name)
		if !known {
			t.Errorf("%s has no rule in the import graph", name)
		}
		for _, imp := range p.Imports {
			if ours(imp) && !slices.ContainsFunc(allowed, func(pattern string) bool { return matches(pattern, short(imp)) }) {
				t.Errorf("%s imports %s, which its rule does not allow", name, short(imp))
			}
		}
		for _, b := range bans {
			if slices.ContainsFunc(b.except, func(pattern string) bool { return matches(pattern, name) }) {
				continue
			}
			deps := p.Deps
			if b.direct {
				deps = p.Imports
			}
			for _, dep := range deps {
				// An exception covers the packages that import it.
				if matches(b.pkg, dep) && !through(p, pkgs, b.except, dep) {
					t.Errorf("%s depends on %s: %s", name, dep, b.why)
				}
			}
		}
	}
}

// through reports whether p does not import dep itself, but depends on a package of
// this module that is in except and has dep.
func through(p listed, pkgs []listed, except []string, dep string) bool {
	if slices.Contains(p.Imports, dep) {
		return false
	}
	for _, q := range pkgs {
		if slices.Contains(p.Deps, q.ImportPath) && slices.Contains(q.Deps, dep) &&
			slices.ContainsFunc(except, func(pattern string) bool { return matches(pattern, short(q.ImportPath)) }) {
			return true
		}
	}
	return false
}

// A program that can call a method by its name has every exported method of the types in it, which
// adds half to the size of one with Kubernetes. Templates do that, and with them the tracing of gRPC.
func TestLinkerMayDropMethods(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"examples/multinet/cmd/multinetd", "examples/nri"} {
		for _, p := range list[listed](t, "list", "-C", program, "-tags=grpcnotrace", "-deps", "-json=ImportPath,Imports", ".") {
			if slices.Contains(p.Imports, "text/template") {
				t.Errorf("%s depends on %s, which imports text/template", program, p.ImportPath)
			}
		}
	}
}

// TestRequirements compares the direct dependencies of the root module with
// requirements.
func TestRequirements(t *testing.T) {
	t.Parallel()
	type gomod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
		Tool []struct{ Path string }
	}
	mod := list[gomod](t, "mod", "edit", "-json")[0]
	for _, r := range mod.Require {
		if !r.Indirect && !slices.Contains(requirements, r.Path) {
			t.Errorf("go.mod requires %s", r.Path)
		}
	}
	nodetest.Equal(t, "go.mod has tools, which belong to nested modules", mod.Tool, nil)
}

// list runs the go command in the root module and decodes its output.
func list[T any](t *testing.T, args ...string) (all []T) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		t.Fatalf("go %s: %v: %s", strings.Join(args, " "), err, exit.Stderr)
	}
	nodetest.OK(t, err)
	d := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var v T
		if err := d.Decode(&v); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
	}
}

func ours(importPath string) bool {
	return importPath == module || strings.HasPrefix(importPath, module+"/")
}

func short(importPath string) string {
	return strings.TrimPrefix(strings.TrimPrefix(importPath, module), "/")
}

// matches reports whether name equals pattern, or is in the tree of a pattern
// that ends in "...".
func matches(pattern, name string) bool {
	tree, ok := strings.CutSuffix(pattern, "...")
	return name == pattern || ok && (strings.HasPrefix(name, tree) || name == path.Clean(tree))
}

func find(name string) (allowed []string, known bool) {
	for pattern, allowed := range rules {
		if matches(pattern, name) {
			return allowed, true
		}
	}
	return nil, false
}
