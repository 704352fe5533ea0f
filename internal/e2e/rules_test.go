package e2e

import (
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"sync"

	"github.com/containernetworking/plugins/pkg/utils"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// ruled returns a network of plugins whose DEL needs an earlier result: the
// node's i'th bridge with masquerading, and firewall, whose rules contain only
// addresses. The plugins of more come after them in the chain.
func (n *node) ruled(i int, more ...object) object {
	bridge := n.with(n.bridge(i), object{"ipMasq": true})
	return n.chain(i, append([]object{bridge, n.firewall()}, more...)...)
}

// chain returns a network of plugins with the name of the node's i'th network.
func (n *node) chain(i int, plugins ...object) object {
	return object{"name": n.chainName(i), "cniVersion": "1.1.0", "plugins": plugins}
}

func (n *node) chainName(i int) string { return n.name(fmt.Sprintf("chain%d-", i)) }

func (n *node) firewall() object {
	n.needsRules()
	return object{"type": "firewall", "backend": "iptables"}
}

func (n *node) portmap() object {
	n.needsRules()
	return object{"type": "portmap", "backend": "iptables", "capabilities": object{"portMappings": true}}
}

// published returns a pod whose delegates publish one of its ports on the host,
// if they can.
func (n *node) published(delegates ...object) *pod {
	n.Helper()
	p := n.pod(n.multinet("1.1.0", delegates...))
	p.conf["capabilities"].(object)["portMappings"] = true
	p.conf["runtimeConfig"] = object{"portMappings": []object{{"hostPort": 8080 + n.id, "containerPort": 80, "protocol": "tcp"}}}
	return p
}

// commonChains are made once on the private host: the chains that firewall and portmap have
// for all containers. Two of these plugins that miss one at once both make it, and one of
// them fails.
var commonChains sync.Once

// needsRules skips the test if the plugins cannot make rules.
func (n *node) needsRules() {
	n.Helper()
	n.program("iptables")
	n.program("iptables-save")
	commonChains.Do(func() {
		const last = maxRanges - 1
		p := n.published(n.chain(last, n.with(n.bridge(last), object{"ipMasq": true}), object{"type": "firewall", "backend": "iptables"},
			object{"type": "portmap", "backend": "iptables", "capabilities": object{"portMappings": true}}))
		n.ok("ADD", p)
		n.ok("DEL", p)
		n.gone(p)
	})
}

// behind returns conf with a fake in front of its plugin. The fake logs its
// steps, fails or is killed, and lets the plugin do the work.
func (n *node) behind(id string, conf object, on ...string) object {
	n.Helper()
	front := n.fake(id, on...)
	front["inner"] = built(fmt.Sprint(conf["type"]))
	for k, v := range conf {
		if k != "type" {
			front[k] = v
		}
	}
	return front
}

// rules returns, sorted, the iptables rules and chains of this node's
// containers: those that contain a container's ID or one of the node's
// addresses, and the containers' own chains.
func (n *node) rules() []string {
	n.Helper()
	var about []string
	for i := range maxRanges {
		about = append(about, n.net(i)+".")
	}
	for i := range n.pods {
		about = append(about, n.marks(fmt.Sprintf("n%dc%d", n.id, i+1))...)
	}
	return n.rulesAbout(about)
}

// maxRanges is the number of address ranges of a node.
const maxRanges = 16

// marks returns the words, apart from addresses, by which a rule is known to be
// a container's.
func (n *node) marks(id string) (words []string) {
	words = append(words, id)
	for i := range maxRanges {
		words = append(words,
			utils.FormatChainName(n.chainName(i), id),
			utils.MustFormatChainNameWithPrefix(n.chainName(i), id, "DN-"))
	}
	return words
}

// rulesAbout returns, sorted, the rules and chains that contain one of words.
// An address that ends with a dot stands for its range.
func (n *node) rulesAbout(words []string) (list []string) {
	n.Helper()
	save, err := exec.LookPath("/usr/sbin/iptables-save")
	if err != nil {
		return nil // then no plugin can make rules
	}
	for _, table := range []string{"filter", "nat"} {
		cmd := exec.CommandContext(n.Context(), save, "-t", table)
		text, err := cmd.Output()
		if err != nil {
			n.Fatalf("%v: %v", cmd, err)
		}
		for line := range strings.Lines(string(text)) {
			if slices.ContainsFunc(strings.FieldsFunc(line, apart), func(got string) bool {
				return slices.ContainsFunc(words, func(word string) bool {
					return got == word || strings.HasSuffix(word, ".") && strings.HasPrefix(got, word)
				})
			}) {
				line, _, _ = strings.Cut(line, " [") // counters
				list = append(list, table+": "+strings.TrimSpace(line))
			}
		}
	}
	slices.Sort(list)
	return list
}

// apart reports whether c separates the words of a rule. An address is a word
// of its own, without its mask and port.
func apart(c rune) bool { return strings.ContainsRune(" \t\n:/\\\"", c) }

// gone fails the test if anything is left of p's attachment or of any other
// container of the node: interfaces, rules, or what nothingLeft checks.
func (n *node) gone(p *pod) {
	n.Helper()
	if !n.vanished {
		nodetest.Equal(n, "interfaces", n.interfaces(p), nil)
	}
	nodetest.Equal(n, "rules", n.rules(), nil)
	n.nothingLeft()
}

// Belongings are what a container must not lose when a DEL is repeated for the
// container that had its address before.
type belongings struct {
	Interfaces, Rules, Leases, Live []string
}

func (n *node) belongings(p *pod) belongings {
	n.Helper()
	b := belongings{Interfaces: n.interfaces(p), Live: n.leaked(p)}
	about := n.marks(p.id)
	for _, lease := range n.leases() {
		if words := strings.Fields(lease); words[1] == p.id {
			b.Leases = append(b.Leases, lease)
			about = append(about, words[0])
		}
	}
	b.Rules = n.rulesAbout(about)
	return b
}

// single returns the node's i'th bridge with a range of one address.
func (n *node) single(i int) object {
	conf := n.with(n.bridge(i), object{"ipMasq": true})
	maps.Copy(conf["ipam"].(object), object{"rangeStart": n.net(i) + ".5", "rangeEnd": n.net(i) + ".5"})
	return conf
}
