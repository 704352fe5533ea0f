package main

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
)

// BenchmarkADDInACluster attaches and detaches a pod with two networks, in turn without a
// cluster, and in one with either policy for the status. The plugins are shell scripts
// that print a result. It reports medians of the ADD in microseconds, and their ratio to
// that without a cluster.
func BenchmarkADDInACluster(b *testing.B) {
	type rival struct {
		name  string
		run   func(command string, a *skel.CmdArgs) error
		args  *skel.CmdArgs
		times []time.Duration
	}
	const keys = `,"binDir":"$DIR/bin","confDir":"$DIR/net.d"`
	begin := func(name string, w *world, args string) *rival {
		install(b, w.dir)
		w.exec = &executor{Process: delegate.Process{}, log: w.log}
		a := w.args(conf(annotated("blue")))
		a.Args = args
		return &rival{name: name, args: a, run: func(command string, a *skel.CmdArgs) error { return w.client.Execute(b.Context(), command, a) }}
	}
	without := newWorld(b, keys)
	rivals := []*rival{begin("without", without, "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=one;K8S_POD_UID=u1")}
	without.start(b)
	for _, policy := range []string{"async", "wait"} {
		tn := newTown(b, keys+`,"statusPolicy":"`+policy+`"`)
		rivals = append(rivals, begin(policy, tn.world, tn.pod(b, "one").Args))
		tn.start(b)
	}
	for i := 0; b.Loop(); i++ {
		for j := range rivals {
			r := rivals[(i+j)%len(rivals)]
			start := time.Now()
			if err := r.run("ADD", r.args); err != nil {
				b.Fatal(err)
			}
			r.times = append(r.times, time.Since(start))
			if err := r.run("DEL", r.args); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(0, "ns/op") // would mix them
	median := func(r *rival) float64 {
		slices.Sort(r.times)
		return float64(r.times[len(r.times)/2].Microseconds())
	}
	for _, r := range rivals {
		b.ReportMetric(median(r), r.name+"-µs")
		b.ReportMetric(median(r)/median(rivals[0]), r.name+"-ratio")
	}
}

// install writes plugins to dir/bin, and the network blue to dir/net.d.
func install(tb testing.TB, dir string) {
	tb.Helper()
	for _, d := range []string{"/bin", "/net.d"} {
		if err := os.MkdirAll(dir+d, 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	for _, name := range []string{"bridge", "macvlan"} {
		script := fmt.Sprintf("#!/bin/sh\ncat >/dev/null\n[ $CNI_COMMAND = ADD ] && echo '{\"cniVersion\":\"1.0.0\",\"interfaces\":[{\"name\":\"'$CNI_IFNAME'\",\"sandbox\":\"'$CNI_NETNS'\"}]}'\nexit 0\n# %s\n", name)
		if err := os.WriteFile(dir+"/bin/"+name, []byte(script), 0o755); err != nil { //nolint:gosec // to be executed
			tb.Fatal(err)
		}
	}
	if err := os.WriteFile(dir+"/net.d/blue.conf", []byte(`{"cniVersion":"1.0.0","name":"blue","type":"macvlan","capabilities":{"mac":true}}`), 0o600); err != nil {
		tb.Fatal(err)
	}
}
