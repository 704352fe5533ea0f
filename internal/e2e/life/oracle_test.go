package life

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// A model is what the oracle knows besides the attachments.
type model struct {
	gone   []gone            // by the last action
	owes   map[string]bool   // the runtime has to repeat a DEL without multinet for the container
	last   map[string]string // which container an address was leased to
	inputs atomic.Int64
}

// A gone is an attachment of which nothing may be left.
type gone struct {
	c        *container
	ifname   string
	networks []string
	record   bool // the record is gone, too
	made     bool // its ADD had succeeded
	handed   bool // the plugins had the namespace
}

// hold notes the addresses of an attachment that has been made.
func (n *node) hold(c *container, a *attachment, networks []string, result types.Result) {
	if r, err := types100.NewResultFromResult(result); err == nil && len(r.IPs) > 0 {
		a.held[networks[0]] = r.IPs[0].Address.IP.String()
	}
	inside, _ := c.addresses()
	for _, network := range networks[1:] {
		for _, ip := range inside { // a second one is of a DEL that did not find the interface
			if strings.HasPrefix(ip, ranges[network]) {
				a.held[network] = ip
			}
		}
		for _, l := range leases() {
			if l.container == c.id && l.network == network {
				a.held[network] = l.ip
			}
		}
	}
}

// destroyed reports whether the address of the attachment's own interface, which is in this network,
// is not in the container any more.
func (n *node) destroyed(c *container, a *attachment, network string) (bool, error) {
	inside, err := c.addresses()
	return !slices.Contains(inside, a.held[network]), err
}

// A lease is an address that host-local has given.
type lease struct{ network, ip, container, ifname string }

func leases() (list []lease) {
	files, _ := filepath.Glob("/var/lib/cni/networks/*/10.*")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if words := strings.Fields(string(text)); err == nil && len(words) == 2 {
			list = append(list, lease{filepath.Base(filepath.Dir(file)), filepath.Base(file), words[0], words[1]})
		}
	}
	return list
}

// forgetLast makes host-local give the lowest address that is free, as many IPAM plugins do, and not
// the one after the last that it has given.
func forgetLast() {
	files, _ := filepath.Glob("/var/lib/cni/networks/*/last_reserved_ip.*")
	for _, file := range files {
		_ = os.Remove(file)
	}
}

func (l lease) String() string {
	return fmt.Sprintf("%s in %s is leased to %s %s", l.ip, l.network, l.container, l.ifname)
}

// A view is what is on the node.
type view struct {
	leases  []lease
	records []string // "CONTAINER IFNAME STATE"
	cached  []string // containers with an entry in libcni's cache for network a
	markers []string // of the plugin that can fail: "fake@CONTAINER@IFNAME"
	rules   []string
	text    string // of all records, and of libcni's cache
}

func (n *node) view() (v view, wrong string, err error) {
	v.leases = leases()
	for _, l := range v.leases {
		n.last[l.ip] = l.container
	}
	out := n.tool("list", "-o", "json", "--dir", n.file("state"))
	var records []struct{ Container, Interface, State string }
	if err := errors.Join(out.err, json.Unmarshal(out.out, &records)); err != nil {
		return v, fmt.Sprintf("list fails: %v: %s", err, out.out), nil
	}
	for _, r := range records {
		v.records = append(v.records, r.Container+" "+r.Interface+" "+r.State)
	}
	entries, _ := filepath.Glob(n.file("cache/results/a-*-eth0"))
	for _, file := range entries {
		v.cached = append(v.cached, strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "a-"), "-eth0"))
	}
	markers, _ := filepath.Glob(n.file("fake/live/*"))
	for _, file := range markers {
		v.markers = append(v.markers, filepath.Base(file))
	}
	rules, err := iptables("-S", "CNI-FORWARD")
	v.rules = lines(rules)
	for _, dir := range []string{"state/*", "state/*/*", "cache/results/*"} {
		files, _ := filepath.Glob(n.file(dir))
		for _, file := range files {
			text, _ := os.ReadFile(file)
			v.text += string(text)
		}
	}
	return v, "", err
}

func (v view) recorded(id, ifname string) bool {
	return slices.ContainsFunc(v.records, func(r string) bool { return strings.HasPrefix(r, id+" "+ifname) })
}

// look says what is wrong on the node, if anything is.
func (n *node) look() (wrong string, err error) {
	v, wrong, err := n.view()
	if err != nil || wrong != "" {
		return wrong, err
	}
	for _, id := range n.order {
		c := n.containers[id]
		if !c.lives {
			continue
		}
		inside, err := c.addresses()
		if err != nil {
			return "", err
		}
		if wrong := n.spared(v, c, inside); wrong != "" {
			return wrong, nil
		}
	}
	for _, wrong := range []string{n.owned(v), n.removed(v), n.alone()} {
		if wrong != "" {
			return wrong, nil
		}
	}
	return "", nil
}

// spared says what was taken from a container that lives and has these addresses.
func (n *node) spared(v view, c *container, inside []string) string {
	for ifname, a := range c.has {
		if len(a.held) > 0 && !a.plain && !v.recorded(c.id, ifname) {
			return fmt.Sprintf("forgotten: %s lives, and its %s has no record: %q", c.id, ifname, v.records)
		}
		for network, ip := range a.held {
			if !slices.Contains(inside, ip) {
				if !c.touched && !c.clashed { // nobody but a guest may take it away
					return fmt.Sprintf("detached: %s lives, and its %s has no more %s: %q", c.id, ifname, ip, inside)
				}
				continue
			}
			n.counts["addresses compared"]++
			i := slices.IndexFunc(v.leases, func(l lease) bool { return l.ip == ip })
			if i < 0 {
				return fmt.Sprintf("freed: %s is in %s, which lives, and is leased to nobody", ip, c.id)
			}
			if v.leases[i].container != c.id {
				return fmt.Sprintf("given away: %s is in %s, which lives: %v", ip, c.id, v.leases[i])
			}
			for _, rule := range []string{"-s " + ip + "/32 -j ACCEPT", "-d " + ip + "/32 "} {
				if network != "c" && !slices.ContainsFunc(v.rules, func(r string) bool { return strings.Contains(r, rule) }) {
					return fmt.Sprintf("rules gone: %s is in %s, which lives, and has no rule %s", ip, c.id, rule)
				}
				n.counts["rules compared"]++
			}
		}
	}
	return ""
}

// owner reports whether somebody who owns something lives, or has a record that removes it.
func (n *node) owner(v view, id string) bool {
	c := n.containers[id]
	return c != nil && (c.lives || c.forgotten) || n.owes[id] || v.recorded(id, "") || slices.Contains(v.cached, id)
}

// blind allows what may be removed by anybody to lose its lease before its rules.
func (n *node) blind() {
	for _, c := range n.containers {
		for _, a := range c.has {
			c.blind = c.blind || len(a.held) == 0
		}
	}
}

// owned says what belongs to nobody.
func (n *node) owned(v view) string {
	leased := make(map[string]bool)
	for _, l := range v.leases {
		n.counts["leases compared"]++
		leased[l.ip] = true
		if !n.owner(v, l.container) {
			return fmt.Sprintf("leaked lease: %v, which is gone and has no record", l)
		}
	}
	for _, m := range v.markers {
		if id := strings.Split(m, "@")[1]; !n.owner(v, id) {
			return fmt.Sprintf("leaked: %s has %s, and is gone without a record", id, m)
		}
	}
	for _, rule := range v.rules {
		ip := address(rule)
		if ip == "" || leased[ip] || strings.Contains(v.text, `"`+ip+"/") {
			continue
		}
		if c := n.containers[n.last[ip]]; c == nil || !c.forgotten && !c.blind && !n.owes[c.id] {
			return fmt.Sprintf("leaked rule: %s, whose address has no lease and is in no record; %s had it", rule, n.last[ip])
		}
	}
	return ""
}

// address returns the container's address in a rule, if it is about one.
func address(rule string) string {
	for word := range strings.FieldsSeq(rule) {
		for _, prefix := range ranges {
			if ip := strings.TrimSuffix(word, "/32"); ip != word && strings.HasPrefix(ip, prefix) {
				return ip
			}
		}
	}
	return ""
}

// removed says what is left of an attachment although a command has said that it is removed.
func (n *node) removed(v view) string {
	for _, g := range n.gone {
		if !g.made && v.recorded(g.c.id, g.ifname+" leftover") {
			continue // it is for sweeps, and does not hold up the DEL
		}
		n.counts["removals compared"]++
		if g.record && v.recorded(g.c.id, g.ifname+" ") {
			return fmt.Sprintf("not removed: %s %s has a record: %q", g.c.id, g.ifname, v.records)
		}
		for _, l := range v.leases {
			if l.container == g.c.id && slices.Contains(g.networks, l.network) && (l.ifname == g.ifname || l.network == "c") && !g.c.forgotten {
				if l.network == "a" && n.owes[l.container] {
					continue
				}
				return fmt.Sprintf("not removed: %v", l)
			}
		}
		if !g.handed {
			continue
		}
		left := ""
		if err := g.c.inside(func() error {
			if _, err := link(g.ifname); err == nil {
				left = fmt.Sprintf("not removed: %s has still %s", g.c.id, g.ifname)
			}
			return nil
		}); err != nil || left != "" {
			return left
		}
	}
	return ""
}

// alone says which plugins worked beside each other on one container.
func (n *node) alone() string {
	if text, err := os.ReadFile(n.file("fake", "beside")); err == nil {
		return "beside: " + string(text)
	}
	return ""
}
