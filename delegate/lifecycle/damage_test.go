package lifecycle

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/scratch"
)

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
			nodetest.OK(t, err)
			err = raw.Put(l, scratch.Record[json.RawMessage]{Key: eth0, State: scratch.Added, Value: json.RawMessage(value)})
			nodetest.OK(t, errors.Join(err, l.Unlock()))
			nodetest.Code(t, n.Del(t.Context(), Removal{Key: eth0}), 5)
			nodetest.Code(t, n.Check(t.Context(), eth0), 5)
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
	nodetest.Code(t, err, 4)
}

// laterVersion puts k's record in a version of the format
// that this program does not know. It returns what is in the file.
func (n *node) laterVersion(k scratch.Key) string {
	n.Helper()
	json := fmt.Sprintf(`{"version":3,"network":%q,"container":%q,"ifname":%q,"delegates":"elsewhere"}`, k.Network, k.ContainerID, k.IfName)
	sum := sha256.Sum256([]byte(json))
	file := fmt.Sprintf("%s %s\n", hex.EncodeToString(sum[:8]), json)
	nodetest.OK(n.TB, os.WriteFile(n.recordFile(k), []byte(file), 0o600))
	return file
}

// A record of a version that is not known is left alone by every verb, which
// says so, and runs nothing.
func TestUnknownVersionIsLeftAlone(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(key("c2", "eth0"))
	n.add(eth0)
	file := n.laterVersion(eth0)
	calls := n.trace()
	for range 2 {
		for verb, do := range map[string]func() error{
			"ADD":    func() error { _, err := n.Add(t.Context(), eth0, pair(eth0)); return err },
			"CHECK":  func() error { return n.Check(t.Context(), eth0) },
			"DEL":    func() error { return n.Del(t.Context(), Removal{Key: eth0}) },
			"ATTACH": func() error { _, err := n.Attach(t.Context(), eth0, hotplug(eth0)); return err },
			"DETACH": func() error { return n.Detach(t.Context(), eth0, "net0") },
			"one":    func() error { _, err := n.Container(t.Context(), "c1"); return err },
			"forget": func() error { return n.forget(eth0) },
		} {
			err := do()
			nodetest.Code(t, err, 5)
			if !errors.Is(err, scratch.ErrVersion) || errors.Is(err, scratch.ErrCorrupt) {
				t.Errorf("%s: %v", verb, err)
			}
			if e := (*Error)(nil); verb == "DEL" && (!errors.As(err, &e) || e.Key != eth0) {
				t.Errorf("%s: %v", verb, err)
			}
		}
		n.wantRecords("c1/eth0 damaged", "c2/eth0 added")
	}
	n.wantTrace(calls...)
	for _, k := range []scratch.Key{key("c1", "eth1"), key("c2", "eth0")} { // others are no worse for it
		if _, err := n.Add(t.Context(), k, pair(k)); err != nil && !errors.Is(err, ErrAdded) {
			t.Error(err)
		}
		if err := n.Check(t.Context(), k); err != nil {
			t.Error(err)
		}
		n.del(k)
	}
	if got, err := os.ReadFile(n.recordFile(eth0)); err != nil || string(got) != file {
		t.Errorf("the record is %s, %v", got, err)
	}
	if left := n.files(); !cmp.Equal(left, []string{"c1@lock", filepath.Base(n.recordFile(eth0))}) {
		t.Errorf("files: %q", left)
	}
}

// wholeRecord has something at every place of a record's value, and
// wholeChange of a change.
const (
	wholeRecord = `{"missed":1,"delegates":[{"ifname":"eth0","args":"A=1","capabilityArgs":{"mac":"x"},"unfinished":false,"gone":[1],"half":false,
		"netns":{"path":"/absent","dev":1,"inode":2,"unique":"x"},
		"network":{"cniVersion":"1.1.0","name":"blue","disableCheck":false,"disableGC":false,"plugins":[{"type":"bridge","capabilities":{"mac":true}},{"type":"tuning"}]},
		"result":{"cniVersion":"1.0.0","interfaces":[{"name":"eth0"}],"ips":[{"address":"10.0.0.2/24","interface":0}],"routes":[{"dst":"0.0.0.0/0"}],"dns":{"search":["x"]}}}]}`
	wholeChange = `{"at":0,"unfinished":true,"gone":[0],"result":{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.0.0.3/24"}]}}`
)

// variants returns whole with something wrong in one place.
func variants(tb testing.TB, whole string) []string {
	tb.Helper()
	all, err := nodetest.JSONVariants(whole)
	nodetest.OK(tb, err)
	return all
}

// ran are the commands of the calls after the first ones.
func (n *node) ran(after int) []string {
	var all []string
	for _, c := range n.Exec.Calls()[after:] {
		if !slices.Contains(all, c.Command) {
			all = append(all, c.Command)
		}
	}
	return all
}

// Whatever stands at any place of a record, each verb succeeds or fails without
// a panic, and runs only what is its own. A record that is damaged stays, and
// nothing runs for it. Any other can be deleted if its plugins are there.
func TestEveryTypeAtEveryPlaceOfARecord(t *testing.T) {
	t.Parallel()
	type shape struct{ value, change string }
	var all []shape
	for _, v := range variants(t, wholeRecord) {
		all = append(all, shape{v, ""})
	}
	for _, c := range variants(t, wholeChange) {
		all = append(all, shape{wholeRecord, c})
	}
	for _, state := range []scratch.State{scratch.Planned, scratch.Added, scratch.Partial, scratch.Deleting} {
		t.Run(string(state), func(t *testing.T) {
			t.Parallel()
			if testing.Short() && state != scratch.Added {
				t.Skip("the others take some seconds")
			}
			for _, tt := range all {
				n := nodeAt(t, fastDir(t))
				var changes []string
				if tt.change != "" {
					changes = append(changes, tt.change)
				}
				n.put(eth0, state, time.Time{}, tt.value, changes...)
				file, err := os.ReadFile(n.recordFile(eth0))
				nodetest.OK(t, err)
				_, err = n.store().Get(eth0)
				damaged := errors.Is(err, scratch.ErrCorrupt)
				if err != nil && !damaged || damaged && tt.change != "" {
					t.Fatalf("%s %s: %v", tt.value, tt.change, err)
				}
				_ = n.records()
				for _, verb := range []struct {
					name string
					do   func() error
					runs []string
				}{
					{"CHECK", func() error { return n.Check(t.Context(), eth0) }, []string{"CHECK"}},
					{"GC", func() error { return n.GC(t.Context(), Collection{Network: "multi", Valid: validFor(eth0)}) }, []string{"GC"}},
					{"DETACH", func() error { return n.Detach(t.Context(), eth0, "text") }, []string{"DEL"}},
					{"ATTACH", func() error { _, err := n.Attach(t.Context(), eth0, hotplug(eth0)); return err }, []string{"ADD", "DEL"}},
					{"DEL", func() error { return n.Del(t.Context(), Removal{Key: eth0}) }, []string{"DEL"}},
				} {
					before := len(n.Exec.Calls())
					err := verb.do()
					for _, command := range n.ran(before) {
						if !slices.Contains(verb.runs, command) || damaged {
							t.Errorf("%s of %s %s ran %s", verb.name, tt.value, tt.change, command)
						}
					}
					switch {
					case damaged && !errors.Is(err, scratch.ErrCorrupt):
						t.Errorf("%s of %s: %v", verb.name, tt.value, err)
					case err != nil && strings.Contains(err.Error(), "panic"):
						t.Errorf("%s of %s %s: %v", verb.name, tt.value, tt.change, err)
					case !damaged && verb.name == "DEL" && err != nil && !errors.Is(err, delegate.ErrPluginNotFound):
						t.Errorf("%s of %s %s: %v", verb.name, tt.value, tt.change, err)
					}
				}
				if now, err := os.ReadFile(n.recordFile(eth0)); damaged && (err != nil || string(now) != string(file)) {
					t.Errorf("%s became %s, %v", tt.value, now, err)
				}
			}
		})
	}
}
