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

	"github.com/metacni/metacni/internal/bounds"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// foreign attaches what pair plans without a record, as another program does,
// and returns what is to be adopted. It has one file that says so.
func (n *node) foreign(k scratch.Key, netns string) Adoption {
	n.Helper()
	plan, err := inNetNS(pair(k).Plan, netns)(n.Context(), nil)
	nodetest.OK(n.TB, err)
	as, err := n.invoker().AddAll(n.Context(), plan)
	nodetest.OK(n.TB, err)
	source := filepath.Join(n.TempDir(), "entry")
	nodetest.OK(n.TB, os.WriteFile(source, nil, 0o600))
	return Adoption{Key: k, Attached: as, Sources: []string{source}}
}

func (n *node) adopt(a Adoption, want bool) {
	n.Helper()
	if got, err := n.Adopt(n.Context(), a); err != nil || got != want {
		n.Fatalf("adopted %v, want %v: %v", got, want, err)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// What another program has attached is as good as what Add has, once it is
// adopted, even if nobody has kept its results.
func TestAdoptedIsAttached(t *testing.T) {
	t.Parallel()
	for _, kept := range []bool{true, false} {
		n, netns := newNode(t), newNetNS(t)
		a := n.foreign(eth0, netns)
		for i := range a.Attached {
			if !kept {
				a.Attached[i].Result, a.Attached[i].Added = nil, false
			}
		}
		n.Trace()
		n.adopt(a, true)
		n.adopt(a, false)
		n.wantRecords("c1/eth0 added")
		n.WantTrace()

		if err := n.Check(t.Context(), eth0, ""); kept {
			nodetest.OK(t, err)
			nodetest.Equal(t, "CHECK has the result", nodetest.Stdin(t, n.Last("CHECK bridge"))["prevResult"] != nil, true)
		}
		n.attach()
		nodetest.OK(t, n.verb(t.Context(), "GC of none"))
		n.wantRecords("c1/eth0 added")
		nodetest.Is(t, n.verb(t.Context(), "ADD"), ErrAdded)
		n.del(eth0)
		got := n.Last("DEL bridge")
		nodetest.Equal(t, "DEL has the namespace", got.NetNS, netns)
		nodetest.Equal(t, "DEL has the result", nodetest.Stdin(t, got)["prevResult"] != nil, kept)
		n.wantNothing()
		nodetest.Equal(t, "the other program's file is there", exists(a.Sources[0]), false)
		n.adopt(a, false) // what has been deleted is not adopted again
		n.wantNothing()
	}
}

// A container that the other program has attached anew, in another namespace, is no longer
// the adopted one: a DEL would remove what it has now. This happens under podman, whose
// containers keep their ID and their network when they are started again.
func TestAdoptedIsForgottenOnceItIsAttachedAnew(t *testing.T) {
	t.Parallel()
	verb := func(verb string) func(n *node) {
		return func(n *node) { nodetest.OK(n, n.verb(n.Context(), verb)) }
	}
	sweep := func(n *node) { newSweeper(n).sweep(SweepStats{Removed: 1}) }
	for name, tt := range map[string]struct {
		anew   bool
		remove func(*node)
		source string // what the other program has written meanwhile
		same   bool   // with the result that was adopted
	}{
		"sweep":                        {true, sweep, "{", false},
		"DEL":                          {true, verb("DEL"), "{", false},
		"GC":                           {true, verb("GC"), "{", false},
		"not attached anew":            {false, sweep, "", false},
		"written again":                {false, sweep, "{", true},
		"the entry of another network": {false, sweep, `{"networkName":"multus","ifName":"eth0",`, false},
		"the entry of the network":     {true, sweep, `{"networkName":"blue","ifName":"eth0",`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, netns := newNode(t), newNetNS(t)
			a := n.foreign(eth0, netns)
			n.adopt(a, true)
			more := hotplug(eth0)
			more.Plan = inNetNS(more.Plan, netns)
			n.mustAttach(eth0, more)
			if tt.source != "" {
				result := ipsOf("10.0.0.9/24")
				if tt.same {
					result = string(a.Attached[0].Result)
				}
				nodetest.OK(t, os.WriteFile(a.Sources[0], []byte(tt.source+`"result":`+result+`}`), 0o600))
			}
			nodetest.OK(t, n.Check(t.Context(), eth0, "")) // while the namespace exists
			unlink(t, netns)
			n.Trace()
			tt.remove(n)
			want := []string{"DEL ipvlan hot0"} // what we have attached ourselves
			if !tt.anew {
				want = append(want, "DEL macvlan net0", "DEL tuning eth0", "DEL bridge eth0")
			}
			got := slices.DeleteFunc(n.Trace(), func(call string) bool { return !strings.HasPrefix(call, "DEL") })
			nodetest.Equal(t, "calls", got, want)
			n.wantRecords()
			nodetest.Equal(t, "the other program's file is there", exists(a.Sources[0]), tt.anew)
		})
	}
}

// Nothing is adopted over what is known, and nothing that could not be deleted.
func TestWhatMustNotBeAdoptedIsNot(t *testing.T) {
	t.Parallel()
	invalid := errors.New("any")
	for name, tt := range map[string]struct {
		do  func(*node, *Adoption)
		err error
	}{
		"recorded": {func(n *node, _ *Adoption) { n.add(eth0) }, nil},
		"one of its interfaces recorded": {func(n *node, _ *Adoption) {
			n.mustAdd(scratch.Key{Network: "other", ContainerID: "c1", IfName: "net0"}, Transaction{Plan: Plan(attachment(nodetest.Network("green", "ipvlan"), "c1", "net0"))})
		}, nil},
		"source gone":               {func(n *node, a *Adoption) { unlink(n.TB, a.Sources[0]) }, nil},
		"damaged record":            {func(n *node, _ *Adoption) { n.add(eth0); n.damage(eth0) }, scratch.ErrCorrupt},
		"nothing attached":          {func(_ *node, a *Adoption) { a.Attached = nil }, ErrPlan},
		"another container's":       {func(_ *node, a *Adoption) { a.Attached[1].ContainerID = "c2" }, ErrPlan},
		"a result that is too deep": {func(_ *node, a *Adoption) { a.Attached[0].Result = raw(withResult(deep(bounds.Depth))) }, invalid},
		"name that is none":         {func(_ *node, a *Adoption) { a.Attached[1].IfName = "a/b" }, invalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			a := n.foreign(eth0, "")
			tt.do(n, &a)
			before := n.records()
			got, err := n.Adopt(t.Context(), a)
			if got || (err == nil) != (tt.err == nil) || tt.err != invalid && !errors.Is(err, tt.err) {
				t.Errorf("adopted %v, %v", got, err)
			}
			n.wantRecords(before...)
		})
	}
}

// What is adopted without a namespace is attached, and stays until the runtime says otherwise:
// that nothing is at its path for this process proves nothing.
func TestAdoptedOfAContainerThatCannotBeSeenIsAttached(t *testing.T) {
	t.Parallel()
	n, netns := newNode(t), newNetNS(t)
	a := n.foreign(eth0, netns)
	unlink(t, netns)
	n.adopt(a, true)
	newSweeper(n).sweep(SweepStats{Unknown: 1})
	n.wantRecords("c1/eth0 added")
	nodetest.OK(t, n.verb(t.Context(), "GC"))
	n.wantNothing()
}

// A file of the other program that cannot be removed, in a directory that is
// read-only to us, keeps no container from going. The record stays, so that nobody
// adopts again what is detached, until a sweep has removed the file.
func TestDelOfAdoptedWhoseFileStays(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a := n.foreign(eth0, newNetNS(t))
	n.adopt(a, true)
	unlink(t, a.Sources[0])
	nodetest.OK(t, os.MkdirAll(filepath.Join(a.Sources[0], "x"), 0o700))
	n.del(eth0)
	n.wantRecords("c1/eth0 deleting")
	n.Trace()
	n.del(eth0)
	n.adopt(a, false)
	s := newSweeper(n)
	s.sweep(SweepStats{Failed: 1})
	s.come()
	unlink(t, filepath.Join(a.Sources[0], "x"))
	s.sweep(SweepStats{Removed: 1})
	n.wantNothing()
	n.WantTrace()
}

// What is given back keeps its own interface, for another program to delete, and
// nothing else.
func TestReleasedIsNotDeleted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a := n.foreign(eth0, newNetNS(t))
	n.adopt(a, true)
	var kept []AddRecord
	for range 2 {
		nodetest.OK(t, n.Release(t.Context(), eth0, func(_ context.Context, r AddRecord) error { kept = append(kept, r); return nil }))
	}
	if len(kept) != 1 || len(kept[0].Attached) != 1 || kept[0].Attached[0].IfName != "eth0" || kept[0].Attached[0].Result == nil {
		t.Errorf("kept %+v", kept)
	}
	nodetest.Equal(t, "alive", n.Exec.Live(), []string{"bridge c1 eth0", "tuning c1 eth0"})
	nodetest.Equal(t, "files", n.files(), nil)
	nodetest.Equal(t, "the other program's file is there", exists(a.Sources[0]), false)
}

// What is not attached is removed whole: nobody else would.
func TestReleasedOfWhatIsNotAttached(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(n *node, netns string){
		"container gone": func(n *node, netns string) { unlink(n.TB, netns) },
		"deleting":       func(n *node, _ string) { n.halfDelete(eth0); n.Exec.Plugins = plugins() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, netns := newNode(t), newNetNS(t)
			n.adopt(n.foreign(eth0, netns), true)
			leave(n, netns)
			nodetest.OK(t, n.Release(t.Context(), eth0, func(context.Context, AddRecord) error { t.Error("kept"); return nil }))
			n.wantNothing()
		})
	}
}

// Until all of it has succeeded, an attachment is not given back. Its files go with it.
func TestReleaseThatFails(t *testing.T) {
	t.Parallel()
	n, dir := newNode(t), t.TempDir()
	n.mustAdd(eth0, withFiles(dir))
	n.FailOn("DEL macvlan", 101)
	keep := func(want error) func(context.Context, AddRecord) error {
		return func(_ context.Context, r AddRecord) error {
			nodetest.Equal(t, "kept files", r.Attached[0].Files, []string{filepath.Join(dir, "eth0")})
			nodetest.Equal(t, "files", files(t, dir), []string{"eth0"})
			return want
		}
	}
	full := errors.New("disk full")
	nodetest.Code(t, n.Release(t.Context(), eth0, keep(full)), 101)
	n.wantRecords("c1/eth0 partial")
	n.Exec.Plugins = plugins()
	nodetest.Is(t, n.Release(t.Context(), eth0, keep(full)), full)
	n.wantRecords("c1/eth0 added")
	nodetest.OK(t, n.Release(t.Context(), eth0, keep(nil)))
	nodetest.Equal(t, "left", slices.Concat(n.files(), files(t, dir)), nil)
}

// addWith adds a network of this name whose two plugins print result.
func (n *node) addWith(k scratch.Key, networkName, result string) {
	n.Helper()
	n.addNetwork(k, nodetest.Network(networkName, "bridge", "tuning"), result)
}

// addNetwork adds a network of bridge and tuning, which print result.
func (n *node) addNetwork(k scratch.Key, net netconf.Network, result string) {
	n.Helper()
	n.printing("bridge", result)
	n.printing("tuning", result)
	n.mustAdd(k, Transaction{Plan: Plan(attachment(net, k.ContainerID, k.IfName))})
}

func ipsOf(addresses ...string) string {
	var ips []string
	for _, a := range addresses {
		ips = append(ips, `{"address":"`+a+`","x":1.0}`)
	}
	return `{"cniVersion":"1.1.0","n":9007199254740993,"ips":[` + strings.Join(ips, ",") + `],"routes":[{"dst":"0.0.0.0/0"}]}`
}

// An address that belongs to another attachment by now is not in the prevResult of a DEL: the plugin
// would remove what the new owner has. That holds whatever is known of earlier DELs: the note of one
// may be lost. Everything else is there, as it was. A static address that both configurations name
// is shared on purpose.
func TestAddressOfAnotherIsNotInTheDel(t *testing.T) {
	t.Parallel()
	c2 := key("c2", "eth0")
	own := func(k scratch.Key, net string, addresses ...string) func(*node) {
		return func(n *node) { n.addWith(k, net, ipsOf(addresses...)) }
	}
	const one = "10.0.0.2/24"
	static := nodetest.Parse(`{"cniVersion":"1.1.0","name":"blue","plugins":[{"type":"bridge","ipam":{"type":"static","addresses":[{"address":"10.0.0.2/24"}]}},{"type":"tuning"}]}`)
	statically := func(k scratch.Key) func(*node) {
		return func(n *node) { n.addNetwork(k, static, ipsOf(one)) }
	}
	crash := func(k scratch.Key) func(*node) {
		return func(n *node) {
			dead := nodeAt(n.TB, n.Dir)
			dead.printing("bridge", ipsOf(one))
			dead.crash("ADD tuning", k)
		}
	}
	for name, tt := range map[string]struct {
		mine, owner func(*node)
		want        string
	}{
		"another container": {own(eth0, "blue", one), own(c2, "blue", one), ipsOf()},
		"IPv6":              {own(eth0, "blue", "fd00::2/64"), own(c2, "blue", "fd00:0:0::2/64"), ipsOf()},
		"one of several":    {own(eth0, "blue", one, "fd00::2/64", "10.0.0.3/24"), own(c2, "blue", "fd00::2/64", "10.9.9.9/24"), ipsOf(one, "10.0.0.3/24")},
		"another mask":      {own(eth0, "blue", one), own(c2, "blue", "10.0.0.2/16"), ipsOf()},
		"another address":   {own(eth0, "blue", one), own(c2, "blue", "10.0.0.20/24"), ipsOf(one)},
		"another network":   {own(eth0, "blue", one), own(c2, "red", one), ipsOf(one)},
		"another interface": {own(eth0, "blue", one), own(key("c1", "eth1"), "blue", one), ipsOf()},
		"another's record":  {own(eth0, "blue", one), own(scratch.Key{Network: "other", ContainerID: "c1", IfName: "eth1"}, "blue", one), ipsOf()},
		"of two owners": {own(eth0, "blue", one, "10.0.0.3/24"), func(n *node) {
			own(c2, "blue", one)(n)
			own(key("c3", "eth0"), "blue", "10.0.0.3/24")(n)
		}, ipsOf()},
		"shared":                       {statically(eth0), statically(c2), ipsOf(one)},
		"static, leased":               {statically(eth0), own(c2, "blue", one), ipsOf()},
		"leased, static":               {own(eth0, "blue", one), statically(c2), ipsOf()},
		"an ADD has died, and noted":   {crash(eth0), own(c2, "blue", one), ipsOf()},
		"an owner that is being added": {own(eth0, "blue", one), crash(c2), ipsOf()},
		"an owner that is being deleted": {own(eth0, "blue", one), func(n *node) {
			own(c2, "blue", one)(n)
			nodeAt(n.TB, n.Dir).halfDelete(c2)
		}, ipsOf(one)},
		"a DEL that is tried again": {func(n *node) { own(eth0, "blue", one)(n); nodeAt(n.TB, n.Dir).halfDelete(eth0) }, own(c2, "blue", one), ipsOf()},
		"a leftover": {own(eth0, "blue", one), func(n *node) {
			sick := nodeAt(n.TB, n.Dir)
			sick.printing("bridge", ipsOf(one))
			sick.FailOn("ADD tuning", 101)
			sick.FailOn("DEL tuning", 102)
			_, err := sick.Add(n.Context(), c2, pair(c2))
			nodetest.Code(n.TB, err, 101)
		}, ipsOf(one)},
		"a damaged owner":       {own(eth0, "blue", one), func(n *node) { own(c2, "blue", one)(n); n.damage(c2) }, ipsOf(one)},
		"an owner's old result": {own(eth0, "blue", one), func(n *node) { n.addWith(c2, "blue", `{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24"}}`) }, ipsOf()},
		"an old result": {
			func(n *node) {
				n.addWith(eth0, "blue", `{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24"},"ip6":{"ip":"fd00::2/64"}}`)
			}, own(c2, "blue", one),
			`{"cniVersion":"1.1.0","ips":[{"address":"fd00::2/64"}]}`,
		},
		"keys in capitals": {
			func(n *node) { n.addWith(eth0, "blue", `{"cniVersion":"1.1.0","IPS":[{"Address":"10.0.0.2/24"}]}`) }, own(c2, "blue", one),
			`{"cniVersion":"1.1.0","IPS":[]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			tt.mine(n)
			tt.owner(n)
			n.del(eth0)
			var got, want any
			var conf struct{ PrevResult json.RawMessage }
			nodetest.OK(t, json.Unmarshal(n.Last("DEL bridge").Stdin, &conf))
			nodetest.OK(t, errors.Join(json.Unmarshal(conf.PrevResult, &got), json.Unmarshal([]byte(tt.want), &want)))
			nodetest.Equal(t, "prevResult", got, want)
			const exact = "9007199254740993"
			nodetest.Equal(t, "the number is exact", strings.Contains(string(conf.PrevResult), exact), strings.Contains(tt.want, exact))
		})
	}
}

// A DEL waits until it can be seen which addresses others have.
func TestRecordsThatCannotBeListedHoldUpADel(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "records")
	write(t, dir) // a file
	if others, err := (&Manager{Dir: dir}).lookBeside(t.Context(), eth0, nil); err == nil {
		t.Errorf("%+v", others)
	}
}

// Beside many records a DEL takes the addresses of those that have not changed from a file, which
// only saves time.
func TestAddressesOfManyRecords(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.fill(2 * indexFrom) // each has 10.0.0.2
	free := func(address string, want bool) {
		t.Helper()
		probe := key("probe", "eth0")
		n.addWith(probe, "blue", ipsOf(address+"/24"))
		n.del(probe)
		if got := strings.Contains(string(n.Last("DEL tuning").Stdin), address); got != want {
			t.Errorf("DEL has the address %s: %v, want %v", address, got, want)
		}
	}
	index := filepath.Join(n.Dir, indexName)
	free("10.0.0.9", true)
	whole, err := os.ReadFile(index)
	nodetest.OK(t, err)
	free("10.0.0.2", false)
	free("10.0.0.20", true)
	later := key("later", "eth0")
	n.addWith(later, "blue", ipsOf("10.0.0.9/24"))
	free("10.0.0.9", false)
	n.del(later)
	free("10.0.0.9", true)
	for name, text := range map[string]string{"empty": "", "cut": string(whole[:len(whole)/2]), "changed": strings.ReplaceAll(string(whole), "10.0.0.2", "10.0.0.3"), "of another form": sumOf("x\n") + "\nx\n"} {
		nodetest.OK(t, os.WriteFile(index, []byte(text), 0o600))
		if free("10.0.0.2", false); t.Failed() {
			t.Fatal(name)
		}
	}
	for i := range 2 * indexFrom {
		n.del(key(fmt.Sprint("c", i), "eth0"))
	}
	nodetest.Equal(t, "files", n.files(), nil)
}

// An address of the attachment itself is its own: a Detach hands it to the plugins.
func TestOwnAddressIsInTheDetach(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	n.printing("ipvlan", ipsOf("10.0.0.2/24"))
	n.attach()
	nodetest.OK(t, n.Detach(t.Context(), eth0, "hot0"))
	nodetest.Contains(t, "DEL", string(n.Last("DEL ipvlan").Stdin), "10.0.0.2/24")
}

// made is the result of a plugin that has made eth0.
const made = `{"cniVersion":"1.1.0","interfaces":[{"name":"cni0","mac":"02:00:00:00:00:10"},{"name":"veth1","mac":"02:00:00:00:00:11"},{"name":"eth0","mac":"02:00:00:00:00:01","sandbox":"/ns"}],"ips":[{"address":"10.0.0.2/24"}]}`
