package multinet

import (
	"fmt"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
)

// PrepareSweep makes s sweep the records of multinet with the configuration conf and
// the CNI_PATH cniPath. If conf cannot be decoded, it fails as a DEL does and does not
// change s.
func PrepareSweep(s *lifecycle.Sweeper, process plugin.Process, conf []byte, cniPath string) error {
	c, err := New().Call(process, delegate.CommandGC, skel.CmdArgs{StdinData: conf, Path: cniPath})
	if err != nil {
		return err
	}
	s.Manager = c.Manager
	s.Current = func(name string) (netconf.Network, error) { return current(c, name) }
	return nil
}

// current returns the network called name from today's configuration.
func current(c *plugin.Call, name string) (netconf.Network, error) {
	conf, err := readConfig(c)
	if err != nil {
		return netconf.Network{}, err
	}
	standing, err := conf.standing()
	if err == nil {
		for _, n := range standing {
			if n.Name() == name {
				return n, nil
			}
		}
	}
	n, err := conf.load(name)
	if err == nil {
		n, err = c.Complete(n)
	}
	if err != nil {
		return n, fmt.Errorf("network %q: %w", c.Name, err)
	}
	return n, nil
}
