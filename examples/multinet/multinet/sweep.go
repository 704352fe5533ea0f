package multinet

import (
	"context"
	"fmt"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
)

// PrepareSweep makes s sweep the records of multinet with the configuration conf and
// the CNI_PATH cniPath. The context is that of the sweeps. If conf cannot be decoded,
// PrepareSweep fails as a DEL does and does not change s.
func PrepareSweep(ctx context.Context, s *lifecycle.Sweeper, process plugin.Process, conf []byte, cniPath string) error {
	c, err := New(Cluster{}).Call(process, delegate.CommandGC, skel.CmdArgs{StdinData: conf, Path: cniPath})
	if err != nil {
		return err
	}
	s.Manager = c.Manager
	s.Current = func(name string) (netconf.Network, error) { return fromFiles(ctx, c, name) }
	return nil
}

// fromFiles returns the network called name from today's configuration and the files
// that it names. No cluster is asked.
func fromFiles(ctx context.Context, c *plugin.Call, name string) (netconf.Network, error) {
	conf, err := readConfig(c, Cluster{})
	if err != nil {
		return netconf.Network{}, err
	}
	nets, _ := conf.current(ctx)
	for _, n := range nets {
		if n.Name() == name {
			return n, nil
		}
	}
	n, err := conf.inConfDir(name)
	if err == nil {
		n, err = c.Complete(n)
	}
	if err != nil {
		return n, fmt.Errorf("network %q: %w", c.Name, err)
	}
	return n, nil
}
