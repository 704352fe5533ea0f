package plugin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/device"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/internal/programtest"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

const (
	vf     = "vendor.example/vf"
	marker = "bridge.network.kubevirt.io/br1" // is of no device plugin
)

// withDevices makes the cluster one in which the definitions that need a device are those of
// a/vf, kube-system/vf and kube-system/vf2. The pod has devices with these IDs. "marked" names a
// resource that no device plugin serves.
func (h *host) withDevices(ids ...string) {
	h.cluster = Cluster{
		Definition: func(_ context.Context, r nad.Ref, _ nad.Use) (nad.Definition, error) {
			resource, ok := map[string]string{"vf": vf, "vf2": vf, "plain": "", "marked": marker}[r.Name]
			if !ok {
				return nad.Definition{}, &netconf.Error{Kind: netconf.ErrNotFound}
			}
			return nad.Definition{Ref: r, Config: `{"type":"macvlan","vni":12345678901234567890}`, Resource: resource}, nil
		},
		Devices: func(_ context.Context, p nad.Pod) ([][]device.Device, error) {
			h.asked = append(h.asked, "devices")
			if p.Namespace != "a" || p.Name != "web" {
				return nil, types.NewError(types.ErrTryAgainLater, "another pod", "")
			}
			var c []device.Device
			for _, id := range ids {
				if id != "none" {
					c = append(c, device.Device{Resource: vf, ID: id})
				}
			}
			return [][]device.Device{c}, nil
		},
		Serves: func(_ context.Context, resource string) (bool, error) { return resource == vf, nil },
	}
}

// given lists the devices in the calls since the last trace: interface, deviceID and
// pciBusID.
func (h *host) given() string {
	h.Helper()
	var all []string
	for _, c := range h.Since() {
		conf := nodetest.Stdin(h, c)
		nodetest.Equal(h, "pciBusID", conf["pciBusID"], conf["deviceID"])
		if id, ok := conf["deviceID"].(string); ok {
			all = append(all, c.IfName+"="+id)
		}
	}
	h.Trace()
	return strings.Join(all, " ")
}

// One device is never given to two attachments, whether the configuration, the pod or a claim
// asks for them. All come from one allocation, and CHECK and DEL have them from the record.
// Without the device that a network needs nothing is attached.
func TestEachNetworkThatNeedsADeviceHasOneOfItsOwn(t *testing.T) {
	t.Parallel()
	one, two := claimed("c", "r1", "a/vf", ""), claimed("c", "r2", "a/vf2", "x0")
	primary := strings.Replace(annotated("vf"), `{"k8s`, `{"v1.multus-cni.io/default-network":"vf","k8s`, 1)
	for name, tt := range map[string]struct {
		keys, devices string
		pod           string // its namespace; a by default
		claims        []Claimed
		want          string
		code          uint
		says          []string
	}{
		"nobody needs one":            {keys: annotated("plain,plain"), devices: "c b a"},
		"a selection that names one":  {keys: annotated(`[{"name":"vf"},{"name":"vf","deviceID":"a"}]`), devices: "b a", want: "net1=b net2=a"},
		"default networks":            {keys: keys(`"defaultNetworks":["vf","vf2"]`, annotated("vf")), devices: "c b a", want: "net1=a net2=b net3=c"},
		"the primary":                 {keys: keys(`"clusterNetwork":"vf"`, annotated("vf")), devices: "b a", want: "eth0=a net1=b"},
		"the primary of the pod":      {keys: keys(`"defaultNetworks":["vf2"]`, primary), devices: "c b a", want: "eth0=a net1=b net2=c"},
		"one that pods may choose":    {keys: keys(`"allowDeviceID":true`, annotated(`[{"name":"vf"},{"name":"plain","deviceID":"a"}]`)), devices: "b a", want: "net1=b net2=a"},
		"claims":                      {keys: passedNothing, devices: "a b", claims: []Claimed{one, two}, want: "net1=a x0=b"},
		"a network in a claim":        {keys: passedNothing, devices: "a", claims: []Claimed{claimed("c", "r", inline, "")}},
		"a marked one":                {keys: annotated(`vf,marked,marked`), devices: "a", want: "net1=a"},
		"one that marks nothing":      {keys: annotated(`[{"name":"marked","deviceID":"a"}]`), devices: "none", code: 7, says: []string{`"marked"`, "allowDeviceID"}},
		"none is left":                {keys: annotated("marked,vf"), devices: "none", code: 7, says: []string{vf, "ask for 1", "have none"}},
		"they run out":                {keys: annotated("vf,vf,vf"), devices: "b a", code: 7, says: []string{`selected network "vf"`, vf, "ask for 3", "have 2", `"a", "b"`}},
		"the kubelet does not answer": {keys: annotated("vf"), devices: "b a", pod: "b", code: 11, says: []string{`"vf"`, "another pod"}},
		"too few for a claim":         {keys: annotated("vf"), devices: "a", claims: []Claimed{two}, code: 7, says: []string{`claim "c", request "r2"`, vf}},
		"nobody can be asked":         {keys: annotated("vf"), code: 7, says: []string{`"vf"`, vf, "multinetd"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.1.0")
			pod := podOf(cmp.Or(tt.pod, "a"))
			h.withDevices(strings.Fields(tt.devices)...)
			h.cluster = h.cluster.with(tt.claims...)
			if tt.devices == "" {
				h.cluster.Devices = nil
			}
			err := h.run("ADD", keys(bridge, tt.keys), pod)
			if tt.code != 0 {
				nodetest.Fails(t, err, tt.code, tt.says...)
				h.WantTrace()
				h.clean()
				return
			}
			nodetest.OK(t, err)
			nodetest.Equal(t, "devices", h.given(), tt.want)
			var asked []string
			if tt.want != "" || strings.Contains(tt.keys, "marked") {
				asked = []string{"devices"}
			}
			nodetest.Equal(t, "asked", h.asked, asked)
			var recordedAs []string
			for _, a := range h.recorded("c1").Attached {
				if o := nad.ParseOrigin(a.Origin); o.Resource == vf {
					recordedAs = append(recordedAs, a.IfName+"="+o.Device)
				}
			}
			if !strings.Contains(tt.keys, "allowDeviceID") { // whose device is of no resource
				nodetest.Equal(t, "recorded", strings.Join(recordedAs, " "), tt.want)
			}
			h.mustRun("CHECK", bridge, pod)
			nodetest.Equal(t, "devices of CHECK", h.given(), tt.want)
			h.removed(pod)
			nodetest.Equal(t, "devices of DEL", len(h.given()), len(tt.want))
			nodetest.Equal(t, "asked", h.asked, asked)
		})
	}
}

// What a definition names a pod cannot replace, even if it may choose devices.
func TestPodCannotReplaceTheDeviceOfADefinition(t *testing.T) {
	t.Parallel()
	const mine, other = "0000:00:08.0", "0000:05:00.0"
	for _, config := range []string{
		`{"type":"macvlan","pciBusID":"` + mine + `"}`, `{"type":"bridge","deviceID":"` + mine + `"}`,
		`{"type":"macvlan","PCIBUSID":"` + mine + `"}`, `{"type":"macvlan","deviceID":"` + other + `","pciBusID":"` + mine + `"}`,
		`{"plugins":[{"type":"tuning"},{"type":"macvlan","pciBusID":"` + mine + `"}]}`,
		`{"type":"macvlan","device":"eth1"}`, `{"type":"macvlan","hwaddr":"02:00:00:00:00:01"}`, `{"type":"macvlan","kernelpath":"/sys/devices/x"}`,
	} {
		for _, use := range []string{annotated(`[{"name":"fixed","deviceID":"%s"}]`), defaultNetwork(`[{"name":"fixed","deviceID":"%s"}]`)} {
			h := newHost(t, "1.0.0")
			h.cluster.Definition = func(_ context.Context, r nad.Ref, _ nad.Use) (nad.Definition, error) {
				return nad.Definition{Ref: r, Config: config}, nil
			}
			use = keys(bridge, `"allowDeviceID":true`, use)
			h.refuses(fmt.Sprintf(use, other), 7, []string{"deviceID", "the definition names the device itself", "leave it out"}, podOf("a"))
			if strings.Count(config, "0000") == 1 {
				h.mustRun("ADD", fmt.Sprintf(use, mine), podOf("a"))
			}
		}
	}
}

// A runtime may attach a container more than once.
func TestADeviceOfAnotherInterfaceOfTheContainerIsInUse(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	h.withDevices("a", "b")
	h.mustRun("ADD", keys(bridge, annotated("vf")), podOf("a"))
	h.mustRun("ADD", keys(bridge, annotated("vf")), podOf("a"), programtest.At("eth1"))
	if got := h.given(); got != "net1=a net2=b" && got != "net1=a net1=b" {
		t.Errorf("devices %s", got)
	}
	nodetest.Fails(t, h.run("ADD", keys(bridge, annotated("vf")), podOf("a"), programtest.At("eth2")), 7, "not all of them free")
}

// Device information files: what the device plugin says is there for plugins and for the
// status, from before the ADD until the DEL has succeeded.
func TestDeviceInformationIsThereFromAddToDel(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	h.withDevices("0000:3b:02.1")
	h.Write("devinfo/dp/vendor.example-vf-0000:3b:02.1-device.json", `{"type":"pci","pci":{"pci-address":"0000:3b:02.1"}}`)
	h.Write("net.d/user.conf", `{"name":"user","type":"macvlan","capabilities":{"CNIDeviceInfoFile":true}}`)
	conf := keys(bridge, `"defaultNetworks":["user"]`, annotated("vf"))
	h.mustRun("ADD", conf, podOf("a"))
	var given struct {
		RuntimeConfig map[string]string `json:"runtimeConfig"`
	}
	nodetest.OK(t, json.Unmarshal(h.Exec.Calls()[1].Stdin, &given))
	for _, i := range []int{0, 2} { // they do not declare the capability
		nodetest.Lacks(t, fmt.Sprint("call ", i), string(h.Exec.Calls()[i].Stdin), "CNIDeviceInfoFile")
	}
	file := given.RuntimeConfig["CNIDeviceInfoFile"]
	if filepath.Dir(file) != h.Path("devinfo/cni") {
		t.Fatalf("the plugin was given %q", file)
	}
	nodetest.OK(t, os.WriteFile(file, []byte(`{"type":"memif"}`), 0o644))
	r := h.recorded("c1")
	networks := r.Networks(nil)
	nodetest.OK(t, device.Describe("", networks, r.Attached...))
	var got []string
	for _, n := range networks {
		text := n.Interface
		if n.DeviceInfo != nil {
			text += " " + n.DeviceInfo.Type
		}
		got = append(got, text)
	}
	nodetest.Equal(t, "got", got, []string{"eth0", "net1 memif", "net2 pci"})
	h.removed()
	nodetest.Equal(t, "left", h.Files("devinfo/cni"), nil)
}

func TestDeviceInformationThatCannotBeWrittenIsSaidAndNothingElse(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	h.Write("devinfo", "a file")
	var said []string
	h.cluster.Warn = func(_ context.Context, p nad.Pod, err error) { said = append(said, p.String()+": "+err.Error()) }
	h.mustRun("ADD", readsDeviceInfo, podOf("a"))
	if len(said) != 1 || !strings.HasPrefix(said[0], "a/web: device information of eth0: ") {
		t.Errorf("said %q", said)
	}
	h.mustRun("DEL", bridge, podOf("a"))
}

// readsDeviceInfo is a delegate that reads device information.
const readsDeviceInfo = `"delegates":[{"type":"bridge","capabilities":{"CNIDeviceInfoFile":true}}]`

// A record that was deleted by hand leaves its file. GC removes it, unless a record cannot be
// read.
func TestGCRemovesOldDeviceInformationThatNoRecordHas(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	h.mustRun("ADD", readsDeviceInfo)
	file := h.recorded("c1").Attached[0].Files[0]
	old := time.Now().Add(-2 * time.Hour)
	nodetest.OK(t, errors.Join(os.WriteFile(file, []byte("{}"), 0o644), os.Chtimes(file, old, old)))
	record := h.Path("state/c1@multi@eth0.json")
	nodetest.OK(t, h.run("GC", keys(bridge, gcFor("c1 eth0"))))
	h.Write("state/c1@multi@eth0.json", "{")
	nodetest.Fails(t, h.run("GC", keys(bridge, gcFor("c1 eth0"))), 5)
	nodetest.Equal(t, "files", len(h.Files("devinfo/cni")), 1)
	nodetest.OK(t, os.Remove(record))
	nodetest.OK(t, h.run("GC", keys(bridge, gcFor("c1 eth0"))))
	nodetest.Equal(t, "files", h.Files("devinfo/cni"), nil)
}

// A network that a running pod selects gets a device that the pod has and that nothing in
// the records of the container uses. None is attached without one. Edits of the annotation
// leave the networks of claims alone, and can take neither their interfaces nor their devices.
func TestNetworkSelectedLaterHasADeviceOfItsOwn(t *testing.T) {
	t.Parallel()
	const (
		x  = `{"name":"vf","interface":"x"}`
		xm = `{"name":"vf","interface":"x","cni-args":{"a":1}}`
		y  = `{"name":"vf","interface":"y"}`
		xa = `{"name":"vf","interface":"x","deviceID":"a"}`
		ya = `{"name":"vf","interface":"y","deviceID":"a"}`
	)
	claims := []Claimed{claimed("c", "r", "a/vf2", "x0"), claimed("c", "own", inline, "y0")} // the first has the device a
	for name, tt := range map[string]struct {
		keys, devices, before, after string
		replace                      bool
		claims                       []Claimed
		want                         string // interfaces of calls, with their devices
		words                        []string
	}{
		"a free one":                              {devices: "a b", before: x, after: x + "," + y, want: "y=b"},
		"one that another selection names":        {devices: "a b", after: x + "," + ya, want: "x=b y=a"},
		"one that was given back":                 {devices: "a", before: x, after: y, want: "x=a y=a"},
		"that of the attachment that it replaces": {devices: "a", before: x, after: xm, replace: true, want: "x=a x=a"},
		"none, because its resource marks nodes":  {devices: "a", before: x, after: x + `,{"name":"marked","interface":"y"}`},
		"one beside that of a default network":    {keys: `"defaultNetworks":["vf2"]`, devices: "a b", after: x, want: "x=b"},
		"one without a resource":                  {keys: `"allowDeviceID":true`, after: `{"name":"plain","interface":"x","deviceID":"z"}`, want: "x=z"},
		"one that two name, for the first":        {devices: "a b", after: xa + "," + ya, want: "x=a", words: []string{`"a"`, "in use"}},
		"none, because all are used":              {devices: "a", before: x, after: x + "," + y, words: []string{`"vf"`, vf, "free"}},
		"nothing selected beside claims":          {devices: "a b", before: x, claims: claims, want: "x=a"},
		"one beside that of a claim":              {devices: "a b", after: x, claims: claims, want: "x=b"},
		"the interface of a claim":                {devices: "a b", after: `{"name":"plain","interface":"x0"}`, claims: claims, words: []string{`"plain"`, `"x0"`}},
		"the device of a claim":                   {devices: "a b", after: xa, claims: claims, words: []string{`"vf"`, `"a"`, "in use"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startIn(t, func(h *host) {
				h.withDevices(strings.Fields(tt.devices)...)
				h.cluster = h.cluster.with(tt.claims...)
			}, "["+tt.before+"]", strings.Fields(tt.keys)...)
			p.networks, p.replace = "["+tt.after+"]", tt.replace
			_, err := p.reconcile()
			code := uint(0)
			if tt.words != nil {
				code = 7
			}
			nodetest.Fails(t, err, code, tt.words...)
			nodetest.Equal(t, "devices", p.given(), tt.want)
			if _, err := p.reconcile(); (err != nil) != (tt.words != nil) || p.given() != "" {
				t.Errorf("again: %v", err)
			}
			live := strings.Join(p.Exec.Live(), " ")
			if tt.claims != nil && (!strings.Contains(live, "x0") || !strings.Contains(live, "y0")) {
				t.Errorf("attached %s", live)
			}
			p.mustRun("CHECK", p.keys)
			p.removed()
		})
	}
}

// A network that is attached later has its device information file, which goes with it.
func TestNetworkSelectedLaterHasDeviceInformation(t *testing.T) {
	t.Parallel()
	p := startIn(t, func(h *host) { h.withDevices("a") }, "")
	p.cluster.Definition = func(_ context.Context, r nad.Ref, _ nad.Use) (nad.Definition, error) {
		return nad.Definition{Ref: r, Resource: vf, Config: `{"type":"macvlan","capabilities":{"CNIDeviceInfoFile":true}}`}, nil
	}
	p.Write("devinfo/dp/vendor.example-vf-a-device.json", `{"type":"pci","pci":{"pci-address":"a"}}`)
	p.networks = "vf"
	p.mustReconcile("ADD macvlan net1 vf")
	nodetest.Equal(t, "files", len(p.Files("devinfo/cni")), 1)
	p.networks = ""
	p.mustReconcile("DEL macvlan net1 vf")
	nodetest.Equal(t, "left", p.Files("devinfo/cni"), nil)
}

// claimed is what the request of a claim asks for: "namespace/name" of a definition, or the
// JSON of a network.
func claimed(claim, request, what, ifName string) Claimed {
	c := Claimed{Claim: nad.Claim{UID: "uid-" + claim, Name: claim, Request: request, Pool: "node", Device: what}, IfName: ifName}
	if !strings.HasPrefix(what, "{") {
		c.Definition.Namespace, c.Definition.Name, _ = strings.Cut(what, "/")
		return c
	}
	c.Network = nodetest.Parse(what)
	c.Claim.Device = request
	return c
}

// claiming makes the cluster one with the definitions of team whose pods have the claims.
func (h *host) claiming(claims ...Claimed) {
	h.clusterOf(team)
	h.cluster.Claims = func(_ context.Context, p nad.Pod) ([]Claimed, error) {
		h.asked = append(h.asked, "claims "+p.String()+" "+p.UID)
		return claims, nil
	}
}

const inline = `{"name":"inline","type":"tuning"}`

// The networks of claims come after those that the pod selects, and before the auxiliary
// chain. The pod's claims are asked for once.
func TestClaimedNetworksAreAttachedAfterSelectedOnes(t *testing.T) {
	t.Parallel()
	blue, own := claimed("c", "r1", "a/blue", ""), claimed("c", "r2", inline, "")
	all := keys(`"clusterNetwork":"fast","defaultNetworks":["other"],"auxiliaryCNIChainName":"aux"`, annotated("red"))
	for _, tt := range []struct {
		name, keys string
		namespace  string
		claims     []Claimed
		want       string
	}{
		{"a network", keys(bridge, passedNothing), "a", []Claimed{own}, "bridge eth0 multi, tuning net1 inline"},
		{"a network of several plugins without name and version", keys(bridge, passedNothing), "a", []Claimed{claimed("c", "r", `{"plugins":[{"type":"macvlan"},{"type":"tuning"}]}`, "")}, "bridge eth0 multi, macvlan net1 multi, tuning net1 multi"},
		{"all kinds", keys(all, `"parallel":true`), "a", []Claimed{own, blue}, "macvlan eth0 fast, bridge net1 other, tuning net2 red, tuning net3 inline, macvlan net4 blue, tuning net5 aux"},
		{"the name of another position", all, "a", []Claimed{own, claimed("c", "r1", "a/blue", "net1")}, "macvlan eth0 fast, bridge net2 other, tuning net3 red, tuning net4 inline, macvlan net1 blue, tuning net5 aux"},
		{"a system namespace", keys(all, `"systemNamespaces":["a"]`), "a", []Claimed{own}, "macvlan eth0 fast, tuning net1 red, tuning net2 inline, tuning net3 aux"},
		{"a primary of the pod", keys(bridge, defaultNetwork("a/red")), "a", []Claimed{blue}, "tuning eth0 red, macvlan net1 blue"},
		{"a definition of another namespace", keys(bridge, passedNothing), "b", []Claimed{blue}, "bridge eth0 multi, macvlan net1 blue"},
		{"a type that standing networks may not have", keys(bridge, passedNothing, `"allowedTypes":{"standing":["bridge"],"nad":["tuning"]}`), "a", []Claimed{own}, "bridge eth0 multi, tuning net1 inline"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.1.0")
			h.Write("net.d/aux/10.conf", `{"type":"tuning"}`)
			h.claiming(tt.claims...)
			h.mustRun("ADD", tt.keys, podOf(tt.namespace))
			nodetest.Equal(t, "asked for claims", strings.Count(strings.Join(h.asked, "\n"), "claims "+tt.namespace+"/web u1"), 1)
			var got []string
			for _, a := range h.recorded("c1").Attached {
				for _, p := range a.Network.Plugins() {
					got = append(got, fmt.Sprint(p.Type(), " ", a.IfName, " ", a.Network.Name()))
				}
			}
			nodetest.Equal(t, "attached", strings.Join(got, ", "), tt.want)
			h.mustRun("CHECK", bridge, podOf(tt.namespace))
			h.removed()
		})
	}
}

// recorded is the one record of a container.
func (h *host) recorded(container string) lifecycle.AddRecord {
	h.Helper()
	rs, err := (&lifecycle.Manager{Dir: h.state()}).Container(h.Context(), container)
	if err != nil || len(rs) != 1 {
		h.Fatalf("%d records, %v", len(rs), err)
	}
	return rs[0]
}

// What a claim cannot have is an error before any plugin runs, which names the claim and the
// request.
func TestClaimsThatCannotBeMet(t *testing.T) {
	t.Parallel()
	both := claimed("c", "r", inline, "")
	both.Definition = nad.Ref{Namespace: "a", Name: "blue"}
	network := func(config string) []Claimed { return []Claimed{claimed("c", "r", config, "")} }
	const who = `claim "c", request "r"`
	for _, tt := range []struct {
		name, keys string
		claims     []Claimed
		code       uint
		says       []string
	}{
		{"neither network nor definition", "", []Claimed{{Claim: nad.Claim{UID: "u9"}}}, 7, []string{`claim "u9": `, "not both"}},
		{"network and definition", "", []Claimed{both}, 7, []string{who, "not both"}},
		{"a device twice", "", []Claimed{claimed("c", "r", inline, "x"), claimed("c", "r", inline, "y")}, 7, []string{who, "twice"}},
		{"isolation", keys(passedNothing, `"namespaceIsolation":true`), []Claimed{claimed("c", "r", "b/blue", "")}, 7, []string{who, "namespaceIsolation"}},
		{"a type of a definition that is not allowed", keys(passedNothing, `"allowedTypes":{"nad":["ipvlan"]}`), []Claimed{claimed("c", "r", "a/blue", "")}, 7, []string{who, "NAD a/blue", "allowedTypes"}},
		{"multinet itself", "", network(`{"type":"multinet"}`), 7, []string{who, "itself"}},
		{"a plugin of a definition that fails", "", []Claimed{claimed("c", "r", "a/full", "")}, 107, []string{who + `, NAD a/full: ADD c1 eth0: network "full" (net1)`, "no free device"}},

		{"the interface of the runtime", "", []Claimed{claimed("c", "r", inline, "eth0")}, 7, []string{who, `"multi" and "inline"`, `"eth0"`}},
		{"an interface that the pod selects", annotated("red@x0"), []Claimed{claimed("c", "r", "a/blue", "x0")}, 7, []string{`NAD a/red and ` + who + `, NAD a/blue: `, `"x0"`}},
		{"an interface of another claim", "", []Claimed{claimed("b", "q", inline, "x0"), claimed("c", "r", "a/blue", "x0")}, 7, []string{`claim "b", request "q" and ` + who, `"x0"`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.1.0")
			h.Taken = []string{"lo", "used0"}
			h.claiming(tt.claims...)
			h.refuses(keys(bridge, cmp.Or(tt.keys, passedNothing)), tt.code, tt.says, podOf("a"))
		})
	}
}

// An error of asking for claims ends the ADD with its code, and nothing has been looked up.
// An ADD asks for claims even if the pod selects what it may not have: the status of each claim
// says why the ADD failed. Only a pod with a UID has claims, and no other command asks for them.
func TestClaimsThatAreNotKnown(t *testing.T) {
	t.Parallel()
	for err, code := range map[error]uint{errAway: 11, errors.New("it is away"): 999} {
		h := newHost(t, "1.0.0")
		h.claiming()
		h.cluster.Claims = func(context.Context, nad.Pod) ([]Claimed, error) {
			return []Claimed{claimed("c", "r", "a/blue", "")}, err
		}
		h.refuses(keys(bridge, annotated("red")), code, []string{"ResourceClaims of pod a/web: ", "away"}, podOf("a"))
		nodetest.Equal(t, "asked", h.asked, nil)
	}
	h := newHost(t, "1.1.0")
	h.claiming()
	nodetest.Fails(t, h.run("ADD", keys(bridge, annotated("[{")), podOf("a")), 6, nad.NetworksAnnotation)
	nodetest.Equal(t, "asked", h.asked, []string{"claims a/web u1"})
	h.asked = nil
	for _, args := range []string{"", "K8S_POD_UID=u1", "K8S_POD_UID=u1;K8S_POD_NAME=web", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=web;K8S_POD_UID="} {
		h.mustRun("ADD", keys(bridge, passedNothing), func(a *skel.CmdArgs) { a.Args = args })
		h.removed()
	}
	nodetest.Equal(t, "asked", slices.DeleteFunc(h.asked, func(s string) bool { return !strings.HasPrefix(s, "claims") }), nil)
	h.mustRun("ADD", keys(bridge, passedNothing), podOf("a"))
	h.asked = nil
	h.mustRun("CHECK", bridge, podOf("a"))
	h.mustRun("STATUS", bridge, podOf("a"))
	h.mustRun("GC", keys(bridge, gcFor("c1 eth0")), podOf("a"))
	h.removed(podOf("a"))
	nodetest.Equal(t, "asked", h.asked, nil)
}

// A claimed network is passed what all networks but the first are, and nothing else. The
// configuration is as it was written.
func TestWhatAClaimedNetworkIsPassed(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	h.claiming(claimed("c", "r1", "a/rich", ""), claimed("c", "r2", `{"z":1.0,"type":"tuning","vni":12345678901234567890,`+capabilities+`,"args":{"cni":{"a":1}}}`, ""))
	h.mustRun("ADD", keys(bridge, `"legacyArgs":true`,
		`"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{},"x":{"y":1.0},"mac":"02:00:00:00:00:09","ips":["10.0.0.1/24"],"deviceID":"d","portMappings":[{"hostPort":1,"containerPort":2}]}`),
		podOf("a"), func(a *skel.CmdArgs) { a.Args += ";IP=10.0.0.1;MAC=02:00:00:00:00:09;GATEWAY=10.0.0.2;FOO=bar" })
	want := []string{
		`{"capabilities":{"ips":true,"mac":true,"bandwidth":true,"portMappings":true,"x":true,"io.kubernetes.cri.pod-annotations":true},"cniVersion":"1.1.0","name":"rich","runtimeConfig":{"io.kubernetes.cri.pod-annotations":{},"x":{"y":1.0}},"type":"macvlan"}`,
		`{"args":{"cni":{"a":1}},` + capabilities + `,"cniVersion":"1.1.0","name":"multi","type":"tuning","vni":12345678901234567890,"z":1.0}`,
	}
	for i, c := range h.Exec.Calls()[1:] {
		nodetest.Equal(t, "stdin", string(c.Stdin), want[i])
		nodetest.Equal(t, "CNI_ARGS", c.Args, "K8S_POD_NAME=web;IgnoreUnknown=1;K8S_POD_UID=u1;K8S_POD_NAMESPACE=a;FOO=bar")
	}
}

// with returns c with claims.
func (c Cluster) with(claims ...Claimed) Cluster {
	c.Claims = func(context.Context, nad.Pod) ([]Claimed, error) { return claims, nil }
	return c
}
