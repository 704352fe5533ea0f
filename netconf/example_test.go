package netconf_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing/fstest"

	"github.com/metacni/metacni/netconf"
)

// A configuration is completed and becomes what its plugin is sent. What the
// package does not know, and how numbers are written, stays.
func Example() {
	n, err := netconf.Parse([]byte(`{
		"name": "blue",
		"cniVersions": ["0.4.0", "1.1.0"],
		"plugins": [{"type": "bridge", "x-rate": 1.50, "capabilities": {"mac": true}}]
	}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	n, err = n.EditPlugins(
		netconf.Forbid("ipam"),
		netconf.Default("mtu", 9000),
		netconf.In("ipam", netconf.Set("type", "dhcp")),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	stdin, err := n.Request(0, netconf.Request{
		CapabilityArgs: map[string]json.RawMessage{"mac": json.RawMessage(`"02:00:00:00:00:01"`)},
	})
	fmt.Println(string(stdin), err)
	// Output:
	// {"capabilities":{"mac":true},"cniVersion":"1.1.0","ipam":{"type":"dhcp"},"mtu":9000,"name":"blue","runtimeConfig":{"mac":"02:00:00:00:00:01"},"type":"bridge","x-rate":1.50} <nil>
}

func ExampleParse() {
	_, err := netconf.Parse([]byte(`{"name": "blue", "plugins": [{"type": "bridge"}, {"mtu": 9000}]}`))
	fmt.Println(err)
	fmt.Println(errors.Is(err, netconf.ErrInvalid))
	var e *netconf.Error
	if errors.As(err, &e) {
		fmt.Println(e.Network, e.Key, e.CNICode())
	}
	// Output:
	// invalid configuration: network "blue", key "plugins[1].type": missing
	// true
	// blue plugins[1].type 7
}

func ExampleList() {
	bridge, err := netconf.NewPlugin(map[string]any{"type": "bridge", "ipam": map[string]any{"type": "dhcp"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	tuning, err := netconf.NewPlugin(json.RawMessage(`{"type": "tuning", "mtu": 9000}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	n, err := netconf.List("blue", "1.1.0", bridge, tuning)
	data, _ := n.MarshalJSON()
	fmt.Println(string(data), err)
	// Output: {"cniVersion":"1.1.0","name":"blue","plugins":[{"ipam":{"type":"dhcp"},"type":"bridge"},{"mtu":9000,"type":"tuning"}]} <nil>
}

// One broken file does not hide a good one, and is named when there is none.
func ExampleLoad() {
	dir := fstest.MapFS{ // in life: os.DirFS("/etc/cni/net.d")
		"10-broken.conf":   {Data: []byte(`{"name": "blue", `)},
		"20-blue.conflist": {Data: []byte(`{"name": "blue", "plugins": [{"type": "bridge"}]}`)},
		"blue/10.conf":     {Data: []byte(`{"type": "tuning"}`)}, // CNI 1.1
	}
	n, err := netconf.Load(dir, "blue")
	for _, p := range n.Plugins() {
		fmt.Println(p.Type())
	}
	fmt.Println(err)

	_, err = netconf.Load(dir, "red")
	fmt.Println(err)
	// Output:
	// bridge
	// tuning
	// <nil>
	// no such network: network "red": 1 bad file: cannot decode configuration: file "10-broken.conf": line 1, column 17: unexpected end of JSON input
}

func ExampleLoadFile() {
	dir := fstest.MapFS{"red.conf": {Data: []byte(`{"name": "red", "type": "macvlan"}`)}} // or os.DirFS("/etc/cni/net.d")
	n, err := netconf.LoadFile(dir, "red.conf")
	fmt.Println(n.Name(), n.Plugins()[0].Type(), err)
	// Output: red macvlan <nil>
}

// A meta-plugin passes over itself when it looks for the network to delegate to.
func ExampleFiles() {
	dir := fstest.MapFS{
		"00-multinet.conf": {Data: []byte(`{"name": "multi", "type": "multinet"}`)},
		"05-half.conflist": {Data: []byte(`{"name": "half", "plug`)},
		"10-blue.conf":     {Data: []byte(`{"name": "blue", "type": "bridge"}`)},
	}
	for f, err := range netconf.Files(dir) {
		switch {
		case err != nil:
			fmt.Println("cannot be used:", f.Name)
		case f.Network.Plugins()[0].Type() != "multinet":
			fmt.Println("primary:", f.Network.Name())
			return
		}
	}
	// Output:
	// cannot be used: 05-half.conflist
	// primary: blue
}

// The configuration of a meta-plugin can hold networks and plugins.
func ExampleDecode() {
	type config struct {
		MTU       int               `json:"mtu"`
		Delegates []netconf.Network `json:"delegates"`
	}
	conf, err := netconf.Decode[config]([]byte(`{"name": "multi", "mtu": 1400, "delegates": [
		{"name": "red", "type": "macvlan"},
		{"name": "blue", "plugins": [{"type": "bridge"}, {"type": "portmap"}]}
	]}`))
	for _, n := range conf.Delegates {
		fmt.Println(n.Name(), len(n.Plugins()))
	}
	fmt.Println(err)

	_, err = netconf.Decode[config]([]byte(`{"name": "multi", "delegates": [{"name": "red"}]}`))
	fmt.Println(err)
	// Output:
	// red 1
	// blue 2
	// <nil>
	// invalid configuration: network "red", key "delegates[0].plugins": missing, and there is no "type" either
}

func ExampleParseSelection() {
	for _, annotation := range []string{
		`red, kube-system/blue@net7`,
		`[{"name": "red", "mac": "02:00:00:00:00:01", "ips": ["10.0.0.5/24"]}]`,
		`[{"name": "red"}, {"name": "../blue"}]`,
	} {
		selections, err := netconf.ParseSelection(annotation)
		for _, s := range selections {
			fmt.Printf("%q %q %q %s\n", s.Name, s.Namespace, s.Interface, s.CapabilityArgs())
		}
		if err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// "red" "" "" map[]
	// "blue" "kube-system" "net7" map[]
	// "red" "" "" map[ips:["10.0.0.5/24"] mac:"02:00:00:00:00:01"]
	// invalid configuration: network "../blue", key "[1].name": not a network name: letters, digits, "_", "." and "-" after a letter or digit
}

// A program's own edits compose with those of the package.
func ExampleEdit() {
	double := func(key string) netconf.Edit {
		return func(keys map[string]json.RawMessage) error {
			var n int
			if err := json.Unmarshal(keys[key], &n); err != nil {
				return err
			}
			return netconf.Set(key, 2*n)(keys)
		}
	}
	p, err := netconf.ParsePlugin([]byte(`{"type": "bridge", "mtu": 1500}`))
	if err == nil {
		p, err = p.Edit(double("mtu"), netconf.Remove("type"))
	}
	data, _ := p.MarshalJSON()
	fmt.Println(string(data), err)
	// Output: {"mtu":3000} <nil>
}
