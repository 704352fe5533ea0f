package dra

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

func TestClaimsAreFoundByThePod(t *testing.T) {
	t.Parallel()
	none := func(context.Context, string) ([]Record, error) { return nil, nil }
	d := &Driver{ctx: t.Context(), config: Config{Dir: filepath.Join(t.TempDir(), "state", "claims"), Records: none}}
	d.writer = newWriter(d)
	defer d.writer.queue.ShutDown()
	stored := func(uid, pod string) Claim {
		c := Claim{Ref: Ref{uid, "blue", "name-" + uid, pod}, Networks: []Network{{
			Claim:   nad.Claim{UID: uid, Request: "net", Pool: "node1", Device: "storage", Share: uid},
			OfClass: true, Config: "{ \"b\":1.0,\n\"a\":1e3,\"c\":\"\\u00e9<\" }",
		}, {Definition: nad.Ref{Namespace: "blue", Name: "x"}, IfName: "net1"}}}
		nodetest.OK(t, d.put(t.Context(), c))
		return c
	}
	want := func(pod string, claims ...Claim) {
		t.Helper()
		got, err := d.prepared(pod)
		if diff := cmp.Diff(claims, got); diff != "" || err != nil {
			t.Errorf("%q: %s %v", pod, diff, err)
		}
	}
	want("pod1")
	c, b, a := stored("c", "pod2"), stored("b", "pod1"), stored("a", "pod1")
	want("pod1", a, b)
	want("pod2", c)
	want("")
	a.Networks[0].Config = "{}"
	nodetest.OK(t, d.put(t.Context(), a))
	want("pod1", a, b)

	for range 2 { // the record of b cannot be read, and then only replaced or removed
		files, err := filepath.Glob(filepath.Join(d.config.Dir, "*@b@*"))
		nodetest.OK(t, errors.Join(err, os.WriteFile(files[0], []byte("x"), 0o600)))
		if got, err := d.prepared("pod1"); !errors.Is(err, scratch.ErrCorrupt) || status.Code(err) != 5 || len(got) != 1 {
			t.Errorf("got %v, %v", got, err)
		}
		want("pod2", c)
		if got, err := d.all(); err == nil || cmp.Diff([]Claim{a, c}, got) != "" {
			t.Errorf("all: %v, %v", got, err)
		}
		refs, err := d.find(b.Ref)
		nodetest.Equal(t, "found", fmt.Sprint(refs, err), "[blue/name-b] <nil>")
		nodetest.OK(t, d.put(t.Context(), b))
		want("pod1", a, b)
	}
	for range 2 {
		_, err := d.release(t.Context(), b.Ref, time.Time{})
		nodetest.OK(t, err)
		want("pod1", a)
	}
}

// A claim that the kubelet asks for again keeps what a later release has recorded, on each level.
// Of another allocation it does not.
func TestKeysOfALaterReleaseAreKept(t *testing.T) {
	t.Parallel()
	d := &Driver{ctx: t.Context(), config: Config{Dir: t.TempDir()}}
	c := Claim{Ref: Ref{"a", "blue", "name", "pod1"}, Networks: []Network{{
		Claim: nad.Claim{UID: "a", Request: "net", Pool: "node1", Device: "storage"}, Definition: nad.Ref{Namespace: "blue", Name: "x"},
	}}}
	nodetest.OK(t, d.put(t.Context(), c))
	later := scratch.Store[map[string]json.RawMessage]{Dir: d.config.Dir}
	lock, err := later.Lock(t.Context(), c.Pod)
	nodetest.OK(t, err)
	r, err := later.Get(c.key())
	nodetest.OK(t, err)
	r.Value["Later"] = json.RawMessage(`{"b":1.0}`)
	r.Value["Networks"] = json.RawMessage(strings.NewReplacer(`"IfName"`, `"Later":1e400,"IfName"`, `"pool"`, `"later":"<","pool"`, `"Name":"x"`, `"Name":"x","Later":null`).Replace(string(r.Value["Networks"])))
	nodetest.OK(t, errors.Join(later.Put(lock, r), lock.Unlock()))
	want := fmt.Sprintf("%s", r.Value)

	nodetest.OK(t, d.put(t.Context(), c))
	r, err = later.Get(c.key())
	nodetest.OK(t, err)
	nodetest.Equal(t, "recorded", fmt.Sprintf("%s", r.Value), want)
	claims, err := d.prepared(c.Pod)
	nodetest.OK(t, err)
	nodetest.Equal(t, "prepared", claims, []Claim{c})

	c.Networks[0].Claim.Device = "other"
	nodetest.OK(t, d.put(t.Context(), c))
	claims, err = d.prepared(c.Pod)
	nodetest.OK(t, err)
	nodetest.Equal(t, "prepared", claims, []Claim{c})
	r, err = later.Get(c.key())
	nodetest.OK(t, err)
	if text := fmt.Sprintf("%s", r.Value); strings.Contains(strings.ToLower(text), "later") {
		t.Error(text)
	}
}

// The record of a claim is what every release since the first reads and writes.
func TestFormOfARecordedClaim(t *testing.T) {
	t.Parallel()
	d := &Driver{ctx: t.Context(), config: Config{Dir: t.TempDir()}}
	const text = `{"UID":"a","Namespace":"blue","Name":"name","Pod":"pod1","Networks":[` +
		`{"Claim":{"uid":"a","name":"name","request":"net","pool":"node1","device":"storage"},"OfClass":false,"IfName":"net1","Definition":{"Namespace":"blue","Name":"x"},"Config":""},` +
		`{"Claim":{"uid":"a","request":"own"},"OfClass":true,"IfName":"","Definition":{"Namespace":"","Name":""},"Config":"{\"type\":\"<\"}"}]}`
	c := Claim{Ref: Ref{"a", "blue", "name", "pod1"}, Networks: []Network{
		{Claim: nad.Claim{UID: "a", Name: "name", Request: "net", Pool: "node1", Device: "storage"}, IfName: "net1", Definition: nad.Ref{Namespace: "blue", Name: "x"}},
		{Claim: nad.Claim{UID: "a", Request: "own"}, OfClass: true, Config: `{"type":"<"}`},
	}}
	nodetest.OK(t, d.put(t.Context(), c))
	raw := scratch.Store[json.RawMessage]{Dir: d.config.Dir}
	r, err := raw.Get(c.key())
	nodetest.OK(t, err)
	nodetest.Equal(t, "written", strings.ReplaceAll(string(r.Value), `\u003c`, "<"), text)
	lock, err := raw.Lock(t.Context(), c.Pod)
	nodetest.OK(t, err)
	r.Value = json.RawMessage(text)
	nodetest.OK(t, errors.Join(raw.Put(lock, r), lock.Unlock()))
	claims, err := d.prepared(c.Pod)
	nodetest.OK(t, err)
	nodetest.Equal(t, "read", claims, []Claim{c})
}
