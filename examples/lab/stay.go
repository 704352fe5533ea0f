//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/resident"
	"github.com/metacni/metacni/netconf"
)

// times is how often each way is measured.
const times = 50

// stay adds and deletes one attachment of the network steady, with a plugin that is
// executed for each command, and with the same program as a resident plugin.
func stay(ctx context.Context, out io.Writer, c *cluster, pod delegate.Attachment) error {
	fmt.Fprintf(out, "\n4. ADD and DEL of one attachment, by a plugin that is executed each time, and by the same one as a resident plugin\n\n")
	network, err := netconf.LoadFile(filepath.Join(c.dir, "net.d", "steady.conf"))
	if err != nil {
		return err
	}
	pod.Network, pod.CapabilityArgs = network, nil
	dir, err := launched(c)
	if err != nil {
		return err
	}
	r := &resident.Host{Dir: dir, Reserve: []string{"resident"}} // so that it is not executed if it fails to register
	if err := r.Start(ctx); err != nil {
		return err
	}
	results := make(map[string][]byte)
	for _, way := range []struct {
		name string
		iv   delegate.Invoker
	}{
		{"executed", *c.runtime},
		{"resident", delegate.Invoker{Exec: r.Exec(c.runtime.Exec), Path: c.runtime.Path, Env: c.runtime.Env}},
	} {
		took, result, err := measure(ctx, &way.iv, pod)
		if err != nil {
			for _, p := range r.Plugins() {
				err = errors.Join(err, p.Err)
			}
			return errors.Join(err, r.Stop(ctx))
		}
		results[way.name] = result
		fmt.Fprintf(out, "    %-10s %7.2f ms, the median of %d\n", way.name, float64(took.Microseconds())/1000, times)
	}
	if !bytes.Equal(results["executed"], results["resident"]) {
		err = fmt.Errorf("the results differ: %s", results)
	}
	return errors.Join(err, r.Stop(ctx))
}

// launched makes a directory with a resident plugin to launch. It is a copy, since
// the host launches nothing that other users own or may write to.
func launched(c *cluster) (dir string, err error) {
	dir = filepath.Join(c.dir, "relay.d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	program, err := os.ReadFile(filepath.Join(c.bin, "resident"))
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "10-resident"), program, 0o700) //nolint:gosec // a program
}

// measure returns how long an ADD and its DEL take, and the result.
func measure(ctx context.Context, iv *delegate.Invoker, a delegate.Attachment) (time.Duration, []byte, error) {
	var took []time.Duration
	var result []byte
	for range times {
		start := time.Now()
		added, err := iv.Add(ctx, a)
		if err == nil {
			err = iv.Del(ctx, added)
		}
		if err != nil {
			return 0, nil, err
		}
		took = append(took, time.Since(start))
		result = added.Result
	}
	slices.Sort(took)
	return took[times/2], result, nil
}
