package life

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// play plays a runbook, and looks after each action.
func (n *node) play(runbook io.Reader) (o outcome, err error) {
	o.Counts = n.counts
	in := bufio.NewScanner(runbook)
	verbs := n.verbs()
	for in.Scan() {
		words := strings.Fields(in.Text())
		o.At++
		if len(words) == 0 || verbs[words[0]] == nil {
			return o, fmt.Errorf("line %d: no action: %q", o.At, in.Text())
		}
		fmt.Fprintf(os.Stderr, "== %s\n", in.Text())
		n.gone = nil
		if n.reuses {
			forgetLast()
		}
		err := verbs[words[0]](words[1:])
		if errors.Is(err, errNothing) {
			n.counts["impossible actions"]++
			continue
		}
		n.counts["actions"]++
		if err := errors.Join(err, n.settle()); err != nil {
			return o, fmt.Errorf("line %d: %s: %w", o.At, in.Text(), err)
		}
		if o.Wrong, err = n.look(); err != nil || o.Wrong != "" {
			return o, err
		}
	}
	if err := in.Err(); err != nil {
		return o, err
	}
	if o.Wrong, err = n.finish(); o.Wrong != "" {
		o.Wrong += " (at the end)"
	}
	return o, err
}

// verbs returns the actions.
func (n *node) verbs() map[string]func(args []string) error {
	change := func(how string) func([]string) error {
		return func(args []string) error {
			return n.living(args[0], func(c *container) error { c.touched = true; return n.change(c, how, args[1]) })
		}
	}
	command := func(verb string) func([]string) error {
		return func(args []string) error {
			c, err := n.prepare(append([]string{verb}, args...))
			if err == nil {
				c.done(n.said(verb, c.run()))
			}
			return err
		}
	}
	return map[string]func([]string) error{
		"start": n.begin, "end": func(args []string) error {
			return n.living(args[0], func(c *container) error { n.die(c); return nil })
		},
		"add": command("add"), "del": command("del"), "check": command("check"), "gc": command("gc"), "sweep": command("sweep"),
		"race": n.race, "clash": n.clash, "reboot": n.reboot,
		"rename": change("rename"), "move": change("move"), "delete": change("delete"), "recreate": change("recreate"), "altname": change("altname"),
		"swap": func(args []string) error {
			return n.living(args[0], func(c *container) error { c.touched = true; return c.swap(args[1], args[2]) })
		},
		"unname": func(args []string) error {
			return n.living(args[0], func(c *container) error { n.unname(c); return nil })
		},
		"agent": func(args []string) error {
			return n.living(args[0], n.newAgent)
		},
		"handover": func(args []string) error {
			return n.living(args[0], n.handOver)
		},
		"scan": n.scan, "daemon": n.daemon,
		"reuse": func([]string) error { n.reuses = true; return nil },
		"disk": func(args []string) error {
			if args[0] == "mended" {
				return n.mend()
			}
			return n.spoil(args[0])
		},
		"plugin":  func(args []string) error { return n.works(args[0] == "works") },
		"install": n.install, "adopt": n.adopt, "uninstall": n.uninstall, "forget": n.forget,
		"doctor": func([]string) error {
			n.said("doctor", n.tool(append([]string{"doctor", "--dir", n.file("state")}, n.places()...)...))
			return nil
		},
		"list": func([]string) error { n.said("list", n.tool("list", "--dir", n.file("state"))); return nil },
		"rename-network": func([]string) error {
			n.second = map[string]string{"mnb": "mnb2", "mnb2": "mnb"}[n.second]
			return n.write(n.secondNetwork(), "cni", "50-mnb.conflist")
		},
	}
}

// said counts an answer, and shows it to who replays.
func (n *node) said(verb string, a answer) answer {
	how := " succeeded"
	if a.err != nil {
		how = " failed"
	}
	n.counts[verb+how]++
	fmt.Fprintf(os.Stderr, "%s%s %s\n", verb, how, a.out)
	if a.err != nil {
		fmt.Fprintln(os.Stderr, a.err)
	}
	return a
}

func (n *node) living(id string, f func(*container) error) error {
	c := n.containers[id]
	if c == nil || !c.lives {
		return errNothing
	}
	return f(c)
}

func (n *node) begin(args []string) error {
	name := args[0]
	var old *container
	if len(args) > 2 { // the path of a container that is gone, or has lost its name
		name = args[2]
		if old = n.containers[name]; old != nil {
			name = old.name
		}
	}
	if _, err := os.Stat("/run/netns/" + name); err == nil || n.containers[args[0]] != nil {
		return errNothing
	}
	if old != nil && old.lives {
		old.name = "lost-" + old.id // another has it from now on
	}
	c, err := n.start(args[0], args[1], name)
	n.containers[args[0]], n.order = c, append(n.order, args[0])
	return err
}

// clash asks for eth0 twice, as with a second meta-plugin: the second ADD is refused, and the
// runtime cleans up after it.
func (n *node) clash(args []string) error {
	return n.living(args[0], func(c *container) error {
		netns, err := n.pathOf(c, "name")
		if errors.Is(err, errNothing) { // it is gone
			netns, err = n.pathOf(c, "agent")
		}
		list, _, e := n.networkOf("eth1")
		if err = errors.Join(err, e); err != nil || !n.installed() {
			return errors.Join(errNothing, err)
		}
		_, err = n.runtime(kill{}).AddNetworkList(context.Background(), list, rt(c, "eth0", netns))
		n.said("clash", answer{err: err})
		err = n.runtime(kill{}).DelNetworkList(context.Background(), list, rt(c, "eth0", netns))
		if n.said("clash", answer{err: err}).err == nil {
			n.gone = append(n.gone, gone{c, "eth0", []string{"b"}, false, false, false})
		}
		c.clashed = true
		return nil
	})
}

// reboot restarts the machine with the state directory and what the runtime and host-local have
// on disk. A test cannot change what procfs says of the boot, so the records are made those of
// another boot where its ID changes.
func (n *node) reboot(args []string) error {
	for _, c := range n.containers {
		n.die(c)
	}
	_, err := iptables("-F", "CNI-FORWARD")
	if args[0] == "other" && err == nil {
		err = nodetest.Restarted(n.file("state"))
	}
	return err
}

func (n *node) places() []string {
	return []string{"--conf-dir", n.file("cni"), "--bin-dir", n.bin, "--cache-dir", n.file("cache")}
}

func (n *node) install([]string) error {
	n.said("install", n.tool(append([]string{
		"install", "--force", "--name", "mna", "--cni-dir", n.file("state"), "--multus-dir", n.file("multus"), "--config", n.file("more.json"),
	}, n.places()...)...))
	return nil
}

func (n *node) adopt([]string) error {
	if !n.installed() {
		return errNothing
	}
	n.said("adopt", n.tool("adopt", "--name", "mna", "--dir", n.file("state"), "--multus-dir", n.file("multus"),
		"--conf-dir", n.file("cni"), "--cache-dir", n.file("cache")))
	return nil
}

// uninstall removes multinet. Afterwards the runtime removes the first networks itself, but with
// leave none of multinet's: see `multinet uninstall`.
func (n *node) uninstall(args []string) error {
	if !n.installed() {
		return errNothing
	}
	how := args[0]
	for _, c := range n.containers {
		if c.has["eth1"] != nil || c.clashed {
			how = "leave" // the second network stays
		}
	}
	a := n.said("uninstall", n.tool(append([]string{"uninstall", "--" + how, "--name", "mna", "--dir", n.file("state")}, n.places()...)...))
	for _, c := range n.containers {
		if has := c.has["eth0"]; has != nil && how == "detach" {
			delete(has.held, "c")
			if a.err == nil {
				has.plain, c.plain = true, true
			}
		}
	}
	return nil
}

// forget lets an operator remove the records of a container.
func (n *node) forget(args []string) error {
	c := n.containers[args[0]]
	if c == nil {
		return errNothing
	}
	n.said("forget", n.tool("forget", "--yes", "--dir", n.file("state"), c.id))
	c.forgotten = true
	for _, a := range c.has {
		clear(a.held)
	}
	return nil
}
