// Conform checks that an executable, in any language, does what the CNI
// specification asks of a plugin, above all of one that delegates to others. It
// runs the plugin as a runtime does and plays the plugins that it delegates to.
// README.md shows how to use it on a plugin of your own.
//
//	go run github.com/metacni/metacni/delegate/delegatetest/cmd/conform -conf plugin.json /opt/cni/bin/plugin
//
// The exit status is 0 when every check that was made passed, 1 when one failed,
// and 2 when the checks could not be made.
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
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/metacni/metacni/delegate/delegatetest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	status := run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// options are the flags, and the plugin.
type options struct {
	path      string
	conf      string
	files     string
	delegates string
	idle      string
	fakes     map[string]string // files, by type
	env       []string
	skip      map[string]string // reasons, by check
	netns     bool
	timeout   time.Duration
	output    string
	list      bool
}

const usage = `Usage: conform [flags] PATH

Conform checks that the CNI plugin at PATH does what the CNI specification 1.1
asks of it. The plugin is really run: give it nothing to break. As root, run
"unshare --net --mount conform -netns ..." to keep what it does to interfaces
and firewall rules off this host; other users add --user --map-root-user.

Flags:
`

func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{fakes: make(map[string]string), skip: make(map[string]string)}
	f := flag.NewFlagSet("conform", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.conf, "conf", "", "`file` with the plugin's configuration: one JSON object, or a network configuration list that has one of the plugin's type. In it, {dir} stands for an empty directory that each check gets. Default: an object with the type only")
	f.StringVar(&o.files, "files", "", "copy the files in this `directory` to {dir} before each check, with {dir} replaced in them")
	f.StringVar(&o.delegates, "delegates", "", "`types` of the plugins that must run in an ADD, separated by commas; \"-\" means none. Default: each \"type\" in the configuration below the plugin's own, but not those inside a delegate")
	f.StringVar(&o.idle, "idle", "", "`types` of more plugins to delegate to, which need not run in an ADD: a plugin that tries alternatives has the first in -delegates and the rest here")
	f.Func("fake", "`type=file`: what the delegate of this type prints in ADD, a CNI result. Default: an address of 192.0.2.0/24 without a gateway", pair(func(typ, file string) { o.fakes[typ] = file }))
	f.Func("env", "`name=value` in the environment of the plugin. It has PATH, and no other of this process's variables", pair(func(name, value string) { o.env = append(o.env, name+"="+value) }))
	f.Func("skip", "`check=reason`: do not make this check", pair(func(check, reason string) { o.skip[check] = reason }))
	f.BoolVar(&o.netns, "netns", false, "make a network namespace for each container: for plugins that look into it. Needs root. Without, CNI_NETNS is a path at which there is nothing")
	f.DurationVar(&o.timeout, "timeout", 30*time.Second, "how long the plugin may take for one command")
	f.StringVar(&o.output, "o", "table", "`format` of the output: table or json")
	f.BoolVar(&o.list, "list", false, "print the checks and exit")
	f.Usage = func() {
		_, _ = io.WriteString(stderr, usage)
		f.PrintDefaults()
	}
	if err := f.Parse(args); err != nil {
		return nil, fmt.Errorf("%w: %w", errUsage, err)
	}
	if o.output != "table" && o.output != "json" {
		return nil, fmt.Errorf("-o is %q: want table or json", o.output)
	}
	if o.list {
		return o, nil
	}
	if f.NArg() != 1 {
		return nil, fmt.Errorf("want the path of one plugin, after the flags, and got %q: see conform -h", f.Args())
	}
	var err error
	if o.path, err = exec.LookPath(f.Arg(0)); err == nil {
		o.path, err = filepath.Abs(o.path)
	}
	return o, err
}

// errUsage is an error that package flag has reported.
var errUsage = errors.New("usage")

// pair returns what a flag such as -env, which may be repeated, does with its value.
func pair(set func(key, value string)) func(string) error {
	return func(arg string) error {
		key, value, ok := strings.Cut(arg, "=")
		if !ok || key == "" {
			return errors.New("want NAME=VALUE")
		}
		set(key, value)
		return nil
	}
}

// Exit statuses.
const (
	passed = 0
	failed = 1
	cannot = 2
)

// run is the command apart from its process.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	say := func(err error) int {
		if !errors.Is(err, errUsage) {
			fmt.Fprintln(stderr, "conform:", err)
		}
		return cannot
	}
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return passed
	}
	if err != nil {
		return say(err)
	}
	r := report{Plugin: o.path}
	if o.list {
		for _, c := range delegatetest.Checks() {
			r.add(delegatetest.Finding{Check: c})
		}
		return r.print(stdout, o.output, true)
	}
	conf, err := o.config()
	if err != nil {
		return say(err)
	}
	env := slices.DeleteFunc(slices.Clone(environ), func(kv string) bool { return !strings.HasPrefix(kv, "PATH=") })
	findings, err := delegatetest.Findings(ctx, delegatetest.Binary{Path: o.path, Env: slices.Concat(env, o.env)}, conf)
	if errors.Is(err, errors.ErrUnsupported) {
		err = fmt.Errorf("%w: run conform as root, or under \"unshare --user --map-root-user --net\"", err)
	}
	if err != nil {
		return say(err)
	}
	for f := range findings {
		if ctx.Err() != nil {
			return say(errors.New("interrupted"))
		}
		r.add(f)
	}
	if r.failed("add") && !o.netns {
		fmt.Fprintln(stderr, "conform: ADD fails without -netns: a plugin that looks into the container's network namespace needs it")
	}
	return r.print(stdout, o.output, false)
}

// config is what the flags say, for delegatetest.
func (o *options) config() (delegatetest.Config, error) {
	conf := delegatetest.Config{Timeout: o.timeout, Skip: o.skip}
	text, err := o.object()
	if err != nil {
		return conf, err
	}
	conf.Delegates = list(o.delegates)
	conf.Idle = list(o.idle)
	if o.delegates == "" {
		conf.Delegates = slices.DeleteFunc(types(text), func(typ string) bool { return slices.Contains(conf.Idle, typ) })
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
			fmt.Fprintln(os.Stderr, "conform:", err)
		}
		return expand(string(text), dir)
	}
	if o.netns {
		conf.NetNS = delegatetest.NewNetNS
	}
	return conf, nil
}

// list splits types at commas.
func list(types string) (all []string) {
	for typ := range strings.SplitSeq(types, ",") {
		if typ = strings.TrimSpace(typ); typ != "" && typ != "-" {
			all = append(all, typ)
		}
	}
	return all
}
