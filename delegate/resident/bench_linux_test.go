package resident_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/resident"
)

// noop returns a resident that does nothing.
func noop(index, name string) *resident.Plugin {
	return &resident.Plugin{
		Index: index, Name: name, Types: []string{name}, DrainTimeout: time.Second,
		Plugin: plugin.Plugin{
			Add: func(_ context.Context, c *plugin.Call) error {
				_, err := io.WriteString(c.Stdout, `{"cniVersion":"1.1.0"}`)
				return err
			},
			Del: func(context.Context, *plugin.Call) error { return nil },
		},
	}
}

// One call of a resident that does nothing, and the same as a process: the
// executable of this test, which is larger than a plugin.
func BenchmarkCall(b *testing.B) {
	n := newNode(b).start()
	n.serve(noop("10", "resident"))
	b.Run("resident", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := n.exec(b.Context(), "resident", "ADD", "c1"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("process", func(b *testing.B) {
		dir := b.TempDir()
		executable(b, dir, "noop")
		p := &delegate.Process{}
		path, err := p.FindInPath("noop", []string{dir})
		ok(b, err)
		conf := []byte(`{"cniVersion":"1.1.0","name":"blue","type":"noop"}`)
		for b.Loop() {
			if _, err := p.ExecPlugin(b.Context(), path, conf, []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c1"}); err != nil {
				b.Fatal(err)
			}
		}
	})
	// The same with the plugin at the path METACNI_NOOP, if it is set.
	if path := os.Getenv("METACNI_NOOP"); path != "" {
		b.Run("plugin", func(b *testing.B) {
			p := &delegate.Process{}
			conf := []byte(`{"cniVersion":"1.1.0","name":"blue","type":"noop"}`)
			env := []string{
				"CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS=/run/netns/c1", "CNI_PATH=/opt/cni/bin",
				"CNI_NETNS_OVERRIDE=1",
			}
			for b.Loop() {
				if _, err := p.ExecPlugin(b.Context(), path, conf, env); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// 200 calls at the same time.
func BenchmarkCall200(b *testing.B) {
	n := newNode(b).start()
	n.serve(noop("10", "a"))
	errs := make(chan error, 200)
	for b.Loop() {
		for i := range 200 {
			go func() {
				_, err := n.exec(b.Context(), "a", "ADD", fmt.Sprint("c", i))
				errs <- err
			}()
		}
		for range 200 {
			ok(b, <-errs)
		}
	}
}

// The memory of a connection. Both sides are in this process; a host alone
// needs about half.
func BenchmarkConnect(b *testing.B) {
	n := newNode(b).start()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	i := 0
	for b.Loop() {
		n.serve(noop("10", fmt.Sprint("d", i)))
		i++
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapInuse+after.StackInuse-before.HeapInuse-before.StackInuse)/float64(i), "B/conn")
}

// An ADD with eight residents, recorded and synced as by a daemon. Its DEL is
// not counted.
func BenchmarkAdd8(b *testing.B) {
	for _, name := range []string{"disk", "memory"} {
		b.Run(name, func(b *testing.B) {
			dir := filepath.Join(b.TempDir(), "state")
			if name == "memory" {
				shm, err := os.MkdirTemp("/dev/shm", "resident") //nolint:usetesting // another file system
				if err != nil {
					b.Skip("needs /dev/shm:", err)
				}
				b.Cleanup(func() { _ = os.RemoveAll(shm) })
				dir = shm
			}
			n := newNode(b)
			d := newDaemon(n, nil, dir)
			n.start()
			var as []delegate.Attachment
			for i := range 8 {
				name := fmt.Sprint("p", i)
				n.serve(noop(fmt.Sprint("0", i), name))
				a := attach(b, "c1", name)
				a.Network, a.IfName = network(b, name, name), fmt.Sprint("net", i)
				as = append(as, a)
			}
			t := lifecycle.Transaction{Plan: lifecycle.Plan(as...)}
			for b.Loop() {
				ctx, end := d.host.Begin(context.WithoutCancel(b.Context()))
				if _, err := d.Add(ctx, key("c1"), t); err != nil {
					b.Fatal(err)
				}
				end()
				b.StopTimer()
				ok(b, d.del(b.Context(), "c1"))
				b.StartTimer()
			}
		})
	}
}
