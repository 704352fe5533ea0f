package life

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
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

// finish removes everything, and says what is left. Half of the containers end without a word;
// the others are first removed by the runtime, as are those that multinet cannot know to be dead.
func (n *node) finish() (wrong string, err error) {
	fmt.Fprintln(os.Stderr, "== the end")
	n.gone = nil
	if err := errors.Join(n.mend(), n.works(true)); err != nil {
		return "", err
	}
	for i, id := range n.order {
		if i%2 == 0 {
			n.die(n.containers[id])
		}
	}
	if wrong, err := n.sweepUntil(false, n.unswept); err != nil || wrong != "" {
		return wrong, err
	}
	if wrong, err := n.removeAll(); err != nil || wrong != "" {
		return wrong, err
	}
	for _, c := range n.containers {
		n.die(c)
	}
	n.gone = nil
	return n.sweepUntil(true, n.left)
}

// sweepUntil sweeps until nothing is left. Two sweeps are not always enough: a network namespace
// lives on for a moment after its last process and name, because the kernel frees netlink sockets,
// such as those of the oracle and of plugins, after a grace period (RCU).
func (n *node) sweepUntil(unknown bool, left func(view) string) (wrong string, err error) {
	for end := time.Now().Add(time.Minute); ; {
		if wrong, err := n.sweepAll(unknown); err != nil || wrong != "" {
			return wrong, err
		}
		v, wrong, err := n.view()
		if err != nil || wrong != "" {
			return wrong, err
		}
		if wrong = left(v); wrong == "" || time.Now().After(end) {
			return wrong, nil
		}
	}
}

// unswept says which container is dead and has a record.
func (n *node) unswept(v view) string {
	for _, r := range v.records { // what was adopted may be unknown
		if c := n.containers[strings.Fields(r)[0]]; n.proves() && !c.lives && !c.plain {
			return fmt.Sprintf("not swept: %s is dead, and still has the record %q", c.id, r)
		}
	}
	return ""
}

// sweepAll sweeps twice with all rights. Then it removes the unknown, if it may.
func (n *node) sweepAll(unknown bool) (wrong string, err error) {
	sweeps := [][]string{nil, nil}
	if unknown {
		sweeps = append(sweeps, []string{"--unknown"})
	}
	for _, flags := range sweeps {
		n.said("sweep", n.tool(append([]string{"gc", "--dir", n.file("state"), "--bin-dir", n.bin, "--conf-dir", n.file("net.d")}, flags...)...))
		if err := n.settle(); err != nil {
			return "", err
		}
	}
	return n.look()
}

// removeAll runs the DEL of every attachment. None may fail: nothing hinders it any more.
func (n *node) removeAll() (wrong string, err error) {
	if slices.ContainsFunc(n.order, func(id string) bool {
		a := n.containers[id].has["eth0"]
		return a != nil && !a.plain
	}) && !n.installed() {
		_ = n.install(nil)
	}
	plain, err := libcni.NetworkConfFromFile(n.file("cni", "10-a.conflist"))
	second, _, e := n.networkOf("eth1")
	if err = errors.Join(err, e); err != nil {
		return "", err
	}
	for _, id := range n.order {
		c := n.containers[id]
		var dels []*call
		for _, ifname := range []string{"eth0", "eth1"} {
			if c.has[ifname] != nil {
				d, err := n.prepareDel(c, ifname, "path", kill{})
				if err != nil {
					return "", err
				}
				dels = append(dels, d)
			}
		}
		for _, more := range []struct {
			needed bool
			list   *libcni.NetworkConfigList
		}{{n.owes[id], plain}, {c.clashed, second}} {
			if more.needed {
				dels = append(dels, &call{id, false, func() answer {
					return answer{err: n.runtime(kill{}).DelNetworkList(context.Background(), more.list, rt(c, "eth0", ""))}
				}, func(answer) {}})
			}
		}
		for _, d := range dels {
			a := n.said("del", d.run())
			d.done(a)
			if a.err != nil {
				wrong = fmt.Sprintf("DEL fails although nothing hinders it: %v", a.err)
			}
		}
		delete(n.owes, id)
	}
	if wrong != "" {
		return wrong, nil
	}
	return n.look()
}

// left says what is left when every container is gone.
func (n *node) left(v view) string {
	known := func(id string) bool { return n.containers[id] != nil && n.containers[id].forgotten }
	for _, l := range v.leases {
		if !known(l.container) {
			return fmt.Sprintf("left: %v", l)
		}
	}
	for _, r := range v.records {
		return fmt.Sprintf("left: record %q", r)
	}
	for _, rule := range v.rules {
		if ip := address(rule); ip != "" && !known(n.last[ip]) && !n.containers[n.last[ip]].blind {
			return "left: rule " + rule
		}
	}
	for _, m := range v.markers {
		if !known(strings.Split(m, "@")[1]) {
			return "left: " + m
		}
	}
	return ""
}

// proves reports whether a sweep on this machine can prove that a container is dead.
func (n *node) proves() bool {
	space, _ := os.Readlink("/proc/self/ns/pid")
	return n.knows() || space == "pid:[4026531836]"
}

// knows reports whether the kernel tells of a namespace by its number (Linux 6.18).
func (n *node) knows() bool {
	if n.scans {
		return false
	}
	var name unix.Utsname
	var major, minor int
	_ = unix.Uname(&name)
	_, _ = fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor)
	return major > 6 || major == 6 && minor >= 18
}
