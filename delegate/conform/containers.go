package conform

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/metacni/metacni/delegate/conform/internal/realhost"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/printed"
)

// A container is one of a bench.
type container struct {
	path string         // CNI_NETNS
	node *realhost.Host // or nil

	mu   sync.Mutex              // protects prev
	prev map[string]types.Result // in a chain by the name of the interface, else at ""; or nil
}

// has reports whether the container has the interface.
func (c *container) has(ifname string) bool {
	if c.node == nil {
		return false
	}
	_, ok, err := c.node.Addresses(c.path, ifname)
	return ok && err == nil
}

// container returns the container with that ID.
func (b *bench) container(id string) (*container, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c, ok := b.containers[id]; ok {
		return c, nil
	}
	c := &container{path: filepath.Join(b.dir, "netns", id), node: b.node, prev: map[string]types.Result{"": b.prev}}
	if b.node != nil {
		var err error
		if c.path, err = b.node.Container(); err != nil {
			return nil, b.own(fmt.Errorf("the network namespace of %s: %w", id, err))
		}
	}
	if _, err := b.before(c, b.ifname); err != nil {
		return nil, err
	}
	b.containers[id] = c
	return c, nil
}

// before returns the prevResult of an ADD of the interface, or nil.
func (b *bench) before(c *container, ifname string) (prev types.Result, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !b.chained {
		return c.prev[""], nil
	}
	ifname = cmp.Or(ifname, b.ifname)
	if c.prev[ifname] == nil {
		made, err := b.precede(c, ifname)
		if err != nil {
			return nil, b.own(fmt.Errorf("the interface %s: %w", ifname, err))
		}
		c.prev[ifname] = made
	}
	return c.prev[ifname], nil
}

// precede makes the interface that a plugin before this one in the chain would have made.
func (b *bench) precede(c *container, ifname string) (types.Result, error) {
	if c.node != nil {
		r, err := c.node.Attach(c.path, ifname)
		if err == nil {
			r.DNS = dns()
		}
		return r, err
	}
	if b.prev != nil {
		return b.prev, nil
	}
	r := before()
	r.Interfaces[0] = &types100.Interface{Name: ifname, Sandbox: c.path}
	return r, nil
}

// place gives the bench its host. A shim without a daemon of its own uses the one that runs
// here.
func (b *bench) place(ctx context.Context) (err error) {
	binary, _ := b.plugin.(Binary)
	if b.kind.Name == kindShim && binary.Daemon == nil || binary.Path == "" {
		b.node, err = realhost.Here()
	} else {
		b.private = true
		b.node, err = realhost.New([]string{b.dir, filepath.Dir(binary.Path)}, b.suite.conf.Links)
	}
	if err != nil {
		return fmt.Errorf("real containers: %w", err)
	}
	b.atEnd(func() { _ = b.node.Close() }) // the kernel removes the rest
	if len(binary.Daemon) > 0 {
		return b.startDaemon(ctx, binary)
	}
	return nil
}

// warm attaches a container and detaches it, so that what the plugin makes once for all
// containers is there, and notes what is on the host then.
func (b *bench) warm(ctx context.Context) {
	if b.version != "" && b.kind.Name != "" && b.added == nil {
		if o := b.call(ctx, delegatetest.Invocation{Command: "ADD", ContainerID: "c0"}); o.Status == 0 {
			b.call(ctx, of("c0", b.later("DEL", o)))
		}
		if c, err := b.container("c0"); err == nil {
			_ = b.node.Remove(c.path) // nothing uses it again
		}
		b.mu.Lock()
		b.given = nil
		b.exec = &delegatetest.Exec{Plugins: b.exec.Plugins, Script: b.exec.Script}
		b.mu.Unlock()
	}
	b.idle = b.state(ctx)
}

// state returns what is on the host, if that is a private one: on another, not only the plugin
// changes it.
func (b *bench) state(ctx context.Context) (s realhost.State) {
	if b.private {
		var err error
		s, err = b.node.State(ctx)
		_ = b.own(err) // the check counts as not made
	}
	return s
}

// of returns c for another container.
func of(containerID string, c delegatetest.Invocation) delegatetest.Invocation {
	c.ContainerID = containerID
	return c
}

// settling is how long a process may take to end, and the kernel to remove the interfaces of
// a namespace that is gone. Nothing else is removed by itself.
const settling = 20 * time.Second

// clean fails if a delegate's attachment is left, or anything on the host.
func (b *bench) clean(ctx context.Context, after string) error {
	if err := b.empty(after); err != nil || b.node == nil {
		return err
	}
	return b.noMore(ctx, after, b.idle)
}

// noMore fails if there is more on the host than before.
func (b *bench) noMore(ctx context.Context, after string, before realhost.State) error {
	for end := time.Now().Add(settling); ; {
		left := b.state(ctx).Since(before)
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(end) || !slices.ContainsFunc(left, goesByItself) {
			return fmt.Errorf("%s leaves on the host: %s", after, list(left))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func goesByItself(line string) bool {
	kind, _, _ := strings.Cut(line, " ")
	return slices.Contains([]string{"interface", "address", "route", "rule", "qdisc", "process"}, kind)
}

// list joins lines of a host's state.
func list(lines []string) []byte { return printed.Clip([]byte(strings.Join(lines, ", "))) }

// ranApart reports whether a delegate ran in a process that the plugin had not started.
func (b *bench) ranApart() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.delegates, func(ancestors []int) bool {
		return len(ancestors) > 0 && !slices.ContainsFunc(ancestors, func(pid int) bool { return slices.Contains(b.plugins, pid) })
	})
}

// startDaemon starts the daemon of p on the host and waits until it listens. It ends with the host.
func (b *bench) startDaemon(ctx context.Context, p Binary) error {
	args := slices.Clone(p.Daemon)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "{dir}", b.dir)
	}
	var said printed.Output
	cmd := exec.CommandContext(ctx, args[0], args[1:]...) //nolint:gosec // the user's
	cmd.Env, cmd.Stdout, cmd.Stderr = p.Env, &said, &said
	if err := b.node.Start(cmd); err != nil {
		return fmt.Errorf("the daemon: %w", err)
	}
	d := &daemon{ended: make(chan struct{})}
	b.running = d
	go func() {
		defer close(d.ended)
		err := cmd.Wait() // the host kills it
		how := "exit status 0"
		if err != nil {
			how = err.Error()
		}
		d.err = fmt.Errorf("the daemon %q has ended: %s, output %q", args[0], how, printed.Clip(said.Bytes()))
	}()
	b.atEnd(func() {
		_ = cmd.Process.Kill()
		<-d.ended
	})
	limit := cmp.Or(b.suite.conf.Timeout, time.Minute)
	timeout := time.After(limit)
	for !listens(cmd.Process.Pid) {
		select {
		case <-d.ended:
			return d.err
		case <-timeout:
			return fmt.Errorf("the daemon %q listens on no unix socket after %v (Timeout): output %q", args[0], limit, printed.Clip(said.Bytes()))
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// A daemon is a process on a host.
type daemon struct {
	ended chan struct{}
	err   error // how it ended, when it has
}

// daemonEnd says how the daemon has ended. It returns nil while that runs, and without one.
func (b *bench) daemonEnd() error {
	if b.running == nil {
		return nil
	}
	select {
	case <-b.running.ended:
		return b.running.err
	default:
		return nil
	}
}

// listens reports whether a process in the network namespace of pid listens on a unix socket.
func listens(pid int) bool {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/unix", pid))
	for line := range strings.Lines(string(text)) {
		// Num RefCount Protocol Flags Type St Inode Path; the flag says that it accepts.
		if fields := strings.Fields(line); len(fields) > 3 && fields[3] == "00010000" {
			return true
		}
	}
	return false
}
