package multinet

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/device"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

const vf = "vendor.example/vf"

// withDevices is a cluster in which the definitions that need a device are those of
// a/vf, kube-system/vf and kube-system/vf2. The pod has devices with these IDs. It counts
// how often it is asked for them.
func withDevices(asked *int, ids ...string) Cluster {
	return Cluster{
		Definition: func(_ context.Context, r nad.Ref, _ nad.Use) (nad.Definition, error) {
			d := nad.Definition{Ref: r, Config: `{"type":"macvlan","vni":12345678901234567890}`, Resource: vf}
			switch r.Name {
			case "vf", "vf2":
			case "plain":
				d.Resource = ""
			default:
				return nad.Definition{}, &netconf.Error{Kind: netconf.ErrNotFound}
			}
			return d, nil
		},
		Devices: func(_ context.Context, p nad.Pod) ([][]device.Device, error) {
			*asked++
			if p.Namespace != "a" || p.Name != "web" {
				return nil, types.NewError(types.ErrTryAgainLater, "another pod", "")
			}
			var c []device.Device
			for _, id := range ids {
				c = append(c, device.Device{Resource: vf, ID: id})
			}
			return [][]device.Device{c}, nil
		},
	}
}

// given lists the devices in the calls since the last trace: interface, deviceID and
// pciBusID.
func (h *host) given(t *testing.T) string {
	t.Helper()
	var all []string
	for i, c := range h.Exec.Calls()[h.seen:] {
		conf := h.stdin(t, i)
		if conf["deviceID"] != conf["pciBusID"] {
			t.Errorf("deviceID %v, pciBusID %v", conf["deviceID"], conf["pciBusID"])
		}
		if id, ok := conf["deviceID"].(string); ok {
			all = append(all, c.IfName+"="+id)
		}
	}
	h.trace()
	return strings.Join(all, " ")
}

// One device is never given to two attachments, whatever they are.
func TestEachNetworkThatNeedsADeviceHasOneOfItsOwn(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, keys string
		asked      int
		want       string
	}{
		{"nobody needs one", keys(bridge, annotated("plain,plain")), 0, ""},
		{"selections", keys(bridge, annotated("vf,plain,vf")), 1, "net1=a net3=b"},
		{"a selection that names one", keys(bridge, annotated(`[{"name":"vf"},{"name":"vf","deviceID":"a"}]`)), 1, "net1=b net2=a"},
		{"default networks and a selection", keys(bridge, `"defaultNetworks":["vf","vf2"]`, annotated("vf")), 1, "net1=a net2=b net3=c"},
		{"the primary of the configuration and a selection", keys(`"clusterNetwork":"vf"`, annotated("vf")), 1, "eth0=a net1=b"},
		{"the primary of the pod, default network and selection", keys(bridge, `"defaultNetworks":["vf2"]`, strings.Replace(
			annotated("vf"), `{"k8s`, `{"v1.multus-cni.io/default-network":"vf","k8s`, 1)), 1, "eth0=a net1=b net2=c"},
		{"a device that pods may choose", keys(bridge, `"allowDeviceID":true`, annotated(`[{"name":"vf"},{"name":"plain","deviceID":"a"}]`)), 1, "net1=b net2=a"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.0.0")
			asked := 0
			h.cluster = withDevices(&asked, "c", "b", "a")
			h.mustRun(t, "ADD", tt.keys, podOf("a"))
			if got := h.given(t); got != tt.want || asked != tt.asked {
				t.Errorf("devices %s, want %s; asked %d times, want %d", got, tt.want, asked, tt.asked)
			}
			// CHECK and DEL have them from the record.
			h.mustRun(t, "CHECK", bridge, podOf("a"))
			if got := h.given(t); got != tt.want {
				t.Errorf("CHECK of devices %s, want %s", got, tt.want)
			}
			h.mustRun(t, "DEL", bridge, podOf("a"))
			if got := h.given(t); len(got) != len(tt.want) || asked != tt.asked {
				t.Errorf("DEL of devices %s, want %s; asked %d times", got, tt.want, asked)
			}
			h.clean(t)
		})
	}
}

func TestNoNetworkIsAttachedWithoutTheDeviceThatItNeeds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, keys string
		pod        func(*skel.CmdArgs)
		code       uint
		says       []string
	}{
		{"they run out", keys(bridge, annotated("vf,vf,vf")), podOf("a"), 7, []string{`selected network "vf"`, vf, "ask for 3", "have 2", `"a", "b"`}},
		{"one that the pod does not have", keys(bridge, annotated(`[{"name":"vf","deviceID":"c"}]`)), podOf("a"), 7, []string{`"vf"`, `"c"`, "not allocated"}},
		{"the same twice", keys(bridge, annotated(`[{"name":"vf","deviceID":"a"},{"name":"vf","deviceID":"a"}]`)), podOf("a"), 7, []string{`"a"`, "in use"}},
		{"the kubelet does not answer", keys(bridge, `"namespaceIsolation":true`, annotated("vf")), podOf("b"), 11, []string{`"vf"`, "another pod"}},
		{"a pod may not choose", keys(bridge, annotated(`[{"name":"plain","deviceID":"a"}]`)), podOf("a"), 7, []string{"allowDeviceID"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.0.0")
			asked := 0
			h.cluster = withDevices(&asked, "b", "a")
			wantError(t, h.run(t, "ADD", tt.keys, tt.pod), tt.code, tt.says...)
			wantTrace(t, h)
			h.clean(t)
		})
	}
	h := newHost(t, "1.0.0")
	asked := 0
	h.cluster = withDevices(&asked)
	h.cluster.Devices = nil
	wantError(t, h.run(t, "ADD", keys(bridge, annotated("vf")), podOf("a")), 7, `"vf"`, vf, "multinetd")
	wantTrace(t, h)
}

// A runtime may attach a container more than once.
func TestADeviceOfAnotherInterfaceOfTheContainerIsInUse(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	asked := 0
	h.cluster = withDevices(&asked, "a", "b")
	h.mustRun(t, "ADD", keys(bridge, annotated("vf")), podOf("a"))
	second := func(a *skel.CmdArgs) { podOf("a")(a); a.IfName = "eth1" }
	h.mustRun(t, "ADD", keys(bridge, annotated("vf")), second)
	if got := h.given(t); got != "net1=a net2=b" && got != "net1=a net1=b" {
		t.Errorf("devices %s", got)
	}
	third := func(a *skel.CmdArgs) { podOf("a")(a); a.IfName = "eth2" }
	wantError(t, h.run(t, "ADD", keys(bridge, annotated("vf")), third), 7, "not all of them free")
}

func TestTheRecordHasTheDeviceAndItsResource(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	asked := 0
	h.cluster = withDevices(&asked, "a")
	h.mustRun(t, "ADD", keys(bridge, annotated("vf,plain")), podOf("a"))
	want := []string{
		`eth0 {"use":"cluster"}`,
		`net1 {"use":"selected","definition":"a/vf","selection":{"name":"vf"},"resource":"vendor.example/vf","device":"a"}`,
		`net2 {"use":"selected","definition":"a/plain","selection":{"name":"plain"}}`,
	}
	nodetest.Equal(t, "got", h.origins(t), want)
}

// Device information files: what the device plugin says is there for plugins and for the
// status, from before the ADD until the DEL has succeeded.
func TestDeviceInformationIsThereFromAddToDel(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	asked := 0
	h.cluster = withDevices(&asked, "0000:3b:02.1")
	h.Write("devinfo/dp/vendor.example-vf-0000:3b:02.1-device.json", `{"type":"pci","pci":{"pci-address":"0000:3b:02.1"}}`)
	h.Write("net.d/user.conf", `{"name":"user","type":"macvlan","capabilities":{"CNIDeviceInfoFile":true}}`)
	conf := keys(bridge, `"defaultNetworks":["user"]`, annotated("vf"))
	h.mustRun(t, "ADD", conf, podOf("a"))
	var given struct {
		RuntimeConfig map[string]string `json:"runtimeConfig"`
	}
	nodetest.OK(t, json.Unmarshal(h.Exec.Calls()[1].Stdin, &given))
	for _, i := range []int{0, 2} { // they do not declare the capability
		if text := string(h.Exec.Calls()[i].Stdin); strings.Contains(text, "CNIDeviceInfoFile") {
			t.Errorf("call %d is given %s", i, text)
		}
	}
	file := given.RuntimeConfig["CNIDeviceInfoFile"]
	if filepath.Dir(file) != filepath.Join(h.devices(), "cni") {
		t.Fatalf("the plugin was given %q", file)
	}
	if err := os.WriteFile(file, []byte(`{"type":"memif"}`), 0o644); err != nil { // as the plugin does
		t.Fatal(err)
	}
	rs, err := (&lifecycle.Manager{Dir: h.state()}).Container(t.Context(), "c1")
	if err != nil || len(rs) != 1 {
		t.Fatal(rs, err)
	}
	networks := rs[0].Status(nil)
	nodetest.OK(t, device.Describe("", networks, rs[0].Attached...))
	var got []string
	for _, n := range networks {
		text := n.Interface
		if n.DeviceInfo != nil {
			text += " " + n.DeviceInfo.Type
		}
		got = append(got, text)
	}
	nodetest.Equal(t, "got", got, []string{"eth0", "net1 memif", "net2 pci"})
	h.mustRun(t, "DEL", conf, podOf("a"))
	if left, err := os.ReadDir(filepath.Dir(file)); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestDeviceInformationThatCannotBeWrittenIsSaidAndNothingElse(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	h.Write("devinfo", "a file")
	var said []string
	h.cluster.Warn = func(_ context.Context, p nad.Pod, err error) { said = append(said, p.String()+": "+err.Error()) }
	declared := `"delegates":[{"type":"bridge","capabilities":{"CNIDeviceInfoFile":true}}]`
	h.mustRun(t, "ADD", declared, podOf("a"))
	if len(said) != 1 || !strings.HasPrefix(said[0], "a/web: device information of eth0: ") {
		t.Errorf("said %q", said)
	}
	h.mustRun(t, "DEL", declared, podOf("a"))
}

// A record that was deleted by hand leaves its file.
func TestGCRemovesOldDeviceInformationThatNoRecordHas(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	declared := `"delegates":[{"type":"bridge","capabilities":{"CNIDeviceInfoFile":true}}]`
	h.mustRun(t, "ADD", declared)
	rs, err := (&lifecycle.Manager{Dir: h.state()}).Container(t.Context(), "c1")
	if err != nil || len(rs) != 1 {
		t.Fatal(rs, err)
	}
	file := rs[0].Attached[0].Files[0]
	lost := strings.TrimSuffix(file, ".json")[:len(file)-6] + "f.json"
	if lost == file {
		lost = strings.TrimSuffix(file, ".json")[:len(file)-6] + "e.json"
	}
	old := time.Now().Add(-2 * time.Hour)
	for _, f := range []string{file, lost} {
		nodetest.OK(t, errors.Join(os.WriteFile(f, []byte("{}"), 0o644), os.Chtimes(f, old, old)))
	}
	gc := keys(declared, `"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]`)
	h.Write("state/damaged@c9@eth0.json", "{")
	_ = h.run(t, "GC", gc) // what cannot be read is an error
	if _, err := os.Stat(lost); err != nil {
		t.Errorf("removed although not all records can be read: %v", err)
	}
	nodetest.OK(t, os.Remove(filepath.Join(h.state(), "damaged@c9@eth0.json")))
	h.mustRun(t, "GC", gc)
	if _, err := os.Stat(lost); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the lost file: %v", err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the file of a record: %v", err)
	}
}

// A network that a running pod selects gets a device that the pod has and that nothing in
// the records of the container uses. None is attached without one.
func TestNetworkSelectedLaterHasADeviceOfItsOwn(t *testing.T) {
	t.Parallel()
	const (
		x  = `{"name":"vf","interface":"x"}`
		xm = `{"name":"vf","interface":"x","cni-args":{"a":1}}`
		y  = `{"name":"vf","interface":"y"}`
		xa = `{"name":"vf","interface":"x","deviceID":"a"}`
		ya = `{"name":"vf","interface":"y","deviceID":"a"}`
	)
	for name, tt := range map[string]struct {
		keys, devices, before, after string
		replace                      bool
		want                         string // interfaces of calls, with their devices
		words                        []string
	}{
		"a free one":                              {devices: "a b", before: x, after: x + "," + y, want: "y=b"},
		"the only one":                            {devices: "a", after: x, want: "x=a"},
		"one that is named":                       {devices: "a b", after: ya, want: "y=a"},
		"one that another selection names":        {devices: "a b", after: x + "," + ya, want: "x=b y=a"},
		"one that was given back":                 {devices: "a", before: x, after: y, want: "x=a y=a"},
		"that of the attachment that it replaces": {devices: "a", before: x, after: xm, replace: true, want: "x=a x=a"},
		"one beside that of a default network":    {keys: `"defaultNetworks":["vf2"]`, devices: "a b", after: x, want: "x=b"},
		"one without a resource":                  {keys: `"allowDeviceID":true`, after: `{"name":"plain","interface":"x","deviceID":"z"}`, want: "x=z"},
		"one that two name, for the first":        {devices: "a b", after: xa + "," + ya, want: "x=a", words: []string{`"a"`, "in use"}},
		"none, because all are used":              {devices: "a", before: x, after: x + "," + y, words: []string{`"vf"`, vf, "free"}},
		"none, because the one is used":           {devices: "a b", before: x, after: x + "," + ya, words: []string{`"a"`, "in use"}},
		"none, because the pod has none":          {after: x, words: []string{`"vf"`, vf}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := 0
			p := startIn(t, withDevices(&asked, strings.Fields(tt.devices)...), "["+tt.before+"]", strings.Fields(tt.keys)...)
			p.networks, p.replace = "["+tt.after+"]", tt.replace
			_, err := p.reconcile(t)
			if tt.words == nil && err != nil {
				t.Error(err)
			}
			if tt.words != nil {
				wantError(t, err, 7, tt.words...)
			}
			if got := p.given(t); got != tt.want {
				t.Errorf("devices %s, want %s", got, tt.want)
			}
			if _, err := p.reconcile(t); (err != nil) != (tt.words != nil) || p.given(t) != "" {
				t.Errorf("again: %v", err)
			}
			p.mustRun(t, "DEL", p.keys)
			p.clean(t)
		})
	}
}

// A network that is attached later has its device information file, which goes with it.
func TestNetworkSelectedLaterHasDeviceInformation(t *testing.T) {
	t.Parallel()
	asked := 0
	c := withDevices(&asked, "a")
	definition := c.Definition
	c.Definition = func(ctx context.Context, r nad.Ref, use nad.Use) (nad.Definition, error) {
		d, err := definition(ctx, r, use)
		d.Config = `{"type":"macvlan","capabilities":{"CNIDeviceInfoFile":true}}`
		return d, err
	}
	p := startIn(t, c, "")
	p.Write("devinfo/dp/vendor.example-vf-a-device.json", `{"type":"pci","pci":{"pci-address":"a"}}`)
	files := func() int {
		found, err := filepath.Glob(filepath.Join(p.devices(), "cni", "*"))
		nodetest.OK(t, err)
		return len(found)
	}
	p.networks = "vf"
	p.mustReconcile(t, "ADD macvlan net1 vf")
	if n := files(); n != 1 {
		t.Errorf("%d files", n)
	}
	p.networks = ""
	p.mustReconcile(t, "DEL macvlan net1 vf")
	if n := files(); n != 0 {
		t.Errorf("%d files are left", n)
	}
	// One that cannot be written is said, and the network is attached.
	nodetest.OK(t, os.RemoveAll(p.devices()))
	p.Write("devinfo", "a file")
	var said error
	p.cluster.Warn = func(_ context.Context, _ nad.Pod, err error) { said = err }
	p.networks = "vf"
	p.mustReconcile(t, "ADD macvlan net1 vf")
	if said == nil {
		t.Error("nothing is said")
	}
}
