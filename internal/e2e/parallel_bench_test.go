package e2e

import "testing"

// BenchmarkParallelBridge attaches a container to eight bridges with addresses
// of host-local and detaches it, in turn one network after another and with
// "parallel". It reports medians in milliseconds for a whole ADD or DEL;
// "ratio" is how many times as fast "parallel" is.
func BenchmarkParallelBridge(b *testing.B) {
	for _, command := range []string{"ADD", "DEL"} {
		b.Run(command, func(b *testing.B) {
			w := newWorld(b)
			p := w.pod(w.bridges(8, false))
			confs := [][]byte{w.json(p.conf), w.json(w.with(p.conf, object{"parallel": true}))}
			plugin := built(b, "multinet")
			var clocks [2]clock
			for i := 0; b.Loop(); i++ {
				for j := range confs {
					k := (i + j) % len(confs)
					for _, c := range []string{"ADD", "DEL"} {
						do := func() { w.bare(plugin, c, p, confs[k]) }
						if c == command {
							clocks[k].run(do)
						} else {
							do()
						}
					}
				}
			}
			b.ReportMetric(0, "ns/op") // would mix two commands
			one, all := clocks[0].at(.5)/1000, clocks[1].at(.5)/1000
			b.ReportMetric(one, "ms/"+command)
			b.ReportMetric(all, "ms/parallel-"+command)
			b.ReportMetric(one/all, "ratio")
			w.nothingLeft()
		})
	}
}
