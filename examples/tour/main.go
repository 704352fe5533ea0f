// Tour shows the packages at work, in memory: it needs no root, no network and no
// plugins, and leaves no file behind. Its output is its test.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/ifname"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

func main() {
	dir, err := os.MkdirTemp("", "tour")
	if err == nil {
		err = errors.Join(tour(context.Background(), os.Stdout, dir), os.RemoveAll(dir))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tour:", err)
		os.Exit(1)
	}
}

// Two networks, as they would be in two files.
const (
	pods    = `{"cniVersion":"1.1.0","name":"pods","plugins":[{"type":"bridge"},{"type":"tuning","mtu":9000}]}`
	storage = `{"cniVersion":"1.1.0","name":"storage","plugins":[{"type":"sriov"}]}`
)

func tour(ctx context.Context, out io.Writer, dir string) error {
	ok := delegatetest.Result(nil)
	noDevice := delegatetest.FailOn("ADD", types.ErrTryAgainLater, "no free device", ok)
	plugins := &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{"bridge": ok, "tuning": ok, "sriov": noDevice}}
	life := &lifecycle.Manager{Dir: dir, Invoker: &delegate.Invoker{Exec: plugins}}
	key := scratch.Key{Network: "tour", ContainerID: "c1", IfName: "eth0"}

	fmt.Fprintln(out, "The second network fails, so the first is detached again:")
	said := 0
	show := func() { // prints the plugins that have been run since the last time
		for _, line := range plugins.Trace()[said:] {
			fmt.Fprintln(out, "  ", line)
			said++
		}
	}
	_, err := life.Add(ctx, key, lifecycle.Transaction{Plan: plan})
	show()
	fmt.Fprintf(out, "   attached: %q, CNI code %d\n   %v\n", plugins.Live(), status.Code(err), err)

	fmt.Fprintln(out, "There is a device now. Both are attached and recorded:")
	plugins.Plugins["sriov"] = ok
	if _, err := life.Add(ctx, key, lifecycle.Transaction{Plan: plan}); err != nil {
		return err
	}
	show()
	for r, err := range life.Records(ctx) {
		fmt.Fprintf(out, "   record %s: %s, %d networks, error %v\n", r.Key, r.State, len(r.Attached), err)
	}

	fmt.Fprintln(out, "A DEL that fails keeps the record, and the next one does the rest:")
	plugins.Plugins["bridge"] = delegatetest.FailOn("DEL", types.ErrTryAgainLater, "busy", ok)
	err = life.Del(ctx, key, lifecycle.Removal{})
	show()
	fmt.Fprintf(out, "   attached: %q, CNI code %d\n", plugins.Live(), status.Code(err))
	plugins.Plugins["bridge"] = ok
	if err := life.Del(ctx, key, lifecycle.Removal{}); err != nil {
		return err
	}
	show()
	left, err := filepath.Glob(filepath.Join(dir, "*.json"))
	fmt.Fprintf(out, "   attached: %q, records: %d\n", plugins.Live(), len(left))
	return err
}

// plan names an interface for each network before anything is attached.
func plan(_ context.Context, taken []string) ([]delegate.Attachment, error) {
	names, err := ifname.Scheme{Primary: "eth0", Taken: taken}.Plan("", "")
	if err != nil {
		return nil, err
	}
	var as []delegate.Attachment
	for i, conf := range []string{pods, storage} {
		n, err := netconf.Parse([]byte(conf))
		if err != nil {
			return nil, err
		}
		as = append(as, delegate.Attachment{Network: n, ContainerID: "c1", IfName: names[i]})
	}
	return as, nil
}
