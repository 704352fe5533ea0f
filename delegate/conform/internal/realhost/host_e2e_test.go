//go:build e2e && linux

package realhost_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/conform/internal/realhost"
	"github.com/metacni/metacni/internal/dump"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// newHost makes a host that the end of the test closes.
func newHost(t *testing.T, keep, links []string) *realhost.Host {
	t.Helper()
	h, err := realhost.New(keep, links)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	nodetest.OK(t, err)
	t.Cleanup(func() { nodetest.OK(t, h.Close()) })
	return h
}

func state(t *testing.T, h *realhost.Host) realhost.State {
	t.Helper()
	s, err := h.State(t.Context())
	nodetest.OK(t, err)
	return s
}

// run runs a script on the host.
func run(t *testing.T, h *realhost.Host, script string) string {
	t.Helper()
	out, err := output(t.Context(), h, script)
	if err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
	return out
}

func output(ctx context.Context, h *realhost.Host, script string) (string, error) {
	var out strings.Builder
	cmd := exec.CommandContext(ctx, "sh", "-c", script)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := h.Start(cmd); err != nil {
		return "", err
	}
	err := cmd.Wait()
	return out.String(), err
}

// want waits until the host has just these things more than before.
func want(t *testing.T, h *realhost.Host, before realhost.State, lines ...string) {
	t.Helper()
	var got []string
	defer func() {
		if t.Failed() {
			t.Logf("on the host: %q", got)
		}
	}()
	nodetest.Until(t, fmt.Sprintf("%q", lines), func() bool {
		got = state(t, h).Since(before)
		return slices.Equal(got, lines)
	})
}

func network(s string) *net.IPNet {
	ip, n, err := net.ParseCIDR(s)
	if err != nil {
		panic(err)
	}
	n.IP = ip
	return n
}

func link(name string) *netlink.Dummy {
	return &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: name}}
}

func TestStateNamesWhatIsNew(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		tool   string // the script needs it
		script string
		kernel func() error // on the host's thread
		want   []string
	}{
		"nothing": {script: "true"},
		"interface": {
			kernel: func() error {
				return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "v0"}, PeerName: "v1"})
			},
			want: []string{`interface "v0"`, `interface "v1"`},
		},
		"address": {
			kernel: func() error {
				return errors.Join(netlink.AddrAdd(link("lo"), &netlink.Addr{IPNet: network("10.1.0.1/24")}),
					netlink.AddrAdd(link("lo"), &netlink.Addr{IPNet: network("fd01::1/64")}))
			},
			want: []string{"address 10.1.0.1/24 on lo", "address fd01::1/64 on lo"},
		},
		"route": {
			kernel: func() error {
				eth0, err := netlink.LinkByName("eth0")
				return errors.Join(err,
					netlink.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Dst: network("10.1.0.0/16"), Scope: netlink.SCOPE_LINK}),
					netlink.RouteAdd(&netlink.Route{Dst: network("10.2.0.0/16"), Gw: net.IPv4(198, 18, 0, 9), Table: 7}),
					netlink.RouteAdd(&netlink.Route{Dst: network("10.3.0.0/16"), Type: unix.RTN_BLACKHOLE}),
				)
			},
			want: []string{"route 10.1.0.0/16 dev eth0", "route 10.2.0.0/16 via 198.18.0.9 dev eth0 table 7", "route blackhole 10.3.0.0/16"},
		},
		"policy rule": {
			kernel: func() error {
				r := netlink.NewRule()
				r.Priority, r.Table, r.Src = 100, 7, network("10.1.0.2/32")
				return netlink.RuleAdd(r)
			},
			want: []string{"ip rule 100: from 10.1.0.2/32 to all lookup 7"},
		},
		"queueing discipline": {
			kernel: func() error {
				eth0, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				return netlink.QdiscAdd(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: eth0.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS}})
			},
			want: []string{"qdisc ingress on eth0"},
		},
		"files": {
			script: "mkdir -p /var/lib/cni/networks/n /run/plugin && echo c1 >/var/lib/cni/networks/n/10.1.0.2 && >/run/plugin/a && >/run/xtables.lock",
			want:   []string{"file /run/plugin/a", "file /var/lib/cni/networks/n/10.1.0.2"},
		},
		"socket": {
			kernel: func() error {
				fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
				return errors.Join(err, unix.Bind(fd, &unix.SockaddrUnix{Name: "/run/s.sock"}), unix.Close(fd))
			},
			want: []string{"file /run/s.sock"},
		},
		"processes": {
			script: "sleep 1000 >/dev/null 2>&1 & sleep 1000 >/dev/null 2>&1 &",
			want:   []string{`process "sleep" (2)`},
		},
		"nft rule": {
			tool: "nft",
			script: `nft add table ip cni && nft add chain ip cni post '{ type nat hook postrouting priority 100; }' &&
				nft add rule ip cni post ip saddr 10.1.0.2 counter masquerade &&
				nft add set ip cni pods '{ type ipv4_addr; }' && nft add element ip cni pods '{ 10.1.0.2, 10.1.0.3 }'`,
			want: []string{
				"nft chain ip cni post", "nft element ip cni pods 10.1.0.2", "nft element ip cni pods 10.1.0.3",
				"nft rule ip cni post ip saddr 10.1.0.2 counter masquerade", "nft set ip cni pods", "nft table ip cni",
			},
		},
		"nft chains of iptables": {
			tool:   "iptables-nft",
			script: "iptables-nft -t filter -N CNI-1 && iptables-nft -t filter -A FORWARD -s 10.1.0.2 -j CNI-1",
			want:   []string{"nft chain ip filter CNI-1", "nft rule ip filter FORWARD ip saddr 10.1.0.2 counter jump CNI-1"},
		},
		"iptables rule": {
			tool:   "iptables-legacy",
			script: "iptables-legacy -t filter -N CNI-1 && iptables-legacy -t filter -A FORWARD -s 10.1.0.2 -j CNI-1",
			want:   []string{"iptables chain -t filter CNI-1", "iptables rule -t filter -A FORWARD -s 10.1.0.2/32 -j CNI-1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, nil, nil)
			before := state(t, h)
			if tt.tool != "" {
				if _, err := exec.LookPath(tt.tool); err != nil {
					t.Skip(err)
				}
				if out, err := output(t.Context(), h, tt.tool+" -L 2>&1 || "+tt.tool+" list ruleset"); err != nil {
					t.Skipf("the kernel has no rules of %s: %s", tt.tool, out)
				}
				want(t, h, before)
			}
			if tt.script != "" {
				run(t, h, tt.script)
			}
			if tt.kernel != nil {
				nodetest.OK(t, h.Do(tt.kernel))
			}
			want(t, h, before, tt.want...)
		})
	}
}

func TestContainersHaveWhatARuntimeGives(t *testing.T) {
	t.Parallel()
	h := newHost(t, nil, []string{"eth1"})
	before := state(t, h)
	var results []*types100.Result
	for i := range 2 {
		c, err := h.Container()
		nodetest.OK(t, err)
		r, err := h.Attach(c, "eth0")
		nodetest.OK(t, err)
		results = append(results, r)
		nodetest.Equal(t, "sandbox", r.Interfaces[1].Sandbox, c)
		addresses, ok, err := h.Addresses(c, "eth0")
		nodetest.OK(t, err)
		if !ok || len(addresses) != 1 || addresses[0].String() != r.IPs[0].Address.String() {
			t.Errorf("eth0 has %v (%t), want %s", addresses, ok, r.IPs[0].Address.String())
		}
		// Both ends, and the routes between them, are right: the container answers.
		nodetest.Is(t, h.Do(func() error {
			conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", net.JoinHostPort(r.IPs[0].Address.IP.String(), "9"))
			if err == nil {
				_ = conn.Close()
			}
			return err
		}), unix.ECONNREFUSED)
		if i == 1 {
			_, err := h.Attach(c, "eth0")
			nodetest.Says(t, err, "attach eth0", "the container has a eth0")
			_, err = h.Attach(c, "net1")
			nodetest.OK(t, err)
			_, ok, err := h.Addresses(c, "net2")
			nodetest.Equal(t, "net2 is there", ok, false)
			nodetest.OK(t, err)
			for dst, want := range map[string]bool{"0.0.0.0/0": true, "198.51.100.0/24": true, "10.0.0.0/8": false} {
				_, subnet, err := net.ParseCIDR(dst)
				nodetest.OK(t, err)
				has, err := h.HasRoute(c, subnet)
				nodetest.OK(t, err)
				nodetest.Equal(t, "route to "+dst, has, want)
			}
			nodetest.OK(t, h.Detach(c, "net1"))
			if err := h.Detach(c, "net1"); err == nil {
				t.Error("net1 can be removed twice")
			}
		}
	}
	first, second := results[0].IPs[0].Address.String(), results[1].IPs[0].Address.String()
	if first == second {
		t.Errorf("two containers have %s", first)
	}
	want(t, h, before) // what Attach makes is not a plugin's
	run(t, h, "test -e /sys/class/net/eth1 || test ! -e /sys/class/net/"+results[0].Interfaces[0].Name)
}

func TestGoneContainerLeavesNothing(t *testing.T) {
	t.Parallel()
	h := newHost(t, nil, nil)
	before := state(t, h)
	c, err := h.Container()
	nodetest.OK(t, err)
	r, err := h.Attach(c, "eth0")
	nodetest.OK(t, err)
	if _, err := exec.LookPath("nsenter"); err == nil {
		run(t, h, "nsenter --net="+c+" sleep 1000 >/dev/null 2>&1 &")
		nodetest.Until(t, "a process in the container", func() bool {
			return slices.Contains(state(t, h).Since(before), `process "sleep"`)
		})
	}
	nodetest.OK(t, h.Remove(c))
	nodetest.OK(t, h.Do(func() error {
		if _, err := netlink.LinkByName(r.Interfaces[0].Name); err == nil {
			return errors.New("the other end is still there")
		}
		return nil
	}))
	run(t, h, "test ! -e "+c)
	want(t, h, before)
	_, attachErr := h.Attach(c, "eth1")
	_, _, addressesErr := h.Addresses(c, "lo")
	_, insideErr := h.Inside(c)
	for _, err := range []error{h.Remove(c), attachErr, addressesErr, insideErr, h.Detach(c, "lo")} {
		nodetest.Is(t, err, os.ErrNotExist)
	}
	other, err := h.Container()
	nodetest.OK(t, err)
	if other == c {
		t.Errorf("two containers have the path %s", c)
	}
}

// The host is one that runs on a private host, to leave the machine alone.
func TestHereIsTheHostOfTheProgram(t *testing.T) {
	t.Parallel()
	outer := newHost(t, nil, nil)
	before := state(t, outer)
	nodetest.OK(t, outer.Do(func() error {
		h, err := realhost.Here()
		nodetest.OK(t, err)
		var containers []string
		for range 3 {
			c, err := h.Container()
			nodetest.OK(t, err)
			r, err := h.Attach(c, "eth0")
			nodetest.OK(t, err)
			containers = append(containers, c)
			target, err := os.Readlink(c)
			nodetest.OK(t, err)
			if !strings.HasPrefix(target, "net:[") || r.Interfaces[1].Sandbox != c {
				t.Errorf("%s leads to %s", c, target)
			}
		}
		gone := containers[0]
		nodetest.OK(t, h.Remove(gone))
		nodetest.Is(t, h.Remove(gone), os.ErrNotExist)
		_, err = h.Attach(gone, "eth0")
		nodetest.Is(t, err, unix.EINVAL)
		file, err := os.Open("/etc/passwd")
		nodetest.OK(t, err)
		defer file.Close()
		target, err := os.Readlink(gone)
		nodetest.OK(t, err)
		nodetest.Equal(t, "what the path of a container that is gone leads to", target, os.DevNull)
		if _, err := exec.LookPath("nsenter"); err == nil {
			run(t, h, "nsenter --net="+containers[1]+" sleep 1000 >/dev/null 2>&1 &")
			nodetest.Until(t, "a process in the container", func() bool {
				pids, err := h.Processes()
				nodetest.OK(t, err)
				return len(pids) == 1
			})
		}
		nodetest.OK(t, h.Close())
		nodetest.OK(t, h.Close())
		return nil
	}))
	want(t, outer, before)
}

func TestKeptDirectoriesStayVisible(t *testing.T) {
	t.Parallel()
	newHost(t, nil, nil)
	dir, err := os.MkdirTemp("/run", "realhost-") //nolint:usetesting // it must be in /run
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, name := range []string{"a/in", "b/in"} {
		path := filepath.Join(dir, name)
		nodetest.OK(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("kept"), 0o600)))
	}
	h := newHost(t, []string{filepath.Join(dir, "a"), t.TempDir()}, nil)
	before := state(t, h)
	nodetest.Equal(t, "a kept file", run(t, h, "cat "+dir+"/a/in"), "kept")
	run(t, h, "test ! -e "+dir+"/b && >"+dir+"/a/new && >"+dir+"/c")
	want(t, h, before, "file "+dir+"/c")
	_, err = os.Stat(filepath.Join(dir, "a/new"))
	nodetest.OK(t, err)
	nodetest.Equal(t, "in the real directory", slices.Sorted(names(t, dir)), []string{"a", "b"})

	_, err = realhost.New([]string{filepath.Join(dir, "missing")}, nil)
	nodetest.Is(t, err, os.ErrNotExist)
	_, err = realhost.New([]string{"/run"}, nil)
	nodetest.Says(t, err, "/run cannot stay visible")
	_, err = realhost.New(nil, []string{"a name that is too long"})
	nodetest.Is(t, err, errors.ErrUnsupported)
}

func names(t *testing.T, dir string) func(func(string) bool) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	nodetest.OK(t, err)
	return func(yield func(string) bool) {
		for _, e := range entries {
			if !yield(e.Name()) {
				return
			}
		}
	}
}

func TestMissingDirectoriesAreNotMadeOnTheMachine(t *testing.T) {
	t.Parallel()
	h := newHost(t, nil, nil)
	const varLib = "/var/lib"
	outside := slices.DeleteFunc(slices.Sorted(names(t, varLib)), func(name string) bool { return name == "cni" })
	var inside []string
	nodetest.OK(t, h.Do(func() error {
		inside = slices.Sorted(names(t, varLib))
		return nil
	}))
	inside = slices.DeleteFunc(inside, func(name string) bool { return name == "cni" })
	nodetest.Equal(t, "in "+varLib, inside, outside)
	nodetest.Equal(t, "state of plugins", run(t, h, "ls -A /var/lib/cni"), "")
}

func TestCommandsStartWhereTheProgramIs(t *testing.T) {
	t.Parallel()
	h := newHost(t, nil, nil)
	dir, err := os.Getwd()
	nodetest.OK(t, err)
	nodetest.Equal(t, "directory", strings.TrimSpace(run(t, h, "pwd -P")), dir)
}

func TestClosedHostDoesNothing(t *testing.T) {
	t.Parallel()
	h := newHost(t, nil, nil)
	c, err := h.Container()
	nodetest.OK(t, err)
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	nodetest.OK(t, h.Start(cmd))
	nodetest.OK(t, h.Close())
	if err := cmd.Wait(); err == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the command ended with %v", err)
	}
	_, stateErr := h.State(t.Context())
	_, containerErr := h.Container()
	for _, err := range []error{stateErr, containerErr, h.Start(exec.CommandContext(t.Context(), "true"))} {
		nodetest.Says(t, err, "the host is closed")
	}
	_, err = h.Attach(c, "eth0")
	nodetest.Says(t, err, "the host is closed")
}

// Not parallel: it counts what the program has.
func TestManyHostsLeaveNothing(t *testing.T) {
	if h, err := realhost.New(nil, nil); err != nil { // opens what the Go runtime keeps open
		t.Skip(err)
	} else {
		nodetest.OK(t, h.Close())
	}
	mine := func() map[string][]string {
		links, err := dump.Whole(netlink.LinkList)
		nodetest.OK(t, err)
		all := map[string][]string{"/run": slices.Sorted(names(t, "/run"))}
		for _, l := range links {
			all["links"] = append(all["links"], l.Attrs().Name)
		}
		for fd := range names(t, "/proc/self/fd") {
			target, _ := os.Readlink("/proc/self/fd/" + fd)
			if strings.HasPrefix(target, "/proc/") { // of this listing
				continue
			}
			all["files"] = append(all["files"], strings.TrimRight(target, "0123456789]"))
		}
		slices.Sort(all["files"])
		own, err := os.Readlink("/proc/self/ns/net")
		nodetest.OK(t, err)
		for tid := range names(t, "/proc/self/task") {
			if id, err := os.Readlink("/proc/self/task/" + tid + "/ns/net"); err == nil && id != own {
				all["threads elsewhere"] = append(all["threads elsewhere"], tid)
			}
		}
		return all
	}
	before := mine()
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			h, err := realhost.New(nil, []string{"eth1"})
			if err != nil {
				t.Error(err)
				return
			}
			for range 2 {
				c, err := h.Container()
				if err == nil {
					_, err = h.Attach(c, "eth0")
				}
				if err != nil {
					t.Error(err)
				}
			}
			if out, err := output(t.Context(), h, "sleep 1000 >/dev/null 2>&1 & > /run/left"); err != nil {
				t.Error(err, out)
			}
			if s, err := h.State(t.Context()); err != nil || !slices.Contains(s.Since(nil), "file /run/left") {
				t.Errorf("state: %v, %v", s, err)
			}
			if err := h.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	// Threads that made a container may still be about to end.
	nodetest.Until(t, "the end of all threads", func() bool { return cmp.Equal(mine(), before) })
}

func TestInUserNamespace(t *testing.T) {
	t.Parallel()
	if os.Getenv("REALHOST_TEST_NESTED") != "" {
		t.Skip("it is in one")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^(TestStateNames|TestContainers|TestGone|TestHere|TestMissing)", "-test.v")
	cmd.Env = append(os.Environ(), "REALHOST_TEST_NESTED=1")
	one := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: one, GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	err := cmd.Wait()
	if err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
	t.Log(out.String())
}
