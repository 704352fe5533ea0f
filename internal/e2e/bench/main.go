//go:build linux

// Bench measures the cost of a meta-plugin: multinet, a minimal meta-plugin
// (testdata/floor), and the same written with skel and libcni (testdata/libcni). It prints
// tables. Run it with `make bench` or, in internal/e2e, `go run ./bench`.
//
// The programs attach and detach containers in turn, in another order in each round, so
// that other activity on the machine affects all of them alike. Each attachment has a
// container ID and a network namespace of its own, created before the clock starts. The
// clock runs from before the fork until wait returns. The tables show medians, followed by
// the medians of the ratios to the first program in the same round. The first round does not
// count.
//
// The delegates are a plugin that does nothing (testdata/noop), which shows the
// meta-plugin's own cost, and bridge with host-local, which shows how much that matters. They
// run on a private host (see examples/lab/host).
//
// multinet-shim and multinetd do the same without Kubernetes and in a cluster, whose API
// server is a process of its own (../kube/testdata/api).
//
// Records and leases are kept in the directory for temporary files ($TMPDIR), which should be
// on a disk: in memory an fsync costs nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/examples/lab/host"
)

// stageEnv is empty or, on the private host, the working directory.
const stageEnv = "METACNI_BENCH_STAGE"

// options say what to measure.
type options struct {
	rounds  int
	pods    int               // that a node starts at once
	records int               // of other containers
	peers   map[string]string // paths by name
}

//nolint:forbidigo // only main touches the process
func main() {
	runtime.LockOSThread() // see host.NewNS
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Getenv(stageEnv), os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	fmt.Fprintln(os.Stderr, "bench:", err)
	os.Exit(1)
}

// run builds the programs and runs itself again on a private host, where it measures them.
func run(ctx context.Context, work string, args []string, out, stderr *os.File) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if work != "" {
		if err := host.Setup(); err != nil {
			return err
		}
		return measure(ctx, &rig{options: o, work: work, stderr: stderr}, out)
	}
	if work, err = os.MkdirTemp("", "metacni-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	fmt.Fprintln(stderr, "Building the programs (the first time takes a minute) ...")
	if err := build(ctx, work, o.peers); err != nil {
		return err
	}
	cmd := host.Command(ctx, "/proc/self/exe", args...)
	cmd.Env = append(cmd.Environ(), stageEnv+"="+work)
	cmd.Stdout, cmd.Stderr = out, stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	err = cmd.Run()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		return errors.New("a measurement has failed, see above")
	}
	return err
}

func parse(args []string, stderr io.Writer) (options, error) {
	o := options{rounds: 31, pods: 110, records: 10_000, peers: map[string]string{}}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	quick := fs.Bool("quick", false, "only try everything once, among few pods and records")
	fs.Func("peer", "another meta-plugin that is configured as Multus is, `NAME=PATH`; may be repeated", o.peer)
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, errors.New("there are no arguments")
	}
	if *quick {
		o.rounds, o.pods, o.records = 1, 3, 10
	}
	return o, nil
}

// measure runs all measurements and prints them.
func measure(ctx context.Context, r *rig, w io.Writer) error {
	unix.Sync()            // write the programs to disk before a clock runs
	debug.SetGCPercent(-1) // runtime.GC runs between the rounds
	line, err := r.machine()
	if err != nil {
		return err
	}
	fmt.Fprintln(w, line)
	for _, part := range []func(context.Context, io.Writer) error{r.thin, r.daemons, r.grown} {
		if err := part(ctx, w); err != nil {
			return err
		}
	}
	return nil
}
