//go:build linux

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

const (
	// batch is the number of records that are written before they are copied.
	batch = 1000

	// enough limits the time for which a command is repeated. It runs at least
	// three times.
	enough = 3 * time.Second
)

// recorded is the network in the records, of usual length.
const recorded = `{"type":"noop","name":"net-0","bridge":"br0","isGateway":true,"ipMasq":true,"hairpinMode":true,"mtu":1450,` +
	`"ipam":{"type":"host-local","ranges":[[{"subnet":"10.0.0.0/16","gateway":"10.0.0.1"}]],"routes":[{"dst":"0.0.0.0/0"}]}}`

// grow measures multinet among an increasing number of valid records of other
// containers.
func (r *rig) grow(ctx context.Context, w io.Writer) error {
	if len(r.growth) == 0 {
		return nil
	}
	t := table{head: []string{"recorded", "on disk, MB", "ADD, ms", "DEL, ms", "list, ms", "memory, MB", "GC, ms", "memory, MB"}}
	start, have := time.Now(), 0
	for _, n := range r.growth {
		if err := r.fill(ctx, have, n); err != nil {
			return err
		}
		have = n
		row, err := r.beside(ctx, n)
		if err != nil {
			return err
		}
		t.row(row...)
	}
	return t.print(w, fmt.Sprintf("### Growth\n\nmultinet among recorded attachments of other containers, each with one delegate that does nothing. "+
		"GC lists all of them as valid.\nThe records are in the page cache. This took %s.", time.Since(start).Round(time.Second)))
}

// beside measures among n records.
func (r *rig) beside(ctx context.Context, n int) (row []string, err error) {
	conf := map[string]any{"delegates": []any{json.RawMessage(recorded)}}
	stdin, err := r.conf("growth.json", conf)
	if err != nil {
		return nil, err
	}
	valid := make([]map[string]string, n)
	for i := range valid {
		valid[i] = map[string]string{"containerID": recordedID(i), "ifname": "eth0"}
	}
	conf["cni.dev/valid-attachments"] = valid
	collect, err := r.conf("gc.json", conf)
	if err != nil {
		return nil, err
	}
	var add, del []sample
	for round := range r.rounds + 1 {
		runtime.GC()
		a, d, err := r.cycle(ctx, "multinet", stdin)
		if err != nil {
			return nil, err
		}
		if err := r.sweep(); err != nil {
			return nil, err
		}
		if round > 0 {
			add, del = append(add, a), append(del, d)
		}
	}
	row = []string{strconv.Itoa(n), "", figure(median(of(add, wall))), figure(median(of(del, wall)))}
	disk, err := used(r.file("state"))
	if err != nil {
		return nil, err
	}
	row[1] = mb(float64(disk))
	for _, c := range []call{
		{program: "multinet", args: []string{"list", "--dir", r.file("state")}, stdin: os.DevNull},
		{program: "multinet", command: "GC", stdin: collect},
	} {
		peak, err := r.peaks(ctx, c) // also warms up
		if err != nil {
			return nil, err
		}
		var samples []sample
		for start := time.Now(); len(samples) < r.rounds && (len(samples) < 3 || time.Since(start) < enough); {
			s, err := r.run(ctx, c)
			if err != nil {
				return nil, err
			}
			samples = append(samples, s)
		}
		row = append(row, figure(median(of(samples, wall))), peak.String())
	}
	if err := r.whole(n); err != nil {
		return nil, err
	}
	return row, nil
}

// whole fails unless there are n records: a GC for which all are valid keeps
// all.
func (r *rig) whole(n int) error {
	left, err := filepath.Glob(filepath.Join(r.file("state"), "*.json"))
	if err != nil {
		return err
	}
	if len(left) != n {
		return fmt.Errorf("there are %d records in %s, want %d", len(left), r.file("state"), n)
	}
	return nil
}

func recordedID(i int) string { return fmt.Sprintf("%064x", i+1) }

// fill adds the records from number have to before number n. The library writes
// them in an ADD, if possible in memory, where an fsync costs nothing; then
// they are copied.
func (r *rig) fill(ctx context.Context, have, n int) error {
	network, err := netconf.Parse([]byte(`{"cniVersion":"1.1.0","name":"net-0","plugins":[` + recorded + `]}`))
	if err != nil {
		return err
	}
	for from := have; from < n; from += batch {
		to := min(from+batch, n)
		dir, err := os.MkdirTemp(quick(r), "metacni-bench-")
		if err != nil {
			return err
		}
		err = record(ctx, network, dir, from, to)
		if err == nil {
			err = move(dir, r.file("state"))
		}
		if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
			return err
		}
	}
	// Otherwise the fsync of the first ADD would write all of them.
	unix.Sync()
	return nil
}

// quick returns a directory in memory, or else the working directory.
func quick(r *rig) string {
	for _, dir := range []string{"/run", "/dev/shm"} {
		if fileSystem(dir) == "tmpfs" && unix.Access(dir, unix.W_OK) == nil {
			return dir
		}
	}
	return r.work
}

// record records attachments in dir by an ADD.
func record(ctx context.Context, network netconf.Network, dir string, from, to int) error {
	result := delegatetest.Result(&types100.Result{
		CNIVersion: "1.1.0",
		Interfaces: []*types100.Interface{
			{Name: "br0", Mac: "02:00:00:00:00:01"},
			{Name: "veth01234567", Mac: "02:00:00:00:00:02"},
			{Name: "eth0", Mac: "02:00:00:00:00:03", Sandbox: "/run/netns/pod"},
		},
		IPs: []*types100.IPConfig{{
			Interface: types100.Int(2), Gateway: net.IPv4(10, 0, 0, 1),
			Address: net.IPNet{IP: net.IPv4(10, 0, 0, 2).To4(), Mask: net.CIDRMask(16, 32)},
		}},
	})
	m := &lifecycle.Manager{Dir: dir, Invoker: &delegate.Invoker{Exec: &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{"noop": result}}}}
	for i := from; i < to; i++ {
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
	return nil
}

// move copies a directory to another with its modes.
func move(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, name), 0o700)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, name), text, 0o600)
	})
}

// used returns the disk space of the files below dir.
func used(dir string) (bytes int64, err error) {
	err = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		var s unix.Stat_t
		err = cmp.Or(err, unix.Lstat(path, &s))
		bytes += s.Blocks * 512
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	return bytes, err
}
