package tool

import (
	"context"
	"errors"
	"flag"
	"log/slog"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/multinet/doctor"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/netconf/autoconf"
)

// doctor prints what hinders multinet on the node. It fails if there is something to do.
func (t *tool) doctor(flags *flag.FlagSet) runner {
	var n doctor.Node
	s := t.site(flags)
	flags.Lookup("bin-dir").Usage = "`directory` of the plugins"
	root := flags.String("root", "", "root `directory` of the node")
	flags.StringVar(&n.StateDir, "dir", "", "state `directory` (cniDir) [the published one]")
	flags.StringVar(&n.CacheDir, "cache-dir", multinet.DefaultCacheDir, "cache `directory` of the runtime's libcni")
	flags.StringVar(&n.SocketDir, "socket-dir", multinet.DefaultSocketDir, "`directory` of the daemon's socket")
	flags.StringVar(&n.QueueDir, "queue-dir", multinet.DefaultQueueDir, "`directory` of queued DELs")
	return func(ctx context.Context, _ []string) error {
		if err := s.resolve(root); err != nil {
			return err
		}
		node := plugin.Root(*root)
		m, err := publisher(node.OnNode(s.confDir), s.output, s.typ)
		if err != nil {
			return err
		}
		m.Root = *root
		n.Publisher, n.BinDir, n.Version = m, node.OnNode(s.binDir), plugin.Version()
		return doctor.Print(t.out, t.form == "json", n.Check(ctx))
	}
}

// given reports whether a flag is on the command line.
func given(flags *flag.FlagSet, name string) (given bool) {
	flags.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	return given
}

// examine refuses an installation on a node on which no pod could be attached, and warns of
// other problems. With --watch missing plugins are no reason to refuse: they may come later.
func (i *installer) examine(ctx context.Context, m *autoconf.Manager) error {
	n := doctor.Node{Publisher: m, StateDir: i.stateDir, BinDir: i.binDir, RuntimeRoot: plugin.Root(i.root), Installing: true}
	var fatal []error
	for _, f := range n.Check(ctx) {
		switch {
		case f.Verdict == doctor.Fatal && !i.force && (!i.watch || f.Check != "plugins"):
			fatal = append(fatal, errors.New(f.String()))
		case f.Verdict == doctor.Fatal || f.Verdict == doctor.Problem:
			i.log.LogAttrs(ctx, slog.LevelWarn, f.Found, slog.String("looked", f.Looked), slog.String("todo", f.Todo))
		}
	}
	if fatal != nil {
		fatal = append(fatal, errors.New("nothing has been changed; --force installs all the same"))
	}
	return errors.Join(fatal...)
}
