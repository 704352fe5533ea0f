package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/internal/programtest"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// A host is where multinet runs: its directories, plugins to delegate to, and the cluster.
type host struct {
	*programtest.Memory
	files   string // $DIR in configurations
	version string // of the configuration
	cluster Cluster
	asked   []string // of the cluster
}

func newHost(t testing.TB, version string) *host {
	t.Helper()
	h := newHostWith(t, version, "")
	h.files = h.Dir
	h.Write("net.d/storage.conflist", `{"name":"storage","cniVersion":"1.0.0","plugins":[{"type":"macvlan"},{"type":"tuning"}]}`)
	h.Write("net.d/fast.conf", `{"name":"fast","type":"macvlan"}`)
	h.Write("net.d/bad.conf", `{"name":"bad","type":5}`)
	h.Write("net.d/other.json", `{"name":"other","type":"bridge"}`)
	return h
}

// newHostWith is newHost of the files of another.
func newHostWith(t testing.TB, version, files string) *host {
	t.Helper()
	h := &host{Memory: programtest.NewMemory(t, New(Cluster{}), "multinet", "tuning", "stuck", "full"), version: version, files: files}
	h.Exec.Plugins["bridge"] = delegatetest.Result(nodetest.Result("10.9.0.2/24"))
	h.Exec.Plugins["macvlan"] = delegatetest.Result(nodetest.Result("10.9.1.2/24"))
	h.Exec.Plugins["full"] = delegatetest.FailOn("ADD", 107, "no free device", delegatetest.Result(nil))
	h.FailOn("DEL stuck", 108)
	return h
}

// conf is a configuration with more keys, as JSON without the braces. $DIR is the host's directory.
func (h *host) conf(keys string) string {
	if !strings.Contains(keys, `"confDir"`) {
		keys = strings.TrimSuffix(`"confDir":"$DIR/net.d",`+keys, ",")
	}
	conf := fmt.Sprintf(`{"cniVersion":%q,"name":"multi","type":"multinet","cniDir":%q,"deviceInfoDir":%q,%s}`, h.version, h.state(), h.Path("devinfo"), keys)
	return strings.ReplaceAll(conf, "$DIR", h.files)
}

func (h *host) state() string { return h.Path("state") }

// call runs a command with a whole configuration.
func (h *host) call(command, conf string, edits ...func(*skel.CmdArgs)) error {
	h.Plugin = New(h.cluster)
	return h.Do(command, conf, edits...)
}

// run is call with a configuration that has more keys.
func (h *host) run(command, keys string, edits ...func(*skel.CmdArgs)) error {
	return h.call(command, h.conf(keys), edits...)
}

// mustRun is run of a command that is to succeed.
func (h *host) mustRun(command, keys string, edits ...func(*skel.CmdArgs)) {
	h.Helper()
	nodetest.OK(h, h.run(command, keys, edits...))
}

// removed wants the DEL of c1 to succeed, and nothing to be left.
func (h *host) removed(edits ...func(*skel.CmdArgs)) {
	h.Helper()
	h.mustRun("DEL", bridge, edits...)
	h.clean()
}

// clean wants everything undone, and no record.
func (h *host) clean() { h.Helper(); h.WantNothing("state") }

// outside lets a call be outside of Kubernetes.
func outside(a *skel.CmdArgs) { a.Args = "" }

// annotated is the runtimeConfig with which a runtime passes on the annotation
// that selects networks, with more capability arguments.
func annotated(selection string, more ...string) string {
	quoted, err := json.Marshal(selection)
	if err != nil {
		panic(err)
	}
	more = append(more, fmt.Sprintf(`"io.kubernetes.cri.pod-annotations":{"k8s.v1.cni.cncf.io/networks":%s,"other":"[{"}`, quoted))
	return `"runtimeConfig":{` + strings.Join(more, ",") + `}`
}

const bridge = `"delegates":[{"type":"bridge"}]`

// keys joins groups of keys.
func keys(groups ...string) string { return strings.Join(groups, ",") }

// refuses wants an ADD to fail with a code and these words. No plugin has run then, unless the
// code is that of a plugin, and nothing is left or printed.
func (h *host) refuses(keys string, code uint, says []string, edits ...func(*skel.CmdArgs)) {
	h.Helper()
	nodetest.Fails(h, h.run("ADD", keys, edits...), code, says...)
	if code < 100 || code == types.ErrInternal {
		h.WantTrace()
	}
	h.clean()
	nodetest.Equal(h, "printed", h.Printed.String(), "")
}

// ADD, CHECK and DEL of a container with four networks: their order, the names of the
// interfaces, the record, and nothing left at the end.
func TestLife(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	conf := keys(`"delegates":[{"type":"bridge"},{"name":"second","cniVersion":"0.4.0","plugins":[{"type":"macvlan"},{"type":"tuning"}]}]`,
		annotated("fast, default/storage"))
	h.mustRun("ADD", conf)
	h.WantTrace("ADD bridge eth0", "ADD macvlan net1", "ADD tuning net1", "ADD macvlan net2", "ADD macvlan net3", "ADD tuning net3")
	if got := h.Printed.String(); !strings.Contains(got, "10.9.0.2/24") || strings.Contains(got, "10.9.1.2") || strings.Count(got, "cniVersion") != 1 {
		t.Errorf("result %s, want that of bridge alone", got)
	}
	nodetest.Fails(t, h.run("ADD", conf), 7, "already added")
	h.mustRun("CHECK", conf)
	h.WantTrace("CHECK bridge eth0", "CHECK macvlan net1", "CHECK tuning net1", "CHECK macvlan net2", "CHECK macvlan net3", "CHECK tuning net3")
	h.mustRun("STATUS", conf)
	h.WantTrace("STATUS bridge") // the other is of CNI 0.4.0
	h.mustRun("DEL", conf)
	h.WantTrace("DEL tuning net3", "DEL macvlan net3", "DEL macvlan net2", "DEL tuning net1", "DEL macvlan net1", "DEL bridge eth0")
	h.mustRun("DEL", conf)
	h.WantTrace()
	nodetest.Fails(t, h.run("CHECK", conf), 7, "not added")
	h.clean()
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// Keys of Multus that change nothing for a pod are accepted: its configuration files
// have them.
func TestHarmlessKeysOfMultusAreAccepted(t *testing.T) {
	t.Parallel()
	for _, more := range []string{
		`"namespaceIsolation":false,"systemNamespaces":[]`, `"namespaceIsolation":null`,
		`"globalNamespaces":"default","multusNamespace":"kube-system","kubeconfig":"/etc/cni/net.d/multus.d/multus.kubeconfig","logLevel":"verbose","retryDeleteOnError":true`,
	} {
		h := newHost(t, "1.1.0")
		h.mustRun("STATUS", keys(bridge, more))
		h.mustRun("ADD", keys(bridge, more))
		h.removed()
	}
}

// A daemon and a webhook do not start with what an ADD refuses.
func TestStateDirAndReviewerRefuseWhatAnADDDoes(t *testing.T) {
	t.Parallel()
	for _, conf := range []string{`{`, `{"name":"multi","namespaceIsolation":"yes"}`, `{"multusNamespace":"A"}`, `{"globalNamespaces":"a b"}`} {
		_, review := NewReviewer([]byte(conf))
		if _, err := StateDir("", []byte(conf)); err == nil || review == nil {
			t.Errorf("%s: %v, %v", conf, err, review)
		}
	}
	_, err := NewReviewer([]byte(`{"type":"multinet-shim"}`))
	nodetest.OK(t, err)
	if dir, err := StateDir("", []byte(`{"cniDir":"/state/"}`)); dir != "/state" || err != nil {
		t.Errorf("%q, %v", dir, err)
	}
}

// CHECK, GC and DEL need no key of the configuration except the ones that find the
// record: the others may have any type, and what they name may be gone.
func TestBrokenConfigurationDoesNotStopDEL(t *testing.T) {
	t.Parallel()
	broken := []string{
		`"delegates":[{"type":"macvlan"}]`, `"clusterNetwork":"absent"`, `"readinessindicatorfile":"/absent"`,
		`"delegates":[{"type":"bridge","mtu":1,"mtu":2}]`, "\"x\":\"\xff\"", annotated(`[{"name":`),
	}
	var lists, objects []string
	for _, key := range Keys() {
		if key != "name" && key != "cniDir" {
			broken = append(broken, `"`+key+`":5`)
			lists, objects = append(lists, `"`+key+`":[[5]]`), append(objects, `"`+key+`":{"a":{"b":5}}`)
		}
	}
	for _, conf := range append(broken, keys(lists...), keys(objects...)) {
		t.Run(conf[:min(len(conf), 40)], func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.1.0")
			h.mustRun("ADD", bridge)
			h.Trace()
			h.mustRun("CHECK", conf)
			if err := h.run("GC", keys(conf, gcFor("c1 eth0"))); err != nil && !strings.Contains(err.Error(), "absent") {
				t.Errorf("GC: %v", err)
			}
			h.mustRun("DEL", conf)
			got := h.Trace()
			nodetest.Equal(t, "the first and last call", []string{got[0], got[len(got)-1]}, []string{"CHECK bridge eth0", "DEL bridge eth0"})
			h.clean()
		})
	}
}

// As Multus's manifests have it: no cniVersion, and delegates with one.
func TestConfigurationWithoutAVersionHasThatOfItsFirstNetwork(t *testing.T) {
	t.Parallel()
	for conf, want := range map[string][2]string{
		`"delegates":[{"cniVersion":"0.3.1","type":"bridge"},{"type":"macvlan"}]`:                      {"0.3.1", "0.3.1"},
		`"cniVersion":"","clusterNetwork":"storage","defaultNetworks":["fast"]`:                        {"1.0.0", "1.0.0"},
		`"cniVersion":"0.4.0","delegates":[{"cniVersion":"1.0.0","type":"bridge"},{"type":"macvlan"}]`: {"0.4.0", "0.4.0"},
		`"clusterNetwork":"defined","auxiliaryCNIChainName":"vendor"`:                                  {"1.0.0", "1.0.0"},
	} {
		h := newHost(t, "")
		h.Write("net.d/vendor/10.conf", `{"type":"tuning"}`)
		h.clusterOf(map[string]string{"kube-system/defined": `{"cniVersion":"1.0.0","type":"bridge"}`})
		conf = strings.Replace(h.conf(conf), `"cniVersion":"",`, "", 1)
		nodetest.OK(t, h.call("ADD", conf))
		nodetest.Contains(t, conf, h.Printed.String(), fmt.Sprintf(`"cniVersion":%q`, want[0]))
		nodetest.Equal(t, conf, nodetest.Stdin(t, h.Last("ADD"))["cniVersion"].(string), want[1])
		slices.Sort(h.asked)
		nodetest.Equal(t, "asked of the cluster", h.asked, slices.Compact(slices.Clone(h.asked))) // each once
		h.removed()
	}
}

// What other programs may refuse is attached, with a warning.
func TestKeyThatStandsTwiceWithOneValueIsAWarning(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	h.Write("net.d/ns/vendor.conf", `{"name":"vendor","type":"macvlan","name":"vendor"}`)
	var stderr strings.Builder
	h.Process.Stderr = &stderr
	conf := h.conf(keys(`"maxSelections":3,"maxSelections":3`, bridge, annotated(`[{"name":"vendor","name":"vendor"}]`)))
	nodetest.OK(t, h.call("ADD", conf, podOf("ns")))
	h.WantTrace("ADD bridge eth0", "ADD macvlan net1")
	nodetest.Equal(t, "stderr", stderr.String(), `multinet: the configuration: key "maxSelections" is given twice, with one value: remove one
multinet: annotation k8s.v1.cni.cncf.io/networks: key "[0].name" is given twice, with one value: remove one
multinet: NAD ns/vendor: key "name" is given twice, with one value: remove one
`)
}

// An ADD that takes longer than slowAfter writes one line to stderr, without the configuration
// of its delegates, unless the program around it is told.
func TestSlowADDIsLoggedOnce(t *testing.T) {
	t.Parallel()
	const (
		secret   = `"delegates":[{"type":"bridge","password":"hunter2"}]`
		failing  = `"delegates":[{"type":"bridge","password":"hunter2"},{"type":"full"}]`
		duration = ` duration=2s timing.lock=0s timing.record=0s timing.plugins="ADD bridge multi eth0 2s`
	)
	for name, tt := range map[string]struct {
		keys string
		told bool
		want string // the end of the line, or empty
	}{
		"longer than the limit":         {keys: secret + `,"slowAfter":"1999ms"`, want: duration + `"`},
		"as long as the default":        {keys: secret},
		"one that fails":                {keys: failing + `,"slowAfter":"1s"`, want: duration + `, ADD full multi net1 0s, DEL full multi net1 0s, DEL bridge multi eth0 0s"`},
		"one that waited for something": {keys: secret + `,"readinessindicatorfile":"/absent","readinessTimeout":"3s"`, want: ` duration=3s timing.lock=0s timing.record=0s timing.plugins=""`},
		"none":                          {keys: secret + `,"slowAfter":"-1s"`},
		"in a daemon":                   {keys: secret + `,"slowAfter":"0s"`, told: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHost(t, "1.1.0")
				h.On("ADD bridge", func(context.Context, delegatetest.Invocation) error { time.Sleep(2 * time.Second); return nil })
				var stderr strings.Builder
				h.Process.Stderr = &stderr
				if tt.told {
					h.Process.Timed = func(lifecycle.Timing) {}
				}
				err := h.run("ADD", tt.keys, podOf("ns"))
				if strings.Contains(tt.keys, "full") {
					nodetest.Code(t, err, 107)
				}
				_, line, _ := strings.Cut(stderr.String(), "level=")
				want := ""
				if tt.want != "" {
					want = `WARN msg="slow ADD" container=c1 ifname=eth0 network=multi pod=ns/web` + tt.want + "\n"
				}
				nodetest.Equal(t, "line", line, want)
			})
		})
	}
}

// Whatever a pod and its claim ask for, and whatever a definition says, an ADD either succeeds
// and is removed completely by DEL, or fails and leaves nothing. A mistake of the pod is found
// before anything runs, and has a code below 100. With isolation nothing of another
// namespace is attached.
func FuzzADD(f *testing.F) {
	for _, networks := range []string{
		"", "blue", "b/blue", "fast@x,fast", `[{"name":"blue","cni-args":{"a":1}}]`, `[{"name":"blue","cni-args":5}]`, `[1]`, `[[]]`, `{}`, `"`, `[{"name":"blue","ips":["x"]}]`,
		`[{"name":"blue","default-route":["10.0.0.1"]}]`, `[{"name":5}]`, `[{"name":null}]`, `[{"name":"blue","namespace":"b"}]`, `[null]`, "blue@eth0", "a/a/a", "blue@@", ",",
	} {
		f.Add(networks, networks, `{"plugins":[{"type":"macvlan","args":{"cni":{"a":2}}}]}`, "", "")
	}
	for _, definition := range []string{`{"type":"macvlan"}`, `{"type":"macvlan","args":5}`, `{"type":"macvlan","args":{"cni":[]}}`, `[]`, ``} {
		f.Add(`[{"name":"blue","cni-args":{"a":1}}]`, "", definition, "", "")
		f.Add("", "blue", definition, "", "")
	}
	for _, claim := range []string{
		"", "a/blue", "b/blue", "blue", "/", "a/fast", "a/a/a", `{"type":"macvlan"}`, `{"type":"full"}`, `{"type":"multus"}`, `{"plugins":[{"type":"tuning"},{"type":"stuck"}]}`,
		`{"type":"tuning","name":""}`, `{"type":"tuning","cniVersion":"0.2.0"}`, `{"type":"tuning","prevResult":5}`, `{"type":"tuning","x":1e999}`, `{"type":"tuning","cniVersions":["1.1.0"]}`,
	} {
		f.Add("blue@x", "", `{"type":"macvlan"}`, claim, "")
	}
	for _, ifName := range []string{"eth0", "net1", "x", "net%d"} {
		f.Add("blue@x", "", `{"type":"macvlan"}`, "a/blue", ifName)
	}
	f.Fuzz(func(t *testing.T, networks, primary, definition, claim, ifName string) {
		t.Parallel()
		h := newHost(t, "1.1.0")
		delete(h.Exec.Plugins, "stuck") // whose DEL fails
		h.Write("net.d/a/blue.conf", definition)
		h.Write("net.d/kube-system/blue.conf", definition)
		h.Write("net.d/b/blue.conf", `{"type":"macvlan","foreign":"`+h.Dir+`"}`)
		annotations, err := json.Marshal(map[string]string{nad.NetworksAnnotation: networks, nad.DefaultNetworkAnnotation: primary})
		nodetest.OK(t, err)
		conf := h.conf(keys(bridge, `"namespaceIsolation":true`, `"runtimeConfig":{"io.kubernetes.cri.pod-annotations":`+string(annotations)+`}`))
		h.cluster = Cluster{}.with(fuzzed(claim, ifName)...)
		err = h.call("ADD", conf, podOf("a"))
		for _, c := range h.Exec.Calls() {
			var in map[string]any
			if err := json.Unmarshal(c.Stdin, &in); err != nil || in["foreign"] == h.Dir {
				t.Errorf("%s with %s", c, c.Stdin)
			}
		}
		if err == nil {
			h.mustRun("DEL", bridge)
		} else if code := status.Code(err); code >= 100 && len(h.Exec.Calls()) == 0 {
			t.Errorf("code %d: %v", code, err)
		}
		h.clean()
	})
}

// fuzzed returns what a claim asks for: a network or, if claim is none, the name of a
// definition, which is invalid in most cases.
func fuzzed(claim, ifName string) []Claimed {
	c := Claimed{Claim: nad.Claim{UID: "u", Name: claim, Request: ifName}, IfName: ifName}
	n, err := netconf.Parse([]byte(claim))
	switch {
	case claim == "":
		return nil
	case err == nil:
		c.Network = n
	default:
		c.Definition.Namespace, c.Definition.Name, _ = strings.Cut(claim, "/")
	}
	return []Claimed{c}
}

// Whatever a pod asks for, and whatever a definition says: a review refuses nothing that an
// ADD accepts. What an ADD refuses before it runs a plugin, the review refuses as well, with
// the same code, except for what only the cluster and the node know: whether a network and a
// plugin exist, what a network can do for a pod that asks for it, and its devices.
func FuzzReview(f *testing.F) {
	const good = `{"type":"macvlan"}`
	for _, networks := range []string{
		"", " ", "blue", "b/blue", "default/blue,a/blue", "absent", "blue@x,blue", "blue@x,blue@x", "blue@eth0", "blue@lo", "blue@all", "blue@a:b", "blue@%d", "blue@-x", "blue@net1,blue", "blue@\u00a0",
		"Blue", "a/a/a", "blue@@", ",", "/blue", "a_b", "-a", "blue.x", "A/blue", `{}`, `"`, `[1]`, `[[]]`, `[null]`, `[]`, `[{"name":5}]`, `[{"name":"blue"},]`, `[{}]`, "\xff",
		`[{"name":"blue","cni-args":{"a":1}}]`, `[{"name":"blue","cni-args":5}]`, `[{"name":"blue","ips":["10.0.0.1"]}]`, `[{"name":"blue","ips":["x"]}]`, `[{"name":"blue","mac":"x"}]`,
		`[{"name":"blue","mac":"02:00:00:00:00:01"}]`, `[{"name":"blue","deviceID":"0000:00:00.1"}]`, `[{"name":"blue","infiniband-guid":"01"}]`, `[{"name":"blue","bandwidth":{"ingressBurst":1}}]`,
		`[{"name":"blue","portMappings":[{"hostPort":0}]}]`, `[{"name":"blue","default-route":["10.0.0.1"]}]`, `[{"name":"blue","default-route":["10.0.0.1"]},{"name":"blue","default-route":["10.0.0.2"]}]`,
		`[{"name":"blue","ips":["10.0.0.1"],"ipam-claim-reference":"c"}]`, `[{"name":"blue","namespace":"b"}]`, `[{"name":"blue","interface":"eth0"}]`, `[{"name":"blue","interfaceRequest":"much-too-long-for-it"}]`,
	} {
		f.Add(networks, "", good, true)
		f.Add(networks, networks, good, false)
	}
	for _, definition := range []string{
		"", " \n\t", "{", "{}", "[]", "null", "5", `""`, "\x00", "\ufeff{}", `{"type":"macvlan"} x`, `{"type":"macvlan","type":"tuning"}`, `{"TYPE":"macvlan"}`, `{"type":5}`, `{"type":""}`, `{"type":"tuning"}`,
		`{"type":"bridge"}`, `{"type":"absent"}`, `{"type":"../macvlan"}`, `{"type":".."}`, `{"type":"multinet"}`, `{"type":"multus-shim"}`, `{"type":"macvlan","name":""}`, `{"type":"macvlan","name":5}`,
		`{"type":"macvlan","name":"a/b"}`, `{"type":"macvlan","name":"other"}`, `{"type":"macvlan","cniVersion":""}`, `{"type":"macvlan","cniVersion":"9.9.9"}`, `{"type":"macvlan","cniVersion":"new"}`,
		`{"type":"macvlan","cniVersion":5}`, `{"type":"macvlan","cniVersions":["1.0.0","1.1.0"]}`, `{"type":"macvlan","cniVersions":["x"]}`, `{"type":"macvlan","cniVersions":[]}`, `{"type":"macvlan","args":5}`,
		`{"type":"macvlan","args":{"cni":[]}}`, `{"type":"macvlan","ipam":{"type":"host-local"}}`, `{"type":"macvlan","ipam":{"type":"../x"}}`, `{"type":"macvlan","IPAM":{"Type":"dhcp"}}`, `{"type":"macvlan","ipam":5}`,
		`{"type":"macvlan","capabilities":{"ips":true}}`, `{"type":"macvlan","capabilities":5}`, `{"type":"macvlan","capabilities":{"ips":5}}`, `{"type":"macvlan","runtimeConfig":5}`, `{"type":"macvlan","prevResult":5}`,
		`{"type":"macvlan","dns":5}`, `{"type":"macvlan","disableCheck":5}`, `{"plugins":[]}`, `{"plugins":{}}`, `{"plugins":[null]}`, `{"plugins":[{}]}`, `{"plugins":[{"type":"macvlan"},{"type":"tuning","args":[]}]}`,
		`{"plugins":[{"type":"macvlan"}],"disableCheck":"x"}`, `{"plugins":[{"type":"macvlan"}],"loadOnlyInlinedPlugins":false}`, `{"plugins":[{"type":"macvlan","cniVersion":"x"}]}`, `{"plugins":[{"type":"macvlan"}],"type":"tuning"}`,
		`{"type":"macvlan","n":1e999}`, `{"type":"macvlan","n":12345678901234567890}`, `{"type":"macvlan","s":"\ud800"}`, `{"type":"macvlan","plugins":null}`,
	} {
		f.Add("blue", "", definition, true)
		f.Add("blue", "blue", definition, false)
	}
	f.Fuzz(func(t *testing.T, networks, primary, config string, strict bool) {
		t.Parallel()
		h := newHost(t, "1.1.0")
		h.cluster.Definition = func(_ context.Context, r nad.Ref, _ nad.Use) (nad.Definition, error) {
			if r.Name != "blue" {
				return nad.Definition{}, &nad.Error{Ref: r, Err: netconf.ErrNotFound}
			}
			return nad.Definition{Ref: r, Config: config}, nil
		}
		policy := bridge
		if strict {
			policy = keys(bridge, `"namespaceIsolation":true,"podDefaultNetwork":false,"allowedTypes":{"nad":["macvlan","host-local"]}`)
		}
		annotations := map[string]string{nad.NetworksAnnotation: networks, nad.DefaultNetworkAnnotation: primary}
		text, err := json.Marshal(annotations)
		nodetest.OK(t, err)
		nodetest.OK(t, json.Unmarshal(text, &annotations))
		add := h.run("ADD", keys(policy, `"runtimeConfig":{"io.kubernetes.cri.pod-annotations":`+string(text)+`}`), podOf("a"))
		reviews := h.review(policy, annotations, config)
		refused := slices.ContainsFunc(reviews, func(err error) bool { return err != nil })
		foreseen := slices.ContainsFunc(reviews, func(err error) bool { return status.Code(err) == status.Code(add) })
		ran := len(h.Exec.Calls()) > 0
		if refused && (add == nil || ran) || !foreseen && !ran && !unknownToReviews(add) {
			t.Errorf("ADD: code %d, %v\nreviews: %v", status.Code(add), add, reviews)
		}
	})
}

// review returns what the reviews say of a pod of the namespace a and of the definition blue,
// if the pod selects it.
func (h *host) review(policy string, annotations map[string]string, config string) []error {
	h.Helper()
	r := h.reviewer(policy)
	all := []error{r.Pod("a", annotations)}
	for _, annotation := range annotations {
		selections, err := netconf.ParseSelection(annotation)
		if err == nil && slices.ContainsFunc(selections, func(s netconf.Selection) bool { return s.Name == "blue" }) {
			all = append(all, r.Definition(nad.Definition{Ref: nad.Ref{Namespace: "a", Name: "blue"}, Config: config}))
		}
	}
	return all
}

// unknownToReviews reports whether an ADD has failed because of the cluster, of the node, or
// of what a pod asks of a network.
func unknownToReviews(add error) bool {
	var about *netconf.Error
	return errors.Is(add, netconf.ErrNotFound) || errors.Is(add, delegate.ErrPluginNotFound) ||
		errors.As(add, &about) && (about.Key == "deviceID" || about.Key == "ips" || about.Key == "mac" || about.Key == "infiniband-guid" || about.Key == "bandwidth" || about.Key == "portMappings")
}
