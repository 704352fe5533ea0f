//go:build linux

// Bench measures the cost of a meta-plugin: multinet, a minimal meta-plugin
// (testdata/floor), and the same written with skel and libcni (testdata/libcni).
// It prints tables and draws the cost against the number of delegates. Run it
// with `make bench` or, in internal/e2e, `go run ./bench`.
//
// The programs attach and detach containers in turn, in another order in each
// round, so that other activity on the machine affects all of them alike. Each
// attachment has a container ID and a network namespace of its own, created
// before the clock starts. The clock runs from before the fork until wait
// returns. The tables show medians, followed by the medians of the ratios to
// floor in the same round. The first round does not count.
//
// The delegates are a plugin that does nothing (testdata/noop), which shows the
// meta-plugin's own cost, and bridge with host-local, which shows how much that
// matters. They run on a private host (see examples/lab/host). Without one only
// noop runs.
//
// Other meta-plugins do the same if their executables are given (see peer.go).
//
// multinet-shim and multinetd do the same in a Kubernetes cluster and without, in turn, and
// are compared with multinet (see thick.go).
// The API server is a process of its own (../kube/testdata/api), which counts requests.
//
// Records and leases are kept below the directory of -dir, which should be on a
// disk: in memory an fsync costs nothing. The memory of a program is its
// ru_maxrss. As the kernel never reports less than the memory of the process
// that forked it, a small program (testdata/launch) starts it in separate runs.
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
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/metacni/metacni/examples/lab/host"
)

// stageEnv is empty, "probe" or, on the private host, the working directory.
const stageEnv = "METACNI_BENCH_STAGE"

// options are the flags.
type options struct {
	rounds int
	ns     []int // numbers of delegates
	growth []int // numbers of records
	crowd  int   // number of pods at once
	row    int   // number of pods one after another
	peers  []peer
	plot   string
	dir    string
}

// process is the part of this process's state that run may use.
type process struct {
	args        []string
	stage       string
	env         []string
	out, stderr *os.File
}

//nolint:forbidigo // only main touches the process
func main() {
	runtime.LockOSThread() // see host.NewNS
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	p := process{args: os.Args[1:], stage: os.Getenv(stageEnv), env: os.Environ(), out: os.Stdout, stderr: os.Stderr}
	err := run(ctx, p)
	stop()
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	if inner := (*exec.ExitError)(nil); !errors.As(err, &inner) { // otherwise it has printed its error
		fmt.Fprintln(os.Stderr, "bench:", err)
	}
	os.Exit(1)
}

func run(ctx context.Context, p process) error {
	o, err := parse(p.args, p.stderr)
	if err != nil {
		return err
	}
	switch p.stage {
	case "":
		return outside(ctx, p, o)
	case "probe":
		return host.Setup()
	}
	if err := host.Setup(); err != nil {
		return err
	}
	return measure(ctx, &rig{options: o, work: p.stage, hosted: true, stderr: p.stderr}, p.out)
}

// outside builds the programs and measures them: in this program, run again on
// a private host, or in this process if there can be no private host.
func outside(ctx context.Context, p process, o options) (err error) {
	work, err := os.MkdirTemp(o.dir, "metacni-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	fmt.Fprintln(p.stderr, "Building the programs (the first time takes a minute) ...")
	if err := build(ctx, work); err != nil {
		return err
	}
	for _, p := range o.peers {
		if err := p.bring(work); err != nil {
			return err
		}
	}
	if why := again(ctx, p, "probe").Run(); why != nil {
		fmt.Fprintln(p.out, "There is no private host: it needs root, or a kernel that gives user namespaces to "+
			"ordinary users. Only plugins that do nothing run, with network namespaces that do not exist.")
		return measure(ctx, &rig{options: o, work: work, stderr: p.stderr}, p.out)
	}
	cmd := again(ctx, p, work)
	cmd.Stdout, cmd.Stderr = p.out, p.stderr
	return cmd.Run()
}

// again returns a command that runs this program again in namespaces of its
// own.
func again(ctx context.Context, p process, stage string) *exec.Cmd {
	cmd := host.Command(ctx, "/proc/self/exe", p.args...)
	cmd.Env = append(p.env, stageEnv+"="+stage)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

func parse(args []string, stderr io.Writer) (options, error) {
	o := options{ns: []int{1, 2, 4, 8}, growth: []int{0, 1000, 10_000, 100_000}}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.IntVar(&o.rounds, "rounds", 31, "number of `rounds` to measure")
	fs.Func("n", "`numbers` of delegates (default 1,2,4,8)", numbers(&o.ns, 1))
	fs.Func("growth", "`numbers` of records, or nothing to skip the growth (default 0,1000,10000,100000)", numbers(&o.growth, 0))
	fs.IntVar(&o.crowd, "pods", 110, "`number` of pods that a node starts at once, or 0 to skip multinetd")
	fs.IntVar(&o.row, "row", 200, "`number` of pods to attach one after another for the CPU time of multinetd")
	fs.Func("peer", "another meta-plugin to measure, `NAME=PATH`, or NAME=PATH,conf=TEMPLATE unless NAME is multus or flannel; may be repeated", peers(&o.peers))
	fs.StringVar(&o.plot, "plot", "cost.svg", "`file` for the picture, or nothing to draw none")
	fs.StringVar(&o.dir, "dir", "", "`directory` for records, programs and leases (default: the directory for temporary files)")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 || o.rounds < 1 || o.crowd < 0 || o.row < 1 || len(o.ns) == 0 {
		return o, errors.New("-rounds and -row must be at least 1, -pods at least 0, -n needs a number, and there are no arguments")
	}
	return o, nil
}

// numbers parses a list of increasing numbers of at least least into dst.
func numbers(dst *[]int, least int) func(string) error {
	return func(s string) error {
		*dst = nil
		for f := range strings.FieldsFuncSeq(s, func(r rune) bool { return r == ',' }) {
			n, err := strconv.Atoi(f)
			if err != nil || n < least {
				return fmt.Errorf("want increasing numbers of at least %d, separated by commas", least)
			}
			*dst = append(*dst, n)
			least = n + 1
		}
		return nil
	}
}
