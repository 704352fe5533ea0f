package realhost

import (
	"fmt"
	"slices"
	"strings"
)

// A State counts the things on a host or in a container at one moment, by lines. The kernel makes and
// removes some things later than it says: ask for a new State until it is as it should be, or time is
// up. A line has the kind of a thing and its name:
//
//	address 10.1.0.1/24 on cni0
//	file /var/lib/cni/networks/n/10.1.0.2
//	interface "veth3a"
//	ip rule 100: from 10.1.0.2/32 to all lookup 100
//	iptables chain -t nat CNI-123
//	iptables rule -t nat -A CNI-123 -j MASQUERADE
//	nft chain ip nat postrouting
//	nft element ip nat pods 10.1.0.2
//	nft rule ip nat postrouting ip saddr 10.1.0.2 masquerade
//	nft set ip nat pods
//	nft table ip nat
//	process "dhcp"
//	qdisc tbf on veth3a
//	route 10.1.0.0/16 dev cni0
//
// Rules for IPv6 start with "ip6 rule" and "ip6tables".
type State map[string]int

// Undone returns the changes from before to s that are undone in now: the lines that were added and are
// gone, and, after "no ", the lines that were removed and are there again.
func (s State) Undone(before, now State) (all []string) {
	both := func(prefix string, a, b []string) {
		for _, line := range a {
			if slices.Contains(b, line) {
				all = append(all, prefix+line)
			}
		}
	}
	both("", s.Since(before), s.Since(now))
	both("no ", before.Since(s), now.Since(s))
	return all
}

// Since returns the lines of s that are not in before, sorted. A line ends in a number, such as (2), if
// there are several such things. The lines that are missing in s are before.Since(s).
func (s State) Since(before State) []string {
	var all []string
	for line, n := range s {
		switch n -= before[line]; {
		case n == 1:
			all = append(all, line)
		case n > 1:
			all = append(all, fmt.Sprintf("%s (%d)", line, n))
		}
	}
	slices.Sort(all)
	return all
}

// add adds lines that are of one kind and may be there several times.
func (s State) add(lines ...string) {
	for _, line := range lines {
		s[line]++
	}
}

// nftRules returns the lines for the output of "nft -s list ruleset".
func nftRules(out string) (all []string) {
	var table, kind, name string // of the blocks that the line is in
	var open string              // the beginning of a rule or list of elements that goes on
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		head, isBlock := strings.CutSuffix(line, " {")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case table == "":
			head, _, _ = strings.Cut(line, " {") // a comment may follow
			table = strings.TrimPrefix(head, "table ")
			if !builtinTable(table) {
				all = append(all, "nft table "+table)
			}
		case kind == "" && line == "}":
			table = ""
		case kind == "" && isBlock:
			space := strings.LastIndex(head, " ")
			kind, name = head[:max(space, 0)], head[space+1:]
			if kind != "chain" || !builtinTable(table) || !builtinChain(name) {
				all = append(all, fmt.Sprintf("nft %s %s %s", kind, table, name))
			}
		case kind == "": // a flag or comment of the table
		case open == "" && line == "}":
			kind = ""
		default:
			// nft leaves gaps where it hides a comment.
			if open = strings.Join(strings.Fields(open+" "+line), " "); depth(open) > 0 {
				continue
			}
			all = append(all, nftContent(table, kind, name, open)...)
			open = ""
		}
	}
	return all
}

// nftContent returns the lines for one statement in a block.
func nftContent(table, kind, name, text string) (all []string) {
	if kind == "chain" {
		for _, property := range []string{"type ", "comment ", "flags ", "devices "} {
			if strings.HasPrefix(text, property) {
				return nil
			}
		}
		return []string{fmt.Sprintf("nft rule %s %s %s", table, name, text)}
	}
	list, ok := strings.CutPrefix(text, "elements = {")
	if !ok {
		return nil
	}
	start := 0
	list = strings.TrimSuffix(list, "}") + ","
	for i, c := range list {
		if c == ',' && depth(list[start:i]) == 0 {
			all = append(all, fmt.Sprintf("nft element %s %s %s", table, name, strings.TrimSpace(list[start:i])))
			start = i + 1
		}
	}
	return all
}

// depth returns how many braces and quotes are open at the end of text.
func depth(text string) (n int) {
	quoted := false
	for _, c := range text {
		switch {
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{':
			n++
		case c == '}':
			n--
		}
	}
	if quoted {
		n++
	}
	return n
}

// builtinTable reports whether iptables makes this nft table, before its first rule and for
// good.
func builtinTable(table string) bool {
	family, name, _ := strings.Cut(table, " ")
	return (family == "ip" || family == "ip6") && slices.Contains([]string{"filter", "nat", "mangle", "raw", "security"}, name)
}

// builtinChain reports whether iptables makes this chain in its tables.
func builtinChain(name string) bool {
	return slices.Contains([]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}, name)
}

// iptablesRules returns the lines for the output of program-save.
func iptablesRules(program, out string) (all []string) {
	table := ""
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case strings.HasPrefix(line, "-"):
			all = append(all, fmt.Sprintf("%s rule -t %s %s", program, table, line))
		case strings.HasPrefix(line, ":"):
			// A chain with a policy is the kernel's.
			if fields := strings.Fields(line[1:]); len(fields) > 1 && fields[1] == "-" {
				all = append(all, fmt.Sprintf("%s chain -t %s %s", program, table, fields[0]))
			}
		}
	}
	return all
}
