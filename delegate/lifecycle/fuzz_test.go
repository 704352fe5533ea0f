package lifecycle

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/nodetest"
)

// Whatever decodes as a record, and whatever changes were noted of it, can be
// encoded, decoded again, and deleted: no disk content makes the package panic,
// or a DEL that can never succeed. What no change says is gone is deleted, and
// nothing else is run.
func FuzzRecord(f *testing.F) {
	const one = `{"delegates":[{"network":{"name":"n","cniVersion":"1.1.0","plugins":[{"type":"bridge","x":1.0},{"type":"tuning"}]},"ifname":"eth0","netns":{"path":"/x","inode":7},"args":"A=1","result":{"cniVersion":"1.1.0","ips":[]}}]}`
	for _, change := range []string{
		``, `{"at":0,"gone":[1]}`, `{"at":0,"gone":[1,0]}`, `{"at":0,"gone":[0,0,1]}`, `{"at":0,"gone":[-1,7]}`, `{"at":0,"gone":[]}`, `{"at":0,"gone":null}`,
		`{"at":-1,"gone":[0]}`, `{"at":1,"gone":[0]}`, `{"gone":[1]}`, `{"at":0,"result":{"cniVersion":"0.4.0"},"unfinished":true}`, `{"at":0,"result":null}`,
		`{"at":0,"result":[]}`, `{"at":0,"result":{"cniVersion":"1.0.0","ips":[null]}}`, `{"at":"0"}`, `{"at":1e99}`, `null`, `[]`, `7`,
	} {
		f.Add([]byte(one), []byte(change), []byte(`{"at":0,"gone":[0]}`))
	}
	for _, value := range []string{
		`{"delegates":[{"network":{"name":"n","cniVersion":"0.4.0","plugins":[{"type":"bridge","capabilities":{"mac":true}}]},"ifname":"eth0","capabilityArgs":{"mac":"x"},"leaving":true}]}`,
		`{"delegates":[{"network":{"name":"n","type":"bridge"},"ifname":"eth0","gone":[5,-1,0,0]}]}`,
		`{"delegates":[]}`,
		`{"delegates":null}`,
		`{"delegates":[{"network":{"name":"n","cniVersion":"9.9.9","type":"a/b"},"ifname":"e","result":{"cniVersion":"9.9.9"}}]}`,
	} {
		f.Add([]byte(value), []byte(`{"at":0,"gone":[0]}`), []byte(``))
	}
	f.Fuzz(func(t *testing.T, data, change1, change2 []byte) {
		var r, again record
		if json.Unmarshal(data, &r) != nil {
			return
		}
		for _, c := range [][]byte{change1, change2} {
			before, err := json.Marshal(r)
			nodetest.OK(t, err)
			if r.Make(c) == nil {
				continue
			}
			if after, err := json.Marshal(r); err != nil || string(after) != string(before) {
				t.Fatalf("what was refused has made %s of %s: %v", after, before, err)
			}
		}
		out, err := json.Marshal(r)
		nodetest.OK(t, err)
		if err := json.Unmarshal(out, &again); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		if d := cmp.Diff(stateOf(r), stateOf(again)); d != "" {
			t.Error(d)
		}
		as := again.attached("c1", asRecorded)
		n := nodeAt(t, "unused")
		for _, a := range as {
			for _, p := range a.Network.Plugins() {
				n.Exec.Plugins[p.Type()] = n.Exec.Plugins["bridge"]
			}
		}
		err = n.Invoker.DelAll(t.Context(), as)
		if err := except(err, func(err error) bool { return errors.Is(err, delegate.ErrPluginNotFound) }); err != nil { // a type may be a path
			t.Errorf("DEL: %v", err)
		}
		var want []string
		for _, a := range slices.Backward(as) {
			for i, p := range slices.Backward(a.Network.Plugins()) {
				if _, err := n.Exec.FindInPath(p.Type(), nil); err == nil && !slices.Contains(a.Gone, i) {
					want = append(want, "DEL "+p.Type()+" "+a.IfName)
				}
			}
		}
		if got := n.Exec.Trace(); err == nil && !slices.Equal(got, want) {
			t.Errorf("ran %q, want %q", got, want)
		}
	})
}

// stateOf is what a record says beside its networks, result by result.
func stateOf(r record) []any {
	var all []any
	for _, e := range r.Delegates {
		var result any
		_ = json.Unmarshal(e.Result, &result)
		all = append(all, e.IfName, e.NetNS, e.Args, result, e.State, e.Unfinished, len(e.Gone), e.left())
	}
	return all
}
