package lifecycle

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/jsontest"
	"github.com/metacni/metacni/scratch"
)

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
	all, err := jsontest.Variants(whole)
	if err != nil {
		tb.Fatal(err)
	}
	return all
}

// ran are the commands of the calls after the first ones.
func (n *node) ran(after int) []string {
	var all []string
	for _, c := range n.exec.Calls()[after:] {
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
				if err != nil {
					t.Fatal(err)
				}
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
					before := len(n.exec.Calls())
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

// A CHECK has nothing to compare with where a record has lost its result, or
// has one that cannot be read: it fails, and runs nothing.
func TestCheckWithoutAResult(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		result string
		want   error
		code   uint
	}{
		"none":                 {``, delegate.ErrResult, 6},
		"null":                 {`,"result":null`, delegate.ErrResult, 6},
		"no version":           {`,"result":{}`, nil, 0},
		"unknown version":      {`,"result":{"cniVersion":"9.9.9"}`, delegate.ErrResult, 6},
		"null in it":           {`,"result":{"cniVersion":"1.0.0","ips":[null]}`, delegate.ErrResult, 6},
		"not for this version": {`,"result":{"cniVersion":"1.0.0","ips":7}`, delegate.ErrResult, 6},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.put(eth0, scratch.Added, time.Time{}, `{"delegates":[{"network":{"cniVersion":"1.1.0","name":"blue","type":"bridge"},"ifname":"eth0"`+tt.result+`}]}`)
			err := n.Check(t.Context(), eth0)
			wantCode(t, err, tt.code)
			if !errors.Is(err, tt.want) {
				t.Errorf("err = %v", err)
			}
			if err != nil {
				n.wantTrace()
			}
		})
	}
}
