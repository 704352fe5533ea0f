package multinet

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf/nad"
)

const capabilities = `"capabilities":{"mac":true,"ips":true,"portMappings":true,"bandwidth":true,"infinibandGUID":true,"deviceID":true,"dns":true,"ipRanges":true}`

// Arguments of a selection reach the plugins of that network only. Arguments of the
// runtime for its interface reach the first network only.
func TestSelectionArguments(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		selection string
		runtime   []string // its own capability arguments
		want      []string // runtimeConfig and args of the first network, of a default one and of the selected one
	}{
		{"nothing", "cap", nil, []string{"null null", "null null", "null null"}},
		{
			"everything",
			`[{"name":"cap","mac":"02:00:00:00:00:01","ips":["10.0.0.5/24","fd00::5"],"portMappings":[{"hostPort":80,"x":1.0}],
				"bandwidth":{"ingressRate":9007199254740993},"infiniband-guid":"02:00:00:00:00:00:00:01","deviceID":"0000:03:02.0"}]`,
			nil,
			[]string{
				"null null", "null null",
				`{"bandwidth":{"ingressRate":9007199254740993},"deviceID":"0000:03:02.0","infinibandGUID":"02:00:00:00:00:00:00:01",` +
					`"ips":["10.0.0.5/24","fd00::5"],"mac":"02:00:00:00:00:01","portMappings":[{"hostPort":80,"x":1.0}]} null`,
			},
		},
		{
			"cni-args join those of the configuration",
			`[{"name":"args","cni-args":{"b":{"c":2.0},"a":"new"}}]`, nil,
			[]string{"null null", "null null", `null {"cni":{"a":"new","b":{"c":2.0},"z":1},"other":true}`},
		},
		{
			"the runtime's own", "cap",
			[]string{`"portMappings":[{"hostPort":8080}]`, `"mac":"02:00:00:00:00:09"`, `"ipRanges":[[]]`, `"dns":{"servers":["10.0.0.1"]}`},
			[]string{
				`{"dns":{"servers":["10.0.0.1"]},"ipRanges":[[]],"mac":"02:00:00:00:00:09","portMappings":[{"hostPort":8080}]} null`,
				`{"dns":{"servers":["10.0.0.1"]}} null`,
				`{"dns":{"servers":["10.0.0.1"]}} null`,
			},
		},
		{
			"both", `[{"name":"cap","portMappings":[{"hostPort":1}]}]`,
			[]string{`"portMappings":[{"hostPort":8080}]`},
			[]string{`{"portMappings":[{"hostPort":8080}]} null`, "null null", `{"portMappings":[{"hostPort":1}]} null`},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.0.0")
			h.Write("net.d/cap.conf", `{"name":"cap","type":"macvlan",`+capabilities+`}`)
			h.Write("net.d/args.conf", `{"name":"args","type":"macvlan","args":{"cni":{"a":"old","z":1},"other":true}}`)
			conf := keys(fmt.Sprintf(`"delegates":[{"type":"bridge",%[1]s},{"type":"tuning","name":"second",%[1]s}]`, capabilities), annotated(tt.selection, tt.runtime...))
			h.mustRun(t, "ADD", conf)
			got := arguments(t, h)
			nodetest.Equal(t, "arguments", got, tt.want)
			// CHECK and DEL use the same arguments, without any annotation.
			h.trace()
			h.mustRun(t, "CHECK", bridge)
			nodetest.Equal(t, "arguments of CHECK", arguments(t, h), tt.want)
			h.trace()
			h.mustRun(t, "DEL", bridge)
			if got := arguments(t, h); len(got) != 3 || got[0] != tt.want[2] || got[2] != tt.want[0] {
				t.Errorf("arguments of DEL %q, of ADD %q", got, tt.want)
			}
			h.clean(t)
		})
	}
}

// What the runtime asks for its own interface reaches no other network, even one that
// declares every capability.
func TestSecondaryNetworksGetNothingOfTheRuntimesInterface(t *testing.T) {
	t.Parallel()
	all := []string{
		`"portMappings":[{"hostPort":8080}]`, `"bandwidth":{"ingressRate":1}`, `"ips":["10.0.0.5/24"]`, `"mac":"02:00:00:00:00:09"`, `"ipRanges":[[]]`,
		`"infinibandGUID":"02:00:00:00:00:00:00:01"`, `"deviceID":"0000:03:02.0"`, `"CNIDeviceInfoFile":"/x"`,
	}
	declared := strings.Replace(capabilities, `"dns"`, `"CNIDeviceInfoFile":true,"dns"`, 1)
	h := newHost(t, "1.0.0")
	h.Write("net.d/cap.conf", `{"name":"cap","type":"macvlan",`+declared+`}`)
	h.Write("net.d/a/cap.conf", `{"type":"macvlan",`+declared+`}`)
	h.mustRun(t, "ADD", keys(fmt.Sprintf(`"delegates":[{"type":"bridge",%s}],"defaultNetworks":["cap"]`, declared), annotated("cap", all...)), func(a *skel.CmdArgs) { podOf("a")(a); a.Args += ";IP=10.0.0.5;MAC=02:00:00:00:00:09;GATEWAY=10.0.0.1" })
	for i, c := range h.Exec.Calls() {
		asked := false
		for pair := range strings.SplitSeq(c.Args, ";") {
			key, _, _ := strings.Cut(pair, "=")
			asked = asked || key == "IP" || key == "MAC" || key == "GATEWAY"
		}
		if asked != (i == 0) {
			t.Errorf("network %d was given CNI_ARGS %s", i, c.Args)
		}
	}
	got := arguments(t, h)
	for _, given := range got[1:] { // nothing but a file of their own
		if file, ok := strings.CutPrefix(given, `{"CNIDeviceInfoFile":"`+h.devices()+"/cni/"); !ok || !strings.HasSuffix(file, `.json"} null`) {
			t.Errorf("a secondary network was given %s", given)
		}
	}
	for _, argument := range all {
		if !strings.Contains(got[0], argument) {
			t.Errorf("the primary was given %s, not %s", got[0], argument)
		}
	}
}

// Older plugins read addresses from CNI_ARGS. They get them there with legacyArgs, which
// configurations of Multus have on, and need no capability then.
func TestLegacyArgs(t *testing.T) {
	t.Parallel()
	const asked = `[{"name":"fast","ips":["10.9.1.5/24","fd00::5"],"mac":"02:00:00:00:00:01"},{"name":"fast"}]`
	for _, tt := range []struct {
		typ, keys string
		on        bool
	}{
		{"multinet", `"legacyArgs":true`, true},
		{"multinet", `"x":1`, false},
		{"multus", `"x":1`, true},
		{"multus-shim", `"x":1`, true},
		{"multus", `"legacyArgs":false`, false},
	} {
		h := newHost(t, "1.0.0")
		conf := strings.Replace(h.conf(keys(bridge, tt.keys, annotated(asked))), `"multinet"`, `"`+tt.typ+`"`, 1)
		err := h.call(t.Context(), "ADD", conf, func(a *skel.CmdArgs) { a.Args = "IP=1.2.3.4;K=v" })
		if !tt.on {
			wantError(t, err, 7, `"ips"`, "capabilities")
			wantTrace(t, h)
			continue
		}
		nodetest.OK(t, err)
		var got []string
		for _, c := range h.Exec.Calls() {
			got = append(got, c.Args)
		}
		want := []string{"IP=1.2.3.4;K=v", "K=v;IP=10.9.1.5/24,fd00::5;MAC=02:00:00:00:00:01", "K=v"}
		nodetest.Equal(t, "CNI_ARGS", got, want)
		h.trace()
		h.mustRun(t, "DEL", bridge)
		if got := h.Exec.Calls()[4].Args; got != want[1] {
			t.Errorf("CNI_ARGS of DEL %s", got)
		}
	}
	h := newHost(t, "1.0.0")
	wantError(t, h.run(t, "ADD", keys(bridge, `"legacyArgs":true`, annotated(`[{"name":"fast","bandwidth":{"ingressRate":1}}]`))), 7, `"bandwidth"`)
}

// arguments are runtimeConfig and args of each call since the last trace.
func arguments(t *testing.T, h *host) []string {
	t.Helper()
	var all []string
	for _, c := range h.Exec.Calls()[h.seen:] {
		var in struct{ RuntimeConfig, Args json.RawMessage }
		nodetest.OK(t, json.Unmarshal(c.Stdin, &in))
		text := func(raw json.RawMessage) string {
			if raw == nil {
				return "null"
			}
			return string(raw)
		}
		all = append(all, text(in.RuntimeConfig)+" "+text(in.Args))
	}
	return all
}

// A pod may have no annotations, or not the one that selects networks.
func TestNothingSelected(t *testing.T) {
	t.Parallel()
	for _, conf := range []string{
		`"runtimeConfig":null`,
		`"runtimeConfig":{}`,
		`"runtimeConfig":{"io.kubernetes.cri.pod-annotations":null}`,
		`"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{}}`,
		`"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"other":"x"}}`,
		`"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"k8s.v1.cni.cncf.io/networks":null}}`,
		annotated(""),
		annotated(" "),
		annotated("[]"),
	} {
		h := newHost(t, "1.0.0")
		h.mustRun(t, "ADD", keys(bridge, conf))
		wantTrace(t, h, "ADD bridge eth0")
	}
}

// If the default route cannot be moved, the ADD is undone. Here the network namespace
// does not exist.
func TestFailureToMoveDefaultRouteUndoesADD(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	err := h.run(t, "ADD", keys(bridge, annotated(`[{"name":"fast","default-route":["10.9.1.1"]}]`)))
	wantError(t, err, 999, `"fast"`, "net1", "10.9.1.1")
	wantTrace(t, h, "ADD bridge eth0", "ADD macvlan net1", "DEL macvlan net1", "DEL bridge eth0")
	h.clean(t)
	if h.printed.Len() > 0 {
		t.Errorf("printed %s", h.printed.String())
	}
	// An empty list of gateways asks for nothing.
	h.mustRun(t, "ADD", keys(bridge, annotated(`[{"name":"fast","default-route":[]}]`)))
}

// An argument for which no plugin of the network declares a capability is an error,
// and no plugin runs.
func TestSelectionWithoutCapabilityIsRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ asked, says string }{
		{`"mac":"02:00:00:00:00:01"`, `"mac"`},
		{`"ips":["10.9.1.5/24"]`, `"ips"`},
		{`"portMappings":[{"hostPort":80}]`, `"portMappings"`},
		{`"bandwidth":{"ingressRate":1}`, `"bandwidth"`},
		{`"infiniband-guid":"02:00:00:00:00:00:00:01"`, `"infiniband-guid"`},
		{`"deviceID":"0000:03:02.0"`, `"deviceID"`},
	} {
		h := newHost(t, "1.0.0")
		// What the runtime asks of the primary is not asked of the selected one.
		conf := keys(bridge, annotated(`[{"name":"other"},{"name":"storage",`+tt.asked+`}]`, `"mac":"02:00:00:00:00:09"`))
		wantError(t, h.run(t, "ADD", conf), 7, `"storage"`, tt.says, "capabilities")
		wantTrace(t, h)
		h.clean(t)
	}
}

// Selections that contradict each other, or themselves, are refused before a plugin
// runs.
func TestContradictingSelectionsAreRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ selections, says string }{
		{`[{"name":"fast","default-route":["10.9.1.1"]},{"name":"other","default-route":["fd00::1"]}]`, "default-route"},
		{`[{"name":"fast","default-route":["10.9.1.1","10.9.1.2"]}]`, "default-route"},
		{`[{"name":"fast","ips":["10.9.1.5"],"ipam-claim-reference":"c"}]`, "ipam-claim-reference"},
	} {
		h := newHost(t, "1.0.0")
		wantError(t, h.run(t, "ADD", keys(bridge, annotated(tt.selections))), 7, nad.NetworksAnnotation, tt.says)
		wantTrace(t, h)
		h.clean(t)
	}
}

func TestSelectionsShareNoMemory(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	h.Write("net.d/cap.conf", `{"name":"cap","type":"macvlan",`+capabilities+`}`)
	h.mustRun(t, "ADD", keys(bridge, annotated(`[{"name":"cap","mac":"02:00:00:00:00:01"},{"name":"cap"}]`)))
	if got := strings.Join(arguments(t, h), "; "); got != `null null; {"mac":"02:00:00:00:00:01"} null; null null` {
		t.Errorf("arguments %s", got)
	}
}

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
