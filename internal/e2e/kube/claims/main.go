//go:build linux

// Claims shows how a pod gets a network by ResourceClaim, on a real kube-apiserver with etcd,
// with multinetd and real plugins on a private host that ends with it. It plays the scheduler
// and the kubelet. Run it with `make dra` or, in internal/e2e/kube, `go run ./claims`. It needs
// Go, and root or user namespaces. The first run builds the servers.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/metacni/metacni/examples/lab/host"
	"github.com/metacni/metacni/internal/e2e/kube/program"
	"github.com/metacni/metacni/internal/e2e/kube/server"
)

// programsEnv is set in the environment of the demo on the private host: the directory of the
// programs of Kubernetes.
const programsEnv = "METACNI_CLAIMS_PROGRAMS"

//nolint:forbidigo // only main touches the process
func main() {
	runtime.LockOSThread() // see host.Command
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var err error
	if programs := os.Getenv(programsEnv); programs != "" {
		err = inside(ctx, os.Stdout, programs)
	} else {
		err = run(ctx, os.Environ(), os.TempDir(), os.Stdout, os.Stderr)
	}
	interrupted := ctx.Err() != nil
	stop()
	if err != nil && !interrupted {
		fmt.Fprintln(os.Stderr, "claims:", err)
	}
	if err != nil {
		os.Exit(1)
	}
}

// inside tells the story on the private host.
func inside(ctx context.Context, out io.Writer, programs string) error {
	if err := host.Setup(); err != nil {
		return fmt.Errorf("no private host: %w", err)
	}
	return story(ctx, out, programs)
}

// run builds the programs into a new directory in dir, which it removes in the end, and runs this
// program again on a private host. env is its environment.
func run(ctx context.Context, env []string, dir string, out, progress io.Writer) error {
	begun := time.Now()
	fmt.Fprintln(progress, "Building kube-apiserver (the first time takes four minutes), multinetd and plugins ...")
	programs, err := server.Programs(ctx)
	if err != nil {
		return err
	}
	temp, err := os.MkdirTemp(dir, "metacni-claims-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }() // also what the story leaves
	if err := program.Node(ctx, filepath.Join(temp, "bin"), "main/bridge", "ipam/host-local"); err != nil {
		return err
	}
	fmt.Fprintf(progress, "Built in %.0f s.\n", time.Since(begun).Seconds())
	cmd := host.Command(ctx, "/proc/self/exe")
	cmd.Env = append(env, programsEnv+"="+programs, "TMPDIR="+temp)
	cmd.Stdout, cmd.Stderr = out, progress
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	err = cmd.Run()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		return errors.New("the demo has failed, see above")
	}
	if err != nil {
		return fmt.Errorf("no private host, which needs root or a kernel with user namespaces for ordinary users: %w", err)
	}
	return nil
}
