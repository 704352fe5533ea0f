//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// recorded is the network in the records, of usual length.
const recorded = `{"type":"noop","name":"net-0","bridge":"br0","isGateway":true,"ipMasq":true,"hairpinMode":true,"mtu":1450,` +
	`"ipam":{"type":"host-local","ranges":[[{"subnet":"10.0.0.0/16","gateway":"10.0.0.1"}]],"routes":[{"dst":"0.0.0.0/0"}]}}`

// grown measures multinet among no records, and among many valid records of other
// containers.
func (r *rig) grown(ctx context.Context, w io.Writer) error {
	t := table{head: []string{"records", "ADD, ms", "DEL, ms", "list, ms", "GC, ms"}}
	for _, n := range []int{0, r.records} {
		row, err := r.among(ctx, n)
		if err != nil {
			return err
		}
		t.row(row...)
	}
	return t.print(w, "## Among records of other containers\n\nmultinet with one delegate that does nothing. GC lists all records as valid.")
}

// among makes n records, and measures among them.
func (r *rig) among(ctx context.Context, n int) ([]string, error) {
	conf := object{"delegates": []any{json.RawMessage(recorded)}, "cniDir": r.file("many")}
	stdin, err := r.conf("many", conf)
	if err != nil {
		return nil, err
	}
	if err := r.record(ctx, n, stdin); err != nil {
		return nil, err
	}
	valid := make([]object, n)
	for i := range valid {
		valid[i] = object{"containerID": recordedID(i), "ifname": "eth0"}
	}
	conf["cni.dev/valid-attachments"], conf["cniVersion"] = valid, "1.1.0"
	collect, err := r.conf("collect", conf)
	if err != nil {
		return nil, err
	}
	took := make([][]float64, 4)
	for round := range r.rounds + 1 {
		p, err := r.pod()
		if err != nil {
			return nil, err
		}
		for i, c := range []call{
			{program: "multinet", command: "ADD", pod: p, stdin: stdin},
			{program: "multinet", command: "DEL", pod: p, stdin: stdin},
			{program: "multinet", args: []string{"list", "--dir", r.file("many")}, stdin: os.DevNull},
			{program: "multinet", command: "GC", stdin: collect},
		} {
			ms, err := r.run(ctx, c)
			if err != nil {
				return nil, err
			}
			if round > 0 {
				took[i] = append(took[i], ms)
			}
		}
		if err := r.sweep(); err != nil {
			return nil, err
		}
	}
	row := []string{strconv.Itoa(n)}
	for _, values := range took {
		row = append(row, figure(median(values)))
	}
	return row, nil
}

func recordedID(i int) string { return fmt.Sprintf("%064x", i+1) }

// record attaches n containers, which share a network namespace.
func (r *rig) record(ctx context.Context, n int, stdin string) error {
	p, err := r.pod()
	if err != nil {
		return err
	}
	for i := range n {
		p.id = recordedID(i)
		p.args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod-" + strconv.Itoa(i)
		if _, err := r.run(ctx, call{program: "multinet", command: "ADD", pod: p, stdin: stdin}); err != nil {
			return err
		}
	}
	unix.Sync() // otherwise the fsync of the first ADD would write all of them
	return r.sweep()
}
