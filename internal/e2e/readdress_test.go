package e2e

import (
	"maps"
	"strings"
	"testing"
)

// Belongings are what a container must not lose when a DEL is repeated for the
// container that had its address before.
type belongings struct {
	Interfaces, Rules, Leases, Live []string
}

func (w *world) belongings(p *pod) belongings {
	w.t.Helper()
	b := belongings{Interfaces: w.interfaces(p), Live: w.leaked(p)}
	about := w.marks(p.id)
	for _, lease := range w.leases() {
		if words := strings.Fields(lease); words[1] == p.id {
			b.Leases = append(b.Leases, lease)
			about = append(about, words[0])
		}
	}
	b.Rules = w.rulesAbout(about)
	return b
}

// single returns the world's i'th bridge with a range of one address.
func (w *world) single(i int) object {
	conf := w.with(w.bridge(i), object{"ipMasq": true})
	maps.Copy(conf["ipam"].(object), object{"rangeStart": w.net(i) + ".5", "rangeEnd": w.net(i) + ".5"})
	return conf
}

// TestDELSparesAnAddressThatHasMoved: one plugin fails in the DEL of a
// container, the others succeed, and the address goes to a second container.
// Later DELs and GCs for the first container, whether they fail again or not,
// take nothing from the second.
func TestDELSparesAnAddressThatHasMoved(t *testing.T) {
	for name, networks := range map[string]func(w *world, on ...string) []object{
		"another network fails": func(w *world, on ...string) []object {
			return []object{w.chain(1, w.single(1), w.firewall(), w.portmap()), w.fake("x", on...)}
		},
		"another chain's firewall fails": func(w *world, on ...string) []object {
			return []object{w.chain(1, w.single(1), w.firewall()), w.chain(2, w.bridge(2), w.behind("x", w.firewall(), on...))}
		},
		"the chain's last plugin fails": func(w *world, on ...string) []object {
			return []object{w.chain(1, w.single(1), w.firewall(), w.portmap(), w.fake("x", on...))}
		},
		"the plugin before firewall fails": func(w *world, on ...string) []object {
			return []object{w.chain(1, w.single(1), w.fake("x", on...), w.firewall(), w.portmap())}
		},
		"firewall itself fails": func(w *world, on ...string) []object {
			return []object{w.chain(1, w.single(1), w.behind("x", w.firewall(), on...), w.portmap())}
		},
	} {
		for _, then := range []string{"DEL", "DEL without a namespace", "DEL, the namespace gone", "GC"} {
			t.Run(name+"/"+then, func(t *testing.T) {
				w := newWorld(t)
				w.needsRules()
				first := w.published(networks(w, "DEL", "fail")...)
				second := w.published(networks(w)...)
				w.ok("ADD", first)
				w.fails(111, "DEL", first, nil)
				w.ok("ADD", second)
				want := w.belongings(second)
				same(t, "reserved for the second", w.net(1)+".5 "+second.id+" eth0", want.Leases[0])

				again := func() answer {
					t.Helper()
					if then == "GC" {
						return w.call("GC", first, valid(second))
					}
					if then == "DEL" {
						return w.call("DEL", first)
					}
					return w.call("DEL", first, withoutNetNS)
				}
				if then == "DEL, the namespace gone" {
					w.vanish(first)
				}
				for range 2 {
					w.failed(again(), 111)
					same(t, "the second's, after a "+then+" that fails", want, w.belongings(second))
				}
				w.cure()
				if a := again(); a.err != nil {
					t.Errorf("%s: %s", then, a.stdout)
				}
				same(t, "the second's, after a "+then+" that succeeds", want, w.belongings(second))
				w.ok("CHECK", second)
				w.answersPing(second, w.net(1)+".1")
				w.ok("DEL", second)
				w.gone(second)
				w.figures("the address has moved, "+name+", then "+then, 3)
			})
		}
	}
}
