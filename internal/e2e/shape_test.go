package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// resultVersions are all versions of results, including those that only a very
// old delegate or runtime uses.
var resultVersions = []string{"0.1.0", "0.2.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// TestResultsOfAnyShape: a delegate's result may have any JSON type, or null,
// at any place, in any version, and the runtime may use any version. ADD
// succeeds or fails with an error object. Later commands do not panic, and DEL
// leaves nothing. Package delegate tests every place in process; this is a
// sample through the executable.
func TestResultsOfAnyShape(t *testing.T) {
	each := 16
	if !*long {
		each = 3
	}
	for i, runtime := range resultVersions {
		for j, version := range resultVersions {
			t.Run(runtime+" over "+version, func(t *testing.T) {
				w := newWorld(t)
				all := shapes(version)
				random := rand.New(rand.NewPCG(uint64(i), uint64(j))) //nolint:gosec // the same on every run
				random.Shuffle(len(all), func(a, b int) { all[a], all[b] = all[b], all[a] })
				// First those that are most likely to cause a panic.
				slices.SortStableFunc(all, func(a, b shape) int { return harm(b) - harm(a) })
				for k, s := range all[:each] {
					w.shaped(runtime, version, s, k)
					if t.Failed() {
						t.Fatalf("%s at %s: %s", s.value, s.place, s.result)
					}
				}
				w.figures(runtime+" over a result of "+version+" with any type at any place", each)
			})
		}
	}
}

// shaped attaches and detaches a container to a network whose result is s:
// alone, as the second network, in a chain, or in parallel.
func (w *world) shaped(runtime, version string, s shape, k int) {
	w.t.Helper()
	odd := w.with(w.fake("odd"), object{"print": s.result, "cniVersion": version, "name": w.name("odd")})
	good, next := w.fake("good"), w.fake("next")
	var p *pod
	switch k % 4 {
	case 0:
		p = w.pod(w.multinet(runtime, odd))
	case 1:
		p = w.pod(w.multinet(runtime, good, odd))
	case 2:
		delete(odd, "cniVersion")
		delete(odd, "name")
		p = w.pod(w.multinet(runtime, object{"cniVersion": version, "name": w.name("odd"), "plugins": []object{odd, next}}))
	case 3:
		p = w.pod(w.multinet(runtime, good, odd, w.with(next, object{"cniVersion": version, "name": w.name("next")})))
		w.parallel(p.conf, good, odd, next)
	}
	a := w.call("ADD", p)
	if a.err == nil {
		p.result = a.stdout
	} else {
		same(w.t, "attached after an ADD that failed", nil, w.live())
	}
	w.call("CHECK", p)
	if runtime == "1.1.0" && a.err == nil {
		w.ok("GC", p, valid(p))
		if len(w.live()) == 0 {
			w.t.Error("GC has removed a valid attachment")
		}
	}
	w.operate("list")
	w.operate("show", p.id)
	w.ok("DEL", p)
	w.nothingLeft()
}

// A shape is a result with some value at one place.
type shape struct {
	place, value string
	result       json.RawMessage
}

// shapes returns a result of version with each value at each place.
func shapes(version string) (list []shape) {
	text := `{"interfaces":[{"name":"eth0","mac":"02:00:00:00:00:01","mtu":1500,"sandbox":"/x","socketPath":"/s","pciID":"0"}],
		"ips":[{"version":"4","interface":0,"address":"192.0.2.2/24","gateway":"192.0.2.1"}],
		"routes":[{"dst":"0.0.0.0/0","gw":"192.0.2.1","mtu":1400,"advmss":1300,"priority":1,"table":254,"scope":0}],
		"dns":{"nameservers":["192.0.2.1"],"domain":"d","search":["s"],"options":["o"]}}`
	if version == "0.1.0" || version == "0.2.0" {
		text = `{"ip4":{"ip":"192.0.2.2/24","gateway":"192.0.2.1","routes":[{"dst":"0.0.0.0/0","gw":"192.0.2.1"}]},
			"ip6":{"ip":"2001:db8::2/64","gateway":"2001:db8::1","routes":[{"dst":"::/0","gw":"2001:db8::1"}]},
			"dns":{"nameservers":["192.0.2.1"],"domain":"d","search":["s"],"options":["o"]}}`
	}
	for _, place := range places(parse(text), nil) {
		for _, value := range []string{"null", "[null]", "true", "7", "-1", "1e99", `""`, `"x"`, "[]", "{}", `{"a":null}`} {
			result := parse(text).(object)
			result["cniVersion"] = version
			put(result, place, parse(value))
			list = append(list, shape{fmt.Sprint(place), value, marshal(result)})
		}
	}
	return list
}

// harm orders shapes by how likely they are to cause a panic: null in a list,
// null elsewhere, all others.
func harm(s shape) int {
	switch {
	case s.value == "null" && strings.HasSuffix(s.place, " 0]"):
		return 2
	case s.value == "null" && !strings.Contains(s.place, " "):
		return 1
	}
	return 0
}

// places lists the paths to all values below v.
func places(v any, at []any) (list [][]any) {
	switch v := v.(type) {
	case object:
		for key, member := range v {
			path := append(slices.Clone(at), key)
			list = append(append(list, path), places(member, path)...)
		}
	case []any:
		for i, member := range v {
			path := append(slices.Clone(at), i)
			list = append(append(list, path), places(member, path)...)
		}
	}
	slices.SortFunc(list, func(a, b []any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return list
}

// put replaces the value at a path below v.
func put(v any, path []any, value any) {
	for _, at := range path[:len(path)-1] {
		v = member(v, at)
	}
	switch last := path[len(path)-1].(type) {
	case string:
		v.(object)[last] = value
	case int:
		v.([]any)[last] = value
	}
}

func member(v, at any) any {
	if key, ok := at.(string); ok {
		return v.(object)[key]
	}
	return v.([]any)[at.(int)]
}

func parse(text string) (v any) {
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		panic(err)
	}
	return v
}

func marshal(v any) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}
