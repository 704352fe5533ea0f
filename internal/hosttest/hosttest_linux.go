// Package hosttest runs the tests of a package on a private host (see examples/lab/host).
// The process builds what the tests need and starts itself again in new namespaces, where
// the tests run. Without namespaces the tests run in the process itself, and those that
// call [Need] are skipped; with METACNI_E2E=require in the environment they fail.
package hosttest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/metacni/metacni/examples/lab/host"
)

const (
	stageEnv   = "METACNI_E2E_STAGE"   // "", "probe" or "tests"
	tempEnv    = "METACNI_E2E_TEMP"    // a directory for the programs, removed after the tests
	missingEnv = "METACNI_E2E_MISSING" // why the tests cannot run
)

// A Host is the private host of the tests of one package.
type Host struct {
	// Needs returns an error that says why the tests cannot run on this machine. It may
	// set variables of the environment for the tests. If nil, they need namespaces alone.
	Needs func(context.Context) error
	// Build builds the programs that the tests run into a directory; see [Programs].
	Build func(ctx context.Context, dir string) error
}

// Main runs the tests and returns the exit status of the process. Call it from TestMain.
func (h Host) Main(m *testing.M) int {
	runtime.LockOSThread() // see host.Command
	flag.Parse()
	code, err := h.run(context.Background(), m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "hosttest:", err)
		return 1
	}
	return code
}

func (h Host) run(ctx context.Context, m *testing.M) (int, error) {
	switch os.Getenv(stageEnv) {
	case "probe":
		return 0, host.Setup()
	case "tests":
		if err := host.Setup(); err != nil {
			return 1, err
		}
		return tests(m)
	}
	if flag.Lookup("test.list").Value.String() != "" {
		return m.Run(), nil
	}
	if why := h.missing(ctx); why != "" {
		if err := os.Setenv(missingEnv, why); err != nil {
			return 1, err
		}
		return m.Run(), nil
	}
	// After Ctrl-C the tests end, and their files are removed.
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	temp, err := os.MkdirTemp("", "metacni-e2e-")
	if err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(temp) }() // also what tests that panic leave
	if err := os.Setenv(tempEnv, temp); err != nil {
		return 1, err
	}
	if err := h.Build(ctx, Programs()); err != nil {
		return 1, err
	}
	cmd := command(ctx)
	cmd.Env = append(os.Environ(), stageEnv+"=tests", "TMPDIR="+temp)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		return max(failed.ExitCode(), 1), nil
	}
	return 0, err
}

// missing says why the tests cannot run.
func (h Host) missing(ctx context.Context) string {
	if h.Needs != nil {
		if err := h.Needs(ctx); err != nil {
			return err.Error()
		}
	}
	probe := command(ctx)
	probe.Env = append(os.Environ(), stageEnv+"=probe")
	if out, err := probe.CombinedOutput(); err != nil {
		return fmt.Sprintf("needs root, or a kernel that gives user namespaces to ordinary users: %s (%v)", strings.TrimSpace(string(out)), err)
	}
	return ""
}

// tests runs more tests at once than there are processors, unless the user has set the
// number: most tests wait for other processes most of the time.
func tests(m *testing.M) (int, error) {
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		if err := flag.Set("test.parallel", strconv.Itoa(4*runtime.GOMAXPROCS(0))); err != nil {
			return 1, err
		}
	}
	return m.Run(), nil
}

// command returns a command that runs this program with the same arguments in the
// namespaces of a new private host.
func command(ctx context.Context) *exec.Cmd {
	return host.Command(ctx, "/proc/self/exe", os.Args[1:]...)
}

// Programs returns the directory of the programs that [Host.Build] has built.
func Programs() string { return filepath.Join(os.Getenv(tempEnv), "bin") }

// Interfaces returns the names of the interfaces of the namespace at path, but lo, sorted.
func Interfaces(tb testing.TB, path string) (names []string) {
	tb.Helper()
	all, err := host.Interfaces(path)
	if err != nil {
		tb.Fatal(err)
	}
	for _, i := range all {
		if i.Name != "lo" {
			names = append(names, i.Name)
		}
	}
	slices.Sort(names)
	return names
}

// Need skips the test without a private host, or fails it if METACNI_E2E requires one.
func Need(tb testing.TB) {
	tb.Helper()
	why := os.Getenv(missingEnv)
	switch {
	case why == "":
	case os.Getenv("METACNI_E2E") == "require":
		tb.Fatal(why)
	default:
		tb.Skip(why)
	}
}
