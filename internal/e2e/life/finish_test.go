package life

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"
)

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
