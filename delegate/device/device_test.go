package device_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/device"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// devices reads devices as "resource=id@numa"; the NUMA node may be missing.
func devices(text string) []device.Device {
	var all []device.Device
	for word := range strings.FieldsSeq(text) {
		var d device.Device
		word, numa, _ := strings.Cut(word, "@")
		d.NUMA, _ = strconv.Atoi(numa)
		d.Resource, d.ID, _ = strings.Cut(word, "=")
		all = append(all, d)
	}
	return all
}

// pod reads the devices of containers.
func pod(containers string) [][]device.Device {
	var all [][]device.Device
	for text := range strings.SplitSeq(containers, "|") {
		all = append(all, devices(text))
	}
	return all
}

// attached returns attachments that have these devices. Without a resource they have them by
// a capability argument.
func attached(devices []device.Device) []delegate.Attached {
	var all []delegate.Attached
	for _, d := range devices {
		a := delegate.Attachment{Origin: nad.Origin{Use: nad.UseSelected, Resource: d.Resource, Device: d.ID}.JSON()}
		if d.Resource == "" {
			a = delegate.Attachment{CapabilityArgs: netconf.Selection{DeviceID: d.ID}.CapabilityArgs()}
		}
		all = append(all, delegate.Attached{Attachment: a})
	}
	return all
}

func TestAllocate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name                string
		pod, used, requests string
		want                string // IDs, with "-" for none
	}{
		{name: "nobody needs a device", requests: "= =", want: "- -"},
		{name: "each attachment gets its own, in their order, whichever it is", pod: "vf=c vf=a vf=b", requests: "vf = vf vf", want: "a - b c"},
		{name: "containers are in the order in which they are reported, not that of their devices", pod: "vf=z|vf=a", requests: "vf vf", want: "z a"},
		{name: "NUMA nodes ascend, and devices of none are first", pod: "vf=b@1 vf=a@1 vf=z@0 vf=zz@-1", requests: "vf vf vf vf", want: "zz z a b"},
		{name: "numbers in IDs count by value", pod: "vf=vf10 vf=vf2 vf=vf1", requests: "vf vf vf", want: "vf1 vf2 vf10"},
		{
			name: "PCI addresses are hexadecimal", pod: "vf=0000:3b:10.0 vf=0000:3b:0a.0 vf=0000:3b:02.1 vf=0000:3b:02.0 vf=10000:01:00.0",
			requests: "vf vf vf vf vf", want: "0000:3b:02.0 0000:3b:02.1 0000:3b:0a.0 0000:3b:10.0 10000:01:00.0",
		},
		{name: "resources do not mix, even if IDs are the same", pod: "vf=0 vf=1|nic=0", requests: "nic vf vf", want: "0 0 1"},
		{name: "a device that is asked for by name is kept from those before it", pod: "vf=a vf=b", requests: "vf vf=a", want: "b a"},
		{name: "a device that a pod may choose freely is passed on, and kept from others", pod: "vf=a vf=b", requests: "vf =a =elsewhere", want: "b a elsewhere"},
		{name: "a device that the kubelet reports for two NUMA nodes counts once", pod: "vf=a@1 vf=b@1 vf=a@0", requests: "vf vf", want: "a b"},
		{name: "one of which nobody knows the resource is given to nobody", pod: "=a|vf=b", requests: "vf =", want: "b -"},
		{name: "recorded devices are in use", pod: "vf=a vf=b vf=c vf=d", used: "vf=a =c nic=b", requests: "vf vf", want: "b d"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			containers := pod(tt.pod)
			for range len(containers[0]) + 1 { // the order in which the kubelet lists them does not matter
				ids, err := device.Allocate(containers, attached(devices(tt.used)), devices(tt.requests)...)
				nodetest.OK(t, err)
				for i, id := range ids {
					if id == "" {
						ids[i] = "-"
					}
				}
				nodetest.Equal(t, "IDs", strings.Join(ids, " "), tt.want)
				for _, c := range containers {
					if len(c) > 0 {
						copy(c, append(slices.Clone(c[1:]), c[0]))
					}
				}
			}
		})
	}
}

func TestAttachmentsNeverGoWithoutTheirDevice(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name                string
		pod, used, requests string
		at                  int
		code                uint
		text                string
	}{
		{"the pod has none", "", "", "= vf", 1, 7, `the pod's networks ask for 1 of its devices; the pod's containers have none`},
		{"they run out", "vf=a vf=b", "", "vf vf vf", 2, 7, `the pod's networks ask for 3 of its devices; the pod's containers have 2: "a", "b"`},
		{"the named one is another pod's", "vf=a vf=b", "", "vf=c", 0, 7, `device "c" is not allocated to the pod; the pod's containers have 2: "a", "b"`},
		{"one is named twice", "vf=a vf=b", "", "vf=a vf=a", 1, 7, `device "a" is in use by another attachment of the pod; the pod's containers have 2: "a", "b"`},
		{"recorded attachments have all", "vf=a vf=b", "vf=a vf=b", "vf", 0, 7, `the pod's networks ask for 1 more of its devices; the pod's containers have 2, not all of them free: "a", "b"`},
		{
			"one of which nobody knows the resource may be it", "=nic.example/node1/vf-7", "", "vf", 0, 11,
			`the pod's networks ask for 1 of its devices; the pod's containers have none; the resource is not known of "nic.example/node1/vf-7"`,
		},
		{
			"one of which nobody knows the resource does not free another", "vf=a vf=b|=nic.example/node1/vf-7", "vf=a", "vf=a", 0, 7,
			`device "a" is in use by another attachment of the pod; the pod's containers have 2: "a", "b"`,
		},
		{
			"a long list is cut", "vf=1 vf=2 vf=3 vf=4 vf=5 vf=6 vf=7 vf=8 vf=9 vf=10", "", "vf=x", 0, 7,
			`device "x" is not allocated to the pod; the pod's containers have 10: "1", "2", "3", "4", "5", "6", "7", "8" and 2 more`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ids, err := device.Allocate(pod(tt.pod), attached(devices(tt.used)), devices(tt.requests)...)
			var e *device.Error
			if !errors.As(err, &e) || e.At != tt.at || ids != nil {
				t.Fatalf("got %q, %v, want an Error of request %d", ids, err, tt.at)
			}
			nodetest.Code(t, err, tt.code)
			nodetest.Equal(t, "text", err.Error(), `resource "vf": `+tt.text)
		})
	}
}

// FuzzAllocate shows that two requests never get the same device, that none goes without, and
// that the same arguments have the same result.
func FuzzAllocate(f *testing.F) {
	f.Add("a=1 b=1|a=2 c=1", "a= b= a=2", "c=1")
	f.Add("a=10 a=9", "a= a= a=", "")
	f.Add("a=1 a=2", "=1 a=", "=3")
	f.Fuzz(func(t *testing.T, containers, asked, recorded string) {
		without := func(d device.Device) device.Device { return device.Device{Resource: d.Resource, ID: d.ID} }
		has, given := make(map[device.Device]bool), make(map[device.Device]bool)
		for _, d := range slices.Concat(pod(containers)...) {
			has[without(d)] = true
		}
		for _, d := range devices(recorded) {
			given[without(d)] = true
		}
		requests, used := devices(asked), attached(devices(recorded))
		ids, err := device.Allocate(pod(containers), used, requests...)
		again, errAgain := device.Allocate(pod(containers), used, requests...)
		if !slices.Equal(ids, again) || status.Code(err) != status.Code(errAgain) {
			t.Fatal("the same arguments have two results")
		}
		if err != nil {
			if e := (*device.Error)(nil); !errors.As(err, &e) || requests[e.At].Resource == "" {
				t.Fatalf("%#v is not an error of a request", err)
			}
			return
		}
		for i, r := range requests {
			d := device.Device{Resource: r.Resource, ID: ids[i]}
			switch {
			case r.ID != "" && r.ID != d.ID:
				t.Errorf("request %d gets %q instead of %q", i, d.ID, r.ID)
			case r.Resource == "":
			case !has[d] || d.ID == "":
				t.Errorf("request %d gets %v, which the pod does not have", i, d)
			case given[d] || given[device.Device{ID: d.ID}]:
				t.Errorf("%v is given twice", d)
			}
			given[d] = true
		}
	})
}

func TestGiveKeepsEverythingElseOfTheConfiguration(t *testing.T) {
	t.Parallel()
	n := nodetest.Parse(`{"cniVersion":"1.0.0","name":"sriov-net","plugins":[
		{"type":"sriov","vni":12345678901234567890,"f":1.0,"deviceID":"of the definition","capabilities":{"deviceID":true}},
		{"type":"tuning"}]}`)
	before := delegate.Attachment{Network: n, CapabilityArgs: map[string]json.RawMessage{"mac": json.RawMessage(`"02:00:00:00:00:01"`)}}
	a, err := device.Give(before, "0000:3b:02.1<&>")
	nodetest.OK(t, err)
	for i, want := range []string{
		`{"capabilities":{"deviceID":true},"cniVersion":"1.0.0","deviceID":"0000:3b:02.1<&>","f":1.0,"name":"sriov-net","pciBusID":"0000:3b:02.1<&>",` +
			`"runtimeConfig":{"deviceID":"0000:3b:02.1<&>"},"type":"sriov","vni":12345678901234567890}`,
		`{"cniVersion":"1.0.0","deviceID":"0000:3b:02.1<&>","name":"sriov-net","pciBusID":"0000:3b:02.1<&>","type":"tuning"}`,
	} {
		request, err := a.Network.Request(i, netconf.Request{CapabilityArgs: a.CapabilityArgs})
		nodetest.OK(t, err)
		nodetest.Equal(t, "request", string(request), want)
	}
	if string(a.CapabilityArgs["mac"]) != `"02:00:00:00:00:01"` || len(before.CapabilityArgs) != 1 || !before.Network.Equal(n) {
		t.Errorf("arguments %s, of the attachment before %s", a.CapabilityArgs, before.CapabilityArgs)
	}
	if same, err := device.Give(before, ""); err != nil || same.CapabilityArgs["deviceID"] != nil || !same.Network.Equal(n) {
		t.Errorf("without a device: %v, %v", same, err)
	}
}
