package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/status"
)

const usage = `usage: multinet list | show CONTAINER | status CONTAINER | gc --dry-run   [--dir DIR]
Reads the state directory without a lock. Changes nothing, but that records
that are found to be damaged are set aside`

// operate is multinet run by hand. It reads the state directory as it is,
// and reports damaged records after the others.
func operate(args []string, out io.Writer) error {
	fs := flag.NewFlagSet("multinet", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	dir := fs.String("dir", defaultCNIDir, "state directory (cniDir)")
	dryRun := fs.Bool("dry-run", false, "only say what would be removed")
	words, err := parse(fs, args)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, usage)
	}
	m := &lifecycle.Manager{Dir: *dir}
	switch command := strings.Join(words[:min(1, len(words))], ""); {
	case command == "list" && len(words) == 1:
		return list(m, out, func(lifecycle.Record) bool { return true })
	case command == "gc" && len(words) == 1 && *dryRun:
		return list(m, out, func(r lifecycle.Record) bool { return namespaceIsGone(r) })
	case command == "show" && len(words) == 2:
		return show(m, out, words[1])
	case command == "status" && len(words) == 2:
		return networkStatus(m, out, words[1])
	}
	return errors.New(usage)
}

// parse lets flags stand before, between and after the words.
func parse(fs *flag.FlagSet, args []string) (words []string, err error) {
	for len(args) > 0 {
		if err := fs.Parse(args); err != nil {
			return nil, err
		}
		if args = fs.Args(); len(args) > 0 {
			words, args = append(words, args[0]), args[1:]
		}
	}
	return words, nil
}

// list prints a table of the attachments in the records that are wanted.
func list(m *lifecycle.Manager, out io.Writer, want func(lifecycle.Record) bool) error {
	table := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "CONTAINER\tINTERFACE\tNETWORK\tSTATE\tSINCE")
	err := each(m, func(r lifecycle.Record) error {
		if !want(r) {
			return nil
		}
		for _, a := range r.Attached {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", a.ContainerID, a.IfName, a.Network.Name(), r.State, r.Created.Format(time.RFC3339))
		}
		return nil
	})
	return errors.Join(table.Flush(), err)
}

// namespaceIsGone tells the records of containers that have gone without a DEL.
func namespaceIsGone(r lifecycle.Record) bool {
	for _, a := range r.Attached {
		if _, err := os.Lstat(a.NetNS); a.NetNS != "" && errors.Is(err, os.ErrNotExist) {
			return true
		}
	}
	return false
}

// show prints what is recorded of a container, without the configurations of
// its networks: they may hold secrets.
func show(m *lifecycle.Manager, out io.Writer, container string) error {
	return of(m, container, func(r lifecycle.Record) error {
		fmt.Fprintf(out, "%s: %s, created %s, last changed %s\n", r.Key, r.State, r.Created.Format(time.RFC3339), r.Updated.Format(time.RFC3339))
		for _, a := range r.Attached {
			result := a.Result
			if result == nil {
				result = json.RawMessage("none")
			}
			var types []string
			for _, p := range a.Network.Plugins() {
				types = append(types, p.Type())
			}
			fmt.Fprintf(out, "  %s: network %q (%s) in %s\n    result %s\n", a.IfName, a.Network.Name(), strings.Join(types, ", "), a.NetNS, result)
		}
		return nil
	})
}

// networkStatus prints the network-status of a container, in the JSON form of
// the annotation k8s.v1.cni.cncf.io/network-status.
func networkStatus(m *lifecycle.Manager, out io.Writer, container string) error {
	all := []status.Network{}
	err := of(m, container, func(r lifecycle.Record) error {
		if !r.Whole() {
			return nil
		}
		for i, a := range r.Attached {
			result, err := a.Decode()
			if err != nil {
				return err
			}
			nets, err := status.Networks(a.Network.Name(), result, i == 0)
			if err != nil {
				return err
			}
			all = append(all, nets...)
		}
		return nil
	})
	if errors.Is(err, errNoRecord) {
		return err
	}
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return errors.Join(e.Encode(all), err)
}

var errNoRecord = errors.New("there is no record of it")

// of calls do with every record of a container, see each.
func of(m *lifecycle.Manager, container string, do func(lifecycle.Record) error) error {
	found := false
	err := each(m, func(r lifecycle.Record) error {
		if r.Key.ContainerID != container {
			return nil
		}
		found = true
		return do(r)
	})
	if !found {
		return errors.Join(fmt.Errorf("container %q: %w", container, errNoRecord), err)
	}
	return err
}

// each calls do with every record. What is damaged, or do fails on, does not
// keep it from the others.
func each(m *lifecycle.Manager, do func(lifecycle.Record) error) error {
	var errs []error
	for r, err := range m.Records() {
		if err == nil {
			err = do(r)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
