package device_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/device"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

const (
	vf  = "vendor.example/vf"
	nic = "vendor.example/nic"
)

// of returns the devices of a container on one NUMA node.
func of(name, resource string, numa int, ids ...string) device.Container {
	c := device.Container{Name: name}
	for _, id := range ids {
		c.Devices = append(c.Devices, device.Device{Resource: resource, ID: id, NUMA: numa})
	}
	return c
}

func asks(resources ...string) []device.Request {
	var rs []device.Request
	for _, r := range resources {
		rs = append(rs, device.Request{Resource: r})
	}
	return rs
}

func TestAllocate(t *testing.T) {
	t.Parallel()
	both := of("app", vf, 1, "b", "a")
	both.Devices = append(both.Devices, of("", vf, 0, "z").Devices...)
	both.Devices = append(both.Devices, of("", vf, device.NoNUMA, "zz").Devices...)
	for _, tc := range []struct {
		name       string
		containers []device.Container
		used       []device.Device
		requests   []device.Request
		want       []string
	}{
		{"nobody needs a device", nil, nil, asks("", ""), []string{"", ""}},
		{
			"each attachment gets its own, in their order, whichever it is",
			[]device.Container{of("app", vf, 0, "c", "a", "b")},
			nil, asks(vf, "", vf, vf),
			[]string{"a", "", "b", "c"},
		},
		{
			"containers are in the order in which they are reported, not that of their devices",
			[]device.Container{of("second", vf, 0, "z"), of("first", vf, 0, "a")},
			nil, asks(vf, vf),
			[]string{"z", "a"},
		},
		{"NUMA nodes ascend, and devices of none are first", []device.Container{both}, nil, asks(vf, vf, vf, vf), []string{"zz", "z", "a", "b"}},
		{
			"numbers in IDs count by value",
			[]device.Container{of("app", vf, 0, "vf10", "vf2", "vf1-10", "vf1-9")},
			nil, asks(vf, vf, vf, vf),
			[]string{"vf1-9", "vf1-10", "vf2", "vf10"},
		},
		{
			"PCI addresses are hexadecimal",
			[]device.Container{of("app", vf, 0, "0000:3b:10.0", "0000:3b:0a.0", "0000:3b:02.1", "0000:3b:02.0", "10000:01:00.0")},
			nil, asks(vf, vf, vf, vf, vf),
			[]string{"0000:3b:02.0", "0000:3b:02.1", "0000:3b:0a.0", "0000:3b:10.0", "10000:01:00.0"},
		},
		{
			"resources do not mix, even if IDs are the same",
			[]device.Container{of("app", vf, 0, "0", "1"), of("app", nic, 0, "0")},
			nil, asks(nic, vf, vf),
			[]string{"0", "0", "1"},
		},
		{
			"a device that is asked for by name is kept from those before it",
			[]device.Container{of("app", vf, 0, "a", "b")},
			nil,
			[]device.Request{{Resource: vf}, {Resource: vf, ID: "a"}},
			[]string{"b", "a"},
		},
		{
			"a device that a pod may choose freely is passed on, and kept from others",
			[]device.Container{of("app", vf, 0, "a", "b")},
			nil,
			[]device.Request{{Resource: vf}, {ID: "a"}, {ID: "elsewhere"}},
			[]string{"b", "a", "elsewhere"},
		},
		{
			"a device that two containers share counts once",
			[]device.Container{of("one", vf, 0, "b"), of("two", vf, 0, "b", "a")},
			nil, asks(vf, vf),
			[]string{"b", "a"},
		},
		{
			"a device that the kubelet reports for two NUMA nodes counts once",
			[]device.Container{{Devices: []device.Device{{vf, "a", 1}, {vf, "b", 1}, {vf, "a", 0}}}},
			nil, asks(vf, vf),
			[]string{"a", "b"},
		},
		{
			"one of which nobody knows the resource is given to nobody",
			[]device.Container{of("app", "", 0, "a"), of("app", vf, 0, "b")},
			nil, asks(vf, ""),
			[]string{"b", ""},
		},
		{
			"recorded devices are in use",
			[]device.Container{of("app", vf, 0, "a", "b", "c", "d")},
			[]device.Device{{Resource: vf, ID: "a"}, {ID: "c"}, {Resource: nic, ID: "b"}},
			asks(vf, vf),
			[]string{"b", "d"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			mark := device.Device{ID: "behind the argument"}
			used := append(slices.Clone(tc.used), mark)
			got, err := device.Allocate(tc.containers, used[:len(tc.used)], tc.requests...)
			nodetest.OK(t, err)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(append(slices.Clone(tc.used), mark), used); diff != "" {
				t.Errorf("the argument was changed:\n%s", diff)
			}
		})
	}
}

func TestAttachmentsNeverGoWithoutTheirDevice(t *testing.T) {
	t.Parallel()
	two := []device.Container{of("app", vf, 0, "a", "b")}
	unknown := of("app", "", device.NoNUMA, "nic.example/node1/vf-7")
	for _, tc := range []struct {
		name       string
		containers []device.Container
		used       []device.Device
		requests   []device.Request
		at         int
		why        error
		code       uint
		text       string
	}{
		{
			"the pod has none", nil, nil, asks("", vf), 1, device.ErrNotAllocated, 7,
			`resource "vendor.example/vf": the pod's networks ask for 1 of its devices; the pod's containers have none`,
		},
		{
			"the pod has none and names one all the same",
			[]device.Container{of("app", nic, 0, "a")},
			nil,
			[]device.Request{{Resource: vf, ID: "a"}},
			0, device.ErrNotAllocated, 7,
			`resource "vendor.example/vf": device "a" is not allocated to the pod; the pod's containers have none`,
		},
		{
			"they run out", two, nil, asks(vf, vf, vf), 2, device.ErrNotAllocated, 7,
			`resource "vendor.example/vf": the pod's networks ask for 3 of its devices; the pod's containers have 2: "a", "b"`,
		},
		{
			"one that two containers share counts once", append(two, two...), nil, asks(vf, vf, vf), 2, device.ErrNotAllocated, 7,
			`resource "vendor.example/vf": the pod's networks ask for 3 of its devices; the pod's containers have 2: "a", "b"`,
		},
		{
			"the named one is another pod's", two, nil,
			[]device.Request{{Resource: vf, ID: "c"}},
			0, device.ErrNotAllocated, 7,
			`resource "vendor.example/vf": device "c" is not allocated to the pod; the pod's containers have 2: "a", "b"`,
		},
		{
			"one is named twice", two, nil,
			[]device.Request{{Resource: vf, ID: "a"}, {Resource: vf, ID: "a"}},
			1, device.ErrInUse, 7,
			`resource "vendor.example/vf": device "a" is in use by another attachment of the pod; the pod's containers have 2: "a", "b"`,
		},
		{
			"recorded attachments have all", two,
			[]device.Device{{Resource: vf, ID: "a"}, {Resource: vf, ID: "b"}},
			asks(vf), 0, device.ErrInUse, 7,
			`resource "vendor.example/vf": the pod's networks ask for 1 more of its devices; the pod's containers have 2, not all of them free: "a", "b"`,
		},
		{
			"one of which nobody knows the resource may be it",
			[]device.Container{unknown},
			nil, asks(vf), 0, device.ErrNotAllocated, 11,
			`resource "vendor.example/vf": the pod's networks ask for 1 of its devices; the pod's containers have none; the resource is not known of "nic.example/node1/vf-7"`,
		},
		{
			"one of which nobody knows the resource does not free another",
			[]device.Container{two[0], unknown},
			[]device.Device{{Resource: vf, ID: "a"}},
			[]device.Request{{Resource: vf, ID: "a"}},
			0, device.ErrInUse, 7,
			`resource "vendor.example/vf": device "a" is in use by another attachment of the pod; the pod's containers have 2: "a", "b"`,
		},
		{
			"a long list is cut",
			[]device.Container{of("app", vf, 0, "1", "2", "3", "4", "5", "6", "7", "8", "9", "10")},
			nil,
			[]device.Request{{Resource: vf, ID: "x"}},
			0, device.ErrNotAllocated, 7,
			`resource "vendor.example/vf": device "x" is not allocated to the pod; the pod's containers have 10: "1", "2", "3", "4", "5", "6", "7", "8" and 2 more`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			ids, err := device.Allocate(tc.containers, tc.used, tc.requests...)
			var e *device.Error
			if !errors.As(err, &e) || ids != nil {
				t.Fatalf("got %q, %v, want an Error", ids, err)
			}
			if e.At != tc.at || !errors.Is(err, tc.why) || e.CNICode() != tc.code {
				t.Errorf("request %d, code %d, %v; want request %d, code %d, %v", e.At, e.CNICode(), e.Err, tc.at, tc.code, tc.why)
			}
			if diff := cmp.Diff(tc.text, err.Error()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTheOrderInWhichTheKubeletListsDevicesOfAContainerDoesNotMatter(t *testing.T) {
	t.Parallel()
	devices := []device.Device{{vf, "b", 1}, {vf, "a", 0}, {nic, "c", 0}, {vf, "a", 1}, {vf, "d", device.NoNUMA}, {vf, "e10", 0}, {vf, "e9", 0}}
	var want []string
	for range len(devices) {
		devices = append(devices[1:], devices[0])
		for _, ds := range [][]device.Device{devices, reversed(devices)} {
			got, err := device.Allocate([]device.Container{{Devices: ds}}, nil, asks(vf, vf, nic, vf, vf)...)
			nodetest.OK(t, err)
			if want == nil {
				want = got
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatal(diff)
			}
		}
	}
}

func reversed(ds []device.Device) []device.Device {
	ds = slices.Clone(ds)
	slices.Reverse(ds)
	return ds
}

func TestGiveKeepsEverythingElseOfTheConfiguration(t *testing.T) {
	t.Parallel()
	n, err := netconf.Parse([]byte(`{"cniVersion":"1.0.0","name":"sriov-net","plugins":[
		{"type":"sriov","vni":12345678901234567890,"f":1.0,"deviceID":"of the definition","capabilities":{"deviceID":true}},
		{"type":"tuning"}]}`))
	nodetest.OK(t, err)
	before := delegate.Attachment{Network: n, CapabilityArgs: map[string]json.RawMessage{"mac": json.RawMessage(`"02:00:00:00:00:01"`)}}
	a, err := device.Give(before, "0000:3b:02.1<&>")
	nodetest.OK(t, err)
	text, err := a.Network.MarshalJSON()
	nodetest.OK(t, err)
	for _, part := range []string{
		`{"capabilities":{"deviceID":true},"deviceID":"0000:3b:02.1<&>","f":1.0,"pciBusID":"0000:3b:02.1<&>","type":"sriov","vni":12345678901234567890}`,
		`{"deviceID":"0000:3b:02.1<&>","pciBusID":"0000:3b:02.1<&>","type":"tuning"}`,
	} {
		if !strings.Contains(string(text), part) {
			t.Errorf("%s\nlacks %s", text, part)
		}
	}
	want := map[string]json.RawMessage{"mac": json.RawMessage(`"02:00:00:00:00:01"`), "deviceID": json.RawMessage(`"0000:3b:02.1<&>"`)}
	if diff := cmp.Diff(want, a.CapabilityArgs); diff != "" {
		t.Error(diff)
	}
	if _, changed := before.CapabilityArgs["deviceID"]; changed || !before.Network.Equal(n) {
		t.Error("the argument was changed")
	}
	for i, declared := range []bool{true, false} {
		p, err := a.Network.Request(i, netconf.Request{CapabilityArgs: a.CapabilityArgs})
		nodetest.OK(t, err)
		if has := strings.Contains(string(p), "runtimeConfig"); has != declared {
			t.Errorf("plugin %d gets capability arguments: %v, want %v", i, has, declared)
		}
	}
	if same, err := device.Give(before, ""); err != nil || same.CapabilityArgs["deviceID"] != nil || !same.Network.Equal(n) {
		t.Errorf("without a device: %v, %v", same, err)
	}
}

func TestDevicesOfRecordedAttachmentsAreInUse(t *testing.T) {
	t.Parallel()
	of := func(origin nad.Origin, id string) delegate.Attached {
		a := delegate.Attachment{Origin: origin.JSON()}
		if id != "" {
			a.CapabilityArgs = netconf.Selection{DeviceID: id}.CapabilityArgs()
		}
		return delegate.Attached{Attachment: a}
	}
	got := device.InUse(
		of(nad.Origin{Use: nad.Selected}, ""),
		of(nad.Origin{Use: nad.Selected, Resource: vf, Device: "a"}, "a"),
		of(nad.Origin{Use: nad.Attached}, "b"),
		delegate.Attached{Attachment: delegate.Attachment{Origin: json.RawMessage(`"of another program"`), CapabilityArgs: map[string]json.RawMessage{"deviceID": json.RawMessage(`7`)}}},
	)
	want := []device.Device{{Resource: vf, ID: "a", NUMA: device.NoNUMA}, {ID: "b", NUMA: device.NoNUMA}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
