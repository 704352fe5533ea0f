package lifecycle

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/nodetest"
)

// GC of a node on which all is in order. live-B is what it has in memory when it
// tells a plugin what is valid: all that it knows. Most of the time goes into
// making the records; TMPDIR=/dev/shm saves that, and -short the most.
func BenchmarkGC(b *testing.B) {
	for _, records := range []int{10, 1000, 10_000} {
		b.Run(fmt.Sprintf("records=%d", records), func(b *testing.B) {
			if records > 1000 && testing.Short() {
				b.Skip("many records")
			}
			n := newNode(b)
			list := n.fill(records)
			b.ReportAllocs()
			for b.Loop() {
				nodetest.OK(b, n.GC(b.Context(), Collection{Network: "multi", Valid: list}))
			}
		})
	}
}

// fill records attachments, and returns the list of them: it adds one, and copies
// its record, without waiting for the disk. Their network namespace is gone, so
// that another program may have removed them.
func (n *node) fill(records int) (list []types.GCAttachment) {
	n.Helper()
	first := key("c0", "eth0")
	added := nodeAt(n.TB, n.Dir)
	added.del(first)
	added.printing("bridge", ipsOf("10.0.0.2/24"))
	added.printing("tuning", ipsOf("10.0.0.2/24"))
	added.addIn(first, "/nonexistent/ns")
	text, err := os.ReadFile(n.recordFile(first))
	nodetest.OK(n.TB, err)
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
		nodetest.OK(n.TB, err)
	}
	return list
}
