package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/examples/lab/host"
)

const (
	stageEnv   = "METACNI_E2E_STAGE" // "", "probe" or "inside"
	binEnv     = "METACNI_E2E_BIN"   // directory of what was built
	requireEnv = "METACNI_E2E"       // "require": no private host is a failure
)

// stepping is where the plugins are that can be killed at each step.
const stepping = "stepping"

// noHost is why there is no private host, if there is none.
var noHost string

func TestMain(m *testing.M) {
	delegatetest.Main()
	runtime.LockOSThread() // see host.NewNS
	flag.Parse()
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

// run runs the tests in a copy of this process on a private host, or in this
// process, where each skips itself, if there can be none.
func run(m *testing.M) (int, error) {
	switch os.Getenv(stageEnv) {
	case "probe":
		return 0, host.Setup()
	case "inside":
		if err := host.Setup(); err != nil {
			return 1, err
		}
		if err := parallel(); err != nil {
			return 1, err
		}
		return m.Run(), nil
	}
	if flag.Lookup("test.list").Value.String() != "" {
		return m.Run(), nil
	}
	ctx := context.Background()
	if out, err := again(ctx, "probe", "").CombinedOutput(); err != nil {
		why, _, _ := strings.Cut(strings.TrimPrefix(string(out), "e2e: "), "\n")
		if why == "" {
			why = err.Error()
		}
		noHost = "needs root, or a kernel that gives user namespaces to ordinary users: " + why
		return m.Run(), nil
	}
	bin, err := os.MkdirTemp("", "metacni-e2e-")
	if err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(bin) }()
	if err := build(ctx, bin); err != nil {
		return 1, err
	}
	cmd := again(ctx, "inside", bin)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		return max(failed.ExitCode(), 1), nil
	}
	return 0, err
}

// parallel lets more tests run at once than there are processors, unless the
// user has said how many: many wait for others most of the time.
func parallel() error {
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if chosen {
		return nil
	}
	return flag.Set("test.parallel", strconv.Itoa(4*runtime.GOMAXPROCS(0)))
}

// again is this process once more, in namespaces of its own.
func again(ctx context.Context, stage, bin string) *exec.Cmd {
	cmd := host.Command(ctx, "/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), stageEnv+"="+stage, binEnv+"="+bin)
	return cmd
}

// build puts everything the tests run into dir. An example that cannot be
// built fails the tests that need it: see built.
func build(ctx context.Context, dir string) error {
	list := exec.CommandContext(ctx, "go", "list", "tool")
	list.Stderr = os.Stderr
	tools, err := list.Output()
	if err != nil {
		return fmt.Errorf("list the reference plugins: %w", err)
	}
	// TestTutorial makes a module, for which the go command reads go.mod files that
	// this module does not need. There is no network on the private host.
	if out, err := exec.CommandContext(ctx, "go", "mod", "graph").CombinedOutput(); err != nil {
		return fmt.Errorf("read the module graph: %w\n%s", err, out)
	}
	const multinetd = "github.com/metacni/metacni/examples/multinetd"
	for _, b := range []struct {
		module   string
		dir      string // below dir
		tags     string
		race     bool
		packages []string
	}{
		{"../..", "", "", false, []string{"./examples/multinet"}},
		{"../..", "", "", false, []string{"./examples/flannel"}},
		{"../..", "", "", false, []string{"./examples/fallback"}},
		{"../..", "", "", false, []string{"./examples/lab", "./examples/resident"}},
		{"../..", "", "", false, []string{"./examples/multinet-shim"}},
		{"../../examples/multinetd", "", "", raced, []string{multinetd}},
		{"../../examples/multinetd", stepping, "metacni_steps", false, []string{multinetd}},
		{"../..", stepping, "metacni_steps", false, []string{"./examples/multinet", "./examples/flannel", "./examples/fallback"}},
		{".", "", "", false, append(strings.Fields(string(tools)), "./fake")},
	} {
		to := filepath.Join(dir, b.dir) + "/"
		args := []string{"build", "-buildvcs=false", "-race=" + strconv.FormatBool(b.race), "-tags", b.tags, "-o", to}
		cmd := exec.CommandContext(ctx, "go", append(args, b.packages...)...)
		cmd.Dir = b.module
		if !b.race { // as released: a C library opens files of its own, more or fewer by the number of threads
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		}
		if out, err := cmd.CombinedOutput(); err != nil && b.module == "." {
			return fmt.Errorf("build the reference plugins: %w\n%s", err, out)
		} else if err != nil {
			file := filepath.Join(to, filepath.Base(b.packages[0])+".err")
			if err := os.MkdirAll(to, 0o700); err != nil {
				return err
			}
			if err := os.WriteFile(file, out, 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}

// built returns the path of an executable, or fails t with why there is none.
func built(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(os.Getenv(binEnv), name)
	if _, err := os.Stat(path); err != nil {
		why, _ := os.ReadFile(path + ".err")
		t.Fatalf("%s was not built: %v\n%s", name, err, why)
	}
	return path
}
