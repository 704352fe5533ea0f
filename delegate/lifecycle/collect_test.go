package lifecycle

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	gocmp "github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// validFor is a runtime's list.
func validFor(ks ...scratch.Key) []types.GCAttachment {
	valid := noneValid
	for _, k := range ks {
		valid = append(slices.Clip(valid), types.GCAttachment{ContainerID: k.ContainerID, IfName: k.IfName})
	}
	return valid
}

// wantValid wants the plugin of a GC call to have been told of these
// attachments, "container ifname", under both keys.
func wantValid(tb testing.TB, c delegatetest.Call, want ...string) {
	tb.Helper()
	var conf struct {
		A []types.GCAttachment `json:"cni.dev/valid-attachments"`
		B []types.GCAttachment `json:"cni.dev/attachments"`
	}
	nodetest.OK(tb, json.Unmarshal(c.Stdin, &conf))
	if conf.A == nil {
		tb.Errorf("%s: no list", c)
	}
	var got []string
	for _, a := range conf.A {
		got = append(got, a.ContainerID+" "+a.IfName)
	}
	if d := gocmp.Diff(want, got); d != "" {
		tb.Errorf("%s: told (-want +got):\n%s", c, d)
	}
	if d := gocmp.Diff(conf.A, conf.B); d != "" {
		tb.Errorf("%s: the keys differ:\n%s", c, d)
	}
}

// gcs are the GC calls, which hold each plugin's network in the order told.
func (n *node) gcs() []string {
	var all []string
	for _, c := range n.Exec.Calls() {
		if c.Command == "GC" {
			all = append(all, nodetest.Stdin(n.TB, c)["name"].(string)+" "+c.Plugin)
		}
	}
	return all
}

// Without a list nothing is stale, nobody is told anything: section 4 of the
// specification. An empty list is a list.
func TestGCWithoutAListDeletesNothing(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	calls := n.trace()
	err := n.GC(t.Context(), Collection{Network: "multi", Networks: []netconf.Network{nodetest.Network("blue", "bridge")}})
	nodetest.Code(t, err, 7)
	if !errors.Is(err, ErrNoList) || !strings.Contains(err.Error(), `network "multi": no list of valid attachments`) || !strings.Contains(err.Error(), `GC needs "cni.dev/valid-attachments"`) {
		t.Errorf("err = %v", err)
	}
	for _, bad := range []string{"", "../x"} {
		nodetest.Code(t, n.GC(t.Context(), Collection{Network: bad, Valid: noneValid}), 7)
	}
	n.wantTrace(calls...)
	nodetest.OK(t, n.GC(t.Context(), Collection{Network: "multi", Valid: noneValid}))
	n.wantNothing()
}

// A network is told once, though each container has it in another edition;
// networks that share a name are not one. Networks of others' records are not
// ours to tell.
func TestGCTellsEachNetworkOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	add := func(k scratch.Key, confs ...string) {
		t.Helper()
		var as []delegate.Attachment
		for i, conf := range confs {
			as = append(as, attachment(nodetest.Parse(conf), k.ContainerID, k.IfName+string(rune('a'+i))))
		}
		if _, err := n.Add(t.Context(), k, Transaction{Plan: Plan(as...)}); err != nil {
			t.Fatal(err)
		}
	}
	c2 := key("c2", "eth0")
	add(eth0, `{"cniVersion":"1.1.0","name":"n","type":"bridge","edition":1}`, `{"cniVersion":"1.1.0","name":"n","type":"macvlan"}`)
	add(c2, `{"cniVersion":"1.1.0","name":"n","type":"bridge","edition":2}`, `{"cniVersion":"1.1.0","name":"mute","disableGC":true,"plugins":[{"type":"ipvlan"}]}`,
		`{"cniVersion":"0.4.0","name":"old","type":"tuning"}`)
	add(scratch.Key{Network: "other", ContainerID: "c3", IfName: "eth0"}, `{"cniVersion":"1.1.0","name":"theirs","type":"tuning"}`, `{"cniVersion":"1.1.0","name":"n","type":"bridge"}`)
	nodetest.OK(t, n.GC(t.Context(), Collection{Network: "multi", Valid: validFor(eth0, c2)}))
	nodetest.Equal(t, "told", n.gcs(), []string{"n bridge", "n macvlan"})
	for _, p := range []string{"bridge", "macvlan"} { // too many rather than too few
		wantValid(t, n.Last("GC "+p), "c1 eth0a", "c1 eth0b", "c2 eth0a", "c3 eth0b")
	}
	// Several of the configuration with one name are all told.
	nets := []netconf.Network{
		nodetest.Parse(`{"cniVersion":"1.1.0","name":"n","type":"bridge","edition":3}`),
		nodetest.Parse(`{"cniVersion":"1.1.0","name":"n","type":"bridge","edition":4}`),
	}
	nodetest.OK(t, n.GC(t.Context(), Collection{Network: "multi", Valid: validFor(eth0, c2), Networks: nets}))
	nodetest.Equal(t, "told", n.gcs()[2:], []string{"n bridge", "n bridge", "n macvlan"})
}

// A directory without records, or without itself, is in order.
func TestGCOfNothing(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	nodetest.OK(t, n.GC(t.Context(), Collection{Network: "multi", Valid: noneValid, Networks: []netconf.Network{nodetest.Network("blue", "bridge")}}))
	wantValid(t, n.Last("GC bridge"))
	n.wantNothing()
	nodetest.OK(t, errors.Join(os.Remove(n.Dir), os.WriteFile(n.Dir, nil, 0o600)))
	nodetest.Code(t, n.GC(t.Context(), Collection{Network: "multi", Valid: noneValid, Networks: []netconf.Network{nodetest.Network("blue", "bridge")}}), 5)
	n.wantTrace("GC bridge")
}

// While a damaged record may be of a valid attachment nobody is told what is
// valid; stale ones are collected all the same.
func TestGCNamesTheDamaged(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		damaged scratch.Key
		valid   bool
		told    []string
	}{
		"valid":         {eth0, true, nil},
		"stale":         {eth0, false, []string{"GC bridge", "GC tuning", "GC macvlan"}},
		"of another":    {scratch.Key{Network: "other", ContainerID: "c1", IfName: "eth0"}, false, nil},
		"of long names": {key("c"+strings.Repeat("x", 300), "eth0"), false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			stale, valid := key("c2", "eth0"), key("c3", "eth0")
			for _, k := range []scratch.Key{tt.damaged, stale, valid} {
				n.add(k)
			}
			found, err := filepath.Glob(filepath.Join(n.Dir, "[c#]*.json"))
			if err != nil || len(found) != 3 {
				t.Fatal(found, err)
			}
			slices.SortFunc(found, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
			nodetest.OK(t, os.WriteFile(found[0], []byte("x"), 0o600))
			list := validFor(valid)
			if tt.valid {
				list = validFor(valid, tt.damaged)
			}
			for range 3 { // it is named every time
				before := len(n.trace())
				err := n.GC(t.Context(), Collection{Network: "multi", Valid: list})
				nodetest.Code(t, err, 5)
				if !errors.Is(err, scratch.ErrCorrupt) || tt.told == nil && !strings.Contains(err.Error(), "plugins were not told") {
					t.Errorf("err = %v", err)
				}
				var told []string
				for _, c := range n.trace()[before:] {
					if strings.HasPrefix(c, "GC") {
						told = append(told, c)
					}
				}
				nodetest.Equal(t, "told", told, tt.told)
			}
			if got := n.records(); len(got) != 2 || !slices.Contains(got, "c3/eth0 added") {
				t.Errorf("records: %q", got)
			}
			// Until the operator has dealt with it.
			for _, err := range n.store().List(t.Context()) {
				if e := (*scratch.Error)(nil); errors.As(err, &e) {
					nodetest.OK(t, n.forget(e.Key))
				}
			}
			err = n.GC(t.Context(), Collection{Network: "multi", Valid: list})
			want := []string{"c3 eth0"}
			if tt.valid {
				want = []string{"c1 eth0", "c3 eth0"} // of which nothing is recorded any more
				nodetest.Says(t, err, `"red"`, "c1 (eth0)")
			} else if err != nil {
				t.Error(err)
			}
			wantValid(t, n.Last("GC bridge"), want...)
		})
	}
}

// rank puts what TestGCNamesTheDamaged damages first.
func rank(path string) int {
	container, _, _ := strings.Cut(filepath.Base(path), "@")
	if container == "c2" || container == "c3" {
		return 1
	}
	return 0
}

// GC ends with its context, which is said once.
func TestGCEndsWithItsContext(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for i := range 5 {
		n.add(key("c"+string(rune('1'+i)), "eth0"))
	}
	ctx, cancel := context.WithCancel(t.Context())
	n.On("DEL bridge", func(context.Context, delegatetest.Call) error { cancel(); return nil })
	err := n.GC(ctx, Collection{Network: "multi", Valid: noneValid})
	nodetest.Code(t, err, 11)
	if !errors.Is(err, context.Canceled) || strings.Count(err.Error(), "canceled") != 1 {
		t.Errorf("err = %v", err)
	}
	n.wantRecords("c2/eth0 added", "c3/eth0 added", "c4/eth0 added", "c5/eth0 added")
	if len(n.gcs()) > 0 {
		t.Errorf("told: %q", n.gcs())
	}
}
