package autoconf

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkChange is from a change of the primary network's file to the
// published file, with fsync: the time of an operation, and the worst. "at
// once" is without the wait for quiet.
func BenchmarkChange(b *testing.B) {
	for name, debounce := range map[string]time.Duration{"at once": 1, "debounced": 0} {
		b.Run(name, func(b *testing.B) {
			m := newManager(b, "10-x.conflist", net("a"))
			m.Debounce, m.Template = debounce, plugin(`{"type":"multinet"}`)
			observe(b, m)
			ctx, cancel := context.WithCancel(b.Context())
			done := make(chan error, 1)
			go func() { done <- m.Run(ctx) }()
			follow := func(network string) {
				for {
					if s := m.State(); s.Network == network && s.Published != "" {
						return
					}
					<-changes(m)
				}
			}
			follow("a")
			var took []time.Duration
			for i := 0; b.Loop(); i++ {
				network := fmt.Sprint("n", i)
				start := time.Now()
				put(b, m.Dir, "10-x.conflist", net(network))
				follow(network)
				took = append(took, time.Since(start))
			}
			b.StopTimer()
			cancel()
			<-done
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "median-µs")
			b.ReportMetric(float64(took[len(took)-1].Microseconds()), "max-µs")
		})
	}
}

// BenchmarkAtRest is one resync in which nothing has changed, in a directory
// of ten networks. What it takes of a CPU at rest is its CPU time by the interval.
func BenchmarkAtRest(b *testing.B) {
	m := newManager(b)
	for i := range 10 {
		put(b, m.Dir, fmt.Sprintf("%d-x.conflist", 10+i), net("a"))
	}
	m.Ready = filepath.Join(m.Dir, "10-x.conflist")
	src := newWatcher()
	defer src.Close()
	mem := memory{}
	turn := func() {
		if _, err := m.turn(src, new(*os.File), &mem); err != nil {
			b.Fatal(err)
		}
	}
	turn()
	before := cpu(b)
	for b.Loop() {
		turn()
	}
	b.ReportMetric(float64((cpu(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
	if m.State().Written != 1 {
		b.Errorf("%+v", m.State())
	}
}

func cpu(tb testing.TB) time.Duration {
	tb.Helper()
	var u unix.Rusage
	ok(tb, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkRender(b *testing.B) {
	p := primary(calico)
	for b.Loop() {
		n, err := render(template, p)
		ok(b, err)
		if _, err := write(n); err != nil {
			b.Fatal(err)
		}
	}
}
