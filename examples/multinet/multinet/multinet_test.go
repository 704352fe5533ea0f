package multinet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// A host is where multinet runs: its directories, and plugins to delegate to.
type host struct {
	*nodetest.Node
	root    string   // of the node, where it is not this process's
	version string   // of the configuration
	taken   []string // interface names in every network namespace
	stdout  io.Writer
	printed bytes.Buffer
	seen    int // calls that trace has returned
	cluster Cluster
}

func newHost(t testing.TB, version string) *host {
	t.Helper()
	h := &host{Node: nodetest.New(t), version: version}
	h.Exec.Plugins = map[string]delegatetest.Plugin{
		"multinet": delegatetest.Result(nil),
		"bridge":   delegatetest.Result(result("10.9.0.2/24")),
		"macvlan":  delegatetest.Result(result("10.9.1.2/24")),
		"tuning":   delegatetest.Result(nil),
		"full":     delegatetest.FailOn("ADD", 107, "no free device", delegatetest.Result(nil)),
		"stuck":    delegatetest.FailOn("DEL", 108, "device is busy", delegatetest.Result(nil)),
	}
	h.stdout = &h.printed
	h.Write("net.d/storage.conflist", `{"name":"storage","cniVersion":"1.0.0","plugins":[{"type":"macvlan"},{"type":"tuning"}]}`)
	h.Write("net.d/fast.conf", `{"name":"fast","type":"macvlan"}`)
	h.Write("net.d/bad.conf", `{"name":"bad","type":5}`)
	h.Write("net.d/other.json", `{"name":"other","type":"bridge"}`)
	return h
}

func result(cidr string) *types100.Result {
	ip, network, err := net.ParseCIDR(cidr)
	if err != nil {
		panic(err)
	}
	network.IP = ip
	return &types100.Result{CNIVersion: "1.1.0", IPs: []*types100.IPConfig{{Address: *network}}}
}

// conf is a configuration with more keys, as JSON without the braces.
func (h *host) conf(keys string) string {
	if !strings.Contains(keys, `"confDir"`) {
		keys = strings.TrimSuffix(fmt.Sprintf(`"confDir":%q,`, filepath.Join(h.Dir, "net.d"))+keys, ",")
	}
	return fmt.Sprintf(`{"cniVersion":%q,"name":"multi","type":"multinet","cniDir":%q,"deviceInfoDir":%q,%s}`, h.version, h.state(), h.devices(), keys)
}

func (h *host) state() string { return filepath.Join(h.Dir, "state") }

// devices is the directory of device information files.
func (h *host) devices() string { return filepath.Join(h.Dir, "devinfo") }

// call runs a command with a whole configuration, for the attachment eth0 of
// the container c1 unless edits say otherwise.
func (h *host) call(ctx context.Context, command, conf string, edits ...func(*skel.CmdArgs)) error {
	args := &skel.CmdArgs{
		ContainerID: "c1", Netns: filepath.Join(h.Dir, "netns"), IfName: "eth0", Args: "IgnoreUnknown=1;K8S_POD_NAME=p",
		Path: "/opt/other/bin", StdinData: []byte(conf),
	}
	for _, edit := range edits {
		edit(args)
	}
	return New(h.cluster).Do(ctx, h.process(), delegate.Command(command), *args)
}

// process is what multinet has of its process.
func (h *host) process() plugin.Process {
	return plugin.Process{
		Exec: h.Exec, Stdout: h.stdout, Root: plugin.Root(h.root),
		InterfaceNames: func(string) ([]string, error) { return h.taken, nil },
	}
}

// run is call with a configuration that has more keys.
func (h *host) run(t *testing.T, command, keys string, edits ...func(*skel.CmdArgs)) error {
	t.Helper()
	return h.call(t.Context(), command, h.conf(keys), edits...)
}

// mustRun is run of a command that is to succeed.
func (h *host) mustRun(t *testing.T, command, keys string, edits ...func(*skel.CmdArgs)) {
	t.Helper()
	if err := h.run(t, command, keys, edits...); err != nil {
		t.Fatalf("%s: %v", command, err)
	}
}

// trace is what the plugins were called for since the last trace.
func (h *host) trace() []string {
	trace := h.Exec.Trace()[h.seen:]
	h.seen += len(trace)
	return trace
}

// stdin is the configuration that the i'th call since the last trace brought.
func (h *host) stdin(t *testing.T, i int) map[string]any {
	t.Helper()
	calls := h.Exec.Calls()[h.seen:]
	if i >= len(calls) {
		t.Fatalf("%d calls only: %q", len(calls), h.Exec.Trace())
	}
	return nodetest.Stdin(t, calls[i])
}

// clean fails unless everything was undone and no record is left.
func (h *host) clean(t *testing.T) {
	t.Helper()
	nodetest.Equal(t, "left", h.Exec.Live(), nil)
	nodetest.Equal(t, "left in cniDir", h.records(t), nil)
}

// records lists the records in cniDir.
func (h *host) records(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(h.state(), "*.json*"))
	nodetest.OK(t, err)
	for i := range files {
		files[i] = strings.TrimPrefix(files[i], h.state()+"/")
	}
	return files
}

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
func (h *host) refuses(t *testing.T, keys string, code uint, says []string, edits ...func(*skel.CmdArgs)) {
	t.Helper()
	nodetest.Fails(t, h.run(t, "ADD", keys, edits...), code, says...)
	if code < 100 || code == types.ErrInternal {
		wantTrace(t, h)
	}
	h.clean(t)
	nodetest.Equal(t, "printed", h.printed.String(), "")
}

func wantTrace(t *testing.T, h *host, want ...string) {
	t.Helper()
	nodetest.Equal(t, "calls", h.trace(), want)
}

// ADD, CHECK and DEL of a container with four networks: their order, the names of the
// interfaces, the record, and nothing left at the end.
func TestLife(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	conf := keys(`"delegates":[{"type":"bridge"},{"name":"second","cniVersion":"0.4.0","plugins":[{"type":"macvlan"},{"type":"tuning"}]}]`,
		annotated("fast, default/storage"))
	h.mustRun(t, "ADD", conf)
	wantTrace(t, h, "ADD bridge eth0", "ADD macvlan net1", "ADD tuning net1", "ADD macvlan net2", "ADD macvlan net3", "ADD tuning net3")
	if got := h.printed.String(); !strings.Contains(got, "10.9.0.2/24") || strings.Contains(got, "10.9.1.2") || strings.Count(got, "cniVersion") != 1 {
		t.Errorf("result %s, want that of bridge alone", got)
	}
	if got := h.records(t); !cmp.Equal(got, []string{"c1@multi@eth0.json"}) {
		t.Errorf("records %q", got)
	}

	nodetest.Fails(t, h.run(t, "ADD", conf), 7, "already added")
	wantTrace(t, h)

	h.mustRun(t, "CHECK", conf)
	wantTrace(t, h, "CHECK bridge eth0", "CHECK macvlan net1", "CHECK tuning net1", "CHECK macvlan net2", "CHECK macvlan net3", "CHECK tuning net3")

	h.mustRun(t, "STATUS", conf)
	wantTrace(t, h, "STATUS bridge") // the other is of CNI 0.4.0

	h.mustRun(t, "GC", keys(conf, `"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]`))
	if got := h.trace(); slices.ContainsFunc(got, func(call string) bool { return !strings.HasPrefix(call, "GC ") }) || len(got) == 0 {
		t.Errorf("GC with everything valid: %q", got)
	}

	h.mustRun(t, "DEL", conf)
	wantTrace(t, h, "DEL tuning net3", "DEL macvlan net3", "DEL macvlan net2", "DEL tuning net1", "DEL macvlan net1", "DEL bridge eth0")
	h.mustRun(t, "DEL", conf)
	wantTrace(t, h)
	nodetest.Fails(t, h.run(t, "CHECK", conf), 7, "not added")
	h.clean(t)
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// A mistake in the configuration is found before a plugin runs. The error has the
// right code and names file, network and key.
func TestBadConfiguration(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, keys string
		code       uint
		says       []string
	}{
		{"no delegates", ``, 7, []string{`"multi"`, `"delegates"`}},
		{"empty delegates", `"delegates":[]`, 7, []string{`"multi"`, `"delegates"`}},
		{"null delegate", `"delegates":[{"type":"bridge"},null]`, 7, []string{`"multi"`, `"delegates[1]"`}},
		{"delegate without type", `"delegates":[{"type":"bridge"},{"name":"x"}]`, 7, []string{`"delegates[1].plugins"`, `"type"`}},
		{"a type that is a path", `"delegates":[{"type":"../bridge"}]`, 7, []string{`"multi"`, `"../bridge"`}},
		{"a plugin that is missing", `"delegates":[{"type":"bridge"},{"type":"absent","name":"x"}]`, 7, []string{`"x"`, `"absent"`, "not found"}},
		{"itself", `"delegates":[{"type":"bridge"},{"type":"multinet","name":"x"}]`, 7, []string{`"x"`, `"multinet"`, "itself"}},

		{"clusterNetwork of the wrong type", `"clusterNetwork":["x"]`, 6, []string{`"multi"`, `"clusterNetwork"`}},
		{"clusterNetwork that is unknown", `"clusterNetwork":"absent"`, 7, []string{`"multi"`, `clusterNetwork`, `"absent"`, "net.d"}},
		{"clusterNetwork in a bad file", `"clusterNetwork":"bad"`, 7, []string{`"bad"`, "net.d", "bad.conf", `"type"`}},
		{"clusterNetwork in a missing file", `"clusterNetwork":"/absent/x.conf"`, 7, []string{`"multi"`, "clusterNetwork", "/absent/x.conf"}},
		{"clusterNetwork that leads out", `"clusterNetwork":"../x"`, 7, []string{`"../x"`, "clusterNetwork"}},
		{"clusterNetwork that is a directory", `"clusterNetwork":"/"`, 7, []string{`"multi"`, "clusterNetwork", `"/"`}},
		{"defaultNetworks of the wrong type", keys(bridge, `"defaultNetworks":"x"`), 6, []string{`"multi"`, `"defaultNetworks"`}},
		{"defaultNetworks that is unknown", keys(bridge, `"defaultNetworks":["fast","absent"]`), 7, []string{`defaultNetworks`, `"absent"`}},
		{"confDir that is missing", `"clusterNetwork":"x","confDir":"/absent"`, 7, []string{"/absent", `"x"`}},
		{"confDir of the wrong type", keys(bridge, `"confDir":5`), 6, []string{`"multi"`, `"confDir"`}},
		{"binDir of the wrong type", keys(bridge, `"binDir":5`), 6, []string{`"multi"`, `"binDir"`}},

		{"delegatePrivileges of the wrong type", keys(bridge, `"delegatePrivileges":true`), 6, []string{`"multi"`, `"delegatePrivileges"`}},
		{"delegatePrivileges that are none", keys(bridge, `"delegatePrivileges":"none"`), 7, []string{`key "delegatePrivileges": "none" for "*" is neither "keep" nor "noNew"`}},
		{"delegatePrivileges of a type that are none", keys(bridge, `"delegatePrivileges":{"*":"noNew","bridge":""}`), 7, []string{`key "delegatePrivileges": "" for "bridge" is neither`}},

		{"readinessTimeout that is no time", keys(bridge, `"readinessTimeout":"soon"`), 6, []string{`"multi"`, `"readinessTimeout"`}},

		{"multusNamespace that is none", keys(bridge, `"multusNamespace":" kube-system"`), 7, []string{`"multi"`, "multusNamespace", `" kube-system" is not a DNS label`}},
		{"two names of multusNamespace", keys(bridge, `"multusNamespace":"a","networkNamespace":"b"`), 7, []string{`"multi"`, "networkNamespace", "multusNamespace"}},
		{"networkNamespace that is none", keys(bridge, `"networkNamespace":"a,b"`), 7, []string{`"multi"`, `key "networkNamespace": "a,b" is not a DNS label`}},
		{"globalNamespaces that are none", keys(bridge, `"globalNamespaces":"a,B"`), 7, []string{`invalid configuration: network "multi", key "globalNamespaces": "B" is not a DNS label`}},
		{"systemNamespaces that are none", keys(bridge, `"systemNamespaces":["kube-system"," x"]`), 7, []string{`"multi"`, `key "systemNamespaces[1]": " x" is not a DNS label`}},
		{"nadDir that is no path", keys(bridge, `"nadDir":"nads"`), 7, []string{`"multi"`, `key "nadDir": "nads" is not an absolute path`}},

		{"runtimeConfig of the wrong type", keys(bridge, `"runtimeConfig":"x"`), 6, []string{`"multi"`, `"runtimeConfig"`}},
		{"annotations of the wrong type", keys(bridge, `"runtimeConfig":{"io.kubernetes.cri.pod-annotations":["x"]}`), 6, []string{`"multi"`, "runtimeConfig.io.kubernetes.cri.pod-annotations", "not an object"}},
		{"annotation of the wrong type", keys(bridge, `"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"k8s.v1.cni.cncf.io/networks":5}}`), 6, []string{`"multi"`, "k8s.v1.cni.cncf.io/networks", "not a string"}},
		{"selected network that is unknown", keys(bridge, annotated("fast,absent")), 7, []string{`"absent"`, "net.d"}},
		{"selected network that is a path", keys(bridge, annotated(`[{"name":"/etc/x.conf"}]`)), 7, []string{"[0].name"}},
		{"cni-args that do not fit", keys(bridge, annotated(`[{"name":"odd","cni-args":{"a":1}}]`)), 7, []string{`"odd"`, "plugins[0].args"}},
		{"what no plugin of the network serves", keys(bridge, annotated(`[{"name":"other"},{"name":"storage","mac":"02:00:00:00:00:01"}]`, `"mac":"02:00:00:00:00:09"`)), 7, []string{`"storage"`, `"mac"`, "capabilities"}},
		{"template for a name", keys(bridge, annotated("fast@net%d")), 7, []string{`selected network "fast"`, `net%d`}},
		{"a name asked for twice", keys(bridge, annotated("fast@a,storage@a")), 7, []string{`"a"`, `"fast"`, `"storage"`}},
		{"the name of the first network", keys(bridge, annotated("fast@eth0")), 7, []string{`"eth0"`, `"fast"`}},
		{"a name that is taken in the namespace", keys(bridge, annotated("fast@used0")), 7, []string{`"used0"`, `"fast"`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.0.0")
			h.taken = []string{"lo", "used0"}
			h.Write("net.d/odd.conf", `{"name":"odd","type":"bridge","args":5}`)
			h.refuses(t, tt.keys, tt.code, tt.says)
		})
	}
}

// Keys of Multus that change nothing for a pod are accepted: its configuration files
// have them.
func TestHarmlessKeysOfMultusAreAccepted(t *testing.T) {
	t.Parallel()
	for _, more := range []string{
		`"namespaceIsolation":false`, `"namespaceIsolation":null`, `"systemNamespaces":[]`, `"systemNamespaces":["kube-system"]`,
		`"auxiliaryCNIChainName":""`, annotatedWith("v1.multus-cni.io/default-network", `" "`),
		`"globalNamespaces":"default","multusNamespace":"kube-system","kubeconfig":"/etc/cni/net.d/multus.d/multus.kubeconfig","logLevel":"verbose","retryDeleteOnError":true`,
	} {
		h := newHost(t, "1.1.0")
		h.mustRun(t, "STATUS", keys(bridge, more))
		h.mustRun(t, "ADD", keys(bridge, more))
		h.mustRun(t, "DEL", keys(bridge, more))
		h.clean(t)
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
		``, `"delegates":[{"type":"macvlan"}]`, `"clusterNetwork":"absent"`, `"readinessindicatorfile":"/absent"`,
		`"delegates":[{"type":"bridge","mtu":1,"mtu":2}]`, "\"x\":\"\xff\"", annotated(`[{"name":`),
	}
	for _, key := range Keys() {
		if key != "name" && key != "cniDir" {
			broken = append(broken, `"`+key+`":5`, `"`+key+`":[[5]]`, `"`+key+`":{"a":{"b":5}}`)
		}
	}
	for _, conf := range broken {
		h := newHost(t, "1.1.0")
		h.mustRun(t, "ADD", bridge)
		h.trace()
		h.mustRun(t, "CHECK", conf)
		if err := h.run(t, "GC", strings.Trim(keys(conf, gcFor("c1 eth0")), ",")); err != nil && !strings.Contains(err.Error(), "absent") {
			t.Errorf("GC with %s: %v", conf, err)
		}
		h.mustRun(t, "DEL", conf)
		if got := h.trace(); got[0] != "CHECK bridge eth0" || got[len(got)-1] != "DEL bridge eth0" {
			t.Errorf("%s: %q", conf, got)
		}
		h.clean(t)
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
		for _, ifName := range []string{"", "eth0", "net1", "x", "net%d"} {
			f.Add("blue@x", "", `{"type":"macvlan"}`, claim, ifName)
		}
	}
	f.Fuzz(func(t *testing.T, networks, primary, definition, claim, ifName string) {
		h := newHost(t, "1.1.0")
		delete(h.Exec.Plugins, "stuck") // whose DEL fails
		h.Write("net.d/a/blue.conf", definition)
		h.Write("net.d/kube-system/blue.conf", definition)
		h.Write("net.d/b/blue.conf", `{"type":"macvlan","foreign":"`+h.Dir+`"}`)
		annotations, err := json.Marshal(map[string]string{nad.NetworksAnnotation: networks, nad.DefaultNetworkAnnotation: primary})
		nodetest.OK(t, err)
		conf := h.conf(keys(bridge, `"namespaceIsolation":true`, `"runtimeConfig":{"io.kubernetes.cri.pod-annotations":`+string(annotations)+`}`))
		args := skel.CmdArgs{
			ContainerID: "c1", IfName: "eth0", Netns: h.Dir + "/absent", Args: "K8S_POD_NAMESPACE=a;K8S_POD_NAME=p;K8S_POD_UID=u1", StdinData: []byte(conf),
		}
		err = New(Cluster{}.with(fuzzed(claim, ifName)...)).Do(t.Context(), h.process(), delegate.CommandAdd, args)
		for _, c := range h.Exec.Calls() {
			var in map[string]any
			if err := json.Unmarshal(c.Stdin, &in); err != nil || in["foreign"] == h.Dir {
				t.Errorf("%s with %s", c, c.Stdin)
			}
		}
		if err == nil {
			h.mustRun(t, "DEL", bridge, podOf("a"))
		} else if code := status.Code(err); code >= 100 && len(h.Exec.Calls()) == 0 {
			t.Errorf("code %d: %v", code, err)
		}
		h.clean(t)
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
		conf := h.conf(keys(policy, `"runtimeConfig":{"io.kubernetes.cri.pod-annotations":`+string(text)+`}`))
		add := New(h.cluster).Do(t.Context(), h.process(), delegate.CommandAdd, skel.CmdArgs{
			ContainerID: "c1", IfName: "eth0", Netns: h.Dir + "/absent", Args: "K8S_POD_NAMESPACE=a;K8S_POD_NAME=p", StdinData: []byte(conf),
		})
		reviews := h.review(t, policy, annotations, config)
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
func (h *host) review(t *testing.T, policy string, annotations map[string]string, config string) []error {
	t.Helper()
	r := h.reviewer(t, policy)
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
