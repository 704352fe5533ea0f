//go:build e2e && linux

package otel_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/otel"
	nodetest "github.com/metacni/metacni/internal/test/node"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// BenchmarkADD compares ADDs of two executables, which do nothing, with and without traces, in
// turn: %more is how much longer the median ADD with traces takes.
func BenchmarkADD(b *testing.B) {
	n := newNode(b)
	bin := n.Path("bin")
	nodetest.OK(b, os.Mkdir(bin, 0o700))
	for _, typ := range []string{"bridge", "macvlan"} {
		nodetest.OK(b, os.WriteFile(filepath.Join(bin, typ), []byte("#!/bin/sh\necho '{\"cniVersion\":\"1.1.0\"}'\n"), 0o700)) //nolint:gosec // a program
	}
	provider := sdk.NewTracerProvider(sdk.WithBatcher(n.exporter))
	defer func() { _ = provider.Shutdown(b.Context()) }()
	p := n.small(nil)
	a := args()
	a.Path, a.Netns = bin, n.Path("netns")
	nodetest.NetNS(b, a.Netns)
	var took [2][]time.Duration
	for i := 0; b.Loop(); i++ {
		for j := range took {
			traced := (i + j) % 2
			process := n.process(traceparent)
			process.Exec = nil
			start := time.Now()
			if traced == 1 {
				process = otel.Traced(process, provider)
			}
			err := p.Do(b.Context(), process, delegate.CommandAdd, a)
			took[traced] = append(took[traced], time.Since(start))
			nodetest.OK(b, err)
			process.Exec = n.Exec
			nodetest.OK(b, p.Do(b.Context(), process, delegate.CommandDel, a))
			n.exporter.Reset()
		}
	}
	median := func(all []time.Duration) float64 { return float64(slices.Sorted(slices.Values(all))[len(all)/2]) }
	b.ReportMetric(100*(median(took[1])/median(took[0])-1), "%more")
}
