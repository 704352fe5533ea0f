package main

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/internal/nodetest"
)

// A process is a plugin that runs.
type process struct {
	*Plugin
	n      *node
	passes chan Pass
	stop   func() // and wait
	log    *nodetest.Log

	mu   sync.Mutex
	conn net.Conn // the last
}

// plugin returns one that does not run yet, on the node's directories. Its sweep
// never comes unless edit says so.
func (n *node) plugin(x *delegatetest.Exec, edit ...func(*Plugin)) *process {
	n.t.Helper()
	p := &process{n: n, passes: make(chan Pass, 10000), log: &nodetest.Log{}}
	p.Plugin = &Plugin{
		Config: Config{
			Socket: n.file("sock"), ConfDir: n.file("net.d"), BinDir: n.file("bin"), StateDir: n.file("state"),
			Sweep: multinet.Duration(time.Hour),
		},
		Exec: x, Logger: slog.New(slog.NewTextHandler(p.log, nil)),
		InterfaceNames: func(string) ([]string, error) { return []string{"lo", "eth0"}, nil },
		Observer:       func(pass Pass) { p.passes <- pass },
	}
	p.pause = 1 // so that kick need not wait
	p.dial = func(ctx context.Context, path string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.conn = conn
		return conn, err
	}
	for _, e := range edit {
		e(p.Plugin)
	}
	return p
}

// start runs a plugin until the end of the test, and returns when it has been
// synchronized and has reconciled.
func (n *node) start(x *delegatetest.Exec, edit ...func(*Plugin)) *process {
	n.t.Helper()
	p := n.plugin(x, edit...)
	p.launch()
	p.connected()
	p.pass(func(pass Pass) bool { return pass.Synchronized })
	return p
}

// launch starts the plugin.
func (p *process) launch() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	var once sync.Once
	p.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				p.n.t.Errorf("Run: %v", err)
			}
		})
	}
	p.n.t.Cleanup(func() { p.n.openGates(); p.stop() })
}

// connected waits until the runtime has taken the plugin in.
func (p *process) connected() {
	p.n.t.Helper()
	nodetest.Come(p.n.t, p.n.synced, "the plugin is synchronized")
	p.n.BlockPluginSync().Unblock()
}

// pass waits for one. What its sweep has left, because the machine was too slow
// to lock it at once, is done in more of them, which count as one.
func (p *process) pass(want func(Pass) bool) Pass {
	p.n.t.Helper()
	var sum Pass
	for {
		got := nodetest.Come(p.n.t, p.passes, "the plugin has reconciled")
		if sum.Waiting > 0 {
			got.Records = sum.Records
			got.Attached, got.Detached, got.Failed = got.Attached+sum.Attached, got.Detached+sum.Detached, got.Failed+sum.Failed
		}
		if sum = got; got.Waiting > 0 {
			p.kick()
		} else if want(got) {
			return got
		}
	}
}

// kick has the plugin reconcile, as its sweep does.
func (p *process) kick() {
	p.Plugin.mu.Lock()
	defer p.Plugin.mu.Unlock()
	select {
	case p.newsLocked() <- struct{}{}:
	default:
	}
}

// disconnect ends the connection, as the end of the runtime does.
func (p *process) disconnect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.conn.Close()
}

// records lists what is recorded, as "container state".
func (p *process) records() (all []string) {
	p.n.t.Helper()
	life := &lifecycle.Manager{Dir: p.Config.StateDir}
	for r, err := range life.Records(p.n.t.Context()) {
		if err != nil {
			p.n.t.Error(err)
		}
		all = append(all, r.Key.ContainerID+" "+string(r.State))
	}
	return all
}

// byContainer sorts calls that workers make side by side.
func byContainer(calls []delegatetest.Call) []string {
	slices.SortStableFunc(calls, func(a, b delegatetest.Call) int { return cmp.Compare(a.ContainerID, b.ContainerID) })
	var lines []string
	for _, c := range calls {
		lines = append(lines, c.ContainerID+": "+c.String())
	}
	return lines
}
