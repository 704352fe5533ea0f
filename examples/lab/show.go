//go:build linux

package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/metacni/metacni/examples/lab/host"
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
		var addrs []string
		for _, a := range i.Addresses {
			addrs = append(addrs, a.String())
		}
		fmt.Fprintf(w, "    %s\t%s\t%d\t%s\t%s\n", i.Name, dash(i.Kind), i.MTU, dash(i.MAC), dash(strings.Join(addrs, " ")))
	}
	return w.Flush()
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
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
	ifs, err := host.Interfaces(path)
	if err != nil {
		return r, err
	}
	for _, i := range ifs {
		if i.Name != "lo" {
			r.interfaces = append(r.interfaces, i.Name)
		}
	}
	if ifs, err = host.Interfaces(""); err != nil {
		return r, err
	}
	for _, i := range ifs {
		if i.Kind == "veth" && !strings.HasPrefix(i.Name, uplink) {
			r.host = append(r.host, i.Name)
		}
	}
	err = files("/var/lib/cni/networks", func(file string) error {
		owner, err := os.ReadFile(file)
		name := filepath.Base(file)
		if err == nil && name != "lock" && !strings.HasPrefix(name, "last_reserved_ip") {
			r.leases = append(r.leases, name+" "+strings.Join(strings.Fields(string(owner)), " "))
		}
		return err
	})
	if err != nil {
		return r, err
	}
	err = files(stateDir, func(file string) error {
		name, err := filepath.Rel(stateDir, file)
		if !strings.HasPrefix(name, ".") { // an empty file that is kept for the next record
			r.records = append(r.records, name)
		}
		return err
	})
	return r, err
}

// files calls f with each file below dir, which may be missing.
func files(dir string, f func(file string) error) error {
	if _, err := os.Stat(dir); os.IsNotExist(err) {
		return nil
	}
	return filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return f(file)
	})
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
		fmt.Fprintf(w, "    %s:\t%s\n", line.what, dash(strings.Join(line.list, ", ")))
	}
	_ = w.Flush()
}
