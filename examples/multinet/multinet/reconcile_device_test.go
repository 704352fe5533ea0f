package multinet

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf/nad"
)

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
	p.write(t, "devinfo/dp/vendor.example-vf-a-device.json", `{"type":"pci","pci":{"pci-address":"a"}}`)
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
	p.write(t, "devinfo", "a file")
	var said error
	p.cluster.Warn = func(_ context.Context, _ nad.Pod, err error) { said = err }
	p.networks = "vf"
	p.mustReconcile(t, "ADD macvlan net1 vf")
	if said == nil {
		t.Error("nothing is said")
	}
}
