package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/inroot"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// eth0 is what most tests are about.
var eth0 = key("c1", "eth0")

func key(container, ifname string) scratch.Key {
	return scratch.Key{Network: "multi", ContainerID: container, IfName: ifname}
}

func attachment(n netconf.Network, container, ifname string) delegate.Attachment {
	return delegate.Attachment{Network: n, ContainerID: container, IfName: ifname}
}

// pair plans what most tests attach: a network of two plugins and one of one,
// "blue" as k's own interface and "red" as k's second.
func pair(k scratch.Key) Transaction {
	return Transaction{Plan: Plan(
		attachment(nodetest.Network("blue", "bridge", "tuning"), k.ContainerID, k.IfName),
		attachment(nodetest.Network("red", "macvlan"), k.ContainerID, second(k)),
	)}
}

// pairIn is pair in a network namespace.
func pairIn(k scratch.Key, netns string) Transaction {
	return Transaction{NetNS: netns, Plan: inNetNS(pair(k).Plan, netns)}
}

func second(k scratch.Key) string { return strings.Replace(k.IfName, "eth", "net", 1) }

// hotplug plans one more network, "green".
func hotplug(k scratch.Key) Transaction {
	return Transaction{Plan: Plan(attachment(nodetest.Network("green", "ipvlan"), k.ContainerID, "hot0"))}
}

// node is what a test works with: a node with a manager, whose records are in Dir.
type node struct {
	*Manager
	*nodetest.Node
	Dir string
}

func newNode(tb testing.TB) *node {
	tb.Helper()
	return nodeAt(tb, filepath.Join(tb.TempDir(), "state"))
}

// nodeAt is another process, as far as one can be told from another here.
func nodeAt(tb testing.TB, dir string) *node {
	tb.Helper()
	n := nodetest.New(tb, "bridge", "tuning", "macvlan", "ipvlan")
	// A slow machine needs longer than ten seconds to undo a result of 16 MiB.
	iv := &delegate.Invoker{Exec: n.Exec, UndoTimeout: time.Hour}
	return &node{Manager: &Manager{machine: &fileMachine{}, Invoker: iv, Dir: dir}, Node: n, Dir: dir}
}

// another is another process on n, which waits for a lock for so long.
func another(n *node, wait time.Duration) *Manager {
	return &Manager{machine: &fileMachine{}, Invoker: n.Invoker, Dir: n.Dir, LockTimeout: wait}
}

// plugins are all the fake ones that succeed.
func plugins() map[string]delegatetest.Fake {
	return nodetest.Plugins("bridge", "tuning", "macvlan", "ipvlan")
}

func (n *node) add(k scratch.Key) {
	n.Helper()
	n.mustAdd(k, pair(k))
}

// mustAdd is Add, which must succeed.
func (n *node) mustAdd(k scratch.Key, t Transaction) {
	n.Helper()
	_, err := n.Add(n.Context(), k, t)
	nodetest.OK(n, err)
}

// mustAttach is Attach, which must succeed.
func (n *node) mustAttach(k scratch.Key, t Transaction) {
	n.Helper()
	added, err := n.Attach(n.Context(), k, t)
	nodetest.OK(n, err)
	for _, a := range added {
		nodetest.Equal(n, a.IfName+" has a result", a.Result != nil, true)
	}
}

func (n *node) del(k scratch.Key) {
	n.Helper()
	nodetest.OK(n, n.Del(n.Context(), k, DelRequest{}))
}

// halfDelete is a Del of k that fails at the bridge.
func (n *node) halfDelete(k scratch.Key) {
	n.Helper()
	n.FailOn("DEL bridge", 101)
	nodetest.Code(n, n.Del(n.Context(), k, DelRequest{}), 101)
}

// records are the keys and states in the directory, "c1/eth0 added".
func (n *node) records() []string {
	n.Helper()
	var all []string
	for r, err := range n.Records(n.Context()) {
		state := string(r.State)
		if err != nil {
			state = "damaged"
		}
		all = append(all, r.Key.ContainerID+"/"+r.Key.IfName+" "+state)
	}
	return all
}

func (n *node) wantRecords(want ...string) {
	n.Helper()
	nodetest.Equal(n, "records", n.records(), want)
}

// wantNothing wants nothing attached, nothing recorded and no file left.
func (n *node) wantNothing() {
	n.Helper()
	nodetest.Equal(n, "alive", n.Exec.Live(), nil)
	nodetest.Equal(n, "files", n.files(), nil)
}

// files are the paths under the directory.
func (n *node) files() []string { return files(n, n.Dir) }

// files are the paths under dir, sorted.
func files(tb testing.TB, dir string) []string {
	tb.Helper()
	return (&nodetest.Node{TB: tb, Dir: dir}).Files("")
}

// recordFile is the file of k's record.
func (n *node) recordFile(k scratch.Key) string {
	return filepath.Join(n.Dir, k.ContainerID+"@"+k.Network+"@"+k.IfName+".json")
}

// damage makes k's record unreadable.
func (n *node) damage(k scratch.Key) {
	n.Helper()
	nodetest.OK(n, os.WriteFile(n.recordFile(k), []byte("0123456789abcdef {}\n"), 0o600))
}

// wantError wants an error of an operation on k.
func wantError(tb testing.TB, err error, op string, k scratch.Key) {
	tb.Helper()
	if e := (*Error)(nil); !errors.As(err, &e) || e.Op != op || e.Key != k {
		tb.Errorf("%#v is no error of %s of %s", err, op, k)
	}
}

// forget does what an operator does about k's damaged record.
func (n *node) forget(k scratch.Key) error {
	l, err := n.store().Lock(n.Context(), k.ContainerID)
	if err != nil {
		return err
	}
	return errors.Join(n.store().Forget(l, k), l.Unlock())
}

// fastDir is a directory in memory, if there is one: each operation waits for the disk.
func fastDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "lifecycle-") //nolint:usetesting // which has no memory
	if err != nil {
		return tb.TempDir()
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// verb does an operation on eth0, or a GC.
func (n *node) verb(ctx context.Context, verb string) (err error) {
	switch verb {
	case "ADD":
		_, err = n.Add(ctx, eth0, pair(eth0))
	case "ATTACH":
		_, err = n.Attach(ctx, eth0, hotplug(eth0))
	case "DEL":
		err = n.Del(ctx, eth0, DelRequest{})
	case "CHECK":
		err = n.Check(ctx, eth0, "")
	case "DETACH":
		err = n.Detach(ctx, eth0, "net0")
	case "GC":
		err = n.GC(ctx, GCRequest{Network: "multi", Valid: noneValid, Networks: []netconf.Network{}})
	case "GC of none":
		err = n.GC(ctx, GCRequest{Network: "multi", Valid: validFor(eth0)})
	default:
		err = fmt.Errorf("no verb %q", verb)
	}
	return err
}

func prepareFiles(_ context.Context, plan []delegate.Attachment) (err error) {
	for _, a := range plan {
		err = errors.Join(err, os.WriteFile(a.Files[0], nil, 0o600))
	}
	return err
}

// fileMachine is a machine on which a file stands for each network namespace. The kernel knows a
// namespace as long as its file is at its path.
type fileMachine struct {
	root      string
	bootID    string
	host      []hostLink
	container []hostLink // interfaces in each container
	dying     []int      // namespaces of peers
	otherHost bool       // this process runs in another network namespace than before
	plain     string     // a path at which the file is no namespace
}

func (m *fileMachine) identify(root, path string) netns {
	n := netns{Path: path}
	_ = inroot.With(root, path, func(path string) error {
		info, err := os.Stat(path)
		if err == nil && info.Mode().IsRegular() && path != m.plain {
			n.Dev, n.Inode, n.Boot = number(info, "Dev"), number(info, "Ino"), m.bootID
		}
		return err
	})
	if path == ownNetNS {
		n.Dev, n.Inode = 0, 1
		if m.otherHost {
			n.Inode = 2
		}
	}
	return n
}

// number returns a field of what stat says of a file, where it has that.
func number(info fs.FileInfo, name string) uint64 {
	v := reflect.Indirect(reflect.ValueOf(info.Sys())).FieldByName(name)
	if !v.IsValid() || !v.CanUint() {
		return 0
	}
	return v.Uint()
}

func (m *fileMachine) occupied(_, path string) bool { return path != "" && path == m.plain }

func (m *fileMachine) own(string) []netns { return nil }

func (m *fileMachine) boot() string { return m.bootID }

func (m *fileMachine) ask(n netns) Life {
	if now := m.identify(m.root, n.Path); now.Dev == n.Dev && now.Inode == n.Inode {
		return Alive
	}
	return Dead
}

func (m *fileMachine) scan(string, []netns) scanned { return scanned{} }

func (m *fileMachine) removeInside(_, _, mac string) {
	m.container = slices.DeleteFunc(m.container, func(l hostLink) bool { return l.mac == mac })
}

func (m *fileMachine) ended(id int) bool { return slices.Contains(m.dying, id) }

func (m *fileMachine) links(_, path string) ([]hostLink, error) {
	if path == "" {
		return m.host, nil
	}
	return m.container, nil
}
