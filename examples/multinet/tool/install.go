package tool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/metacni/metacni/delegate/adopt"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/internal/program"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/examples/multinet/publish"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/autoconf"
)

// A site is what install and uninstall have in common: where the program is installed and its
// network published.
type site struct {
	*tool

	confDir, output, binDir, typ, name string

	changes []any // for -o json
}

// A changeView is the JSON of a file that install or uninstall has changed.
// Programs rely on it.
type changeView struct {
	Path    string `json:"path"`
	Outcome string `json:"outcome"` // "copied", "published" or "removed"
	Network string `json:"network,omitempty"`
	Primary string `json:"primary,omitempty"` // the file of the cluster network
}

// changed prints what has changed with -o json, and returns err.
func (s *site) changed(err error) error {
	if s.form != "json" {
		return err
	}
	return errors.Join(err, s.print(&output{list: append([]any{}, s.changes...)}))
}

// site adds the flags that install and uninstall have in common, except --name.
func (t *tool) site(flags *flag.FlagSet) *site {
	s := &site{tool: t}
	flags.StringVar(&s.confDir, "conf-dir", publish.ConfDir, "`directory` of the runtime's networks")
	flags.StringVar(&s.output, "output", publish.Output, "`name` of the published file")
	flags.StringVar(&s.binDir, "bin-dir", multinet.DefaultBinDir, "`directory` of plugins; empty: copy none")
	flags.StringVar(&s.typ, "type", "multinet", "`name` of the program")
	t.formFlag(flags)
	return s
}

// resolve makes directories absolute, and checks the output.
func (s *site) resolve(more ...*string) error {
	errs := []error{plainName("output", s.output)}
	for _, path := range append(more, &s.confDir, &s.binDir) {
		if *path != "" {
			var err error
			*path, err = filepath.Abs(*path)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// plainName fails if name is not a plain file name.
func plainName(what, name string) error {
	if !publish.PlainName(name) {
		return fmt.Errorf("%s %q is not the name of a file", what, name)
	}
	return nil
}

// An installer is the command install.
type installer struct {
	*site

	flags                                               *flag.FlagSet
	cniDir, config, primary, hostConfDir, readinessFile string
	mode                                                fs.FileMode
	annotations, watch, force                           bool

	node          adopt.Node // where other programs keep their records
	root          string     // root directory for the plugins that sweeps run
	sweepInterval time.Duration

	conf     []byte // the plugin to publish
	stateDir string // of its records
	log      *slog.Logger
}

func (t *tool) install(flags *flag.FlagSet) runner {
	i := &installer{site: t.site(flags), flags: flags}
	flags.StringVar(&i.name, "name", publish.Network, "`name` of the network, for good")
	flags.StringVar(&i.cniDir, "cni-dir", "", "state `directory` of the plugin")
	flags.StringVar(&i.config, "config", "", "JSON `file` with more keys of the published plugin")
	flags.StringVar(&i.primary, "cluster-network", "", "`file` of the network to be in front of")
	flags.StringVar(&i.hostConfDir, "host-conf-dir", "", "refer to that file, in the plugin's `directory`")
	flags.StringVar(&i.readinessFile, "readiness-file", "", "publish only while this `file` exists")
	flags.Func("mode", "`permissions` of the published file [0600]", func(s string) error {
		n, err := strconv.ParseUint(s, 8, 9)
		i.mode = fs.FileMode(n)
		return err
	})
	flags.BoolVar(&i.annotations, "pod-annotations", true, "get the annotations of pods")
	flags.BoolVar(&i.watch, "watch", false, "keep running and follow the cluster network")
	flags.BoolVar(&i.force, "force", false, "install whatever doctor finds")
	flags.DurationVar(&i.sweepInterval, "sweep-interval", time.Minute, "with --watch: `time` between sweeps, 0: none")
	flags.StringVar(&i.root, "root", "", "root `directory` of the node")
	sources(flags, &i.node)
	return func(ctx context.Context, _ []string) error { return i.changed(i.publish(ctx)) }
}

// publish copies the program and publishes its network. With --watch it goes on until
// ctx ends or a signal comes.
func (i *installer) publish(ctx context.Context) error {
	i.log = slog.New(slog.NewTextHandler(i.ask, nil))
	tell := func(s autoconf.State) { publish.LogState(ctx, i.log, s) }
	if i.watch && i.form == "json" {
		return errors.New("--watch never ends, and goes not with -o json")
	}
	if err := i.resolve(&i.readinessFile); err != nil {
		return err
	}
	m, err := i.publisher()
	if err != nil {
		return err
	}
	if err := existing("cache-dir", i.node.CacheDir, multinet.DefaultCacheDir); err != nil {
		return err
	}
	sweeper, err := i.sweeper(ctx)
	if err != nil {
		return err
	}
	if err := i.examine(ctx, m); err != nil {
		return err
	}
	if _, err := m.Find(); err != nil && !i.watch {
		return err
	}
	if i.binDir != "" {
		// Before publishing, because the network needs the program.
		target := filepath.Join(i.binDir, m.Template.Type())
		if err := i.copyProgram(target); err != nil {
			return err
		}
		i.changes = append(i.changes, changeView{Path: target, Outcome: "copied"})
	}
	adopter := &publish.Adopter{Publisher: m, Life: &lifecycle.Manager{Dir: i.stateDir}, Node: i.node, Tell: func(o publish.Outcome) {
		o.Log(ctx, i.log)
		i.changes = append(i.changes, viewOutcome(o))
	}}
	if i.watch {
		return i.follow(ctx, adopter, sweeper, tell)
	}
	adopter.Pass(ctx)
	if err := publish.Publish(ctx, m); err != nil {
		return err
	}
	tell(m.State())
	i.changes = append(i.changes, changeView{m.State().Published, "published", m.State().Network, m.State().Primary})
	adopter.Pass(ctx) // containers that were being added
	return nil
}

// follow follows the cluster network, and sweeps, until ctx ends or a signal comes.
func (i *installer) follow(ctx context.Context, adopter *publish.Adopter, sweeper *lifecycle.Sweeper, tell func(autoconf.State)) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	var sweeps sync.WaitGroup
	defer sweeps.Wait()
	defer stop() // also ends ctx
	if i.sweepInterval > 0 {
		sweeps.Go(func() { _ = sweeper.Run(ctx, i.sweepInterval, nil) }) // ends with ctx
	}
	return adopter.Follow(ctx, tell)
}

// publisher returns the Manager that publishes the network.
func (i *installer) publisher() (*autoconf.Manager, error) {
	switch {
	case i.hostConfDir != "" && !filepath.IsAbs(i.hostConfDir):
		return nil, fmt.Errorf("--host-conf-dir %s: not an absolute path", i.hostConfDir)
	case i.primary != "" && !publish.PlainName(i.primary):
		return nil, fmt.Errorf("--cluster-network %s: not the name of a file in --conf-dir", i.primary)
	case i.primary == i.output+filepath.Ext(i.primary):
		return nil, fmt.Errorf("--cluster-network %s: this is the file to publish", i.primary)
	}
	template, err := i.template()
	if err != nil {
		return nil, err
	}
	m := publish.Manager(i.confDir, filepath.Join(i.confDir, i.output), template)
	m.Primary, m.ClusterNetworkDir, m.Ready, m.Mode = i.primary, i.hostConfDir, i.readinessFile, i.mode
	return m, nil
}

// template returns the plugin to publish, and notes it. It fails as an ADD does if a key is not
// valid, and if the program does not read a key.
func (i *installer) template() (p netconf.Plugin, err error) {
	data := []byte("{}")
	if i.config != "" {
		if data, err = netconf.ReadFile(os.DirFS(filepath.Dir(i.config)), filepath.Base(i.config)); err != nil {
			return p, err
		}
		defer func() {
			if err != nil {
				err = fmt.Errorf("%s: %w", i.config, err)
			}
		}()
	}
	p, err = netconf.ParsePlugin(data)
	if err == nil {
		p, err = p.Edit(i.edits()...)
	}
	if err == nil {
		i.conf, err = json.Marshal(p)
	}
	if err == nil {
		i.stateDir, err = multinet.StateDir("", i.conf)
	}
	return p, cmp.Or(err, plainName("type", p.Type()), known(p))
}

// edits returns what flags set in the file in --config. Flags that are given win over the file,
// which wins over the flags' defaults.
func (i *installer) edits() (edits []netconf.Edit) {
	for _, key := range []struct{ flag, name, value string }{
		{"type", "type", i.typ}, {"name", "name", i.name}, {"cni-dir", "cniDir", i.cniDir}, {"cache-dir", "cniCacheDir", i.node.CacheDir},
	} {
		switch {
		case given(i.flags, key.flag):
			edits = append(edits, netconf.Set(key.name, key.value))
		case key.value != "" && key.flag != "cache-dir":
			edits = append(edits, netconf.Default(key.name, key.value))
		}
	}
	if i.annotations {
		edits = append(edits, publish.Annotations())
	}
	return append(edits, publish.RuntimeConfDir(cmp.Or(i.hostConfDir, i.confDir)))
}

// known fails if p has a key that the program does not read.
func known(p netconf.Plugin) error {
	var keys map[string]json.RawMessage
	if err := p.Decode(&keys); err != nil {
		return err
	}
	all := append(multinet.Keys(), "capabilities", "args")
	if p.Type() == "multinet-shim" {
		all = append(all, "daemonSocketDir", "delQueueDir", "delQueueWait", "delPolicy", "queuePolicy")
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if !slices.ContainsFunc(all, func(k string) bool { return strings.EqualFold(k, key) }) {
			return fmt.Errorf("there is no key %q", key)
		}
	}
	return nil
}

// sweeper returns a Sweeper for the records of the published plugin.
func (i *installer) sweeper(ctx context.Context) (*lifecycle.Sweeper, error) {
	s := &lifecycle.Sweeper{Wait: i.sweepInterval, Tell: func(swept lifecycle.SweepResult) { program.LogSwept(ctx, i.log, swept) }}
	// The runtime's plugins are in the directory of the program.
	process := i.process
	process.Root = plugin.Root(i.root)
	return s, multinet.PrepareSweep(ctx, s, process, multinet.Cluster{}, i.conf, i.binDir)
}

// copyProgram copies this program to target.
func (t *tool) copyProgram(target string) error {
	path, err := t.self()
	if err != nil {
		return err
	}
	return publish.Program(path, target)
}
