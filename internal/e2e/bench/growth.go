//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// recorded is the network in the records, of usual length.
const recorded = `{"type":"noop","name":"net-0","bridge":"br0","isGateway":true,"ipMasq":true,"hairpinMode":true,"mtu":1450,` +
	`"ipam":{"type":"host-local","ranges":[[{"subnet":"10.0.0.0/16","gateway":"10.0.0.1"}]],"routes":[{"dst":"0.0.0.0/0"}]}}`

// grown measures multinet among no records, and among many valid records of other
// containers.
func (r *rig) grown(ctx context.Context, w io.Writer) error {
	t := table{head: []string{"records", "ADD, ms", "DEL, ms", "list, ms", "GC, ms"}}
	for _, n := range []int{0, r.records} {
		if err := r.record(ctx, n); err != nil {
			return err
		}
		row, err := r.among(ctx, n)
		if err != nil {
			return err
		}
		t.row(row...)
	}
	return t.print(w, "## Among records of other containers\n\nmultinet with one delegate that does nothing. GC lists all records as valid.")
}

// among measures among n records.
func (r *rig) among(ctx context.Context, n int) ([]string, error) {
	conf := object{"delegates": []any{json.RawMessage(recorded)}, "cniDir": r.file("many")}
	stdin, err := r.conf("many", conf)
	if err != nil {
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

// record makes n records with the library.
func (r *rig) record(ctx context.Context, n int) error {
	network, err := netconf.Parse([]byte(`{"cniVersion":"1.1.0","name":"net-0","plugins":[` + recorded + `]}`))
	if err != nil {
		return err
	}
	result := delegatetest.Result(&types100.Result{
		CNIVersion: "1.1.0",
		Interfaces: []*types100.Interface{{Name: "br0", Mac: "02:00:00:00:00:01"}, {Name: "eth0", Mac: "02:00:00:00:00:03", Sandbox: "/run/netns/pod"}},
		IPs:        []*types100.IPConfig{{Interface: types100.Int(1), Address: net.IPNet{IP: net.IPv4(10, 0, 0, 2).To4(), Mask: net.CIDRMask(16, 32)}}},
	})
	m := &lifecycle.Manager{Dir: r.file("many"), Invoker: &delegate.Invoker{Exec: &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{"noop": result}}}}
	for i := range n {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		a := delegate.Attachment{
			Network: network, ContainerID: recordedID(i), NetNS: "/run/netns/cni-" + strconv.Itoa(i), IfName: "eth0",
			Args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod-" + strconv.Itoa(i),
		}
		key := scratch.Key{Network: "bench", ContainerID: a.ContainerID, IfName: a.IfName}
		if _, err := m.Add(ctx, key, lifecycle.Transaction{Plan: lifecycle.Plan(a)}); err != nil {
			return err
		}
	}
	unix.Sync() // otherwise the fsync of the first ADD would write all of them
	return nil
}
