//go:build linux

// Scale measures what the nodes of a large cluster cost its API server, and how soon
// they follow it. It starts a real kube-apiserver with etcd, creates definitions, nodes
// and pods, and opens in this process what multinetd opens on each node: a view of the
// cluster, a status writer and Events. Run it with `make scale` or, in internal/e2e/kube,
// `go run ./scale`. The first run builds the servers.
//
// Each node has the account, the rights and the policy of multinetd's manifests, and a
// token that is bound to it. Requests are counted where the view makes them, and bytes
// by the kernel for each connection. Processor time and memory are those of the
// processes. The rest is what the API server says of itself.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	views   int             // nodes
	pods    int             // of each node that restarts
	others  int             // of each other node
	nads    int             // definitions
	spaces  int             // namespaces of the pods
	changes int             // of one definition, one after another
	burst   int             // definitions that change at once
	reboot  int             // nodes that restart at once
	rest    time.Duration   // in which nothing happens
	outages []time.Duration // between the end of the API server and its start
}

//nolint:forbidigo // only main touches the process
func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	fmt.Fprintln(os.Stderr, "scale:", err)
	os.Exit(1)
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	o, err := parse(args, progress)
	if err != nil {
		return err
	}
	return measure(ctx, o, reporter{out, progress})
}

func parse(args []string, stderr io.Writer) (options, error) {
	o := options{outages: []time.Duration{0, time.Minute}}
	fs := flag.NewFlagSet("scale", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.IntVar(&o.views, "views", 500, "`number` of nodes")
	fs.IntVar(&o.pods, "pods", 110, "`number` of pods on each node that restarts")
	fs.IntVar(&o.others, "others", 110, "`number` of pods on each other node")
	fs.IntVar(&o.nads, "nads", 1000, "`number` of definitions")
	fs.IntVar(&o.spaces, "namespaces", 50, "`number` of namespaces that the pods of each node are in")
	fs.IntVar(&o.changes, "changes", 10, "`number` of changes of a definition, and of pods, one after another")
	fs.IntVar(&o.burst, "burst", 100, "`number` of definitions that change at once")
	fs.IntVar(&o.reboot, "reboot", 50, "`number` of nodes that restart at once")
	fs.DurationVar(&o.rest, "rest", 3*time.Minute, "`time` in which nothing happens")
	fs.Func("outage", "`time` without an API server; may be repeated (default 0s and 1m)", func(s string) error {
		d, err := time.ParseDuration(s)
		if len(o.outages) == 2 && o.outages[0] == 0 && o.outages[1] == time.Minute {
			o.outages = nil
		}
		o.outages = append(o.outages, d)
		return err
	})
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 || o.views < 1 || o.pods < 1 || o.others < 1 || o.nads < 1 || o.spaces < 1 || o.changes < 1 || o.burst < 0 || o.burst > o.nads ||
		o.reboot < 0 || o.reboot > o.views {
		return o, errors.New("-views, -pods, -others, -nads, -namespaces and -changes must be at least 1, -burst at most -nads, -reboot at most -views, and there are no arguments")
	}
	return o, nil
}
