package multinet

import (
	"fmt"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/netconf"
)

// Sweeper returns what removes stale attachments from the records of multinet
// with the configuration conf. It fails as a DEL does with what it cannot decode
// of conf.
func (p *Plugin) Sweeper(conf []byte) (*lifecycle.Sweeper, error) {
	c, err := readConfig(conf)
	if err != nil {
		return nil, err
	}
	return &lifecycle.Sweeper{
		Manager: p.manager(c, ""),
		Current: func(name string) (netconf.Network, error) { return c.current(conf, name) },
	}, nil
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
