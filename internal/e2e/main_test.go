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
	binEnv     = "METACNI_E2E_BIN"   // directory of the built executables
	requireEnv = "METACNI_E2E"       // "require": fail, do not skip, without a private host
)

// stepping is the directory of the plugins that log their steps and can be
// killed at each of them.
const stepping = "stepping"

// long is for the numbers of trials in the fault matrix. Otherwise there are about a tenth.
var long = flag.Bool("long", false, "many more random kills, damages and steps")

// noHost says why there is no private host. It is empty if there is one.
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

// run runs the tests in a copy of this process on a private host. Where there
// can be no private host it runs them in this process, and each test skips
// itself.
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

// parallel raises the number of tests that run at once above the number of
// processors, unless the user has set it: most tests wait for other processes
// most of the time.
func parallel() error {
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if chosen {
		return nil
	}
	return flag.Set("test.parallel", strconv.Itoa(4*runtime.GOMAXPROCS(0)))
}

// again returns a command that runs this program with the same arguments in
// namespaces of its own.
func again(ctx context.Context, stage, bin string) *exec.Cmd {
	cmd := host.Command(ctx, "/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), stageEnv+"="+stage, binEnv+"="+bin)
	return cmd
}

// build builds everything the tests run into dir. If an example does not build,
// only the tests that need it fail: see built.
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
		args := []string{"build", "-trimpath", "-buildvcs=false", "-race=" + strconv.FormatBool(b.race), "-tags", b.tags, "-o", to}
		cmd := exec.CommandContext(ctx, "go", append(args, b.packages...)...)
		cmd.Dir = b.module
		if !b.race { // as released; a C library opens more files, depending on the number of threads
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

// built returns the path of an executable. If the executable was not built, it
// fails t with the compiler's message.
func built(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(os.Getenv(binEnv), name)
	if _, err := os.Stat(path); err != nil {
		why, _ := os.ReadFile(path + ".err")
		t.Fatalf("%s was not built: %v\n%s", name, err, why)
	}
	return path
}
