package status_test

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/status"
)

// whole are results that have every key of their version.
var whole = []string{
	`{"cniVersion":"0.1.0","ip4":{"ip":"10.1.0.5/24","gateway":"10.1.0.1","routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1"}]},
	  "ip6":{"ip":"fd00::5/64","gateway":"fd00::1","routes":[{"dst":"::/0"}]},"dns":{"nameservers":["10.1.0.9"],"domain":"d","search":["s"],"options":["o"]}}`,
	`{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.5/24","gateway":"10.1.0.1","routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1"}]},"dns":{}}`,
	`{"cniVersion":"0.3.1","interfaces":[{"name":"host"},{"name":"eth0","mac":"02:00:00:00:00:01","sandbox":"/n"}],
	  "ips":[{"version":"4","interface":1,"address":"10.1.0.5/24","gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1"}],"dns":{"search":["s"]}}`,
	`{"cniVersion":"0.4.0","interfaces":[{"name":"eth0","sandbox":"/n"}],"ips":[{"version":"6","interface":0,"address":"fd00::5/64"}],"routes":[{"dst":"::/0"}]}`,
	`{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","mac":"02:00:00:00:00:01","sandbox":"/n"}],"ips":[{"interface":0,"address":"10.1.0.5/24","gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1"}]}`,
	`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mac":"02:00:00:00:00:01","mtu":1500,"sandbox":"/n","socketPath":"/s","pciID":"0000:03:02.1"}],
	  "ips":[{"interface":0,"address":"10.1.0.5/24","gateway":"10.1.0.1"}],
	  "routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1","mtu":1400,"advmss":1300,"priority":7,"table":100,"scope":253}],"dns":{"nameservers":["10.1.0.9"]}}`,
}

// variants returns text with each of its values, one at a time, replaced by
// each of others; the value of "cniVersion" stays.
func variants(t testing.TB, text string, others ...string) (all [][]byte) {
	t.Helper()
	var root any
	nodetest.OK(t, json.Unmarshal([]byte(text), &root))
	keep := func() {
		data, err := json.Marshal(root)
		nodetest.OK(t, err)
		all = append(all, data)
	}
	try := func(set func(any), was any) {
		for _, other := range others {
			set(json.RawMessage(other))
			keep()
		}
		set(was)
	}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(v)) {
				if key == "cniVersion" {
					continue
				}
				was := v[key]
				try(func(other any) { v[key] = other }, was)
				walk(was)
			}
		case []any:
			for i, was := range v {
				try(func(other any) { v[i] = other }, was)
				walk(was)
			}
		}
	}
	walk(root)
	return all
}

// Every JSON type at every place of a result of every version: it is no result,
// or one whose networks can be listed.
func TestNetworksOfEveryJSONType(t *testing.T) {
	t.Parallel()
	for _, text := range whole {
		read := 0
		for _, data := range variants(t, text, `null`, `true`, `-1`, `9223372036854775807`, `1e400`, `""`, `"x"`, `[]`, `[null]`, `[[]]`, `{}`, `[{}]`, `{"x":null}`) {
			r, err := create.CreateFromBytes(data)
			if err != nil {
				continue
			}
			read++
			for _, def := range []bool{true, false} {
				if list, err := status.Networks("n", r, def); err != nil || len(list) == 0 {
					t.Errorf("%s: %v, %v", data, list, err)
				}
			}
		}
		if read < 10 {
			t.Errorf("only %d variants of %s are results", read, text)
		}
	}
}
