package e2e

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/conform/host"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/internal/test/process"
	"github.com/metacni/metacni/scratch"
)

// TestDELSparesANamespaceWithAReusedNumber: the kernel gives a network namespace the device
// and inode number of a deleted one. If the new namespace is also at
// the same path, detaching the container of the old one takes nothing from the
// container of the new one.
func TestDELSparesANamespaceWithAReusedNumber(t *testing.T) {
	for name, detach := range map[string]func(n *node, old, now *pod) answer{
		"DEL":                     func(n *node, old, _ *pod) answer { return n.call("DEL", old) },
		"DEL without a namespace": func(n *node, old, _ *pod) answer { return n.call("DEL", old, withoutNetNS) },
		"GC":                      func(n *node, old, now *pod) answer { return n.call("GC", old, valid(now)) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			conf := n.multinet("1.1.0", n.bridge(1), n.Fake("b"))
			old := n.succeeded(conf)
			now := n.pod(conf)
			now.NetNS = old.NetNS
			n.ok("ADD", now)
			n.Forget()
			dry := n.operate(0, "gc", "--dry-run")
			if strings.Contains(dry.Stdout, now.ID) || !strings.Contains(dry.Stdout, old.ID) {
				t.Errorf("gc --dry-run, where only the namespace of %s is gone: %+v", old.ID, dry)
			}
			if a := detach(n, old, now); a.Err != nil {
				t.Errorf("%s: %s", name, a.Stdout)
			}
			nodetest.Equal(t, "the other's interfaces", n.interfaces(now), []string{"eth0"})
			nodetest.Equal(t, "leases", len(n.leases()), 1)
			nodetest.Equal(t, "attached by fakes", n.Live(), []string{"b@" + now.ID + "@net1"})
			for _, c := range n.Calls() {
				if c.Command == "DEL" && c.NetNS != "" {
					t.Errorf("the plugin was given %s", c.NetNS)
				}
			}
			n.ok("CHECK", now)
			n.answersFrom(now, n.Net(1)+".1")
			n.ok("DEL", now)
			n.nothingLeft()
		})
	}
}

// succeeded returns a container whose namespace has been deleted after its ADD. At the
// same path is a new namespace, and the record has the numbers of that one: the kernel
// gives them again when it likes, so that a test cannot wait for it.
func (n *node) succeeded(conf object) *pod {
	n.Helper()
	p := n.pod(conf)
	n.ok("ADD", p)
	n.vanish(p)
	_, err := host.NewNS(p.ID)
	nodetest.OK(n, err)
	var now unix.Stat_t
	nodetest.OK(n, unix.Stat(p.NetNS, &now))

	records := scratch.Store[map[string]any]{Dir: n.File("state")}
	lock, err := records.Lock(n.Context(), p.ID)
	nodetest.OK(n, err)
	defer lock.Unlock()
	r, err := records.Get(scratch.Key{Network: n.Numbered("multi"), ContainerID: p.ID, IfName: p.IfName})
	nodetest.OK(n, err)
	for _, d := range r.Value["delegates"].([]any) {
		recorded := d.(map[string]any)["netns"].(map[string]any)
		if recorded["unique"] == nil {
			n.Fatalf("recorded as %v: nothing tells the old namespace from the new one", recorded)
		}
		recorded["dev"], recorded["inode"] = now.Dev, now.Ino
	}
	nodetest.OK(n, records.Put(lock, r))
	return p
}

// startWithoutHandles starts a command to which the kernel gives no file handles, as before Linux
// 6.18: it looks for namespaces in all processes.
func startWithoutHandles(cmd *exec.Cmd) error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread, which has the filter, ends with the goroutine
		err := process.WithoutHandles(0)
		if err == nil {
			err = cmd.Start()
		}
		started <- err
	}()
	return <-started
}

// needsScan skips the test where no process can see all others.
func needsScan(tb testing.TB) {
	tb.Helper()
	for file, first := range map[string]string{"user": "user:[4026531837]", "pid": "pid:[4026531836]"} {
		if own, err := os.Readlink("/proc/self/ns/" + file); err != nil || own != first {
			tb.Skipf("needs root outside of user namespaces, and all processes: %s, %v", own, err)
		}
	}
}

// keep keeps the namespace of p alive, in the i'th of several ways, and removes its path.
func (n *node) keep(p *pod, i int) {
	n.Helper()
	keepers := []func() error{
		func() error { // a process
			cmd := exec.CommandContext(n.Context(), "sleep", "infinity")
			n.Cleanup(func() { _ = cmd.Wait() })
			return cmd.Start()
		},
		func() error { // a thread
			entered, end := make(chan error), make(chan struct{})
			n.Cleanup(func() { close(end) })
			go func() {
				runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
				fd, err := unix.Open(p.NetNS, unix.O_RDONLY|unix.O_CLOEXEC, 0)
				if err == nil {
					err = unix.Setns(fd, unix.CLONE_NEWNET)
					_ = unix.Close(fd)
				}
				entered <- err
				<-end
			}()
			return <-entered
		},
		func() error { // a descriptor
			f, err := os.Open(p.NetNS) // its link has the path of the mount, and "/" when that is gone
			n.Cleanup(func() { _ = f.Close() })
			return err
		},
		func() error { // a socket
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			n.Cleanup(func() { _ = unix.Close(fd) })
			return err
		},
		func() error { // a mount
			at := n.File("kept-" + p.ID)
			n.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
			err := os.WriteFile(at, nil, 0o600)
			if err == nil {
				err = unix.Mount("/proc/thread-self/ns/net", at, "", unix.MS_BIND, "")
			}
			return err
		},
	}
	nodetest.OK(n, host.Do(p.NetNS, keepers[i%len(keepers)]))
	nodetest.OK(n, host.RemoveNS(p.NetNS))
}

// Records of earlier releases have no number of the namespace: nobody but a scan of all processes
// can say that it is gone. Half of 20 are gone, and at the path of each is nothing. Sweeps remove
// these, and nothing of the others, which a process, a thread, a descriptor, a socket or a mount
// keeps.
func TestRecordsWithoutNumbersDoNotStayForEver(t *testing.T) { //nolint:paralleltest // a scan does not see everything while other tests end processes
	host.Need(t)
	needsScan(t)
	n := nodeOf(t)
	n.Begin = startWithoutHandles
	pods := n.newPods(20, func() object { return n.multinet("1.1.0", n.Fake("b")) })
	for some := range slices.Chunk(pods, 10) {
		n.allOK("ADD", some)
	}
	n.withoutNumbers(pods)
	var dead, living []*pod
	for i, p := range pods { // all were made before the first ends: no inode is used twice
		if i%2 == 0 {
			n.keep(p, i/2)
			living = append(living, p)
		} else {
			dead = append(dead, p)
		}
	}
	for _, p := range dead {
		n.vanish(p)
	}
	left := func() (ids []string) {
		for _, name := range n.Live() {
			ids = append(ids, strings.Split(name, "@")[1])
		}
		return ids
	}
	var passes []string // of two sweeps each
	n.Until("what is dead is gone", func() bool {
		passes = append(passes, n.operate(-1, "gc", "--bin-dir", n.Bin).Stderr)
		return !slices.ContainsFunc(dead, func(p *pod) bool { return slices.Contains(left(), p.ID) })
	})
	if len(passes) > 1 { // something could not be looked at, and is said
		t.Logf("%d runs: %q", len(passes), passes)
	}
	want := make([]string, 0, len(living))
	for _, p := range living {
		want = append(want, p.ID)
		if !n.recorded(p, "state") {
			t.Errorf("the record of %s is gone", p.ID)
		}
	}
	slices.Sort(want)
	got := left()
	slices.Sort(got)
	nodetest.Equal(t, "attached", got, want)
}

// withoutNumbers makes the records of pods those of a release that did not record the number of a
// namespace.
func (n *node) withoutNumbers(pods []*pod) {
	n.Helper()
	records := scratch.Store[map[string]any]{Dir: n.File("state")}
	for _, p := range pods {
		lock, err := records.Lock(n.Context(), p.ID)
		nodetest.OK(n, err)
		r, err := records.Get(scratch.Key{Network: n.Numbered("multi"), ContainerID: p.ID, IfName: p.IfName})
		nodetest.OK(n, err)
		for _, d := range r.Value["delegates"].([]any) {
			recorded := d.(map[string]any)["netns"].(map[string]any)
			if fmt.Sprint(recorded["inode"]) == "0" || recorded["number"] == nil {
				n.Fatalf("recorded as %v", recorded)
			}
			for key := range recorded {
				if !slices.Contains([]string{"path", "dev", "inode"}, key) {
					delete(recorded, key)
				}
			}
		}
		nodetest.OK(n, records.Put(lock, r))
		nodetest.OK(n, lock.Unlock())
	}
}

// A guest is the first process of a container. For the runtime the path of the container's network
// namespace is that of the process, in /proc, and a mount keeps the namespace.
type guest struct {
	*pod
	mount string
	leave io.Closer // makes the process unshare its network namespace
}

func (n *node) guest(p *pod) *guest {
	n.Helper()
	cmd := exec.CommandContext(n.Context(), "sh", "-c", "read x; exec "+n.program("unshare")+" --net sleep infinity")
	leave, err := cmd.StdinPipe()
	nodetest.OK(n, err)
	nodetest.OK(n, host.Do(p.NetNS, cmd.Start))
	n.Cleanup(func() { _ = cmd.Wait() })
	g := &guest{p, p.NetNS, leave}
	p.NetNS = fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid)
	return g
}

// in calls do in the container's network namespace.
func (n *node) in(g *guest, do func(eth0 netlink.Link) error) {
	n.Helper()
	nodetest.OK(n, host.Do(g.mount, func() error {
		l, err := netlink.LinkByName("eth0")
		if err == nil {
			err = do(l)
		}
		return err
	}))
}

// ways are what a container may do to be rid of what the host has for it.
func ways() map[string]func(n *node, g *guest) {
	unshare := func(n *node, g *guest) {
		was, err := os.Readlink(g.NetNS)
		nodetest.OK(n, err)
		nodetest.OK(n, g.leave.Close())
		n.Until("the process is in another namespace", func() bool {
			now, err := os.Readlink(g.NetNS)
			return err == nil && now != was
		})
	}
	return map[string]func(n *node, g *guest){
		"unshare": unshare,
		"unshare and delete": func(n *node, g *guest) {
			unshare(n, g)
			n.in(g, netlink.LinkDel) // the host has no end of it any more
		},
		"rename": func(n *node, g *guest) {
			n.in(g, func(l netlink.Link) error {
				nodetest.OK(n, netlink.LinkSetDown(l))
				return netlink.LinkSetName(l, "mine")
			})
		},
		"move": func(n *node, g *guest) {
			elsewhere, err := os.Open(n.pod(nil).NetNS)
			nodetest.OK(n, err)
			defer elsewhere.Close()
			n.in(g, func(l netlink.Link) error { return netlink.LinkSetNsFd(l, int(elsewhere.Fd())) })
		},
		"delete": func(n *node, g *guest) { n.in(g, netlink.LinkDel) },
	}
}

// A container cannot rid itself of a step of its network: the rules of policy, and the networks
// between which default-route has chosen, with their addresses. It unshares the namespace of the
// process by which the runtime knows it, and renames, moves or deletes its interface. Then there
// are sweeps, a CHECK, ADDs of another network, of another container and of the same network
// again. Until its DEL all is there, and nothing after it.
func TestContainerCannotRidItselfOfAStep(t *testing.T) {
	for step, attach := range map[string]func(n *node, i int) *pod{
		"policy": func(n *node, i int) *pod {
			p := n.policy()
			p.Conf["name"], p.Conf["delegate"] = n.Numbered(fmt.Sprintf("policy%d-", i)), n.bridge(i)
			return p
		},
		"default-route": func(n *node, i int) *pod {
			n.network("exit", n.with(n.Bridge(2), object{"cniVersion": "1.0.0"}))
			p := n.pod(n.multinet("1.1.0", n.bridge(i)))
			p.Conf["name"] = n.Numbered(fmt.Sprintf("multi%d-", i))
			return p.selects(fmt.Sprintf(`[{"name": "exit", "interface": "exit%d", "default-route": ["%s.1"]}]`, i, n.Net(2)))
		},
	} {
		for way, do := range ways() {
			for _, scan := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/scan %t", step, way, scan), func(t *testing.T) {
					n := newNode(t)
					if scan {
						needsScan(t)
						n.Begin = startWithoutHandles
					}
					g, other := n.guest(attach(n, 1)), attach(n, 1)
					more := *attach(n, 3)
					more.ID, more.NetNS, more.IfName = g.ID, g.NetNS, "eth1"
					n.ok("ADD", g.pod)
					before := n.kept(g, step, way)
					do(n, g)

					n.operate(-1, "gc", "--bin-dir", n.Bin)
					n.call("CHECK", g.pod)
					n.call("ADD", &more)
					n.ok("ADD", other)
					n.operate(-1, "gc", "--bin-dir", n.Bin)
					nodetest.Equal(t, "kept", n.kept(g, step, way), before)
					if !strings.HasSuffix(way, "delete") { // then nothing is left that could be used
						n.fails(7, "ADD", g.pod, nil)
					}
					n.operate(-1, "gc", "--bin-dir", n.Bin)
					nodetest.Equal(t, "kept in the end", n.kept(g, step, way), before)

					for _, p := range []*pod{other, &more, g.pod} {
						n.ok("DEL", p)
					}
					nodetest.OK(t, host.RemoveNS(g.mount))
					nodetest.Equal(t, "tables", n.tables(), nil)
					nodetest.Equal(t, "leases", n.leases(), nil)
					nodetest.Equal(t, "state", n.state(), nil)
				})
			}
		}
	}
}

// kept returns what the host has for the container of g, and the default routes that are there.
func (n *node) kept(g *guest, step, way string) (all []string) {
	n.Helper()
	for _, lease := range n.leases() {
		if words := strings.Fields(lease); slices.Contains(words, g.ID) && !slices.Contains(words, "eth1") && !slices.Contains(words, "exit3") {
			all = append(all, lease)
		}
	}
	if n.recorded(g.pod, "state") {
		all = append(all, "record")
	}
	if step == "policy" {
		all = append(all, n.nft("list", "table", "inet", g.table()))
	} else if way == "unshare" { // the others take the route with the interface
		inside := *g.pod
		inside.NetNS = g.mount
		all = append(all, n.defaultRoutes(&inside)...)
	}
	return all
}
