//go:build linux

package main

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/metacni/metacni/delegate/conform/host"
)

// table prints the interfaces of the namespace at path, as `ip address` would.
func table(out io.Writer, path string) error {
	ifs, err := host.Interfaces(path)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "    INTERFACE\tKIND\tMTU\tMAC\tADDRESSES")
	for _, i := range ifs {
		addresses := strings.Trim(fmt.Sprint(i.Addresses), "[]")
		fmt.Fprintf(w, "    %s\t%s\t%d\t%s\t%s\n", i.Name, cmp.Or(i.Kind, "-"), i.MTU, cmp.Or(i.MAC, "-"), cmp.Or(addresses, "-"))
	}
	return w.Flush()
}

// remains is what attachments make on the host until they are detached.
type remains struct {
	interfaces []string // of the container, except lo
	host       []string // of the host: the other ends of the containers' interfaces
	leases     []string // of host-local: "10.8.0.2 lab1 fast0"
	records    []string // of multinet: file names
}

// look returns what there is of any container, and the interfaces in the namespace at
// path.
func look(path string) (r remains, err error) {
	inside, err := host.Interfaces(path)
	if err != nil {
		return r, err
	}
	outside, err := host.Interfaces("")
	if err != nil {
		return r, err
	}
	for _, i := range inside {
		if i.Name != "lo" {
			r.interfaces = append(r.interfaces, i.Name)
		}
	}
	for _, i := range outside {
		if i.Kind == "veth" && !strings.HasPrefix(i.Name, uplink) {
			r.host = append(r.host, i.Name)
		}
	}
	leases, _ := filepath.Glob("/var/lib/cni/networks/*/*") // the patterns are right
	for _, file := range leases {
		address := filepath.Base(file)
		if _, err := netip.ParseAddr(address); err != nil {
			continue // host-local's own
		}
		owner, err := os.ReadFile(file)
		if err != nil {
			return r, err
		}
		r.leases = append(r.leases, address+" "+strings.Join(strings.Fields(string(owner)), " "))
	}
	records, _ := filepath.Glob(filepath.Join(stateDir, "*.json"))
	for _, file := range records {
		r.records = append(r.records, filepath.Base(file))
	}
	return r, nil
}

// print prints r as a table.
func (r remains) print(out io.Writer, container string) {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	for _, line := range []struct {
		what string
		list []string
	}{
		{"interfaces of " + container, r.interfaces},
		{"veths on the host", r.host},
		{"addresses leased by host-local", r.leases},
		{"records of multinet", r.records},
	} {
		fmt.Fprintf(w, "    %s:\t%s\n", line.what, cmp.Or(strings.Join(line.list, ", "), "-"))
	}
	_ = w.Flush()
}
