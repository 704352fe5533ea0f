package life

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
)

// An attachment is what the runtime, and the oracle, know of an interface that the runtime asked
// for.
type attachment struct {
	netns   string            // as the ADD was told
	network string            // its name then
	plain   bool              // without multinet
	held    map[string]string // networks that nothing may take away, and the addresses there
}

// A call is a command that may run beside another one.
type call struct {
	about string // the container that may lose something by it
	plain bool   // without multinet, and its locks
	run   func() answer
	done  func(answer)
}

// prepare prepares a command of the runtime or a sweep.
func (n *node) prepare(words []string) (*call, error) {
	switch words[0] {
	case "gc":
		return n.prepareGC(words[1], words[2])
	case "sweep":
		if words[1] == "user" { // where firewall says that it has removed the rules
			n.blind()
		}
		return &call{run: func() answer { return n.sweepFrom(words[1]) }, done: func(answer) {}}, nil
	}
	c := n.containers[words[1]]
	if c == nil {
		return nil, errNothing
	}
	var k kill
	if i := slices.Index(words, "kill"); i > 0 {
		var err error
		if k, err = parseKill(n, words[i+1:]); err != nil {
			return nil, err
		}
	}
	switch words[0] {
	case "add":
		return n.prepareAdd(c, words[2], words[3], k)
	case "del":
		return n.prepareDel(c, words[2], words[3], k)
	}
	list, _, err := n.networkOf(words[2])
	a := c.has[words[2]]
	if a == nil || err != nil {
		return nil, errors.Join(errNothing, err)
	}
	return &call{run: func() answer {
		return answer{err: n.runtime(k).CheckNetworkList(context.Background(), list, rt(c, words[2], a.netns))}
	}, done: func(answer) {}}, nil
}

func rt(c *container, ifname, netns string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: c.id, NetNS: netns, IfName: ifname, Args: [][2]string{{"IgnoreUnknown", "1"}}}
}

// pathOf returns a path of the container's namespace.
func (n *node) pathOf(c *container, by string) (string, error) {
	if by == "name" {
		if namespace(c.named()) {
			return c.named(), nil
		}
		return "", errNothing
	}
	if by == "link" {
		to := n.file("to-" + c.name)
		err := os.Symlink(c.named(), to)
		if errors.Is(err, fs.ErrExist) {
			err = nil
		}
		return to, err
	}
	if by == "holder" && strings.HasPrefix(c.holder.path, "/") {
		return c.holder.path, nil
	}
	if c.agent == nil {
		if err := n.newAgent(c); err != nil {
			return "", err
		}
	}
	return c.agent.path, nil
}

func (n *node) prepareAdd(c *container, ifname, by string, k kill) (*call, error) {
	list, behind, err := n.networkOf(ifname)
	if err != nil || !c.lives {
		return nil, errors.Join(errNothing, err)
	}
	netns, err := n.pathOf(c, by)
	if err != nil {
		return nil, err
	}
	plain, before := list.Name == "a", c.has[ifname]
	if plain && before != nil {
		return nil, errNothing // no runtime does that
	}
	if before == nil {
		before = &attachment{netns: netns, network: list.Name, plain: plain, held: make(map[string]string)}
		c.has[ifname] = before
	} else if destroyed, err := n.destroyed(c, before, behind[0]); err != nil {
		return nil, err
	} else if destroyed {
		clear(before.held) // an ADD may remove it, and what was attached with it
	}
	if plain {
		k = kill{}
	}
	var result types.Result
	return &call{c.id, plain, func() answer {
		var err error
		result, err = n.runtime(k).AddNetworkList(context.Background(), list, rt(c, ifname, netns))
		if err != nil && plain { // the plugins have no record: the runtime removes what is left
			err = errors.Join(err, n.runtime(k).DelNetworkList(context.Background(), list, rt(c, ifname, netns)))
		}
		return answer{err: err}
	}, func(a answer) {
		if a.err == nil {
			before.netns, before.network, before.plain = netns, list.Name, plain
			c.plain = c.plain || plain
			n.hold(c, before, behind, result)
		} else if plain {
			n.owes[c.id], c.blind = true, true // without a result firewall removes no rules
		}
	}}, nil
}

func (n *node) prepareDel(c *container, ifname, with string, k kill) (*call, error) {
	list, behind, err := n.networkOf(ifname)
	if err != nil {
		return nil, err
	}
	netns, a, plain := c.named(), c.has[ifname], list.Name == "a"
	if a != nil {
		netns = a.netns
	}
	if plain {
		if a == nil || !a.plain {
			return nil, errNothing // see `multinet uninstall --leave`
		}
		k = kill{}
	}
	if with == "nothing" || plain && !c.lives {
		netns = ""
	}
	made := a != nil && len(a.held) > 0
	handed := made && !c.touched && c.at(netns)
	if a != nil {
		for _, network := range behind {
			delete(a.held, network)
		}
	}
	return &call{c.id, plain, func() answer {
		return answer{err: n.runtime(k).DelNetworkList(context.Background(), list, rt(c, ifname, netns))}
	}, func(a answer) {
		if plain {
			n.owes[c.id] = a.err != nil
		}
		if a.err == nil {
			delete(c.has, ifname)
			n.gone = append(n.gone, gone{c, ifname, behind, !plain, made, handed})
		}
	}}, nil
}

// prepareGC prepares the GC of a network with a list of the living, of all, or of the living
// without one.
func (n *node) prepareGC(network, who string) (*call, error) {
	ifname := map[string]string{"mna": "eth0", "mnb": "eth1"}[network]
	if ifname == "eth0" && !n.installed() {
		return nil, errNothing
	}
	list, behind, err := n.networkOf(ifname)
	if err != nil {
		return nil, err
	}
	var valid []string
	var stale []gone
	for _, id := range n.order {
		c := n.containers[id]
		if who == "all" || c.lives && who != id {
			valid = append(valid, id)
			continue
		}
		a := c.has[ifname]
		if a != nil && ifname == "eth1" && a.network != list.Name && n.installed() {
			continue // which network of multinet was renamed is not certain if there are two
		}
		if a != nil && !a.plain {
			stale = append(stale, gone{c, ifname, behind, true, len(a.held) > 0, false})
		}
		if a != nil {
			clear(a.held) // what multinet has taken over may go, too
		}
	}
	return &call{who, false, func() answer { return n.gc(ifname, valid) }, func(a answer) {
		if a.err == nil {
			n.gone = append(n.gone, stale...)
		}
	}}, nil
}

// race runs two commands at the same time.
func (n *node) race(args []string) error {
	i := slices.Index(args, "|")
	one, err := n.prepare(args[:i])
	if err != nil {
		return err
	}
	two, err := n.prepare(args[i+1:])
	if err != nil {
		return err
	}
	if one.plain && two.plain && one.about == two.about {
		return errNothing // no runtime does that
	}
	var a, b answer
	both(func() { a = one.run() }, func() { b = two.run() })
	one.done(n.said(args[0], a))
	two.done(n.said(args[i+1], b))
	adds := args[0] == "add" && args[i+1] == "add"
	if c := n.containers[one.about]; c != nil && one.about == two.about && !adds { // either may be the last
		n.gone = nil
		for _, a := range c.has {
			clear(a.held)
		}
	}
	return nil
}

// namespace reports whether there is a namespace at path.
func namespace(path string) bool {
	var file, dir syscall.Stat_t
	return syscall.Stat(path, &file) == nil && syscall.Stat("/run/netns", &dir) == nil && file.Dev != dir.Dev
}
