// Conform checks that a CNI plugin, an executable in any language, does what the CNI
// specification 1.1 asks of it. It runs the plugin as a runtime does, in namespaces of
// its own, and plays the plugins that it delegates to. README.md shows how to use it on
// a plugin of your own.
//
//	go install github.com/metacni/metacni/delegate/conform/cmd/conform@latest
//	conform -conf plugin.json /opt/cni/bin/plugin
//
// The exit status is 0 when no check failed, 1 when one failed, and 2 when the checks
// could not be made.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/metacni/metacni/delegate/conform"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := process{os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr}.run(ctx)
	stop()
	os.Exit(status)
}

// Exit statuses.
const (
	passed = 0
	failed = 1
	cannot = 2
)

// A process is the part of its own process that the command uses.
type process struct {
	args, environ  []string
	stdin          io.Reader
	stdout, stderr io.Writer
}

func (p process) run(ctx context.Context) int {
	o, err := p.parse()
	switch {
	case errors.Is(err, flag.ErrHelp):
		return passed
	case err != nil:
		return p.say(err)
	case o.list:
		return p.list(o)
	}
	if ctx.Err() != nil {
		return p.say(errInterrupted)
	}
	// A user who is not root needs a user namespace. A shim works with the daemon that
	// runs here, unless it gets another one.
	if o.netns != off && os.Geteuid() != 0 && !slices.Contains(p.environ, inHost) && (o.kind != "shim" || o.daemon != nil) {
		status, err := p.inHost(ctx)
		switch {
		case err == nil:
			return status
		case o.netns == on:
			return p.say(fmt.Errorf("-netns: %w", err))
		}
		p.without(err)
		o.netns = off
	}
	known, err := readBaseline(o.baseline)
	if err != nil {
		return p.say(err)
	}
	conf, err := p.config(o)
	if err != nil {
		return p.say(err)
	}
	env := slices.DeleteFunc(slices.Clone(p.environ), func(kv string) bool { return !strings.HasPrefix(kv, "PATH=") })
	plugin := conform.Binary{Path: o.path, Env: append(env, o.env...), Daemon: o.daemon}
	s := &screen{w: p.stdout, json: o.json}
	kind, findings, err := conform.Findings(ctx, plugin, conf)
	if errors.Is(err, errors.ErrUnsupported) && o.netns != on {
		p.without(err)
		conf.NetNS = false
		kind, findings, err = conform.Findings(ctx, plugin, conf)
	}
	switch {
	case ctx.Err() != nil:
		return p.say(errInterrupted)
	case err != nil:
		return p.say(errors.New(flags(err.Error())))
	}

	r := &report{Plugin: clean(o.path), skip: o.skip, known: known, baseline: o.baseline}
	switch r.Kind.Name = kind.Name; {
	case o.kind != "":
		r.Kind.Why = "-kind says so"
	case kind.Name != "":
		r.Kind.Why = clean(kind.Why)
	}
	s.begin(r)
	start := time.Now()
	for f := range findings {
		if ctx.Err() != nil {
			return p.say(errInterrupted)
		}
		s.checked(r.add(f, time.Since(start)))
		start = time.Now()
	}
	r.end()
	if err := errors.Join(s.end(r), writeFile(o.junit, r.junit), writeFile(o.markdown, r.markdown)); err != nil {
		return p.say(err)
	}
	if r.lacksADD() {
		return p.say(errors.New(`the checks could not be made: no ADD succeeds, see the check "add"`))
	}
	if r.Failed > 0 {
		return failed
	}
	return passed
}

var errInterrupted = errors.New("interrupted")

// say reports why the checks cannot be made.
func (p process) say(err error) int {
	fmt.Fprintln(p.stderr, "conform:", clean(err.Error()))
	return cannot
}

// without tells that there are no real containers.
func (p process) without(err error) {
	fmt.Fprintln(p.stderr, "conform: goes on without real containers:", clean(err.Error()))
}

// inHost in the environment says that the process runs in the namespaces of
// [process.inHost].
const inHost = "CONFORM_IN_HOST=1"

// list prints the checks.
func (p process) list(o *options) int {
	var r report
	for _, c := range conform.Checks() {
		if o.kind == "" || c.Kinds == nil || slices.Contains(c.Kinds, o.kind) {
			r.Checks = append(r.Checks, check{Name: c.Name, Duty: c.Duty, Why: c.Why, Where: c.Where, Kinds: c.Kinds, Delegates: c.Delegates, Strict: c.Strict})
		}
	}
	var err error
	if o.json {
		err = encode(p.stdout, r.Checks)
	} else {
		err = r.explain(p.stdout)
	}
	if err != nil {
		return p.say(err)
	}
	return passed
}

// config is what the flags say, for package conform.
func (p process) config(o *options) (conform.Config, error) {
	conf := conform.Config{Timeout: o.timeout, Skip: o.skip, Kind: o.kind, Idle: list(o.idle), Args: o.args, Strict: o.strict, NetNS: o.netns != off}
	text, err := o.object()
	if err != nil {
		return conf, err
	}
	seen := scan(text, o.typ(), o.dirs)
	conf.Links = union(o.links, seen.links)
	conf.Delegates = list(o.delegates)
	if o.delegates == "" {
		conf.Delegates = slices.DeleteFunc(seen.delegates, func(typ string) bool { return slices.Contains(conf.Idle, typ) })
	}
	if conf.Fakes, err = o.results(); err != nil {
		return conf, err
	}
	try, err := os.MkdirTemp("", "conform")
	if err == nil {
		err = errors.Join(o.copyFiles(try), os.RemoveAll(try))
	}
	if err != nil {
		return conf, err
	}
	conf.Stdin = func(dir string) string {
		if err := o.copyFiles(dir); err != nil {
			p.say(err)
		}
		return expand(string(text), dir)
	}
	return conf, nil
}
