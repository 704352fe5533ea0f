package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/metacni/metacni/delegate/thick/wire"
)

// A clock collects durations of one kind.
type clock []time.Duration

// run adds the duration of f.
func (c *clock) run(f func()) {
	start := time.Now()
	f()
	*c = append(*c, time.Since(start))
}

// at returns the quantile share in microseconds.
func (c clock) at(share float64) float64 {
	slices.Sort(c)
	return float64(c[min(int(share*float64(len(c))), len(c)-1)].Microseconds())
}

// bare runs a plugin with little overhead of its own.
func (w *world) bare(path, command string, p *pod, stdin []byte) {
	w.t.Helper()
	var out bytes.Buffer
	cmd := exec.CommandContext(w.t.Context(), path)
	cmd.Env = []string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + p.id, "CNI_NETNS=" + p.netns, "CNI_IFNAME=" + p.ifname,
		"CNI_PATH=" + w.bin, "PATH=" + w.path,
	}
	cmd.Stdin, cmd.Stdout = bytes.NewReader(stdin), &out
	if err := cmd.Run(); err != nil {
		w.t.Fatalf("%s %s: %v: %s", path, command, err, out.Bytes())
	}
}

// json encodes v.
func (w *world) json(v any) []byte {
	w.t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		w.t.Fatal(err)
	}
	return text
}

// BenchmarkThickADD attaches and detaches a container, in turn with multinet,
// with shim and daemon, and with the delegate alone. It reports medians in
// microseconds for one ADD and one DEL; "ratio" is shim and daemon to multinet,
// and "own-ratio" the same without the delegate's time.
func BenchmarkThickADD(b *testing.B) {
	w := newWorld(b)
	w.daemon(daemonConf{})
	fake := w.with(w.fake("a"), object{"name": "a", "cniVersion": "1.1.0"})
	thin, thick := w.pod(w.multinet("1.1.0", fake)), w.pod(w.thick("1.1.0", fake))
	var clocks [3]clock
	plugins := []struct {
		path  string
		p     *pod
		stdin []byte
	}{
		{built(b, "multinet"), thin, w.json(thin.conf)},
		{built(b, "multinet-shim"), thick, w.json(thick.conf)},
		{built(b, "fake"), thin, w.json(fake)},
	}
	round := func(i int) {
		for _, command := range []string{"ADD", "DEL"} {
			w.bare(plugins[i].path, command, plugins[i].p, plugins[i].stdin)
		}
	}
	for i := range plugins {
		round(i) // warm-up
	}
	for i := 0; b.Loop(); i++ {
		for j := range plugins {
			k := (i + j) % len(plugins)
			clocks[k].run(func() { round(k) })
		}
	}
	b.ReportMetric(0, "ns/op") // would mix three plugins
	m, s, d := clocks[0].at(.5), clocks[1].at(.5), clocks[2].at(.5)
	b.ReportMetric(m, "multinet-µs")
	b.ReportMetric(s, "shim-µs")
	b.ReportMetric(d, "delegate-µs")
	b.ReportMetric(s/m, "ratio")
	b.ReportMetric((s-d)/(m-d), "own-ratio")
	w.forget() // its process IDs may have been reused
	w.noTrace()
}

// BenchmarkThickFlood attaches and detaches 200 containers at the same time by
// requests on the socket. It reports the daemon's memory before, its peak, and
// its memory when nothing is left.
func BenchmarkThickFlood(b *testing.B) {
	const flood = 200
	w := newWorld(b)
	d := w.daemon(daemonConf{})
	before := w.memory(d.cmd.Process.Pid, "VmRSS:")
	p := w.pod(w.thick("1.1.0", w.fake("a")))
	var bodies [2][flood][]byte
	for i := range flood {
		one := *p
		one.id = fmt.Sprintf("%s-%d", p.id, i)
		bodies[0][i], bodies[1][i] = w.request("ADD", &one, nil), w.request("DEL", &one, nil)
	}
	for b.Loop() {
		for _, command := range bodies {
			var wg sync.WaitGroup
			for _, body := range command {
				wg.Go(func() { w.post(body) })
			}
			wg.Wait()
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(2*flood*b.N), "µs/request")
	b.ReportMetric(float64(before), "kB-before")
	b.ReportMetric(float64(w.memory(d.cmd.Process.Pid, "VmHWM:")), "kB-peak")
	b.ReportMetric(float64(w.memory(d.cmd.Process.Pid, "VmRSS:")), "kB-after")
	w.forget()
	w.noTrace()
}

// post sends the daemon a request that must succeed.
func (w *world) post(body []byte) {
	if r, err := w.ask(http.MethodPost, wire.PathCNI, body); err != nil || r.status != http.StatusOK {
		w.t.Errorf("status %d, %v: %s", r.status, err, r.body)
	}
}

// BenchmarkThickDELUnderFlood measures a DEL by the shim while as many ADDs run
// and wait as the daemon admits, and in turn a DEL on an idle daemon.
func BenchmarkThickDELUnderFlood(b *testing.B) {
	w := newWorld(b)
	w.daemon(daemonConf{})
	p := w.pod(w.thick("1.1.0", w.fake("a")))
	stdin, shim := w.json(p.conf), built(b, "multinet-shim")
	var calm, flooded, adds clock
	var mu sync.Mutex // guards adds
	var n atomic.Int64
	for b.Loop() {
		w.bare(shim, "ADD", p, stdin)
		calm.run(func() { w.bare(shim, "DEL", p, stdin) })
		w.bare(shim, "ADD", p, stdin)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				one := *p
				for more := true; more; {
					one.id = fmt.Sprintf("%s-%d", p.id, n.Add(1))
					body := w.request("ADD", &one, nil)
					start := time.Now()
					w.post(body)
					took := time.Since(start)
					mu.Lock()
					adds = append(adds, took)
					mu.Unlock()
					select {
					case <-stop:
						more = false
					default:
					}
				}
			})
		}
		w.until("ADDs wait", func() bool {
			r, err := w.ask(http.MethodGet, "/metrics", nil)
			return err == nil && !strings.Contains(string(r.body), `multinetd_operations_queued{lane="add"} 0`)
		})
		flooded.run(func() { w.bare(shim, "DEL", p, stdin) })
		close(stop)
		wg.Wait()
		w.bare(shim, "GC", p, w.json(w.with(maps.Clone(p.conf), object{"cni.dev/valid-attachments": []object{}})))
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(calm.at(.5), "calm-DEL-µs")
	b.ReportMetric(flooded.at(.5), "DEL-µs")
	b.ReportMetric(flooded.at(1), "DEL-max-µs")
	b.ReportMetric(adds.at(.5), "ADD-µs")
	w.forget()
	w.noTrace()
}
