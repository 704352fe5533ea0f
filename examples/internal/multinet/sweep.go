package multinet

import (
	"fmt"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/netconf"
)

// PrepareSweep has s remove stale attachments from the records of multinet with
// the configuration conf, which came with the runtime's path cniPath. It fails as
// a DEL does with what it cannot decode of conf, and leaves s as it is.
func (p *Plugin) PrepareSweep(s *lifecycle.Sweeper, conf []byte, cniPath string) error {
	c, err := readConfig(p.Root, conf)
	if err != nil {
		return err
	}
	s.Manager = p.manager(c, cniPath)
	s.Current = func(name string) (netconf.Network, error) { return c.current(conf, name) }
	return nil
}

// current is the network of a name as it is configured now.
func (c config) current(stdin []byte, name string) (netconf.Network, error) {
	nc, err := c.networkConfig(stdin)
	if err != nil {
		return netconf.Network{}, err
	}
	standing, err := nc.standing()
	if err == nil {
		for _, n := range standing {
			if n.Name() == name {
				return n, nil
			}
		}
	}
	n, err := nc.load(name)
	if err == nil {
		n, err = nc.complete(n)
	}
	if err != nil {
		return n, fmt.Errorf("network %q: %w", c.Name, err)
	}
	return n, nil
}
