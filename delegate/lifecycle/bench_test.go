package lifecycle

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// What a whole ADD and DEL cost beside the plugins.
func BenchmarkAddDel(b *testing.B) {
	n := newNode(b)
	b.ReportAllocs()
	for b.Loop() {
		n.add(eth0)
		n.del(eth0)
	}
}

// The part of it that a container waits for.
func BenchmarkAdd(b *testing.B) {
	n := newNode(b)
	b.ReportAllocs()
	for b.Loop() {
		n.add(eth0)
		b.StopTimer()
		n.del(eth0)
		b.StartTimer()
	}
}

// The same without the disk's share: recorded once, checked each time.
func BenchmarkCheck(b *testing.B) {
	n := newNode(b)
	b.ReportAllocs()
	n.add(eth0)
	for b.Loop() {
		if err := n.Check(b.Context(), eth0); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDelWithoutRecord(b *testing.B) {
	n := newNode(b)
	b.ReportAllocs()
	n.add(key("c2", "eth0"))
	for b.Loop() {
		n.del(eth0)
	}
}

// GC of a node on which all is in order. live-B is what it has in memory when it
// tells a plugin what is valid: all that it knows. Most of the time goes into
// making the records; TMPDIR=/dev/shm saves that, and -short the most.
func BenchmarkGC(b *testing.B) {
	for _, records := range []int{10, 1000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("records=%d", records), func(b *testing.B) {
			if records > 1000 && testing.Short() {
				b.Skip("many records")
			}
			n := newNode(b)
			list := n.fill(records)
			quiet := &collector{}
			n.Invoker.Exec = quiet
			b.ReportAllocs()
			for b.Loop() {
				if err := n.GC(b.Context(), Collection{Network: "multi", Valid: list}); err != nil {
					b.Fatal(err)
				}
			}
			// Not in the loop: collecting Go's garbage takes its time.
			quiet.measure = true
			before := live()
			if err := n.GC(b.Context(), Collection{Network: "multi", Valid: list}); err != nil {
				b.Fatal(err)
			}
			var told struct {
				Valid []types.GCAttachment `json:"cni.dev/valid-attachments"`
			}
			if err := json.Unmarshal(quiet.stdin, &told); err != nil || len(told.Valid) != records {
				b.Fatalf("told of %d attachments, want %d; %v", len(told.Valid), records, err)
			}
			b.ReportMetric(max(quiet.live-before, 0), "live-B")
		})
	}
}

// GC of stale attachments among many: what it takes to remove one must not depend
// on how many there are.
func BenchmarkGCOfStale(b *testing.B) {
	for _, stale := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprintf("stale=%d/records=10000", stale), func(b *testing.B) {
			if testing.Short() {
				b.Skip("many records")
			}
			n := newNode(b)
			n.Invoker.Exec = &collector{}
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				list := n.fill(10_000)
				b.StartTimer()
				if err := n.GC(b.Context(), Collection{Network: "multi", Valid: list[stale:]}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkRecords(b *testing.B) {
	n := newNode(b)
	list := n.fill(10_000)
	b.ReportAllocs()
	for b.Loop() {
		found := 0
		for _, err := range n.Records(b.Context()) {
			if err != nil {
				b.Fatal(err)
			}
			found++
		}
		if found != len(list) {
			b.Fatalf("%d records, want %d", found, len(list))
		}
	}
}

// A collector is an Exec of plugins that do nothing at GC.
type collector struct {
	version.PluginDecoder
	measure bool
	live    float64 // the most there was in memory at a call
	stdin   []byte  // of the last call
}

func (*collector) FindInPath(plugin string, _ []string) (string, error) { return plugin, nil }

func (c *collector) ExecPlugin(_ context.Context, _ string, stdin []byte, _ []string) ([]byte, error) {
	if c.stdin = stdin; c.measure {
		c.live = max(c.live, live())
	}
	return nil, nil
}

// live is how much memory is in use.
func live() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// fill records attachments, and returns the list of them: it adds one, and copies
// its record, without waiting for the disk. Their network namespace is gone, so
// that another program may have removed them.
func (n *node) fill(records int) (list []types.GCAttachment) {
	n.t.Helper()
	first := key("c0", "eth0")
	added := nodeAt(n.t, n.Dir)
	added.del(first)
	added.printing("bridge", ipsOf("10.0.0.2/24"))
	added.printing("tuning", ipsOf("10.0.0.2/24"))
	added.addIn(first, "/nonexistent/ns")
	text, err := os.ReadFile(n.recordFile(first))
	if err != nil {
		n.t.Fatal(err)
	}
	for i := range records {
		k := key(fmt.Sprint("c", i), "eth0")
		if list = append(list, types.GCAttachment{ContainerID: k.ContainerID, IfName: k.IfName}); i == 0 {
			continue
		}
		var out strings.Builder
		for line := range strings.Lines(string(text)) {
			if _, text, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
				text = strings.Replace(text, `"container":"c0"`, fmt.Sprintf(`"container":%q`, k.ContainerID), 1)
				fmt.Fprintf(&out, "%.8x %s\n", sha256.Sum256([]byte(text)), text)
			}
		}
		err := errors.Join(os.WriteFile(n.recordFile(k), []byte(out.String()), 0o600), os.WriteFile(filepath.Join(n.Dir, k.ContainerID+"@lock"), nil, 0o600))
		if err != nil {
			n.t.Fatal(err)
		}
	}
	return list
}
