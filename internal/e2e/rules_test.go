package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/containernetworking/plugins/pkg/utils"
)

// ruled returns a network of plugins whose DEL needs an earlier result: the
// world's i'th bridge with masquerading, and firewall, whose rules contain only
// addresses. The plugins of more come after them in the chain.
func (w *world) ruled(i int, more ...object) object {
	bridge := w.with(w.bridge(i), object{"ipMasq": true})
	return w.chain(i, append([]object{bridge, w.firewall()}, more...)...)
}

// chain returns a network of plugins with the name of the world's i'th network.
func (w *world) chain(i int, plugins ...object) object {
	return object{"name": w.chainName(i), "cniVersion": "1.1.0", "plugins": plugins}
}

func (w *world) chainName(i int) string { return w.name(fmt.Sprintf("chain%d-", i)) }

func (w *world) firewall() object {
	w.needsRules()
	return object{"type": "firewall", "backend": "iptables"}
}

func (w *world) portmap() object {
	w.needsRules()
	return object{"type": "portmap", "backend": "iptables", "capabilities": object{"portMappings": true}}
}

// published returns a pod whose delegates publish one of its ports on the host,
// if they can.
func (w *world) published(delegates ...object) *pod {
	w.t.Helper()
	p := w.pod(w.multinet("1.1.0", delegates...))
	p.conf["capabilities"].(object)["portMappings"] = true
	p.conf["runtimeConfig"] = object{"portMappings": []object{{"hostPort": 8080 + w.n, "containerPort": 80, "protocol": "tcp"}}}
	return p
}

// commonChains are made once on the private host: the chains that firewall and portmap have
// for all containers. Two of these plugins that miss one at once both make it, and one of
// them fails.
var commonChains sync.Once

// needsRules skips the test if the plugins cannot make rules.
func (w *world) needsRules() {
	w.t.Helper()
	w.needsProgram("iptables", "iptables-save")
	commonChains.Do(func() {
		const last = maxRanges - 1
		p := w.published(w.chain(last, w.with(w.bridge(last), object{"ipMasq": true}), object{"type": "firewall", "backend": "iptables"},
			object{"type": "portmap", "backend": "iptables", "capabilities": object{"portMappings": true}}))
		w.ok("ADD", p)
		w.ok("DEL", p)
		w.gone(p)
	})
}

// behind returns conf with a fake in front of its plugin. The fake logs its
// steps, fails or is killed, and lets the plugin do the work.
func (w *world) behind(id string, conf object, on ...string) object {
	w.t.Helper()
	front := w.fake(id, on...)
	front["inner"] = built(fmt.Sprint(conf["type"]))
	for k, v := range conf {
		if k != "type" {
			front[k] = v
		}
	}
	return front
}

// rules returns, sorted, the iptables rules and chains of this world's
// containers: those that contain a container's ID or one of the world's
// addresses, and the containers' own chains.
func (w *world) rules() []string {
	w.t.Helper()
	var about []string
	for i := range maxRanges {
		about = append(about, w.net(i)+".")
	}
	for n := range w.pods {
		about = append(about, w.marks(fmt.Sprintf("w%dc%d", w.n, n+1))...)
	}
	return w.rulesAbout(about)
}

// maxRanges is the number of address ranges of a world.
const maxRanges = 16

// marks returns the words, apart from addresses, by which a rule is known to be
// a container's.
func (w *world) marks(id string) (words []string) {
	words = append(words, id)
	for i := range maxRanges {
		words = append(words,
			utils.FormatChainName(w.chainName(i), id),
			utils.MustFormatChainNameWithPrefix(w.chainName(i), id, "DN-"))
	}
	return words
}

// rulesAbout returns, sorted, the rules and chains that contain one of words.
// An address that ends with a dot stands for its range.
func (w *world) rulesAbout(words []string) (list []string) {
	w.t.Helper()
	for _, table := range []string{"filter", "nat"} {
		cmd := exec.CommandContext(w.t.Context(), w.program("iptables-save"), "-t", table)
		text, err := cmd.Output()
		if err != nil {
			w.t.Fatalf("%v: %v", cmd, err)
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

// program returns the path of a program that plugins run, or skips the test.
func (w *world) program(name string) string {
	w.t.Helper()
	for _, dir := range filepath.SplitList(w.path) {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path
		}
	}
	w.t.Skipf("needs %s", name)
	return ""
}

// gone fails the test if anything is left of p's attachment or of any other
// container of the world: interfaces, rules, or what nothingLeft checks.
func (w *world) gone(p *pod) {
	w.t.Helper()
	if !w.vanished {
		same(w.t, "interfaces", nil, w.interfaces(p))
	}
	same(w.t, "rules", nil, w.rules())
	w.nothingLeft()
}
