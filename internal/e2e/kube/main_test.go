package kube

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

	"github.com/metacni/metacni/examples/lab/host"
	"github.com/metacni/metacni/internal/e2e/kube/program"
	"github.com/metacni/metacni/internal/e2e/kube/server"
)

const (
	stageEnv    = "METACNI_E2E_STAGE"    // "", "probe" or "inside"
	programsEnv = "METACNI_E2E_PROGRAMS" // directory of the programs
	binEnv      = "METACNI_E2E_BIN"      // directory of multinetd and the plugins
	requireEnv  = "METACNI_E2E"          // "require": fail, do not skip
)

// noPrograms and noHost say why there are no programs and no private host. They are
// empty if there are.
var noPrograms, noHost string

var long = flag.Bool("long", false, "longer tests")

func TestMain(m *testing.M) {
	runtime.LockOSThread() // see host.Command
	flag.Parse()
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "kube:", err)
		code = 1
	}
	os.Exit(code)
}

// run builds the programs and runs the tests in a copy of this process on a private
// host, which has no network, or in this process if there can be none.
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
		return tests(m), nil
	}
	if flag.Lookup("test.list").Value.String() != "" {
		return m.Run(), nil
	}
	ctx := context.Background()
	dir, err := server.Programs(ctx)
	if err != nil {
		noPrograms = err.Error()
		return m.Run(), nil
	}
	if err := os.Setenv(programsEnv, dir); err != nil {
		return 1, err
	}
	if out, err := again(ctx, "probe").CombinedOutput(); err != nil {
		why, _, _ := strings.Cut(strings.TrimPrefix(string(out), "kube: "), "\n")
		if why == "" {
			why = err.Error()
		}
		noHost = "needs root, or a kernel that gives user namespaces to ordinary users: " + why
		return tests(m), nil
	}
	temp, err := os.MkdirTemp("", "metacni-kube-")
	if err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(temp) }() // also what tests that panic leave
	bin := filepath.Join(temp, "bin")
	if err := program.Node(ctx, bin, "main/bridge", "ipam/host-local"); err != nil {
		return 1, err
	}
	cmd := again(ctx, "inside")
	cmd.Env = append(cmd.Env, "TMPDIR="+temp, binEnv+"="+bin)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		return max(failed.ExitCode(), 1), nil
	}
	return 0, err
}

// tests runs the tests and ends the server that they share.
func tests(m *testing.M) int {
	defer func() {
		if shared.Server != nil {
			shared.Close()
		}
	}()
	return m.Run()
}

// parallel raises the number of tests that run at once above the number of processors,
// unless the user has set it: most tests wait for other processes most of the time.
func parallel() error {
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if chosen {
		return nil
	}
	return flag.Set("test.parallel", strconv.Itoa(4*runtime.GOMAXPROCS(0)))
}

// again returns a command that runs this program with the same arguments in namespaces
// of its own.
func again(ctx context.Context, stage string) *exec.Cmd {
	cmd := host.Command(ctx, "/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), stageEnv+"="+stage)
	return cmd
}
