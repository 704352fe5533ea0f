package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

// eth0 is what most tests are about.
var eth0 = key("c1", "eth0")

func key(container, ifname string) scratch.Key {
	return scratch.Key{Network: "multi", ContainerID: container, IfName: ifname}
}

// network returns a network of CNI 1.1 with plugins of these types.
func network(name string, plugins ...string) netconf.Network {
	var ps []string
	for _, p := range plugins {
		ps = append(ps, fmt.Sprintf(`{"type":%q}`, p))
	}
	return mustParse(fmt.Sprintf(`{"cniVersion":"1.1.0","name":%q,"plugins":[%s]}`, name, strings.Join(ps, ",")))
}

func mustParse(conf string) netconf.Network {
	n, err := netconf.Parse([]byte(conf))
	if err != nil {
		panic(err)
	}
	return n
}

func attachment(n netconf.Network, container, ifname string) delegate.Attachment {
	return delegate.Attachment{Network: n, ContainerID: container, IfName: ifname}
}

// pair plans what most tests attach: a network of two plugins and one of one,
// "blue" as k's own interface and "red" as k's second.
func pair(k scratch.Key) Transaction {
	return Transaction{Plan: Plan(
		attachment(network("blue", "bridge", "tuning"), k.ContainerID, k.IfName),
		attachment(network("red", "macvlan"), k.ContainerID, second(k)),
	)}
}

func second(k scratch.Key) string { return strings.Replace(k.IfName, "eth", "net", 1) }

// hotplug plans one more network, "green".
func hotplug(k scratch.Key) Transaction {
	return Transaction{Plan: Plan(attachment(network("green", "ipvlan"), k.ContainerID, "hot0"))}
}

// plugins are all the fake ones that succeed. Each says in its result who it is.
func plugins() map[string]delegatetest.Plugin {
	ps := make(map[string]delegatetest.Plugin)
	for _, p := range []string{"bridge", "tuning", "macvlan", "ipvlan"} {
		ps[p] = delegatetest.Result(&types100.Result{
			CNIVersion: types100.ImplementedSpecVersion,
			Interfaces: []*types100.Interface{{Name: p, Mac: "02:00:00:00:00:01"}},
		})
	}
	return ps
}

// node is what a test works with: a manager, its fake and its directory.
type node struct {
	*Manager
	exec *delegatetest.Exec
	t    testing.TB
}

func newNode(tb testing.TB) *node {
	tb.Helper()
	return nodeAt(tb, filepath.Join(tb.TempDir(), "state"))
}

// nodeAt is another process, as far as one can be told from another here.
func nodeAt(tb testing.TB, dir string) *node {
	tb.Helper()
	x := &delegatetest.Exec{Plugins: plugins()}
	// A slow machine needs longer than DefaultUndoTimeout for a result of 16 MiB.
	iv := &delegate.Invoker{Exec: x, UndoTimeout: time.Hour}
	return &node{Manager: &Manager{Invoker: iv, Dir: dir}, exec: x, t: tb}
}

// on has before called before each call of the fake's that begins so.
func (n *node) on(prefix string, before func(context.Context, delegatetest.Call) error) {
	for name, p := range n.exec.Plugins {
		n.exec.Plugins[name] = func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
			if strings.HasPrefix(c.String(), prefix) {
				if err := before(ctx, c); err != nil {
					return nil, err
				}
			}
			return p(ctx, c)
		}
	}
}

// failOn makes calls that begin so fail with a code.
func (n *node) failOn(prefix string, code uint) {
	n.on(prefix, func(context.Context, delegatetest.Call) error { return types.NewError(code, "no", "") })
}

func (n *node) add(k scratch.Key) {
	n.t.Helper()
	if _, err := n.Add(n.t.Context(), k, pair(k)); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) del(k scratch.Key) {
	n.t.Helper()
	if err := n.Del(n.t.Context(), Removal{Key: k}); err != nil {
		n.t.Fatal(err)
	}
}

// records are the keys and states in the directory, "c1/eth0 added".
func (n *node) records() []string {
	n.t.Helper()
	var all []string
	for r, err := range n.Records(n.t.Context()) {
		if err != nil {
			all = append(all, r.Key.ContainerID+"/"+r.Key.IfName+" damaged")
			continue
		}
		all = append(all, r.Key.ContainerID+"/"+r.Key.IfName+" "+string(r.State))
	}
	return all
}

// trace returns the calls so far, with the container unless it is c1.
func (n *node) trace() []string {
	all := n.exec.Trace()
	calls := n.exec.Calls()
	for i, c := range calls {
		if c.ContainerID != "" && c.ContainerID != "c1" {
			all[i] += " of " + c.ContainerID
		}
	}
	return all
}

func (n *node) wantTrace(want ...string) {
	n.t.Helper()
	if d := cmp.Diff(want, n.trace()); d != "" {
		n.t.Errorf("calls (-want +got):\n%s", d)
	}
}

func (n *node) wantRecords(want ...string) {
	n.t.Helper()
	if d := cmp.Diff(want, n.records()); d != "" {
		n.t.Errorf("records (-want +got):\n%s", d)
	}
}

// wantNothing wants nothing attached, nothing recorded and no file left.
func (n *node) wantNothing() {
	n.t.Helper()
	if left := n.exec.Live(); len(left) > 0 {
		n.t.Errorf("alive: %q", left)
	}
	if left := n.files(); len(left) > 0 {
		n.t.Errorf("files: %q", left)
	}
}

// files are the paths under the directory.
func (n *node) files() []string {
	n.t.Helper()
	return files(n.t, n.Dir)
}

// files are the paths under dir, sorted.
func files(tb testing.TB, dir string) []string {
	tb.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if os.IsNotExist(err) || path == dir {
			return nil
		}
		all = append(all, strings.TrimPrefix(path, dir+"/"))
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return all
}

func wantCode(tb testing.TB, err error, code uint) {
	tb.Helper()
	if got := status.Code(err); got != code {
		tb.Errorf("code %d, want %d: %v", got, code, err)
	}
}

// wantSaid wants an error whose text has all of words.
func wantSaid(tb testing.TB, err error, words ...string) {
	tb.Helper()
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			tb.Errorf("%v: does not say %q", err, w)
		}
	}
}

// recordFile is the file of k's record.
func (n *node) recordFile(k scratch.Key) string {
	return filepath.Join(n.Dir, k.ContainerID+"@"+k.Network+"@"+k.IfName+".json")
}

// damage makes k's record unreadable.
func (n *node) damage(k scratch.Key) {
	n.t.Helper()
	if err := os.WriteFile(n.recordFile(k), []byte("0123456789abcdef {}\n"), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// forget does what an operator does about k's damaged record.
func (n *node) forget(k scratch.Key) error {
	l, err := n.store().Lock(n.t.Context(), k.ContainerID)
	if err != nil {
		return err
	}
	return errors.Join(n.store().Forget(l, k), l.Unlock())
}

// gate returns a hook for on that closes in when it is called, and waits for out.
func gate() (in, out chan struct{}, wait func(context.Context, delegatetest.Call) error) {
	in, out = make(chan struct{}), make(chan struct{})
	return in, out, func(context.Context, delegatetest.Call) error {
		close(in)
		<-out
		return nil
	}
}

// stdin decodes the configuration that a call received.
func stdin(tb testing.TB, c delegatetest.Call) map[string]any {
	tb.Helper()
	var conf map[string]any
	if err := json.Unmarshal(c.Stdin, &conf); err != nil {
		tb.Fatal(err)
	}
	return conf
}

// first returns the first call that begins so, of those after the first ones.
func (n *node) first(prefix string, after int) delegatetest.Call {
	n.t.Helper()
	for _, c := range n.exec.Calls()[after:] {
		if strings.HasPrefix(c.String(), prefix) {
			return c
		}
	}
	n.t.Fatalf("no %q among the calls", prefix)
	return delegatetest.Call{}
}

// last returns the last call that begins so.
func (n *node) last(prefix string) delegatetest.Call {
	n.t.Helper()
	calls := n.exec.Calls()
	for _, c := range slices.Backward(calls) {
		if strings.HasPrefix(c.String(), prefix) {
			return c
		}
	}
	n.t.Fatalf("no %q among the calls", prefix)
	return delegatetest.Call{}
}
