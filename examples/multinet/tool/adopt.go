package tool

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/metacni/metacni/delegate/adopt"
	"github.com/metacni/metacni/delegate/lifecycle"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/examples/multinet/publish"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/autoconf"
)

// sources adds the flags that say where other programs keep their records.
func sources(flags *flag.FlagSet, node *adopt.Node) {
	flags.StringVar(&node.CacheDir, "cache-dir", multinet.DefaultCacheDir, "cache `directory` of libcni")
	flags.StringVar(&node.MultusDir, "multus-dir", multinet.DefaultMultusDir, "state `directory` of Multus")
}

func (t *tool) adopt(flags *flag.FlagSet) runner {
	var node adopt.Node
	sources(flags, &node)
	confDir := flags.String("conf-dir", publish.ConfDir, "`directory` of the runtime's networks")
	dir := flags.String("dir", "", "state `directory` of multinet [the published one]")
	flags.StringVar(&node.Network, "name", "", "`name` of multinet's network [the published one]")
	network := flags.String("network", "", "`name` of the network to take over from")
	dryRun := flags.Bool("dry-run", false, "print what would be taken over, and change nothing")
	t.formFlag(flags)
	return func(ctx context.Context, _ []string) error {
		missing := existing("cache-dir", node.CacheDir, multinet.DefaultCacheDir)
		m, err := publisher(*confDir, publish.Output, "multinet")
		if err := cmp.Or(missing, err); err != nil {
			return err
		}
		if *network != "" {
			node.Primary = []string{*network}
		}
		name, state := ours(m)
		node.Network = cmp.Or(node.Network, name)
		a := &publish.Adopter{Publisher: m, Life: &lifecycle.Manager{Dir: cmp.Or(*dir, state)}, Node: node}
		return t.adopted(a.Take(ctx, *dryRun))
	}
}

// publisher returns the Manager that publishes a plugin of type typ.
func publisher(confDir, output, typ string) (*autoconf.Manager, error) {
	dir, err := filepath.Abs(confDir)
	if err != nil {
		return nil, err
	}
	template, err := netconf.Plugin{}.Edit(netconf.Set("type", typ))
	return publish.Manager(dir, filepath.Join(dir, output), template), err
}

// ours returns the name and the state directory of the network that m has published,
// or the default ones if nothing is published.
func ours(m *autoconf.Manager) (name, dir string) {
	n, ok := publish.Published(m)
	if !ok {
		return publish.Network, multinet.DefaultStateDir
	}
	return n.Name(), publish.StateDir(n.Plugins()[0])
}

// outcomeView is what -o json prints of one attachment. Programs rely on it.
type outcomeView struct {
	keyView
	Networks []string `json:"networks"`
	Outcome  string   `json:"outcome"`
	Error    string   `json:"error,omitempty"`
}

func viewOutcome(o publish.Outcome) outcomeView {
	v := outcomeView{keyView: viewKey(o.Adoption.Key), Networks: o.Networks(), Outcome: string(o.Verdict)}
	if o.Err != nil {
		v.Error = o.Err.Error()
	}
	return v
}

// adopted prints the outcomes, and fails if an attachment was skipped.
func (t *tool) adopted(done []publish.Outcome) error {
	out := newOutput("CONTAINER INTERFACE NETWORKS OUTCOME WHY")
	skipped := 0
	for _, o := range done {
		v := viewOutcome(o)
		why := ""
		if o.Verdict == publish.Skipped {
			skipped++
			why = strings.ReplaceAll(v.Error, "\n", "; ")
		}
		out.add(v, v.Container, v.Interface, strings.Join(v.Networks, ","), v.Outcome, why)
	}
	err := t.print(out)
	if skipped > 0 {
		err = errors.Join(err, fmt.Errorf("%d could not be taken over", skipped))
	}
	return err
}
