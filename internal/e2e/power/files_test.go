package power

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/resident"
	"github.com/metacni/metacni/delegate/thick"
	"github.com/metacni/metacni/delegate/thick/shim"
	"github.com/metacni/metacni/examples/multinet/publish"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/autoconf"
	"github.com/metacni/metacni/scratch"
)

const queueDir = "run/queue"

// queueAndReplay: a daemon marks the queue and ends, shims put DELs there, and the next
// daemon does one of them.
func queueAndReplay(w *work) error {
	if _, err := replay(w, w.path(queueDir), w.temp, func(string) error { return nil }); err != nil {
		return err
	}
	w.promise("marked")
	c := &shim.Client{Socket: filepath.Join(w.temp, "away"), Queue: w.path(queueDir), QueueWait: -1}
	del := func(id string) error {
		return c.Execute(w, "DEL", &skel.CmdArgs{ContainerID: id, IfName: "eth0", Netns: "/run/netns/" + id, StdinData: []byte(conf("pods"))})
	}
	for _, id := range []string{"c1", "c2", "c3"} {
		if err := del(id); err != nil {
			return err
		}
		w.promise("queued %s", id)
	}
	if err := halfPut(w, del); err != nil {
		return err
	}
	w.promise("queued c4")
	_, err := replay(w, w.path(queueDir), w.temp, func(id string) error {
		w.promise("done %s", id)
		return nil
	})
	return err
}

// halfPut puts the DEL of c4 there as a shim does that has not synced the directory yet. Then
// another shim does the same.
func halfPut(w *work, del func(string) error) error {
	entries := func() []string {
		names, _ := filepath.Glob(w.path(queueDir) + "/*.json") // the pattern is right
		return names
	}
	before := entries()
	if err := del("c4"); err != nil {
		return err
	}
	names := slices.DeleteFunc(entries(), func(name string) bool { return slices.Contains(before, name) })
	data, err := os.ReadFile(names[0])
	if err != nil {
		return err
	}
	if err := errors.Join(os.Remove(names[0]), w.sync()); err != nil {
		return err
	}
	f, err := os.Create(names[0] + ".other")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close(), os.Rename(f.Name(), names[0])); err != nil {
		return err
	}
	return del("c4")
}

// replay runs a daemon until it has done the DELs of the queue, and returns their containers.
func replay(ctx context.Context, queue, temp string, del func(id string) error) (done []string, err error) {
	var mu sync.Mutex
	l, err := thick.Listen(ctx, nil, filepath.Join(temp, "socket"))
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	s := &thick.Server{Queue: queue, Plugin: plugin.Plugin{Del: func(_ context.Context, c *plugin.Call) error {
		mu.Lock()
		done = append(done, c.ContainerID)
		mu.Unlock()
		return del(c.ContainerID)
	}}}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	for {
		names, err := filepath.Glob(queue + "/*.json")
		if err != nil || len(names) == 0 && s.CheckReady(ctx) == nil {
			break
		}
		select {
		case err := <-served:
			return done, err
		case <-time.After(time.Millisecond):
		}
	}
	stop()
	return done, <-served
}

func queueHolds(l *left) error {
	if !slices.Contains(l.made, "marked") {
		return nil // no shim has succeeded
	}
	done, err := replay(l, l.path(queueDir), l.temp, func(string) error { return nil })
	if err != nil {
		return err
	}
	for _, id := range l.promised("queued") {
		if !slices.Contains(done, id) && !slices.Contains(l.promised("done"), id) {
			return fmt.Errorf("the DEL of %s was queued, and is lost; done: %q", id, done)
		}
	}
	return nil
}

// reserveTypes: a resident registers, and its types are reserved for it.
func reserveTypes(w *work) error {
	for _, typ := range []string{"fixed", "other"} {
		listener, err := net.Listen("unix", filepath.Join(w.temp, typ))
		if err != nil {
			return err
		}
		ready := make(chan struct{})
		h := &resident.Host{Listener: listener, StateDir: w.path("residents/types"), Observer: func(s resident.Status) {
			if s.State == resident.Ready {
				close(ready)
			}
		}}
		if err := h.Start(w); err != nil {
			return err
		}
		ctx, stop := context.WithCancel(w)
		ended := make(chan error, 1)
		go func() {
			ended <- (&resident.Resident{Index: "10", Name: typ, Types: []string{typ}}).Run(ctx, listener.Addr().String())
		}()
		<-ready
		w.promise("reserved %s", typ)
		stop()
		if err := errors.Join(<-ended, h.Stop(w)); err != nil {
			return err
		}
	}
	return nil
}

func reservationsHold(l *left) error {
	h := &resident.Host{StateDir: l.path("residents/types")}
	if err := h.Start(l); err != nil {
		return err
	}
	var reserved []string
	for _, s := range h.Plugins() {
		reserved = append(reserved, s.Types...)
	}
	for _, typ := range l.promised("reserved") {
		if !slices.Contains(reserved, typ) {
			return fmt.Errorf("type %s was reserved, and is not; reserved: %q", typ, reserved)
		}
	}
	return h.Stop(l)
}

// published are the contents of the published file, in order; the last is that there is none.
func published() []string {
	of := func(name string) string {
		return fmt.Sprintf(`{"cniVersion":"1.1.0","name":"multi","plugins":[{"delegates":[%s],"type":"multinet"}]}`, conf(name))
	}
	return []string{"", of("pods"), of("large"), ""}
}

// publishConfiguration publishes in front of one network, then of another, and uninstalls.
func publishConfiguration(w *work) error {
	template, err := netconf.ParsePlugin([]byte(`{"type":"multinet","name":"multi"}`))
	if err != nil {
		return err
	}
	dir := w.path("net.d")
	if err := errors.Join(os.Mkdir(dir, 0o700), w.sync()); err != nil {
		return err
	}
	m := &autoconf.Manager{Dir: dir, Output: filepath.Join(dir, "00-multi"), Template: template}
	for i, name := range []string{"pods", "large"} {
		if err := scratch.WriteFile(filepath.Join(dir, "10-primary.conflist"), []byte(conf(name))); err != nil {
			return err
		}
		if err := m.Publish(); err != nil {
			return err
		}
		w.promise("published %d", i)
	}
	if err := m.Uninstall(); err != nil {
		return err
	}
	w.promise("published nothing")
	return nil
}

func configurationHolds(l *left) error {
	content, err := l.read("net.d/00-multi.conflist")
	if err != nil {
		return err
	}
	return l.current("published", strings.TrimSpace(content), published()...)
}

// program is a version of a program.
func program(version string) string { return strings.Repeat(version+" of a program\n", 1000) }

// installPrograms installs a program, and another version in its place.
func installPrograms(w *work) error {
	for _, version := range []string{"one", "two"} {
		source := filepath.Join(w.temp, version)
		if err := os.WriteFile(source, []byte(program(version)), 0o600); err != nil {
			return err
		}
		if err := publish.Program(source, w.path("multinet")); err != nil {
			return err
		}
		w.promise("installed %s", version)
	}
	return nil
}

func programHolds(l *left) error {
	content, err := l.read("multinet")
	if err != nil {
		return err
	}
	return l.current("installed", content, "", program("one"), program("two"))
}
