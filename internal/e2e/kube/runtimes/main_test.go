package runtimes

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/conform/host"
	"github.com/metacni/metacni/internal/e2e/kube/server"
	"github.com/metacni/metacni/internal/test/process"
)

const (
	stageEnv   = "METACNI_E2E_STAGE" // "", "probe", "init", "inside" or that of a machine
	binEnv     = "METACNI_E2E_BIN"   // directory of multinetd, the plugins and the image
	runtimeEnv = "METACNI_E2E_RUNTIME"
	kubeEnv    = "METACNI_E2E_KUBE"
	cgroupEnv  = "METACNI_E2E_CGROUP" // parent of the pods' cgroups
	requireEnv = "METACNI_E2E"        // "require": fail, do not skip
)

// missing says what the tests lack. It is empty if they lack nothing.
var missing string

func TestMain(m *testing.M) {
	runtime.LockOSThread() // see host.Command
	flag.Parse()
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "runtimes:", err)
		code = 1
	}
	os.Exit(code)
}

// run builds the programs and runs the tests in a copy of this process on a private host,
// or in this process if there can be none. The private host has process IDs of its own:
// what the tests start ends with its first process, and so with this process.
func run(m *testing.M) (int, error) {
	switch os.Getenv(stageEnv) {
	case "probe":
		return 0, setup()
	case "init":
		if err := setup(); err != nil {
			return 1, err
		}
		return reap(again(context.Background(), "inside"))
	case "inside":
		return m.Run(), nil
	case machineStage:
		return runMachine()
	}
	if flag.Lookup("test.list").Value.String() != "" {
		return m.Run(), nil
	}
	ctx := context.Background()
	removeCgroups("")
	cgroup := fmt.Sprint(cgroupPrefix, os.Getpid())
	if err := os.Setenv(cgroupEnv, cgroup); err != nil {
		return 1, err
	}
	defer removeCgroups(cgroup)
	if why := lacks(ctx); why != "" {
		missing = why
		return m.Run(), nil
	}
	temp, err := os.MkdirTemp("", "metacni-runtimes-")
	if err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	bin := filepath.Join(temp, "bin")
	if err := build(ctx, bin); err != nil {
		return 1, err
	}
	cmd := private(ctx, "init")
	cmd.Env = append(cmd.Env, "TMPDIR="+temp, binEnv+"="+bin)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		return max(failed.ExitCode(), 1), nil
	}
	return 0, err
}

// lacks says why the tests cannot run, or nothing if they can. It builds the runtime and
// the API server.
func lacks(ctx context.Context) string {
	if os.Getuid() != 0 {
		return "needs root"
	}
	if out, err := private(ctx, "probe").CombinedOutput(); err != nil {
		return fmt.Sprintf("needs a private host: %s (%v)", strings.TrimSpace(string(out)), err)
	}
	for env, programs := range map[string]func(context.Context) (string, error){runtimeEnv: containerdPrograms, kubeEnv: server.Programs} {
		dir, err := programs(ctx)
		if err == nil {
			err = os.Setenv(env, dir)
		}
		if err != nil {
			return err.Error()
		}
	}
	return ""
}

// containerdPrograms returns the directory of containerd, its shim, ctr and runc.
func containerdPrograms(ctx context.Context) (string, error) {
	const containerd = "github.com/containerd/containerd/v2"
	return process.Tools{
		Dir: "testdata/programs", Name: "containerd", Module: containerd,
		Builds: []process.Build{
			{
				Env: []string{"CGO_ENABLED=0"},
				Args: []string{
					"-ldflags=-s -w -X " + containerd + "/version.Version=VERSION",
					containerd + "/cmd/containerd", containerd + "/cmd/containerd-shim-runc-v2", containerd + "/cmd/ctr",
				},
			},
			{ // without seccomp, which needs a C library
				Env:  []string{"CGO_ENABLED=1"},
				Args: []string{"-ldflags=-s -w", "github.com/opencontainers/runc"},
			},
		},
	}.Build(ctx)
}

// build builds into a directory what runs on a node besides the runtime, and the image of
// every pod.
func build(ctx context.Context, bin string) error {
	err := process.BuildNode(ctx, bin, "main/bridge", "main/loopback", "ipam/host-local", "meta/portmap", "meta/firewall", "meta/tuning")
	if err == nil {
		err = process.Build{Env: []string{"CGO_ENABLED=0"}, Args: []string{"."}}.Run(ctx, "../../../../examples/nri", bin)
	}
	if err == nil { // as the go.mod of the end-to-end tests has it
		err = process.Build{Env: []string{"CGO_ENABLED=0"}, Args: []string{"github.com/containernetworking/cni/cnitool"}}.Run(ctx, "../..", bin)
	}
	if err == nil {
		err = process.Build{Env: []string{"CGO_ENABLED=0"}, Args: []string{"-ldflags=-s -w", "./testdata/pause"}}.Run(ctx, ".", bin)
	}
	if err == nil {
		err = writeImage(filepath.Join(bin, "pause"), filepath.Join(bin, "pause.tar"))
	}
	return err
}

// private returns a command that runs this program with the same arguments on a private
// host.
func private(ctx context.Context, stage string) *exec.Cmd {
	cmd := host.Command(ctx, "/proc/self/exe", os.Args[1:]...)
	cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWPID
	cmd.Env = append(os.Environ(), stageEnv+"="+stage)
	return cmd
}

// again returns a command that runs this program with the same arguments.
func again(ctx context.Context, stage string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), stageEnv+"="+stage)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd
}

// setup makes the namespaces of this process a host, and tries what containers need.
func setup() error {
	if err := host.Setup(); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return makeCgroups(os.Getenv(cgroupEnv))
}

// reap runs the first process of the private host: it starts cmd and removes the orphans
// of others until cmd ends. It returns the status of cmd.
func reap(cmd *exec.Cmd) (int, error) {
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 1, err
		case pid == cmd.Process.Pid && status.Exited():
			return status.ExitStatus(), nil
		case pid == cmd.Process.Pid && status.Signaled():
			return 1, fmt.Errorf("the tests were ended by a signal: %v", status.Signal())
		}
	}
}
