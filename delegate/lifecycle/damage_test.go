package lifecycle

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/scratch"
)

// A damaged record is code 5 for its own attachment, every time, and nothing
// to the others, those of its container included.
func TestDamagedRecordHarmsItsAttachmentOnly(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	eth1, c2 := key("c1", "eth1"), key("c2", "eth0")
	for _, k := range []scratch.Key{eth0, eth1, c2} {
		n.add(k)
	}
	n.damage(eth0)
	calls := n.trace()
	for range 2 { // the first finds it, the second finds it set aside
		for verb, do := range map[string]func() error{
			"ADD":    func() error { _, err := n.Add(t.Context(), eth0, pair(eth0)); return err },
			"CHECK":  func() error { return n.Check(t.Context(), eth0) },
			"DEL":    func() error { return n.Del(t.Context(), Removal{Key: eth0}) },
			"ATTACH": func() error { _, err := n.Attach(t.Context(), eth0, hotplug(eth0)); return err },
			"DETACH": func() error { return n.Detach(t.Context(), eth0, "net0") },
		} {
			err := do()
			wantCode(t, err, 5)
			if !errors.Is(err, scratch.ErrCorrupt) {
				t.Errorf("%s: %v", verb, err)
			}
		}
		n.wantRecords("c1/eth0 damaged", "c1/eth1 added", "c2/eth0 added")
	}
	n.wantTrace(calls...)
	for _, k := range []scratch.Key{eth1, c2} {
		if err := n.Check(t.Context(), k); err != nil {
			t.Error(err)
		}
		n.del(k)
	}
	n.add(key("c1", "eth2"))
	n.del(key("c1", "eth2"))
	if err := n.forget(eth0); err != nil {
		t.Fatal(err)
	}
	n.exec.Plugins = plugins()
	n.add(eth0)
	n.del(eth0)
	n.wantNothing()
}

// Damage found while the container's names are gathered is not the new
// attachment's.
func TestAddBesideDamage(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	n.damage(eth0)
	n.add(key("c1", "eth1"))
	n.wantRecords("c1/eth0 damaged", "c1/eth1 added")
	// What cannot be read for another reason is a reason to stop.
	if err := os.RemoveAll(filepath.Join(n.Dir, "c1")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.Dir, "c1"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := n.Add(t.Context(), eth0, pair(eth0))
	wantCode(t, err, 5)
}

// It is listed once, by whoever finds it and ever after.
func TestDamageIsListedOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	n.add(key("c2", "eth0"))
	n.damage(eth0)
	for range 2 {
		n.wantRecords("c1/eth0 damaged", "c2/eth0 added")
	}
}

// Damage at the end leaves what was written first, which is enough for DEL.
func TestWhatIsLeftOfADamagedRecordSuffices(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	file, err := os.ReadFile(n.recordFile(eth0))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.recordFile(eth0), file[:len(file)-5], 0o600); err != nil {
		t.Fatal(err)
	}
	n.wantRecords("c1/eth0 planned")
	n.del(eth0)
	n.wantNothing()
}

// A record that is whole as a file and makes no sense is damaged as well.
func TestNonsenseInARecordIsDamage(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]string{
		"null":             `null`,
		"a number":         `7`,
		"no delegates":     `{}`,
		"null delegates":   `{"delegates":null}`,
		"null delegate":    `{"delegates":[null]}`,
		"no network":       `{"delegates":[{"ifname":"eth0"}]}`,
		"no plugins":       `{"delegates":[{"ifname":"eth0","network":{"name":"n","plugins":[]}}]}`,
		"no type":          `{"delegates":[{"ifname":"eth0","network":{"name":"n","plugins":[{}]}}]}`,
		"no network name":  `{"delegates":[{"ifname":"eth0","network":{"plugins":[{"type":"bridge"}]}}]}`,
		"path for a name":  `{"delegates":[{"ifname":"../x","network":{"name":"n","plugins":[{"type":"bridge"}]}}]}`,
		"no object result": `{"delegates":[{"ifname":"eth0","result":[],"network":{"name":"n","plugins":[{"type":"bridge"}]}}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			raw := scratch.Store[json.RawMessage]{Dir: n.Dir}
			l, err := raw.Lock(t.Context(), "c1")
			if err != nil {
				t.Fatal(err)
			}
			err = raw.Put(l, scratch.Record[json.RawMessage]{Key: eth0, State: scratch.Added, Value: json.RawMessage(value)})
			if err := errors.Join(err, l.Unlock()); err != nil {
				t.Fatal(err)
			}
			wantCode(t, n.Del(t.Context(), Removal{Key: eth0}), 5)
			wantCode(t, n.Check(t.Context(), eth0), 5)
			n.wantTrace()
			n.wantRecords("c1/eth0 damaged")
		})
	}
}

// The records of one container are found among others, and its damage with them.
func TestContainerListsItsRecords(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	eth1 := key("c1", "eth1")
	for _, k := range []scratch.Key{eth0, eth1, key("c2", "eth0"), key("c10", "eth0")} {
		n.add(k)
	}
	want := func(err error, keys ...scratch.Key) {
		t.Helper()
		rs, got := n.Container(t.Context(), "c1")
		var listed []scratch.Key
		for _, r := range rs {
			listed = append(listed, r.Key)
			if r.State != scratch.Added || len(r.Attached) == 0 {
				t.Errorf("%+v", r)
			}
		}
		if d := cmp.Diff(keys, listed); d != "" || !errors.Is(got, err) {
			t.Errorf("%v (-want +got):\n%s", got, d)
		}
	}
	want(nil, eth0, eth1)
	n.damage(eth0)
	for range 2 {
		want(scratch.ErrCorrupt, eth1)
	}
	if rs, err := n.Container(t.Context(), "absent"); len(rs) > 0 || err != nil {
		t.Errorf("%v, %v", rs, err)
	}
	_, err := n.Container(t.Context(), "../c1")
	wantCode(t, err, 4)
}
