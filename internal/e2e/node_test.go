package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/utils"
	"github.com/vishvananda/netlink"

	"github.com/metacni/metacni/delegate/conform/host"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/internal/test/process"
)

type (
	object = process.Object
	answer = process.Answer
)

// A node is a node on which a runtime calls multinet or another example.
type node struct {
	*process.Node
	from     string // the release of multinet, its shim and its daemon: "" for ours, or previous
	vanished bool   // whether the kernel is still deleting a namespace
	daemons  int
}

// newNode returns a new node. Without a private host it skips t, or fails it if METACNI_E2E requires
// one. Tests run in parallel.
func newNode(t *testing.T) *node {
	t.Helper()
	host.Need(t)
	t.Parallel()
	return nodeOf(t)
}

// nodeOf returns a new node for a test that runs alone, or has a node already.
func nodeOf(t *testing.T) *node {
	t.Helper()
	return &node{Node: process.NewNode(t, "/run")}
}

// A pod is one attachment as the runtime knows it.
type pod struct{ process.Pod }

// pod returns a new container with a network namespace. Its network configuration is conf; nothing
// is attached yet.
func (n *node) pod(conf object) *pod {
	n.Helper()
	return &pod{*n.Pod(conf)}
}

// newPods returns n pods, each with a configuration of its own.
func (n *node) newPods(count int, conf func() object) []*pod {
	n.Helper()
	pods := make([]*pod, count)
	for i := range pods {
		pods[i] = n.pod(conf())
	}
	return pods
}

// selects sets the annotation with which p selects networks.
func (p *pod) selects(networks string) *pod {
	p.Annotations = map[string]string{"k8s.v1.cni.cncf.io/networks": networks, "other": "annotation"}
	return p
}

// vanish removes the namespace of p, as a reboot or a crashed runtime does.
func (n *node) vanish(p *pod) {
	n.Helper()
	nodetest.OK(n, host.RemoveNS(p.NetNS))
	n.vanished = true
}

// multinet returns a configuration of multinet that delegates to delegates.
func (n *node) multinet(version string, delegates ...object) object {
	return object{
		"cniVersion": version, "name": n.Numbered("multi"), "type": "multinet",
		"capabilities": object{"io.kubernetes.cri.pod-annotations": true},
		"delegates":    delegates,
		"cniDir":       n.File("state"), "confDir": n.File("net.d"), "binDir": n.Bin,
	}
}

// bridge returns a configuration of the node's i'th bridge, with a default route.
func (n *node) bridge(i int) object {
	conf := n.Bridge(i)
	conf["ipam"].(object)["routes"] = []object{{"dst": "0.0.0.0/0"}}
	return conf
}

// with adds the keys of more to conf.
func (n *node) with(conf, more object) object {
	maps.Copy(conf, more)
	return conf
}

// parallel makes multinet attach and detach these fakes at the same time.
func (n *node) parallel(conf object, fakes ...object) {
	conf["parallel"] = true
	for _, f := range fakes {
		f["parallel"] = true
	}
}

// network writes a network configuration that pods can select by name.
func (n *node) network(name string, conf object) {
	n.Helper()
	conf["name"] = name
	ext := ".conf"
	if conf["plugins"] != nil {
		ext = ".conflist"
	}
	n.Write(conf, "net.d", name+ext)
}

// needs skips the test if the kernel cannot create links of l's kind.
func (n *node) needs(l netlink.Link) {
	n.Helper()
	l.Attrs().Name = n.Numbered("probe")
	if err := host.Offers(l); err != nil {
		n.Skip(err)
	}
}

// program returns the path of a program that the plugins run, or skips the test.
func (n *node) program(name string) string {
	n.Helper()
	for _, dir := range filepath.SplitList(process.Path) {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path
		}
	}
	n.Skipf("needs %s, which a plugin runs", name)
	return ""
}

// copyProgram copies a program into a directory of the node and returns its path.
func (n *node) copyProgram(name, dir string) string {
	n.Helper()
	n.Mkdir(dir)
	text, err := os.ReadFile(built(name))
	nodetest.OK(n, err)
	// A child that another test forks now would inherit the open file, and executing it
	// would fail with ETXTBSY.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	nodetest.OK(n, os.WriteFile(n.File(dir, name), text, 0o755))
	return n.File(dir, name)
}

// leases lists the addresses that host-local has reserved for containers of
// this node.
func (n *node) leases() (list []string) {
	n.Helper()
	for _, name := range n.List("/var/lib/cni/networks") {
		owner, err := os.ReadFile(filepath.Join("/var/lib/cni/networks", name))
		if err == nil && strings.HasPrefix(string(owner), fmt.Sprintf("n%dc", n.ID)) {
			list = append(list, filepath.Base(name)+" "+strings.Join(strings.Fields(string(owner)), " "))
		}
	}
	return list
}

// interfaces returns the names of p's interfaces but lo.
func (n *node) interfaces(p *pod) []string {
	n.Helper()
	return process.Interfaces(n, p.NetNS)
}

// deleteLink deletes an interface of p without telling any plugin.
func (n *node) deleteLink(p *pod, name string) {
	n.Helper()
	nodetest.OK(n, host.Do(p.NetNS, func() error {
		l, err := netlinksafe.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	}))
}

// nothingLeft fails the test if anything is left of any container: markers of
// fakes, reserved addresses, interfaces on the host, or state.
func (n *node) nothingLeft() {
	n.Helper()
	if n.vanished {
		// The kernel deletes the interfaces of a namespace later.
		n.Until("the kernel has deleted what was in a namespace", func() bool { return len(n.Ports()) == 0 })
	}
	nodetest.Equal(n, "attached by fakes", n.Live(), nil)
	n.neverBeside()
	nodetest.Equal(n, "leased addresses", n.leases(), nil)
	nodetest.Equal(n, "interfaces on the host", n.Ports(), nil)
	nodetest.Equal(n, "state of multinet", n.state(), nil)
	nodetest.Equal(n, "state of flannel", n.List(n.File("flannel")), nil)
}

// bystander starts an idle process that leads a process group and has files
// open.
func (n *node) bystander(files ...*os.File) (pid int) {
	n.Helper()
	cmd := exec.Command(built("fake"))
	cmd.ExtraFiles = files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe() // it reads until this is closed
	nodetest.OK(n, err)
	nodetest.OK(n, cmd.Start())
	n.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// endChildren kills the children that the fakes left behind.
func (n *node) endChildren() {
	n.Helper()
	for _, c := range n.Calls() {
		if c.Command == "NONE" && c.Runs() {
			_ = syscall.Kill(c.PID, syscall.SIGKILL)
		}
	}
	n.OrphansEnd()
}

// extra changes a request before it is sent.
type extra func(env map[string]string, conf object)

// withoutNetNS changes a DEL to the one that containerd sends when it removes a
// sandbox.
func withoutNetNS(env map[string]string, conf object) {
	env["CNI_NETNS"] = ""
	delete(conf, "prevResult")
}

// valid sets the runtime's list of valid attachments, for a GC.
func valid(pods ...*pod) extra {
	list := []object{}
	for _, p := range pods {
		list = append(list, object{"containerID": p.ID, "ifname": p.IfName})
	}
	return func(_ map[string]string, conf object) {
		conf["cni.dev/valid-attachments"], conf["cni.dev/attachments"] = list, list
	}
}

// start starts the plugin that p's configuration names, as containerd does.
func (n *node) start(command string, p *pod, extras ...extra) *process.Command {
	n.Helper()
	conf := maps.Clone(p.Conf)
	if p.Annotations != nil {
		conf["runtimeConfig"] = object{"io.kubernetes.cri.pod-annotations": p.Annotations}
	}
	if p.Result != nil && (command == "DEL" || command == "CHECK") && conf["cniVersion"] != "0.3.1" {
		conf["prevResult"] = p.Result
	}
	env := n.Env(command, &p.Pod)
	for _, x := range extras {
		x(env, conf)
	}
	stdin, err := json.Marshal(conf)
	nodetest.OK(n, err)
	return n.Exec(n.ours(fmt.Sprint(p.Conf["type"]), env), env, stdin)
}

// ours returns the path of a program, of the release n.from, which logs its steps if env says so.
func (n *node) ours(name string, env map[string]string) string {
	name = filepath.Join(n.from, name)
	if env["METACNI_STEPS"] != "" {
		name = filepath.Join(stepping, name)
	}
	return built(name)
}

// call runs a plugin and waits until it exits.
func (n *node) call(command string, p *pod, extras ...extra) answer {
	n.Helper()
	return n.Wait(n.start(command, p, extras...))
}

// ok runs a plugin that must succeed. It keeps the result of an ADD in p.
func (n *node) ok(command string, p *pod, extras ...extra) answer {
	n.Helper()
	return n.succeeds(command, p, n.start(command, p, extras...))
}

// succeeds waits for a command, which must succeed. It keeps the result of an ADD in p.
func (n *node) succeeds(command string, p *pod, c *process.Command) answer {
	n.Helper()
	a := n.Wait(c)
	if a.Code != 0 {
		n.Fatalf("%s %s: %s (stderr %q)", command, p.ID, a.Stdout, a.Stderr)
	}
	if command == "ADD" {
		p.Result = a.Stdout
	} else if command != "VERSION" && len(bytes.TrimSpace(a.Stdout)) > 0 {
		n.Errorf("%s %s: printed %q", command, p.ID, a.Stdout)
	}
	return a
}

// fails runs a plugin that must fail with code and an error text that contains
// each of words.
func (n *node) fails(code uint, command string, p *pod, words []string, extras ...extra) answer {
	n.Helper()
	a := n.call(command, p, extras...)
	n.failed(a, code, words...)
	return a
}

func (n *node) failed(a answer, code uint, words ...string) {
	n.Helper()
	if a.Err == nil {
		n.Fatalf("exit status %d, want an error: %q (stderr %q)", a.Code, a.Stdout, a.Stderr)
	}
	if a.Err.Code != code {
		n.Errorf("code %d, want %d: %s", a.Err.Code, code, a.Stdout)
	}
	for _, word := range words {
		if !strings.Contains(a.Err.Msg+" "+a.Err.Details, word) {
			n.Errorf("the error does not say %q: %s", word, a.Stdout)
		}
	}
}

// all starts a command for every pod at the same time.
func (n *node) all(command string, pods []*pod, extras ...extra) []*process.Command {
	n.Helper()
	rs := make([]*process.Command, len(pods))
	for i, p := range pods {
		rs[i] = n.start(command, p, extras...)
	}
	return rs
}

// allOK runs a command, which must succeed, for every pod at the same time.
func (n *node) allOK(command string, pods []*pod, extras ...extra) {
	n.Helper()
	for i, c := range n.all(command, pods, extras...) {
		n.succeeds(command, pods[i], c)
	}
}

// decode returns the result of p's ADD, which must have the version.
func decode(t testing.TB, p *pod, version string) *types100.Result {
	t.Helper()
	r, err := create.Create(version, p.Result)
	if err != nil {
		t.Fatalf("result %s: %v", p.Result, err)
	}
	nodetest.Equal(t, "version of the result", r.Version(), version)
	r100, err := types100.NewResultFromResult(r)
	nodetest.OK(t, err)
	return r100
}

// killed runs a command and kills its plugin, but not the plugins that it runs,
// once one of them hangs or waits for its gate.
func (n *node) killed(command string, p *pod) {
	n.Helper()
	c := n.start(command, p)
	n.Ready()
	c.Kill()
}

// waitsForLock waits until a plugin that cannot get the lock of its container
// has opened the state directory.
func (n *node) waitsForLock(c *process.Command) {
	n.Helper()
	n.Until("DEL waits for the lock", func() bool {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", c.Cmd.Process.Pid))
		return slices.ContainsFunc(fds, func(fd string) bool {
			file, _ := os.Readlink(fd)
			return strings.HasPrefix(file, n.File("state"))
		})
	})
}

// A report is the output of one of multinet's operator commands.
type report struct{ Stdout, Stderr string }

// operate runs one of multinet's operator commands on the node's state directory, without
// a terminal. It must exit with the status code, or with any of 0 and 1 if code is -1.
func (n *node) operate(code int, words ...string) report {
	n.Helper()
	return n.operator(code, append(words, "--dir", n.File("state"))...)
}

// collect runs gc until done is true: the kernel may have a namespace for a while after the last
// who could use it.
func (n *node) collect(done func() bool, flags ...string) {
	n.Helper()
	for end := time.Now().Add(time.Minute); ; {
		n.operator(0, append([]string{"gc"}, flags...)...)
		if done() || time.Now().After(end) {
			return
		}
	}
}

func (n *node) operator(code int, words ...string) report {
	n.Helper()
	return n.reports(code, "multinet", words...)
}

// reports runs a program for an operator.
func (n *node) reports(code int, program string, words ...string) report {
	n.Helper()
	env := map[string]string{"PATH": process.Path}
	a := n.Exec(n.ours(program, env), env, nil, words...).Wait()
	if a.Code != code && (code >= 0 || a.Code > 1) || strings.Contains(a.Stderr, "panic: ") {
		n.Fatalf("%s %s: exit status %d, want %d: %s%s", program, strings.Join(words, " "), a.Code, code, a.Stdout, a.Stderr)
	}
	return report{string(a.Stdout), a.Stderr}
}

// isRecord reports whether name, below a state directory, is p's record:
// CONTAINER@NETWORK@IFNAME.json.
func (p *pod) isRecord(name string) bool {
	return strings.HasPrefix(name, p.ID+"@") && strings.HasSuffix(name, "@"+p.IfName+".json")
}

// state lists the files in the state directory, without the one with which a daemon that starts
// tries whether it can write.
func (n *node) state() []string {
	return slices.DeleteFunc(n.List(n.File("state")), func(name string) bool { return name == ".tmp-try" })
}

func (n *node) recordFile(p *pod, state string) string {
	n.Helper()
	names := n.List(n.File(state))
	return n.File(state, names[slices.IndexFunc(names, p.isRecord)])
}

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

func (n *node) chainName(i int) string { return n.Numbered(fmt.Sprintf("chain%d-", i)) }

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
	p.Conf["capabilities"].(object)["portMappings"] = true
	p.Conf["runtimeConfig"] = object{"portMappings": []object{{"hostPort": 8080 + n.ID, "containerPort": 80, "protocol": "tcp"}}}
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

// rules returns, sorted, the iptables rules and chains of this node's
// containers: those that contain a container's ID or one of the node's
// addresses, and the containers' own chains.
func (n *node) rules() []string {
	n.Helper()
	var about []string
	for i := range maxRanges {
		about = append(about, n.Net(i)+".")
	}
	for i := range n.Pods() {
		about = append(about, n.marks(fmt.Sprintf("n%dc%d", n.ID, i+1))...)
	}
	return n.Rules(about...)
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
	about := n.marks(p.ID)
	for _, lease := range n.leases() {
		if words := strings.Fields(lease); words[1] == p.ID {
			b.Leases = append(b.Leases, lease)
			about = append(about, words[0])
		}
	}
	b.Rules = n.Rules(about...)
	return b
}

// single returns the node's i'th bridge with a range of one address.
func (n *node) single(i int) object {
	conf := n.with(n.bridge(i), object{"ipMasq": true})
	maps.Copy(conf["ipam"].(object), object{"rangeStart": n.Net(i) + ".5", "rangeEnd": n.Net(i) + ".5"})
	return conf
}
