package multinet

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/device"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf/nad"
)

// with returns c with claims.
func (c Cluster) with(claims ...Claimed) Cluster {
	c.Claims = func(context.Context, nad.Pod) ([]Claimed, error) { return claims, nil }
	return c
}

// A claimed network that needs a device of the kubelet gets one as a selected one does. All
// come from one allocation.
func TestClaimedNetworkHasADeviceOfItsOwn(t *testing.T) {
	t.Parallel()
	one, two := claimed("c", "r1", "a/vf", ""), claimed("c", "r2", "a/vf2", "x0")
	for _, tt := range []struct {
		name, keys, devices string
		claims              []Claimed
		want                string
		words               []string
	}{
		{"claims", passedNothing, "a b", []Claimed{one, two}, "net1=a x0=b", nil},
		{"none for a network in the claim", passedNothing, "a", []Claimed{claimed("c", "r", inline, "")}, "", nil},
		{"a selection", annotated("vf"), "a b", []Claimed{one}, "net1=a net2=b", nil},
		{"a selection that names one", annotated(`[{"name":"vf","deviceID":"b"}]`), "a b c", []Claimed{one, two}, "net1=b net2=a x0=c", nil},
		{"a default network and a selection", keys(`"defaultNetworks":["vf2"]`, annotated("vf")), "a b c", []Claimed{two}, "net1=a net2=b x0=c", nil},
		{"too few", annotated("vf"), "a", []Claimed{two}, "", []string{`claim "c", request "r2"`, vf}},
		{"none", passedNothing, "", []Claimed{two}, "", []string{`claim "c", request "r2"`, vf}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			asked := 0
			h := newHost(t, "1.1.0")
			h.cluster = withDevices(&asked, strings.Fields(tt.devices)...).with(tt.claims...)
			err := h.run(t, "ADD", keys(bridge, tt.keys), podOf("a"))
			if tt.words != nil {
				wantError(t, err, 7, tt.words...)
				wantTrace(t, h)
				h.clean(t)
				return
			}
			if got := h.given(t); err != nil || got != tt.want || asked > 1 {
				t.Errorf("devices %s, want %s; asked %d times, %v", got, tt.want, asked, err)
			}
			for _, a := range recorded(t, h, "c1").Attached {
				if o := nad.ParseOrigin(a.Origin); o.Use == nad.Claimed && (o.Resource != "") != strings.Contains(tt.want, a.IfName+"="+o.Device) {
					t.Errorf("recorded %+v", o)
				}
			}
			h.mustRun(t, "DEL", bridge, podOf("a"))
			h.clean(t)
		})
	}
	t.Run("nobody knows the devices", func(t *testing.T) {
		t.Parallel()
		asked := 0
		h := newHost(t, "1.1.0")
		h.cluster = withDevices(&asked).with(one)
		h.cluster.Devices = nil
		wantError(t, h.run(t, "ADD", keys(bridge, passedNothing), podOf("a")), 7, `claim "c", request "r1"`, vf, "multinetd")
		wantTrace(t, h)
	})
}

// The device information file of a claimed network has what the device plugin says, and goes
// with the attachment.
func TestClaimedNetworkHasDeviceInformation(t *testing.T) {
	t.Parallel()
	asked := 0
	h := newHost(t, "1.1.0")
	h.cluster = withDevices(&asked, "a").with(claimed("c", "r", "a/vf", ""))
	definition := h.cluster.Definition
	h.cluster.Definition = func(ctx context.Context, r nad.Ref, use nad.Use) (nad.Definition, error) {
		d, err := definition(ctx, r, use)
		d.Config = `{"type":"macvlan","capabilities":{"CNIDeviceInfoFile":true}}`
		return d, err
	}
	h.Write("devinfo/dp/vendor.example-vf-a-device.json", `{"type":"pci","pci":{"pci-address":"a"}}`)
	h.mustRun(t, "ADD", keys(bridge, passedNothing), podOf("a"))
	networks := NetworkStatus(recorded(t, h, "c1"))
	err := device.Describe("", networks, recorded(t, h, "c1").Attached...)
	info := networks[1].DeviceInfo
	if err != nil || info == nil || info.PCI == nil || info.PCI.Address != "a" {
		t.Errorf("device information %+v, %v", info, err)
	}
	h.mustRun(t, "DEL", bridge, podOf("a"))
	if found, _ := filepath.Glob(filepath.Join(h.devices(), "cni", "*")); len(found) > 0 {
		t.Errorf("left %q", found)
	}
}

// Edits of the annotation leave the networks of claims alone, and can take neither their
// interfaces nor their devices.
func TestSelectionsOfARunningPodLeaveItsClaimsAlone(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		devices, before, after string
		replace                bool
		want                   string
		words                  []string
	}{
		"nothing selected any more": {devices: "a b", before: "plain", want: "DEL macvlan net1 plain"},
		"one more":                  {devices: "a b", after: "plain,vf", want: "ADD macvlan net1 plain, ADD macvlan net2 vf"},
		"the definition of a claim": {devices: "a b", after: "vf", want: "ADD macvlan net1 vf"},
		"the interface of a claim":  {devices: "a b", after: "plain@x0", words: []string{`"plain"`, `"x0"`}},
		"definition and interface":  {devices: "a b", after: "vf@x0", replace: true, words: []string{`"vf"`, `"x0"`}},
		"the device of a claim":     {devices: "a b", after: `[{"name":"vf","deviceID":"a"}]`, words: []string{`"vf"`, `"a"`, "in use"}},
		"both":                      {devices: "a", after: `[{"name":"vf","interface":"x0","deviceID":"a"}]`, replace: true, words: []string{`"vf"`}},
		"no device is left":         {devices: "a", after: "vf", words: []string{`"vf"`, vf, "free"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := 0
			p := startIn(t, withDevices(&asked, strings.Fields(tt.devices)...).with(claimed("c", "r", "a/vf2", "x0"), claimed("c", "own", inline, "y0")), tt.before)
			p.networks, p.replace = tt.after, tt.replace
			_, err := p.reconcile(t)
			if tt.words == nil && err != nil {
				t.Error(err)
			}
			if tt.words != nil {
				wantError(t, err, 7, tt.words...)
			}
			if got := strings.Join(p.attached(t), ", "); got != tt.want {
				t.Errorf("calls %s, want %s", got, tt.want)
			}
			live := strings.Join(p.Exec.Live(), " ")
			if !strings.Contains(live, "x0") || !strings.Contains(live, "y0") {
				t.Errorf("attached %s", live)
			}
			p.mustRun(t, "CHECK", p.keys)
			p.mustRun(t, "DEL", p.keys)
			p.clean(t)
		})
	}
}

// A sweep tries the definition of a claim as it is now. A network in a claim cannot change:
// another one of its name is not tried.
func TestSweepOfAClaimedNetwork(t *testing.T) {
	t.Parallel()
	config := func(mode string) string { return `{"name":"net","type":"strict","mode":"` + mode + `"}` }
	for _, tt := range []struct {
		name, keys string
		claim      Claimed
		now        string // the definition
		want       string // modes of the DELs
		swept      lifecycle.Sweep
	}{
		{"a definition that is mended", "", claimed("c", "r", "a/net", ""), "right", "typo right", lifecycle.Sweep{Removed: 1}},
		{"a definition that is not mended", "", claimed("c", "r", "a/net", ""), "typo", "typo", lifecycle.Sweep{Failed: 1}},
		{"a definition with plugins that pods may not have", `"allowedTypes":{"nad":["other"]},`, claimed("c", "r", "a/net", ""), "right", "typo", lifecycle.Sweep{Failed: 1}},
		{"a network", "", claimed("c", "r", config("typo"), ""), "right", "typo", lifecycle.Sweep{Failed: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.1.0")
			h.Write("net.d/net.conf", config("right"))
			var tried []string
			h.Exec.Plugins["strict"] = func(_ context.Context, c delegatetest.Call) ([]byte, error) {
				var conf struct{ Mode string }
				if err := json.Unmarshal(c.Stdin, &conf); err != nil {
					return nil, err
				}
				if c.Command == "DEL" {
					tried = append(tried, conf.Mode)
				}
				if conf.Mode == "typo" {
					return nil, errors.New("no such mode")
				}
				return nil, nil
			}
			mode := "typo"
			h.cluster = Cluster{Definition: func(_ context.Context, r nad.Ref, use nad.Use) (nad.Definition, error) {
				if use != nad.Claimed {
					t.Errorf("asked for %s, which is %s", r, use)
				}
				return nad.Definition{Ref: r, Config: config(mode)}, nil
			}}.with(tt.claim)
			if err := h.run(t, "ADD", keys(bridge, passedNothing), podOf("a")); err == nil {
				t.Fatal("success")
			}
			mode, tried = tt.now, nil
			s := &lifecycle.Sweeper{}
			nodetest.OK(t, PrepareSweep(t.Context(), s, h.process(), h.cluster, []byte(h.conf(tt.keys+bridge)), ""))
			swept, err := s.Sweep(t.Context())
			if err != nil || swept != tt.swept {
				t.Errorf("%+v, %v, want %+v", swept, err, tt.swept)
			}
			if got := strings.Join(tried, " "); got != tt.want {
				t.Errorf("DELs with %q, want %q", got, tt.want)
			}
		})
	}
}
