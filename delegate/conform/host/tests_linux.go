package host

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
	"strconv"
	"strings"
	"syscall"
)

const (
	stageEnv   = "METACNI_E2E_STAGE"   // "", "probe" or "tests"
	tempEnv    = "METACNI_E2E_TEMP"    // a directory for the programs, removed after the tests
	missingEnv = "METACNI_E2E_MISSING" // why the tests cannot run
)

// Tests are the tests of a package, which run on a private host: the process builds what they
// need and starts itself again in new namespaces. Without namespaces the tests run in the process
// itself, and those that call [Need] are skipped; with METACNI_E2E=require in the environment they
// fail.
type Tests struct {
	// Needs returns an error that says why the tests cannot run on this machine. It may
	// set variables of the environment for the tests. If nil, they need namespaces alone.
	Needs func(context.Context) error
	// Build builds the programs that the tests run into a directory; see [Programs]. If nil, there
	// are none.
	Build func(ctx context.Context, dir string) error
}

// Main runs the tests of m, a *testing.M, and returns the exit status of the process. Call it from
// TestMain.
func (t Tests) Main(m interface{ Run() int }) int {
	runtime.LockOSThread() // see Command
	flag.Parse()
	code, err := t.run(context.Background(), m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "host:", err)
		return 1
	}
	return code
}

func (t Tests) run(ctx context.Context, m interface{ Run() int }) (int, error) {
	switch os.Getenv(stageEnv) {
	case "probe":
		return 0, Setup()
	case "tests":
		if err := Setup(); err != nil {
			return 1, err
		}
		return many(m)
	}
	if flag.Lookup("test.list").Value.String() != "" {
		return m.Run(), nil
	}
	if why := t.missing(ctx); why != "" {
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
	if t.Build != nil {
		if err := t.Build(ctx, Programs()); err != nil {
			return 1, err
		}
	}
	cmd := again(ctx)
	cmd.Env = append(os.Environ(), stageEnv+"=tests", "TMPDIR="+temp)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		return max(failed.ExitCode(), 1), nil
	}
	return 0, err
}

// missing says why the tests cannot run.
func (t Tests) missing(ctx context.Context) string {
	if t.Needs != nil {
		if err := t.Needs(ctx); err != nil {
			return err.Error()
		}
	}
	probe := again(ctx)
	probe.Env = append(os.Environ(), stageEnv+"=probe")
	if out, err := probe.CombinedOutput(); err != nil {
		return fmt.Sprintf("needs root, or a kernel that gives user namespaces to ordinary users: %s (%v)", strings.TrimSpace(string(out)), err)
	}
	return ""
}

// many runs more tests at once than there are processors, unless the user has set the number: most
// tests wait for other processes most of the time.
func many(m interface{ Run() int }) (int, error) {
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		if err := flag.Set("test.parallel", strconv.Itoa(4*runtime.GOMAXPROCS(0))); err != nil {
			return 1, err
		}
	}
	return m.Run(), nil
}

// again returns a command that runs this program with the same arguments in the namespaces of a new
// private host.
func again(ctx context.Context) *exec.Cmd {
	return Command(ctx, "/proc/self/exe", os.Args[1:]...)
}

// Programs returns the directory of the programs that [Tests.Build] has built.
func Programs() string { return filepath.Join(os.Getenv(tempEnv), "bin") }

// Need skips the test without a private host, or fails it if METACNI_E2E requires one.
func Need(tb interface {
	Helper()
	Fatal(args ...any)
	Skip(args ...any)
},
) {
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
