package doctor

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/netconf"
)

// Undecided says what an operator can do about the attachments of containers of which it is not
// known whether they live, because of why. gc is the command that lists what it would remove.
func Undecided(why, gc string) string {
	todo := "let the runtime delete the containers, or run its GC; "
	if lacksRights(why) {
		todo += rights + "; "
	}
	return todo + "or see " + gc
}

const rights = "run it as root in the initial PID namespace (multinetd: see its RIGHTS.md)"

// lacksRights reports whether why says that the process may not look at everything.
func lacksRights(why string) bool {
	return strings.Contains(why, "CAP_SYS_ADMIN") || strings.Contains(why, "PID namespace") || strings.Contains(why, "permission denied")
}

// lookAtUnknown says of how many records it is not known whether their containers live.
func (n *Node) lookAtUnknown() {
	unknown := slices.DeleteFunc(slices.Clone(n.judged), func(j judged) bool { return j.life.Life != lifecycle.Unknown || !j.State.Attached() })
	if len(unknown) == 0 {
		return
	}
	oldest := slices.MinFunc(unknown, func(a, b judged) int { return a.Created.Compare(b.Created) })
	n.say(Unknown, n.StateDir, fmt.Sprintf("it is not known whether the containers of %d of %d records live, the oldest for %s; of the first, %s: %s",
		len(unknown), len(n.judged), time.Since(oldest.Created).Round(time.Minute), unknown[0].Key.ContainerID, unknown[0].life.Why),
		Undecided(unknown[0].life.Why, n.tool("gc --unknown --dry-run")))
	if i := slices.IndexFunc(unknown, func(j judged) bool { return lacksRights(j.life.Why) }); i >= 0 {
		n.say(Unknown, n.StateDir, "this process cannot prove that a container is dead: "+unknown[i].life.Why, rights)
	}
	n.lookAtRanges(unknown)
}

// An addressRange is a range of host-local in the networks of a name.
type addressRange struct {
	network, dir string // dir has the leases
	first, last  netip.Addr
}

// lookAtRanges says which ranges of addresses are held by containers of which it is not known
// whether they live: a tenth or more.
func (n *Node) lookAtRanges(unknown []judged) {
	type lease struct {
		addressRange
		netip.Addr
	}
	held, count := make(map[lease]bool), make(map[addressRange]float64)
	for _, j := range unknown {
		for _, a := range slices.Concat(j.Attached, j.Leftovers) {
			for _, r := range ranges(a.Network) {
				for _, address := range addresses(a) {
					if l := (lease{r, address}); r.contains(address) && !held[l] {
						held[l] = true
						count[r]++
					}
				}
			}
		}
	}
	var texts []string
	for r, held := range count {
		if size := r.size(); 10*held >= size {
			texts = append(texts, fmt.Sprintf("%.0f of %.0f addresses of %q, from %s to %s", held, size, r.network, r.first, r.last))
		}
	}
	slices.Sort(texts)
	n.list(n.StateDir, texts, "addresses are held for containers of which it is not known whether they live", Undecided("", n.tool("gc --unknown --dry-run")))
}

// size returns how many addresses r has.
func (r addressRange) size() (size float64) {
	first := r.first.AsSlice()
	for i, b := range r.last.AsSlice() {
		size = 256*size + float64(b) - float64(first[i])
	}
	return size + 1
}

// ranges returns the ranges of host-local in n. What is invalid, host-local refuses in the ADD.
func ranges(n netconf.Network) (all []addressRange) {
	type one struct {
		Subnet               netip.Prefix
		RangeStart, RangeEnd netip.Addr
	}
	for _, p := range n.Plugins() {
		var conf struct {
			IPAM struct {
				Type, DataDir string
				one
				Ranges [][]one
			}
		}
		if p.Decode(&conf) != nil || conf.IPAM.Type != "host-local" {
			continue
		}
		dir := filepath.Join(cmp.Or(conf.IPAM.DataDir, "/var/lib/cni/networks"), n.Name())
		for _, o := range append(slices.Concat(conf.IPAM.Ranges...), conf.IPAM.one) {
			if !o.Subnet.IsValid() {
				continue // the key ranges has them
			}
			r := addressRange{n.Name(), dir, cmp.Or(o.RangeStart, o.Subnet.Masked().Addr().Next()), cmp.Or(o.RangeEnd, lastOf(o.Subnet))}
			if r.first.BitLen() == r.last.BitLen() && r.first.Compare(r.last) <= 0 {
				all = append(all, r)
			}
		}
	}
	return all
}

// lookAtLeases looks for ranges of host-local with one free address at most, which may be the
// gateway's, of which some are leased to containers that have no record, nor an entry in the
// runtime's cache.
func (n *Node) lookAtLeases() {
	if n.recorded == nil {
		return // lookAtRecords says so
	}
	cached, err := fs.ReadDir(n.root.Dir(filepath.Join(n.CacheDir, "results")), ".")
	if n.CacheDir != "" && err != nil && !errors.Is(err, fs.ErrNotExist) {
		return // it is not known whose the leases are
	}
	for file, network := range n.networks {
		for _, r := range ranges(network) {
			free, dir := r.size(), n.root.Dir(r.dir)
			var leaked []string
			leases, _ := fs.ReadDir(dir, ".") // none have been made, or who may read them sees to it
			for _, lease := range leases {
				if address, err := netip.ParseAddr(lease.Name()); err != nil || !r.contains(address) {
					continue
				}
				free--
				text, err := netconf.ReadFile(dir, lease.Name())
				id, _, _ := strings.Cut(string(text), "\n")
				id = strings.TrimSpace(id)
				inCache := func(e fs.DirEntry) bool { return strings.Contains(e.Name(), "-"+id+"-") }
				if err == nil && !n.recorded[id] && !slices.ContainsFunc(cached, inCache) {
					leaked = append(leaked, lease.Name())
				}
			}
			if free > 1 {
				continue
			}
			n.list(file, leaked, fmt.Sprintf("at most one address of %q from %s to %s is free; in %s are leases of containers without a record", network.Name(), r.first, r.last, r.dir),
				"run "+n.tool("gc --bin-dir "+n.BinDir)+"; then remove the leases of containers that the runtime does not have")
		}
	}
}

func (r addressRange) contains(a netip.Addr) bool {
	return a.BitLen() == r.first.BitLen() && r.first.Compare(a) <= 0 && a.Compare(r.last) <= 0
}

// lastOf returns the last address of a subnet for a container: IPv4 has the broadcast address
// after it.
func lastOf(subnet netip.Prefix) netip.Addr {
	b := subnet.Masked().Addr().AsSlice()
	for i := subnet.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	last, _ := netip.AddrFromSlice(b) // it is as long as that of subnet
	if last.Is4() && subnet.Bits() < 31 {
		return last.Prev()
	}
	return last
}

// addresses returns the addresses in the result of a.
func addresses(a delegate.Attached) []netip.Addr {
	var result struct {
		IPs      []struct{ Address netip.Prefix }
		IP4, IP6 struct{ IP netip.Prefix } // before CNI 0.3
	}
	_ = json.Unmarshal(a.Result, &result) // of what cannot be read nothing is known
	all := []netip.Addr{result.IP4.IP.Addr(), result.IP6.IP.Addr()}
	for _, ip := range result.IPs {
		all = append(all, ip.Address.Addr())
	}
	return all
}
