package history

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/scratch"
)

// A machine is the directory that the processes of a node share:
//
//	state/   the records of the SDK
//	there/   what the plugins have attached: files PLUGIN@CONTAINER@INTERFACE
//	ns/      a link to the network namespace of each container
//	queue/   DELs for the daemon
//	alone    of which each plugin locks a byte, that of its container
//	calm     while it is there nothing fails and nobody is killed
//	killer   a fifo on which processes ask the test to kill them
//	life     a fifo that ends with the round
//	log      see [logbook]
type machine string

func (m machine) path(names ...string) string {
	return filepath.Join(append([]string{string(m)}, names...)...)
}

func (m machine) there(name string) bool {
	_, err := os.Lstat(m.path(name))
	return err == nil
}

// names are the interfaces in the network namespace at a path.
func (m machine) names(netns string) ([]string, error) {
	names := []string{"lo"}
	all, err := os.ReadDir(m.path("there"))
	for _, f := range all {
		if _, where, _ := strings.Cut(f.Name(), "@"); strings.HasPrefix(where, filepath.Base(netns)+"@") {
			names = append(names, where[strings.Index(where, "@")+1:])
		}
	}
	return names, err
}

// odds say how many calls there are for each that fails, that is executed as a process, that
// ends with the death of the process, that takes longer than others wait for a lock, and that
// yields to others for long.
type odds struct{ fail, execute, die, linger, dawdle int }

var usual = odds{fail: 12, execute: 300, die: 400, linger: 2000, dawdle: 8}

// often is o with rare things n times as often.
func (o odds) often(n int) odds {
	o.execute, o.die = o.execute/n, o.die/n
	return o
}

// plugins is an invoke.Exec. Most plugins work in the process that calls them, some in one of
// their own. What they do is in files, so all processes see it. Each plugin looks whether it may
// run: it has its container for itself, the lock is held, and the record allows the call.
type plugins struct {
	version.PluginDecoder
	machine
	odds

	log    *logbook
	parent int // the process that can ask to be killed
	alone  *os.File

	mu   sync.Mutex
	busy map[int64]bool // bytes of alone that this process has locked
}

func newPlugins(m machine, process string) (*plugins, error) {
	log, err := openLog(string(m), process)
	if err != nil {
		return nil, err
	}
	alone, err := os.OpenFile(m.path("alone"), os.O_RDWR|os.O_CREATE, 0o600)
	return &plugins{machine: m, odds: usual, log: log, parent: os.Getpid(), alone: alone, busy: make(map[int64]bool)}, err
}

// hits reports true once in n times, on average, and never while the node is calm.
func (p *plugins) hits(n int) bool { return n > 0 && rand.IntN(n) == 0 && !p.there("calm") }

func (p *plugins) FindInPath(plugin string, _ []string) (string, error) {
	return "/history/" + plugin, nil
}

// pluginEnv makes the program a plugin in the machine that it names.
const pluginEnv = "METACNI_HISTORY_PLUGIN"

func (p *plugins) ExecPlugin(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	name := filepath.Base(path)
	often := 1
	if slices.Contains(env, "CNI_COMMAND=GC") { // there are fewer of them
		often = 16
	}
	if !p.hits(p.execute / often) {
		return p.run(name, stdin, env)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	env = append(env, pluginEnv+"="+strings.Join([]string{string(p.machine), p.log.process, name, strconv.Itoa(os.Getpid())}, " "))
	return (&delegate.Process{Stderr: os.Stderr}).ExecPlugin(ctx, self, stdin, env)
}

// playPlugin is the main of an executed plugin. Some leave a process behind that has the lock's
// file open, as plugins that start a daemon do.
func playPlugin(spec string) error {
	var dir, process, name string
	var parent int
	if _, err := fmt.Sscan(spec, &dir, &process, &name, &parent); err != nil {
		return err
	}
	p, err := newPlugins(machine(dir), process)
	if err != nil {
		return err
	}
	if name == idle {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the plugin has exited
		p.log.say(now(), "left", process, strconv.Itoa(os.Getpid()))
		untilOver(machine(dir))
		return nil
	}
	p.parent, p.odds = parent, odds{fail: usual.fail, die: 3, dawdle: usual.dawdle}
	stdin, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	if len(stdin) == 0 { // and the caller may not have noted the PID: nobody would end this process
		return errors.New("no configuration: the caller died before it sent one")
	}
	out, err := p.run(name, stdin, os.Environ())
	if err != nil {
		_ = json.NewEncoder(os.Stdout).Encode(err)
		os.Exit(1)
	}
	if p.hits(2) {
		left := exec.Command("/proc/self/exe") // it outlives this process
		left.Env = []string{pluginEnv + "=" + strings.Join([]string{dir, process, idle, "0"}, " ")}
		left.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // whoever ends the plugin does not end it
		if _, err := left.StdinPipe(); err != nil {
			return err
		}
		if err := left.Start(); err != nil {
			return err
		}
	}
	_, err = os.Stdout.Write(out)
	return err
}

// idle is the name of a plugin that does nothing until the round is over.
const idle = "idle"

func untilOver(m machine) {
	life, err := os.OpenFile(m.path("life"), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err == nil {
		_, _ = io.Copy(io.Discard, life)
	}
}

// ask asks the test to kill a process, or for another daemon, see [node.serveKills]. It fails
// when the test has ended.
func (p *plugins) ask(pid int) error {
	f, err := os.OpenFile(p.path("killer"), os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	_, err = fmt.Fprintf(f, "%d\n", pid)
	return err
}

// dies has the process killed that calls plugins. An executed plugin becomes an orphan, which
// goes on with its work, or hangs until somebody kills it.
func (p *plugins) dies() (hangs bool) {
	if p.ask(p.parent) != nil {
		return false
	}
	if p.parent == os.Getpid() {
		select {}
	}
	for orphan := false; !orphan; { // nobody can read our stdout
		fds := []unix.PollFd{{Fd: 1}}
		_, err := unix.Poll(fds, -1)
		orphan = err == nil && fds[0].Revents&unix.POLLERR != 0
	}
	return rand.IntN(2) == 0
}

// yield lets others run, sometimes for long.
func (p *plugins) yield() {
	n := 1
	if p.hits(p.dawdle) {
		n = rand.IntN(100)
	}
	for range n {
		runtime.Gosched()
		_, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
	}
}

// A call is one call of a plugin.
type call struct{ command, plugin, container, ifname string }

func (c call) String() string {
	return strings.Join([]string{c.command, c.plugin, c.container, c.ifname}, " ")
}

// marker is the file that is there while c's attachment is.
func (c call) marker() string {
	return filepath.Join("there", c.plugin+"@"+c.container+"@"+c.ifname)
}

func callOf(plugin string, env []string) call {
	c := call{plugin: plugin}
	fields := map[string]*string{"CNI_COMMAND": &c.command, "CNI_CONTAINERID": &c.container, "CNI_IFNAME": &c.ifname}
	for _, kv := range env {
		if name, value, _ := strings.Cut(kv, "="); fields[name] != nil {
			*fields[name] = value
		}
	}
	return c
}

func (p *plugins) run(plugin string, stdin []byte, env []string) ([]byte, error) {
	c := callOf(plugin, env)
	p.log.say(now(), "plugin", p.log.process, strconv.Itoa(os.Getpid()), c.String())
	if c.command == "GC" {
		return nil, p.gc(plugin, stdin)
	}
	defer p.enter(c)()
	p.allowed(c)
	p.yield()
	if p.hits(p.die) && p.dies() {
		untilOver(p.machine)
		os.Exit(1)
	}
	if p.hits(p.linger) {
		<-time.After(2 * lockTimeout)
	}
	switch c.command {
	case "ADD":
		f, err := os.OpenFile(p.path(c.marker()), os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			p.log.wrong("%s: it is attached already: %v", c, err)
		}
		_ = f.Close() // nothing was written
		p.yield()
		if p.hits(p.fail) {
			return nil, types.NewError(101, "no", "")
		}
		return fmt.Appendf(nil, `{"cniVersion":"1.1.0","interfaces":[{"name":%q}]}`, c.ifname), nil
	case "CHECK":
		if !p.there(c.marker()) {
			return nil, types.NewError(102, "it is not attached", "")
		}
	case "DEL":
		if p.there(c.marker()) && p.hits(p.fail) {
			return nil, types.NewError(103, "no", "")
		}
		if err := os.Remove(p.path(c.marker())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	p.yield()
	return nil, nil
}

// enter takes the container of c, and returns what gives it back. The lock is one of POSIX:
// a process that is forked meanwhile does not inherit it, and the kernel releases it before
// those of flock(2) when a process dies.
func (p *plugins) enter(c call) (leave func()) {
	at := place(c.container)
	p.mu.Lock()
	defer p.mu.Unlock()
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: at, Len: 1}
	if err := unix.FcntlFlock(p.alone.Fd(), unix.F_SETLK, &lock); p.busy[at] || err != nil {
		p.log.wrong("%s: another plugin works on the container (%v)", c, err)
		return func() {}
	}
	p.busy[at] = true
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.busy, at)
		_ = unix.FcntlFlock(p.alone.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_UNLCK, Start: at, Len: 1}) // it cannot fail
	}
}

// allowed logs why c must not run.
func (p *plugins) allowed(c call) {
	if lock, err := os.Open(p.path("state", c.container+"@lock")); err != nil {
		p.log.wrong("%s: there is no lock", c)
	} else {
		if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != syscall.EWOULDBLOCK {
			p.log.wrong("%s: nobody holds the lock (%v)", c, err)
		}
		_ = lock.Close() // nothing was written
	}
	rs, err := (&lifecycle.Manager{Dir: p.path("state")}).Container(context.Background(), c.container)
	if err != nil {
		p.log.wrong("%s: %v", c, err)
	}
	for _, r := range rs {
		for i, a := range r.Attached {
			if a.IfName != c.ifname || a.Network.Plugins()[0].Type() != c.plugin {
				continue
			}
			begun := r.State == scratch.Planned || r.State == scratch.Partial && !r.Whole(i)
			if c.command == "ADD" && begun || c.command == "CHECK" && r.Whole(i) || c.command == "DEL" && !r.Whole(i) {
				return
			}
		}
	}
	p.log.wrong("%s: no record allows it", c)
}

// gc removes what this plugin has attached and is not in the list, as real plugins do. An
// orphan that hangs does so until there is something that came after its list.
func (p *plugins) gc(plugin string, stdin []byte) error {
	var conf struct {
		Valid []types.GCAttachment `json:"cni.dev/valid-attachments"`
	}
	if err := json.Unmarshal(stdin, &conf); err != nil {
		return err
	}
	valid := make(map[string]bool)
	for _, a := range conf.Valid {
		valid[call{"", plugin, a.ContainerID, a.IfName}.marker()] = true
	}
	invalid := func() (all []string) {
		paths, _ := filepath.Glob(p.path("there", plugin+"@*"))
		return slices.DeleteFunc(paths, func(path string) bool { return valid[filepath.Join("there", filepath.Base(path))] })
	}
	p.yield()
	if p.hits(p.die) && p.dies() {
		for len(invalid()) == 0 && !p.there("calm") {
			p.yield()
		}
	}
	for _, path := range invalid() {
		_ = os.Remove(path) // its DEL may have removed it
	}
	return nil
}

// place is the byte of a container in the file alone.
func place(container string) int64 {
	var round, number int64
	_, _ = fmt.Sscanf(container, "r%dc%d", &round, &number)
	return 8*round + number
}
