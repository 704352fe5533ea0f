package multinet

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/netconf/nad"
)

// The configuration says how many networks a pod may select; the review of the pod says the
// same as its ADD, before anything is looked up.
func TestSelectionsOfAPodAreLimited(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		key    string
		n      int
		code   uint
		saying string
	}{
		"by default":       {``, 64, 0, ""},
		"too many":         {``, 65, 7, "65 networks are selected, at most 64 are allowed"},
		"raised":           {`"maxSelections":100,`, 100, 0, ""},
		"raised, too many": {`"maxSelections":100,`, 101, 7, "101 networks are selected, at most 100 are allowed"},
		"lowered":          {`"maxSelections":1,`, 2, 7, "2 networks are selected, at most 1 are allowed"},
		"the case of keys": {`"MaxSelections":1,`, 2, 7, "at most 1 are allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.1.0")
			var asked []string
			h.cluster = clusterOf(&asked, map[string]string{"ns/blue": `{"type":"macvlan"}`})
			annotation := "blue" + strings.Repeat(",blue", tt.n-1)
			add := h.run(t, "ADD", tt.key+keys(bridge, annotated(annotation)), podOf("ns"))
			wantError(t, add, tt.code, tt.saying)
			same(t, add, h.reviewer(t, tt.key+bridge).Pod("ns", map[string]string{nad.NetworksAnnotation: annotation}))
			if tt.code != 0 {
				wantTrace(t, h)
				h.clean(t)
				if asked != nil {
					t.Errorf("asked %q", asked)
				}
			}
		})
	}
	for _, value := range []string{"0", "-1", "1025", "1.5", `"64"`, "[]", "1e99"} {
		h := newHost(t, "1.1.0")
		wantError(t, h.run(t, "ADD", keys(bridge, `"maxSelections":`+value)), 7, `"maxSelections"`, "from 1 to 1024")
		wantTrace(t, h)
	}
}

// A definition that is selected several times is asked for and parsed once, and the
// annotations of the pod are recorded once.
func TestEqualSelectionsShareTheirDefinition(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	var asked []string
	h.cluster = clusterOf(&asked, map[string]string{"ns/blue": `{"type":"macvlan"}`, "ns/red": `{"type":"macvlan"}`})
	mac := func(i int) string { return fmt.Sprintf(`{"name":"blue","cni-args":{"i":%d}}`, i) }
	h.mustRun(t, "ADD", keys(bridge, annotated("["+mac(1)+","+mac(2)+`,{"name":"red"},`+mac(3)+"]")), podOf("ns"))
	want := []string{"definition selected ns/blue", "definition selected ns/red", "attached c1 eth0 ns/web c1"}
	if d := cmp.Diff(want, asked); d != "" {
		t.Errorf("asked (-want +got):\n%s", d)
	}
	for i, want := range []string{`"i":1`, `"i":2`, ``, `"i":3`} {
		if text, _ := recorded(t, h, "c1").Attached[i+1].Network.MarshalJSON(); !strings.Contains(string(text), want) || want == "" && strings.Contains(string(text), `"i"`) {
			t.Errorf("%d: %s, want %s", i, text, want)
		}
	}
	for i, a := range recorded(t, h, "c1").Attached {
		if _, has := a.CapabilityArgs[podAnnotations]; has != (i == 0) {
			t.Errorf("%s: annotations %t", a.IfName, has)
		}
	}
	h.mustRun(t, "DEL", bridge, podOf("ns"))
	h.clean(t)
}

// The record of large networks is known to be too large before a plugin runs.
func TestRecordThatWouldBeTooLargeIsRefused(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	var asked []string
	h.cluster = clusterOf(&asked, map[string]string{"ns/blue": `{"type":"macvlan","x":"` + strings.Repeat("x", 1<<20-100) + `"}`})
	err := h.run(t, "ADD", keys(bridge, annotated("blue"+strings.Repeat(",blue", 63))), podOf("ns"))
	wantError(t, err, 7, "the record would be larger than 16 MiB")
	wantTrace(t, h)
	h.clean(t)
}

// BenchmarkSelections is an ADD of a pod that selects one definition many times, with
// plugins that do nothing. What one network costs does not depend on their number.
func BenchmarkSelections(b *testing.B) {
	for _, size := range []int{0, 8 << 10} {
		for _, k := range []int{16, 64, 256, 1024} {
			b.Run(fmt.Sprintf("definition=%dKiB/networks=%d", size>>10, k), func(b *testing.B) {
				h := newHost(b, "1.1.0")
				h.write(b, "nads/ns/blue.conf", `{"cniVersion":"1.1.0","name":"blue","type":"macvlan","x":"`+strings.Repeat("x", size)+`"}`)
				dir := fmt.Sprintf(`"maxSelections":1024,"nadDir":%q`, filepath.Join(h.dir, "nads"))
				conf := h.conf(keys(bridge, dir, annotated("blue"+strings.Repeat(",blue", k-1))))
				plugins := h.exec.Plugins
				var allocated uint64
				for b.Loop() {
					b.StopTimer()
					h.exec = &delegatetest.Exec{Plugins: plugins} // which remembers all calls
					var before, after runtime.MemStats
					runtime.ReadMemStats(&before)
					b.StartTimer()
					err := h.call(b.Context(), "ADD", conf, podOf("ns"))
					b.StopTimer()
					runtime.ReadMemStats(&after)
					allocated += after.TotalAlloc - before.TotalAlloc
					if err == nil {
						err = h.call(b.Context(), "DEL", conf, podOf("ns"))
					}
					if err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*k), "ns/network")
				b.ReportMetric(float64(allocated)/float64(b.N*k), "B/network")
			})
		}
	}
}
