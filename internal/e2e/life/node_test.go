package life

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/thick/wire"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/internal/test/process"
)

type object = map[string]any

// A node is the host of a history, in this process. Its directory is /run/node, and the state
// directory a disk of its own. A network has the address range and the bridge of its name.
type node struct {
	bin        string
	containers map[string]*container
	order      []string     // of the containers' IDs
	keepers    map[int]bool // processes that keep something alive
	scans      bool         // multinet cannot ask the kernel
	reuses     bool         // an address that is free is given at once
	second     string       // name of the network of eth1, which is not installed
	thick      bool         // eth1 is that of a daemon
	multinetd  *exec.Cmd    // nil if it does not run
	counts     map[string]int
	model
}

// ranges has the beginning of each network's addresses.
var ranges = map[string]string{"a": "10.1.0.", "b": "10.2.0.", "c": "10.3.0."}

func newNode(bin string) (*node, error) {
	n := &node{bin: bin, containers: make(map[string]*container), keepers: make(map[int]bool), second: "mnb", counts: make(map[string]int)}
	n.model = model{owes: make(map[string]bool), last: make(map[string]string)}
	// The children of what is killed become those of this process.
	err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	for _, dir := range []string{"cni", "net.d", "cache", "multus", "state", "fake/live", "out"} {
		err = errors.Join(err, os.MkdirAll(n.file(dir), 0o700))
	}
	if err := errors.Join(err, unix.Mount("tmpfs", n.file("state"), "tmpfs", 0, disk)); err != nil {
		return nil, err
	}
	c := bridge("c")
	c["name"], c["cniVersion"] = "c", "1.1.0"
	err = errors.Join(n.works(true), n.write(n.network("a"), "cni", "10-a.conflist"), n.write(c, "net.d", "c.conf"),
		n.write(object{"confDir": n.file("net.d"), "binDir": bin, "defaultNetworks": []string{"c"}}, "more.json"),
		n.write(n.secondNetwork(), "cni", "50-mnb.conflist"))
	// Two plugins that miss the common chains at once both make them, and one of them fails.
	for _, rule := range []string{"-N CNI-FORWARD", "-N CNI-ADMIN", "-I FORWARD -j CNI-FORWARD", "-I CNI-FORWARD -j CNI-ADMIN"} {
		_, e := iptables(strings.Fields(rule)...)
		err = errors.Join(err, e)
	}
	return n, err
}

// disk has the options of the state directory's mount.
const disk = "size=1m,mode=0700"

func (n *node) close() {
	n.stopDaemon()
	for _, c := range n.containers {
		n.die(c)
	}
}

// file returns a path of the node.
func (n *node) file(elem ...string) string {
	return filepath.Join(append([]string{"/run/node"}, elem...)...)
}

func (n *node) write(v any, elem ...string) error {
	text, err := json.Marshal(v)
	return errors.Join(err, os.WriteFile(n.file(elem...), text, 0o600))
}

// bridge returns a configuration of bridge. It has few addresses, so that they are soon used
// again.
func bridge(network string) object {
	return object{
		"type": "bridge", "bridge": "br-" + network, "isGateway": true,
		"ipam": object{"type": "host-local", "ranges": [][]object{{{
			"subnet": ranges[network] + "0/24", "rangeStart": ranges[network] + "2", "rangeEnd": ranges[network] + "10",
		}}}},
	}
}

// network returns a chain: bridge, firewall, and a plugin that can fail.
func (n *node) network(name string) object {
	return object{"cniVersion": "1.1.0", "name": name, "plugins": []object{
		bridge(name),
		{"type": "firewall", "backend": "iptables"},
		{"type": "fake", "id": "fake", "dir": n.file("fake"), "on": object{"ADD": "fail", "DEL": "fail"}, "code": 111},
	}}
}

// secondNetwork returns the network of eth1: multinet, itself or behind a daemon, with network b.
func (n *node) secondNetwork() object {
	plugin := object{
		"type": "multinet", "cniDir": n.file("state"), "confDir": n.file("net.d"), "binDir": n.bin, "cniCacheDir": n.file("cache"), "runtimeConfDir": n.file("cni"),
		"delegates": []object{n.network("b")},
	}
	if n.thick {
		maps.Copy(plugin, object{"type": "multinet-shim", "daemonSocketDir": n.file("d"), "delQueueDir": n.file("queue"), "delQueueWait": "0s"})
	}
	return object{"cniVersion": "1.1.0", "name": n.second, "plugins": []object{plugin}}
}

// works cures or breaks the plugin that can fail.
func (n *node) works(yes bool) error {
	if yes {
		return os.WriteFile(n.file("fake", "cured"), nil, 0o600)
	}
	return os.RemoveAll(n.file("fake", "cured"))
}

// spoil makes the disk full or read-only. mend ends both.
func (n *node) spoil(how string) error {
	if how == "full" {
		err := os.WriteFile(n.file("state", "filler"), make([]byte, 2<<20), 0o600)
		if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EROFS) {
			return fmt.Errorf("the disk is not full: %w", err)
		}
		return nil
	}
	return unix.Mount("", n.file("state"), "", unix.MS_REMOUNT|unix.MS_RDONLY, disk)
}

func (n *node) mend() error {
	return errors.Join(unix.Mount("", n.file("state"), "", unix.MS_REMOUNT, disk), os.RemoveAll(n.file("state", "filler")))
}

// An answer is what a program printed, and whether it succeeded.
type answer struct {
	out []byte
	err error
}

// A kill is when a program is killed: after a time, or at a step; see Step in internal/durable.
type kill struct {
	after time.Duration
	env   []string
}

// parseKill parses the words behind the word kill.
func parseKill(n *node, words []string) (k kill, err error) {
	if len(words) == 1 {
		k.after, err = time.ParseDuration(words[0])
		return k, err
	}
	if last := len(words) - 1; last > 0 && words[last] == "orphan" {
		words, k.env = words[:last], append(k.env, "METACNI_STEPS_ORPHAN=1")
	}
	if len(words) > 1 {
		k.env = append(k.env, "METACNI_STEPS="+n.file("steps"), "METACNI_STEPS_NTH="+words[0], "METACNI_STEPS_KILL="+strings.Join(words[1:], " "))
	}
	return k, nil
}

// run runs a program with an environment and an input.
func (n *node) run(k kill, change func(*exec.Cmd), env []string, in []byte, program string, args ...string) (a answer) {
	out, err := os.CreateTemp(n.file("out"), "")
	if err != nil {
		return answer{err: err}
	}
	defer func() { a.err = errors.Join(a.err, out.Close(), os.Remove(out.Name())) }()
	cmd := exec.Command(program, args...)
	// No pipes: an orphan would keep them open.
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = slices.Concat(env, k.env, []string{"PATH=" + path}), nil, out, out
	if in != nil {
		f := n.file("out", strconv.Itoa(int(n.inputs.Add(1))))
		if err := os.WriteFile(f, in, 0o600); err != nil {
			return answer{err: err}
		}
		defer func() { _ = os.Remove(f) }()
		stdin, err := os.Open(f)
		if err != nil {
			return answer{err: err}
		}
		defer func() { _ = stdin.Close() }()
		cmd.Stdin = stdin
	}
	if change != nil {
		change(cmd)
	}
	if err := cmd.Start(); err != nil {
		return answer{err: err}
	}
	if k.after > 0 {
		defer time.AfterFunc(k.after, func() { _ = cmd.Process.Kill() }).Stop()
	}
	err = cmd.Wait()
	text, e := os.ReadFile(out.Name())
	return answer{text, errors.Join(err, e)}
}

// iptables runs iptables on the host.
func iptables(args ...string) (string, error) {
	out, err := exec.Command("/usr/bin/env", append([]string{"PATH=" + path, "iptables", "-w"}, args...)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("iptables %v: %w: %s", args, err, out)
	}
	return string(out), err
}

// tool runs one of multinet's operator commands.
func (n *node) tool(words ...string) answer {
	return n.run(kill{}, nil, nil, nil, filepath.Join(n.bin, "multinet"), words...)
}

// sweepFrom runs multinet gc in a place from which less can be seen or done.
func (n *node) sweepFrom(place string) answer {
	words := []string{"gc", "--dir", n.file("state"), "--bin-dir", n.bin, "--conf-dir", n.file("net.d")}
	if place == "here" {
		return n.tool(words...)
	}
	root := []syscall.SysProcIDMap{{Size: 1}}
	attr := map[string]*syscall.SysProcAttr{
		"mount":    {Cloneflags: syscall.CLONE_NEWNS},
		"pid":      {Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID},
		"user":     {Cloneflags: syscall.CLONE_NEWUSER, UidMappings: root, GidMappings: root},
		"nobody":   {Credential: &syscall.Credential{Uid: 65534, Gid: 65534}},
		"uncapped": {},
	}[place]
	return n.run(kill{}, func(cmd *exec.Cmd) { cmd.SysProcAttr = attr }, []string{roleEnv + "=elsewhere " + place}, nil,
		"/proc/self/exe", append([]string{filepath.Join(n.bin, "multinet")}, words...)...)
}

// goElsewhere goes to a place and executes the arguments of this process.
func goElsewhere(args []string) error {
	err := map[string]func() error{
		"mount": func() error { // /run/netns is empty
			return errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("tmpfs", "/run/netns", "tmpfs", 0, ""))
		},
		"pid": func() error {
			return errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("proc", "/proc", "proc", 0, ""))
		},
		"user":     func() error { return nil },
		"nobody":   func() error { return nil },
		"uncapped": func() error { return unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_ADMIN, 0, 0, 0) },
	}[args[0]]()
	if err != nil {
		return err
	}
	return unix.Exec(os.Args[1], os.Args[1:], []string{"PATH=" + path})
}

// settle waits until nothing runs that a command has left behind.
func (n *node) settle() error {
	for end := time.Now().Add(10 * time.Minute); ; {
		var run []string
		all, _ := filepath.Glob("/proc/[0-9]*")
		for _, dir := range all {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			stat := nodetest.Stat(pid)
			if stat == nil || stat[1] != strconv.Itoa(os.Getpid()) || n.keepers[pid] {
				continue // it has ended, or is another's
			}
			if ended, err := syscall.Wait4(pid, nil, syscall.WNOHANG, nil); ended != pid && err == nil {
				run = append(run, fmt.Sprint(pid, stat))
			}
		}
		if len(run) == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("does not end: %q", run)
		}
		<-time.After(2 * time.Millisecond)
	}
}

// An executor runs plugins for libcni, and kills them.
type executor struct {
	*invoke.DefaultExec
	*node
	kill
}

func (e executor) ExecPlugin(_ context.Context, plugin string, stdin []byte, env []string) ([]byte, error) {
	env = slices.DeleteFunc(env, func(v string) bool { return !strings.HasPrefix(v, "CNI_") })
	a := e.run(e.kill, nil, env, stdin, plugin)
	if a.err != nil {
		return nil, fmt.Errorf("%w: %s", a.err, a.out)
	}
	return a.out, nil
}

// runtime returns libcni as runtimes use it.
func (n *node) runtime(k kill) *libcni.CNIConfig {
	exec := executor{&invoke.DefaultExec{RawExec: &invoke.RawExec{}}, n, k}
	return libcni.NewCNIConfigWithCacheDir([]string{n.bin}, n.file("cache"), exec)
}

// first returns the network of eth0: the first in the runtime's directory.
func (n *node) first() (*libcni.NetworkConfigList, error) {
	files, err := libcni.ConfFiles(n.file("cni"), []string{".conflist"})
	if err != nil {
		return nil, err
	}
	slices.Sort(files)
	return libcni.NetworkConfFromFile(files[0])
}

// network returns the network of an interface, and the names of the networks behind it.
func (n *node) networkOf(ifname string) (list *libcni.NetworkConfigList, behind []string, err error) {
	if ifname == "eth0" {
		list, err = n.first()
		if err == nil && list.Name == "a" {
			return list, []string{"a"}, nil
		}
		return list, []string{"a", "c"}, err
	}
	text, err := json.Marshal(n.secondNetwork())
	if err == nil {
		list, err = libcni.NetworkConfFromBytes(text)
	}
	return list, []string{"b"}, err
}

// installed reports whether multinet has eth0.
func (n *node) installed() bool {
	list, err := n.first()
	return err == nil && list.Name != "a"
}

// gc runs GC of an interface's network with this list.
func (n *node) gc(ifname string, containers []string) answer {
	list, _, err := n.networkOf(ifname)
	if err != nil {
		return answer{err: err}
	}
	conf := object{}
	if err := json.Unmarshal(list.Plugins[0].Bytes, &conf); err != nil {
		return answer{err: err}
	}
	valid := []object{}
	for _, id := range containers {
		for _, name := range []string{ifname} {
			valid = append(valid, object{"containerID": id, "ifname": name})
		}
	}
	maps.Copy(conf, object{"name": list.Name, "cniVersion": "1.1.0", "cni.dev/valid-attachments": valid, "cni.dev/attachments": valid})
	stdin, err := json.Marshal(conf)
	if err != nil {
		return answer{err: err}
	}
	return n.run(kill{}, nil, []string{"CNI_COMMAND=GC", "CNI_PATH=" + n.bin}, stdin, filepath.Join(n.bin, list.Plugins[0].Network.Type))
}

// both runs two functions at the same time.
func both(f, g func()) {
	var all sync.WaitGroup
	all.Go(f)
	all.Go(g)
	all.Wait()
}

// daemon kills multinetd, if it runs, and starts it. From now on the runtime has a shim at eth1.
func (n *node) daemon([]string) error {
	n.stopDaemon()
	n.thick = true
	err := errors.Join(n.write(n.secondNetwork(), "cni", "50-mnb.conflist"), n.write(object{
		"socketDir": n.file("d"), "queueDir": n.file("queue"), "cniDir": n.file("state"), "sweepInterval": "0s",
	}, "daemon.json"))
	if err != nil {
		return err
	}
	cmd := exec.Command(filepath.Join(n.bin, "multinetd"), "--config", n.file("daemon.json"))
	cmd.Env, cmd.Stdout, cmd.Stderr = []string{"PATH=" + path}, os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	n.multinetd, n.keepers[cmd.Process.Pid] = cmd, true
	return n.untilReady()
}

func (n *node) stopDaemon() {
	if n.multinetd != nil {
		_ = n.multinetd.Process.Kill()
		_ = n.multinetd.Wait()
		delete(n.keepers, n.multinetd.Process.Pid)
		n.multinetd = nil
	}
}

// untilReady waits until the daemon takes an ADD.
func (n *node) untilReady() error {
	for end := time.Now().Add(10 * time.Minute); ; <-time.After(2 * time.Millisecond) {
		r, err := process.Ask(context.Background(), n.file("d", multinet.SocketName), http.MethodGet, wire.PathReady, nil)
		if r.Status == http.StatusOK {
			return nil
		}
		err = cmp.Or(err, errors.New(string(r.Body)))
		if time.Now().After(end) {
			return fmt.Errorf("multinetd does not begin: %w", err)
		}
	}
}
