package tool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
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

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/adopt"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/examples/multinet/publish"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/autoconf"
)

// An installer is the command install or uninstall.
type installer struct {
	*tool
	flags *flag.FlagSet

	confDir, output, binDir, typ                              string
	name, cniDir, config, primary, hostConfDir, readinessFile string
	mode                                                      fs.FileMode
	annotations, watch                                        bool

	saying  sync.Mutex // held while a line is written
	orphans bool       // containers that are gone have been taken over

	node          adopt.Node // where other programs keep their records
	root          string     // root directory for the plugins that sweeps run
	sweepInterval time.Duration
}

// installer adds the flags that install and uninstall have.
func (t *tool) installer(flags *flag.FlagSet) *installer {
	i := &installer{tool: t, flags: flags}
	flags.StringVar(&i.confDir, "conf-dir", publish.ConfDir, "`directory` of the runtime's networks")
	flags.StringVar(&i.output, "output", publish.Output, "`name` of the published file, without extension")
	flags.StringVar(&i.binDir, "bin-dir", "/opt/cni/bin", "`directory` of the plugins; if empty, the program is not copied or removed")
	flags.StringVar(&i.typ, "type", "multinet", "type of the plugin: the `name` of the program")
	return i
}

// resolve makes directories absolute, and checks the output.
func (i *installer) resolve() error {
	errs := []error{plainName("output", i.output)}
	for _, dir := range []*string{&i.confDir, &i.binDir, &i.readinessFile} {
		if *dir != "" {
			var err error
			*dir, err = filepath.Abs(*dir)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (t *tool) install(flags *flag.FlagSet) runner {
	i := t.installer(flags)
	flags.StringVar(&i.name, "name", publish.Network, "`name` of the network; records are kept under it")
	flags.StringVar(&i.cniDir, "cni-dir", "", "state `directory` of the plugin")
	flags.StringVar(&i.config, "config", "", "`file` with more keys of the published plugin, a JSON object")
	flags.StringVar(&i.primary, "cluster-network", "", "`file` in conf-dir to publish in front of (default the first that can be used)")
	flags.StringVar(&i.hostConfDir, "host-conf-dir", "", "publish a reference to the cluster network's file in this `directory`, as the plugin sees it")
	flags.StringVar(&i.readinessFile, "readiness-file", "", "`file` to wait for; install --watch ends when it is removed")
	flags.Func("mode", "`permissions` of the published file (default 0600)", func(s string) error {
		n, err := strconv.ParseUint(s, 8, 9)
		i.mode = fs.FileMode(n)
		return err
	})
	flags.BoolVar(&i.annotations, "pod-annotations", true, "make the runtime pass on the annotations of pods")
	flags.BoolVar(&i.watch, "watch", false, "keep running and follow the cluster network")
	flags.DurationVar(&i.sweepInterval, "sweep-interval", time.Minute, "`time` between two sweeps of install --watch; 0 means no sweeps")
	flags.StringVar(&i.root, "root", "", "root `directory` of the node, in which sweeps run plugins")
	sources(flags, &i.node)
	return i.publish
}

// publish copies the program and publishes its network. With --watch it goes on until
// ctx ends or a signal comes.
func (i *installer) publish(ctx context.Context, _ []string) error {
	if err := i.resolve(); err != nil {
		return err
	}
	template, err := i.template()
	if err != nil {
		return err
	}
	switch {
	case i.hostConfDir != "" && !filepath.IsAbs(i.hostConfDir):
		return fmt.Errorf("--host-conf-dir %s: not an absolute path", i.hostConfDir)
	case i.primary != "" && !publish.PlainName(i.primary):
		return fmt.Errorf("--cluster-network %s: not the name of a file in --conf-dir", i.primary)
	case i.primary == i.output+filepath.Ext(i.primary):
		return fmt.Errorf("--cluster-network %s: this is the file to publish", i.primary)
	}
	m := publish.Manager(i.confDir, filepath.Join(i.confDir, i.output), template)
	m.Primary, m.ClusterNetworkDir, m.Ready, m.Mode = i.primary, i.hostConfDir, i.readinessFile, i.mode
	if err := existing("cache-dir", i.node.CacheDir, multinet.DefaultCacheDir); err != nil {
		return err
	}
	if i.binDir != "" {
		// Before publishing, because the network needs the program.
		if err := i.copyProgram(filepath.Join(i.binDir, template.Type())); err != nil {
			return err
		}
	}
	adopter, err := i.adopter(m)
	if err != nil {
		return err
	}
	if err := i.runnable(m); err != nil {
		if !i.watch {
			return err
		}
		i.say("%v", err) // it may come later
	}
	sweeper, err := i.sweeper(ctx, template)
	if err != nil {
		return err
	}
	if !i.watch {
		adopter.Pass(ctx)
		if err := m.Publish(); err != nil {
			return err
		}
		i.tell(m.State())
		adopter.Pass(ctx) // containers that were being added
		if i.orphans {
			_, err = sweeper.Sweep(ctx)
		}
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	var sweeps sync.WaitGroup
	defer sweeps.Wait()
	defer cancel()
	if i.sweepInterval > 0 {
		sweeps.Go(func() { _ = sweeper.Run(ctx, i.sweepInterval, nil) }) // ends with ctx
	}
	return adopter.Follow(ctx, i.tell)
}

// runnable fails if a plugin of the cluster network is not in the directories of plugins: no
// pod could be attached. Without a cluster network it does not fail.
func (i *installer) runnable(m *autoconf.Manager) error {
	f, err := m.Find()
	if err != nil || i.binDir == "" {
		return nil //nolint:nilerr // publishing reports it
	}
	var own struct {
		BinDir string `json:"binDir"`
	}
	if err := m.Template.Decode(&own); err != nil {
		return err
	}
	for _, p := range f.Network.Plugins() {
		if _, err := new(delegate.Process).FindInPath(p.Type(), []string{i.binDir, cmp.Or(own.BinDir, i.binDir)}); err != nil {
			return fmt.Errorf("%s: plugin %q: %w: install it first, or name its directory with the key binDir in --config", filepath.Join(m.Dir, f.Name), p.Type(), err)
		}
	}
	return nil
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

// template returns the plugin to publish. Flags that are given win over the file in
// --config, which wins over the flags' defaults.
func (i *installer) template() (netconf.Plugin, error) {
	data := []byte("{}")
	if i.config != "" {
		var err error
		if data, err = netconf.ReadFile(os.DirFS(filepath.Dir(i.config)), filepath.Base(i.config)); err != nil {
			return netconf.Plugin{}, err
		}
	}
	set := map[string]bool{}
	i.flags.Visit(func(f *flag.Flag) { set[f.Name] = true })
	var edits []netconf.Edit
	for _, key := range []struct{ flag, name, value string }{
		{"type", "type", i.typ}, {"name", "name", i.name}, {"cni-dir", "cniDir", i.cniDir},
	} {
		switch {
		case set[key.flag]:
			edits = append(edits, netconf.Set(key.name, key.value))
		case key.value != "":
			edits = append(edits, netconf.Default(key.name, key.value))
		}
	}
	if set["cache-dir"] {
		edits = append(edits, netconf.Set("cniCacheDir", i.node.CacheDir))
	}
	if i.annotations {
		edits = append(edits, publish.Annotations())
	}
	p, err := i.parseTemplate(data, edits)
	if err != nil && i.config != "" {
		err = fmt.Errorf("%s: %w", i.config, err)
	}
	return p, err
}

// parseTemplate returns the plugin in data with the edits. It fails as an ADD does if a key is
// not valid, and if the program does not read a key.
func (i *installer) parseTemplate(data []byte, edits []netconf.Edit) (netconf.Plugin, error) {
	p, err := netconf.ParsePlugin(data)
	if err != nil {
		return p, err
	}
	if p, err = p.Edit(edits...); err != nil {
		return p, err
	}
	if data, err = json.Marshal(p); err != nil {
		return p, err
	}
	if _, err = multinet.StateDir("", data); err != nil {
		return p, err
	}
	return p, cmp.Or(plainName("type", p.Type()), known(p))
}

// plainName fails if name is not a plain file name.
func plainName(what, name string) error {
	if !publish.PlainName(name) {
		return fmt.Errorf("%s %q is not the name of a file", what, name)
	}
	return nil
}

// tell writes the state of publishing to stderr.
func (i *installer) tell(s autoconf.State) {
	var line strings.Builder
	switch {
	case s.Published != "":
		fmt.Fprintf(&line, "%q is published in front of %q", s.Published, s.Primary)
	case s.Degraded != nil:
		line.WriteString("what has been published stays")
	}
	if s.Degraded != nil {
		fmt.Fprintf(&line, "; %v", s.Degraded)
	}
	for _, skipped := range s.Skipped {
		fmt.Fprintf(&line, "; skipped: %v", skipped)
	}
	i.say("%s", &line)
}

// say writes one line to stderr. With --watch it begins with the time. Several
// goroutines may call it.
func (i *installer) say(format string, args ...any) {
	who := "multinet: "
	if i.watch {
		who = time.Now().UTC().Format(time.RFC3339) + " " + who
	}
	line := who + strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ") + "\n"
	i.saying.Lock()
	defer i.saying.Unlock()
	_, _ = io.WriteString(i.ask, line) // there is nowhere to report a failure
}

// sweeper returns a Sweeper for the records of the published plugin. It reports to
// stderr.
func (i *installer) sweeper(ctx context.Context, published netconf.Plugin) (*lifecycle.Sweeper, error) {
	conf, err := json.Marshal(published)
	if err != nil {
		return nil, err
	}
	s := &lifecycle.Sweeper{Wait: i.sweepInterval, MaxWait: 10 * i.sweepInterval, Tell: func(swept lifecycle.Swept) {
		if swept.Err == nil {
			i.say("%s %s was stale, and has been removed", swept.Key.ContainerID, swept.Key.IfName)
		} else {
			i.say("%v", swept.Err)
		}
	}}
	// The runtime's plugins are in the directory of the program.
	process := i.process
	process.Root = plugin.Root(i.root)
	return s, multinet.PrepareSweep(ctx, s, process, multinet.Cluster{}, conf, i.binDir)
}

// adopter returns an Adopter for the network that m publishes in front of. It reports
// to stderr.
func (i *installer) adopter(m *autoconf.Manager) (*publish.Adopter, error) {
	data, err := json.Marshal(m.Template)
	if err != nil {
		return nil, err
	}
	dir, err := multinet.StateDir("", data)
	return &publish.Adopter{Publisher: m, Life: &lifecycle.Manager{Dir: dir}, Node: i.node, Tell: func(o publish.Outcome) {
		switch k := o.Adoption.Key; {
		case o.Verdict == publish.Skipped:
			i.say("not taken over: %v", o.Err)
		case o.Adoption.Gone:
			i.orphans = true
			i.say("%s %s (%s) is taken over, to be detached: its container is gone", k.ContainerID, k.IfName, strings.Join(networks(o), ", "))
		default:
			i.say("%s %s (%s) is taken over", k.ContainerID, k.IfName, strings.Join(networks(o), ", "))
		}
	}}, err
}

// copyProgram copies this program to target.
func (t *tool) copyProgram(target string) error {
	path, err := t.self()
	if err != nil {
		return err
	}
	return publish.Program(path, target)
}
