package realhost

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/dump"
)

// State returns what is on the host: interfaces, addresses, routes, policy rules and
// queueing disciplines; nft and iptables rules, as far as nft, iptables-save and
// iptables-legacy-save are installed; files and sockets in /run and /var/lib/cni, without
// the kept ones; and processes on the host and in its containers. The host must not be [Here].
//
// Link-local addresses and what the kernel makes by itself are left out: routes that follow
// from an address, and empty chains of iptables. So are the host's ends of the pairs that
// Attach has made, with all that is on them: they go with their containers.
func (h *Host) State(ctx context.Context) (State, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := State{}
	err := errors.Join(
		h.do("", func() error { return listLinks(h.ends, s) }),
		h.listRules(ctx, s),
		h.do("", func() error { return h.listFiles(s) }),
		// On the thread: between fork and exec, a command has the program's name.
		h.do("", func() error { return h.listProcesses(s) }),
	)
	if err != nil {
		return nil, fmt.Errorf("look at the host: %w", err)
	}
	return s, nil
}

// Inside returns the State of a container: interfaces and their attributes, addresses, routes, policy
// rules and queueing disciplines, and the settings in /proc/sys/net. Things that the kernel makes by
// itself are left out as in [Host.State].
func (h *Host) Inside(path string) (State, error) {
	s := State{}
	err := h.do(path, func() error {
		all, err := whole(netlink.LinkList)
		for _, l := range all {
			a := l.Attrs()
			for what, value := range map[string]any{
				"MTU": a.MTU, "MAC": a.HardwareAddr, "queue": a.TxQLen, "promiscuous": a.Promisc, "all multicast": a.Allmulti,
				"flags": a.Flags &^ net.FlagRunning, "alias": a.Alias, "master": a.MasterIndex,
			} {
				s.add(fmt.Sprintf("%s of %s: %v", what, a.Name, value))
			}
		}
		return errors.Join(err, listLinks(nil, s), settings(func(path, value string) error {
			s.add(setting(path) + value)
			return nil
		}))
	})
	if err != nil {
		return nil, fmt.Errorf("look at the container: %w", err)
	}
	return s, nil
}

// Restore makes a container as it was before: with a new interface of the name in place of the one
// that is there, which has another address, and with the settings that were changed.
func (h *Host) Restore(path, name string, before State) error {
	if err := h.Detach(path, name); err != nil && !errors.As(err, new(netlink.LinkNotFoundError)) {
		return err
	}
	if _, err := h.Attach(path, name); err != nil {
		return err
	}
	return h.do(path, func() error {
		return settings(func(path, now string) error {
			for line := range before {
				if old, ok := strings.CutPrefix(line, setting(path)); ok && old != now {
					return os.WriteFile(path, []byte(old), 0o600)
				}
			}
			return nil
		})
	})
}

// setting is the beginning of a line.
func setting(path string) string { return "setting " + path + " = " }

// settings calls f with each file in /proc/sys/net of the thread's namespace that can be read and
// written to.
func settings(f func(path, value string) error) error {
	return filepath.WalkDir("/proc/sys/net", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return nil //nolint:nilerr // an interface may have gone
		}
		info, err := e.Info()
		if err != nil || info.Mode().Perm()&0o600 != 0o600 {
			return nil //nolint:nilerr // as well
		}
		value, err := os.ReadFile(path)
		if err != nil {
			return nil //nolint:nilerr // some have no value
		}
		return f(path, strings.Join(strings.Fields(string(value)), " "))
	})
}

// listLinks adds what the kernel tells by netlink about the thread's namespace. It leaves out the
// interfaces in attached.
func listLinks(attached map[int]bool, s State) error {
	all, err := whole(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("interfaces: %w", err)
	}
	names := map[int]string{}
	for _, l := range all {
		names[l.Attrs().Index] = l.Attrs().Name
		if !attached[l.Attrs().Index] {
			s.add(fmt.Sprintf("interface %q", l.Attrs().Name))
		}
	}
	addresses, err := whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("addresses: %w", err)
	}
	for _, a := range addresses {
		if !a.IP.IsLinkLocalUnicast() && !attached[a.LinkIndex] {
			s.add(fmt.Sprintf("address %s on %s", a.IPNet, names[a.LinkIndex]))
		}
	}
	for family, tool := range map[int]string{netlink.FAMILY_V4: "ip", netlink.FAMILY_V6: "ip6"} {
		routes, err := whole(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return fmt.Errorf("routes: %w", err)
		}
		for _, r := range routes {
			if r.Protocol != unix.RTPROT_KERNEL && r.Table != unix.RT_TABLE_LOCAL && !attached[r.LinkIndex] {
				s.add(routeText(r, names))
			}
		}
		rules, err := whole(func() ([]netlink.Rule, error) { return netlink.RuleList(family) })
		if err != nil {
			return fmt.Errorf("policy rules: %w", err)
		}
		for _, r := range rules {
			s.add(tool + ruleText(r))
		}
	}
	qdiscs, err := whole(func() ([]netlink.Qdisc, error) { return netlink.QdiscList(nil) })
	if err != nil {
		return fmt.Errorf("queueing disciplines: %w", err)
	}
	for _, q := range qdiscs {
		// The kernel's own have no number.
		if q.Attrs().Handle != 0 && !attached[q.Attrs().LinkIndex] {
			s.add(fmt.Sprintf("qdisc %s on %s", q.Type(), names[q.Attrs().LinkIndex]))
		}
	}
	return nil
}

func routeText(r netlink.Route, names map[int]string) string {
	text := "route"
	if r.Type != unix.RTN_UNICAST {
		kinds := map[int]string{unix.RTN_LOCAL: "local", unix.RTN_BLACKHOLE: "blackhole", unix.RTN_UNREACHABLE: "unreachable", unix.RTN_PROHIBIT: "prohibit", unix.RTN_THROW: "throw"}
		if kind := kinds[r.Type]; kind != "" {
			text += " " + kind
		} else {
			text += fmt.Sprintf(" type %d", r.Type)
		}
	}
	text += " " + r.Dst.String()
	hop := func(gateway fmt.Stringer, none bool, index int) {
		if !none {
			text += " via " + gateway.String()
		}
		if name := names[index]; name != "" {
			text += " dev " + name
		}
	}
	hop(r.Gw, r.Gw == nil, r.LinkIndex)
	for _, next := range r.MultiPath {
		hop(next.Gw, next.Gw == nil, next.LinkIndex)
	}
	if r.Table != unix.RT_TABLE_MAIN {
		text += fmt.Sprintf(" table %d", r.Table)
	}
	return text
}

// ruleText describes a policy rule, without the "ip" in front.
func ruleText(r netlink.Rule) string {
	from, to := "all", "all"
	if r.Src != nil {
		from = r.Src.String()
	}
	if r.Dst != nil {
		to = r.Dst.String()
	}
	text := fmt.Sprintf(" rule %d: from %s to %s", r.Priority, from, to)
	if r.Mark != 0 {
		text += fmt.Sprintf(" fwmark %#x", r.Mark)
	}
	if r.IifName != "" {
		text += " iif " + r.IifName
	}
	if r.OifName != "" {
		text += " oif " + r.OifName
	}
	return text + fmt.Sprintf(" lookup %d", r.Table)
}

// whole reads a list of the kernel. A list that the kernel does not have is empty.
func whole[T any](list func() ([]T, error)) ([]T, error) {
	all, err := dump.Whole(list)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, nil
	}
	return all, err
}

// listRules adds the rules of nft and iptables.
func (h *Host) listRules(ctx context.Context, s State) error {
	out, found, err := h.run(ctx, "nft", "-s", "list", "ruleset")
	if err != nil {
		return err
	}
	s.add(nftRules(out)...)
	for program, legacy := range map[string]string{"iptables": "ip_tables_names", "ip6tables": "ip6_tables_names"} {
		rules := map[string]int{}
		save := func(tool string) error {
			out, _, err := h.run(ctx, tool)
			// iptables-save may be iptables-legacy-save, with the same rules.
			these := State{}
			these.add(iptablesRules(program, out)...)
			for line, n := range these {
				rules[line] = max(rules[line], n)
			}
			return err
		}
		if !found {
			if err := save(program + "-save"); err != nil {
				return err
			}
		}
		var tables []byte
		err := h.do("", func() (err error) {
			if tables, err = os.ReadFile("/proc/thread-self/net/" + legacy); errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		})
		if err != nil {
			return err
		}
		if len(tables) > 0 {
			if err := save(program + "-legacy-save"); err != nil {
				return err
			}
		}
		for line, n := range rules {
			s[line] += n
		}
	}
	return nil
}

// run runs a program on the host and returns its output. found is false without the
// program.
func (h *Host) run(ctx context.Context, name string, args ...string) (out string, found bool, err error) {
	path := ""
	for _, place := range []string{name, "/usr/sbin/" + name, "/sbin/" + name} { // the PATH of people may lack them
		if path == "" {
			path, _ = exec.LookPath(place)
		}
	}
	if path == "" {
		return "", false, nil
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err = h.Start(cmd); err == nil {
		err = cmd.Wait()
	}
	text := bytes.TrimSpace(stderr.Bytes())
	switch {
	case err == nil:
		return stdout.String(), true, nil
	case bytes.Contains(text, []byte("not supported")): // the kernel has no such rules
		return "", true, nil
	default:
		return "", true, fmt.Errorf("%s: %w: %.200s", name, err, text)
	}
}

// listFiles adds the files and sockets in the directories with state of plugins.
func (h *Host) listFiles(s State) error {
	for _, dir := range []string{"/run", "/var/lib/cni"} {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return nil
			case err != nil:
				return err
			case path == "/run/xtables.lock":
			case h.skip[path] && e.IsDir():
				return fs.SkipDir
			case !h.skip[path] && (e.Type().IsRegular() || e.Type() == fs.ModeSocket):
				s.add("file " + path)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// listProcesses adds the processes on the host and in its containers.
func (h *Host) listProcesses(s State) error {
	pids, err := processes(h.ids())
	for _, pid := range pids {
		if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil {
			s.add(fmt.Sprintf("process %q", strings.TrimSuffix(string(name), "\n")))
		}
	}
	return err
}

// ids returns the identities of the namespaces of the host and its containers.
func (h *Host) ids() map[string]bool {
	all := map[string]bool{}
	for _, space := range slices.AppendSeq(slices.Clone(h.spaces), maps.Values(h.containers)) {
		all[identity(space)] = true
	}
	return all
}

// identity returns a namespace as links below /proc show it, like net:[4026531840].
func identity(space *os.File) string {
	id, _ := os.Readlink(fdPath(space)) // it is open
	return id
}

// processes returns the processes in namespaces, without this program.
func processes(ids map[string]bool) (pids []int, err error) {
	entries, err := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid != os.Getpid() && within(pid, ids) {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

func within(pid int, ids map[string]bool) bool {
	return slices.ContainsFunc([]string{"net", "mnt"}, func(kind string) bool {
		id, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
		return err == nil && ids[id]
	})
}

// kill ends the processes in namespaces and waits for their end.
func kill(ids map[string]bool) (err error) {
	var pids []int
	ended := wait(func() bool {
		if pids, err = processes(ids); err != nil {
			return true
		}
		for _, pid := range pids {
			// From here on p is this process, even if it ends.
			if p, err := os.FindProcess(pid); err == nil {
				if within(pid, ids) {
					_ = p.Kill()
				}
				_ = p.Release()
			}
		}
		return len(pids) == 0
	})
	if !ended {
		return fmt.Errorf("processes do not end: %v", pids)
	}
	return err
}
