package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/examples/internal/programtest"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

const (
	subnetEnv = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	dualStack = subnetEnv + "FLANNEL_IPV6_NETWORK=fd00:10::/48\nFLANNEL_IPV6_SUBNET=fd00:10:0:1::1/64\n"
)

// A host is a node that flannel runs on: its directories, and plugins to delegate to.
type host struct {
	*programtest.Memory
	version string // of the configuration
}

func newHost(t *testing.T, version, env string) *host {
	t.Helper()
	h := &host{programtest.NewMemory(t, flannel(), "flannel", "ptp", "stuck"), version}
	h.Exec.Plugins["bridge"] = delegatetest.Result(nodetest.Result("10.244.1.7/24"))
	h.FailOn("DEL stuck", 108)
	if env != "" {
		h.Write("subnet.env", env)
	}
	return h
}

func (h *host) subnetFile() string { return h.Path("subnet.env") }

// run runs a command with a configuration that has more keys, as JSON without the braces.
func (h *host) run(command, keys string, edits ...func(*skel.CmdArgs)) error {
	if !strings.Contains(keys, `"subnetFile"`) {
		keys = strings.TrimSuffix(fmt.Sprintf(`"subnetFile":%q,`, h.subnetFile())+keys, ",")
	}
	if h.version != "" {
		keys = fmt.Sprintf(`"cniVersion":%q,`, h.version) + keys
	}
	return h.Do(command, fmt.Sprintf(`{"name":"pods","type":"flannel","dataDir":%q,%s}`, h.Path("state"), keys), edits...)
}

func (h *host) mustRun(command, keys string, edits ...func(*skel.CmdArgs)) {
	h.Helper()
	nodetest.OK(h, h.run(command, keys, edits...))
}

// clean wants everything undone, and no record.
func (h *host) clean() {
	h.Helper()
	files, err := filepath.Glob(h.Path("state", "*.json*"))
	nodetest.OK(h, err)
	nodetest.Equal(h, "attachments", h.Exec.Live(), nil)
	nodetest.Equal(h, "records", files, nil)
}

// stdin returns what the last plugin received on stdin.
func (h *host) stdin() string { return string(h.Last("").Stdin) }

// The delegate's configuration is made from flannel's and from subnet.env. The
// user's values win, except for the name and the address ranges.
func TestConfigurationOfTheDelegate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, env, keys, want string }{
		{
			"nothing given", subnetEnv, ``,
			`{"cniVersion":"1.0.0","ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.244.1.0/24"}]],"routes":[{"dst":"10.244.0.0/16"}],"type":"host-local"},` +
				`"isGateway":true,"mtu":1450,"name":"pods","type":"bridge"}`,
		},
		{
			"dual stack", dualStack, `"delegate":{}`,
			`{"cniVersion":"1.0.0","ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.244.1.0/24"}],[{"subnet":"fd00:10:0:1::/64"}]],` +
				`"routes":[{"dst":"10.244.0.0/16"},{"dst":"fd00:10::/48"}],"type":"host-local"},"isGateway":true,"mtu":1450,"name":"pods","type":"bridge"}`,
		},
		{
			"the user's values", subnetEnv,
			`"delegate":{"type":"bridge","mtu":9000,"ipMasq":true,"isGateway":false,"cniVersion":"0.4.0","hairpinMode":true,"x":9007199254740993}`,
			`{"cniVersion":"0.4.0","hairpinMode":true,"ipMasq":true,"ipam":{"ranges":[[{"subnet":"10.244.1.0/24"}]],"routes":[{"dst":"10.244.0.0/16"}],"type":"host-local"},` +
				`"isGateway":false,"mtu":9000,"name":"pods","type":"bridge","x":9007199254740993}`,
		},
		{
			"keys in upper and lower case, and twice with one value", subnetEnv,
			`"Delegate":{"Type":"ptp","MTU":1400,"IPMasq":true,"x":1,"x":1},"IPAM":{"Type":"other","Subnet":"1.0.0.0/8","Routes":[{"dst":"10.9.0.0/16"}]}`,
			`{"IPMasq":true,"MTU":1400,"Type":"ptp","cniVersion":"1.0.0","ipam":{"Type":"other","ranges":[[{"subnet":"10.244.1.0/24"}]],` +
				`"routes":[{"dst":"10.9.0.0/16"},{"dst":"10.244.0.0/16"}]},"name":"pods","x":1}`,
		},
		{
			"address management", subnetEnv,
			`"ipam":{"type":"other","dataDir":"/x","subnet":"1.0.0.0/8","ranges":[[]],"routes":[{"dst":"0.0.0.0/0","gw":"10.244.1.1","mtu":1.0},{"dst":"10.244.3.9/16"}]}`,
			`{"cniVersion":"1.0.0","ipMasq":false,"ipam":{"dataDir":"/x","ranges":[[{"subnet":"10.244.1.0/24"}]],` +
				`"routes":[{"dst":"0.0.0.0/0","gw":"10.244.1.1","mtu":1.0},{"dst":"10.244.3.9/16"}],"type":"other"},"isGateway":true,"mtu":1450,"name":"pods","type":"bridge"}`,
		},
		{
			"several networks, some twice", strings.Replace(dualStack, "/16", "/16,10.8.0.0/16, 10.244.7.0/16", 1), `"ipam":{"routes":[{"dst":"fd00:10::/48"}]}`,
			`{"cniVersion":"1.0.0","ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.244.1.0/24"}],[{"subnet":"fd00:10:0:1::/64"}]],` +
				`"routes":[{"dst":"fd00:10::/48"},{"dst":"10.244.0.0/16"},{"dst":"10.8.0.0/16"}],"type":"host-local"},"isGateway":true,"mtu":1450,"name":"pods","type":"bridge"}`,
		},
		{
			"runtimeConfig", subnetEnv, `"runtimeConfig":{"mac":"02:00:00:00:00:01","x":1.0},"delegate":{"capabilities":{"mac":true}}`,
			`{"capabilities":{"mac":true},"cniVersion":"1.0.0","ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.244.1.0/24"}]],"routes":[{"dst":"10.244.0.0/16"}],"type":"host-local"},` +
				`"isGateway":true,"mtu":1450,"name":"pods","runtimeConfig":{"mac":"02:00:00:00:00:01","x":1.0},"type":"bridge"}`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.0.0", tt.env)
			h.mustRun("ADD", tt.keys)
			nodetest.Equal(t, "stdin", h.stdin(), tt.want)
			// DEL uses the configuration of the ADD, whatever has become of the
			// file and of flannel's configuration.
			nodetest.OK(t, os.Remove(h.subnetFile()))
			h.mustRun("DEL", `"delegate":{"type":"absent","name":"x"},"ipam":5`)
			var was, is map[string]json.RawMessage
			nodetest.OK(t, errors.Join(json.Unmarshal([]byte(tt.want), &was), json.Unmarshal([]byte(h.stdin()), &is)))
			delete(is, "prevResult")
			nodetest.Equal(t, "stdin of DEL", is, was)
			h.clean()
		})
	}
}

// Before flanneld has written subnet.env, flannel is not ready, but DEL and GC
// work.
func TestNoSubnetFile(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0", "")
	nodetest.Fails(t, h.run("STATUS", ""), 50, h.subnetFile())
	nodetest.Fails(t, h.run("ADD", ""), 11, h.subnetFile())
	h.mustRun("DEL", "")
	h.mustRun("GC", `"cni.dev/valid-attachments":[]`)
	h.WantTrace()
	h.clean()
	h.Write("subnet.env", "FLANNEL_MTU=x\n")
	nodetest.Fails(t, h.run("STATUS", ""), 50, h.subnetFile(), "FLANNEL_MTU")
	nodetest.Fails(t, h.run("GC", `"cni.dev/valid-attachments":[]`), 6, h.subnetFile(), "FLANNEL_MTU")
	nodetest.Fails(t, h.run("GC", ""), 7)
	h.Write("subnet.env", subnetEnv)
	h.mustRun("STATUS", "")
	nodetest.Fails(t, h.run("STATUS", `"delegate":{"type":"absent"}`), 50, `"absent"`)
	nodetest.Fails(t, h.run("STATUS", `"delegate":{"name":"x"}`), 7, "delegate.name")
	nodetest.Fails(t, h.run("STATUS", `"delegate":5`), 6, "delegate")
}

// A mistake in the configuration is found before a plugin runs. The error has the
// right code and names network and key.
func TestBadConfiguration(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, keys string
		code       uint
		says       []string
	}{
		{"forbidden name", `"delegate":{"name":"x"}`, 7, []string{`"pods"`, `"delegate.name"`}},
		{"forbidden name in other letters", `"delegate":{"Name":"x"}`, 7, []string{`"pods"`, `"delegate.name"`}},
		{"two types in other letters", `"delegate":{"type":"bridge","Type":"ptp"}`, 6, []string{`"pods"`, `"delegate.type"`, "two values"}},
		{"routes in two spellings", `"ipam":{"routes":[],"Routes":[{"dst":"10.9.0.0/16"}]}`, 6, []string{`"pods"`, "two values"}},
		{"delegate of the wrong type", `"delegate":"bridge"`, 6, []string{`"pods"`, `"delegate"`}},
		{"empty type", `"delegate":{"type":""}`, 7, []string{`"pods"`, "type"}},
		{"a plugin that is missing", `"delegate":{"type":"absent"}`, 7, []string{`"pods"`, `"absent"`, "not found"}},
		{"itself", `"delegate":{"type":"flannel"}`, 7, []string{`"pods"`, `"flannel"`, "itself"}},
		{"ipam of the wrong type", `"ipam":[]`, 6, []string{`"pods"`, `"ipam"`}},
		{"route of the wrong type", `"ipam":{"routes":["10.0.0.0/8"]}`, 6, []string{`"pods"`, `"ipam.routes[0]"`}},
		{"route to nowhere", `"ipam":{"routes":[{"dst":"10.0.0.0/8"},{"dst":"x"}]}`, 6, []string{`"pods"`, `"ipam.routes[1]"`}},
		{"subnetFile that is a directory", `"subnetFile":"/"`, 5, []string{`/`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.0.0", subnetEnv)
			nodetest.Fails(t, h.run("ADD", tt.keys), tt.code, tt.says...)
			h.WantTrace()
			h.clean()
			nodetest.Equal(t, "printed", h.Printed.String(), "")
		})
	}
}

// theirs is a state file of flannel's own plugin.
const theirs = `{"cniVersion":"1.0.0","hairpinMode":true,"ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.244.9.0/24"}]],"type":"host-local"},"mtu":1400,"name":"pods","type":"bridge"}`

// attachedByTheirs writes the state file of a container that flannel's own plugin
// attached an hour ago.
func (h *host) attachedByTheirs(container, recorded string) string {
	h.Helper()
	file := h.Write("state/"+container, recorded)
	nodetest.OK(h, os.Chtimes(file, time.Time{}, time.Now().Add(-time.Hour)))
	return file
}

func exists(file string) bool {
	_, err := os.Lstat(file)
	return err == nil
}

// CHECK and DEL of a container that flannel's own plugin has attached use its state
// file and the runtime's result.
func TestContainerOfFlannelsOwnPluginIsAdopted(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0", subnetEnv)
	file := h.attachedByTheirs("c1", theirs)
	other := h.attachedByTheirs("c2", theirs)
	h.Write("netns", "")
	const prev = `"prevResult":{"cniVersion":"1.0.0","ips":[{"address":"10.244.9.7/24"}]}`
	h.mustRun("CHECK", prev)
	h.WantTrace("CHECK bridge eth0")
	h.mustRun("DEL", prev)
	h.WantTrace("DEL bridge eth0")
	nodetest.Contains(t, "stdin", h.stdin(), `"mtu":1400`, `10.244.9.7/24`, `10.244.9.0/24`)
	nodetest.Equal(t, "its file and the other are there", []bool{exists(file), exists(other)}, []bool{false, true})
	h.mustRun("DEL", prev)
	h.WantTrace()
	h.clean()
}

// If the DEL of an adopted container fails, the next DEL tries again.
func TestFailedDELOfAdoptedContainer(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0", subnetEnv)
	file := h.attachedByTheirs("c1", strings.Replace(theirs, "bridge", "stuck", 1))
	nodetest.Code(t, h.run("DEL", ""), 108)
	nodetest.Equal(t, "the file is there", exists(file), true)
	h.Exec.Plugins["stuck"] = delegatetest.Result(nil)
	h.mustRun("DEL", "")
	nodetest.Equal(t, "the file is there", exists(file), false)
	h.clean()
}

// A state file that cannot be used is replaced by today's configuration or is an
// error. DEL never succeeds without doing anything, and never uses the file of
// another network.
func TestBadStateFiles(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, file, keys string
		without          bool   // subnet.env
		want             string // the call
		code             uint
	}{
		{name: "whole", file: theirs, want: "DEL bridge eth0"},
		{name: "torn", file: theirs[:40], want: "DEL bridge eth0"},
		{name: "empty without subnet.env", without: true, code: 5},
		{name: "torn without subnet.env", file: theirs[:40], without: true, code: 6},
		{name: "no plugin", file: `{"name":"pods"}`, code: 7},
		{name: "of another network", file: strings.Replace(theirs, "pods", "other", 1)},
		{name: "with a result that is none", file: theirs, keys: `"prevResult":{"cniVersion":"9.9.9"}`, want: "DEL bridge eth0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.0.0", map[bool]string{false: subnetEnv}[tt.without])
			file := h.attachedByTheirs("c1", tt.file)
			nodetest.Code(t, h.run("DEL", tt.keys), tt.code)
			nodetest.Equal(t, "call", strings.Join(h.Trace(), ""), tt.want)
			nodetest.Equal(t, "the file is there", exists(file), tt.want == "")
			h.clean()
		})
	}
}

// GC removes stale attachments of flannel's own plugin.
func TestGCAdoptsStaleContainers(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0", subnetEnv)
	alive, stale, torn := h.attachedByTheirs("alive", theirs), h.attachedByTheirs("stale", theirs), h.attachedByTheirs("torn", "{")
	nodetest.Code(t, h.run("GC", ""), 7)
	nodetest.Equal(t, "the file is there", exists(stale), true)
	h.mustRun("GC", `"cni.dev/valid-attachments":[{"containerID":"alive","ifname":"eth0"}]`)
	h.WantTrace("DEL bridge eth0 of stale", "DEL bridge eth0 of torn", "GC bridge")
	nodetest.Equal(t, "the files of alive, stale and torn are there", []bool{exists(alive), exists(stale), exists(torn)}, []bool{true, false, false})
	// Without subnet.env there is nothing to replace a torn file by.
	torn = h.attachedByTheirs("torn", "{")
	nodetest.OK(t, os.Remove(h.subnetFile()))
	nodetest.Says(t, h.run("GC", `"cni.dev/valid-attachments":[{"containerID":"alive","ifname":"eth0"}]`), torn)
}

// DEL uses the record, not a state file of flannel's own plugin, if there are both.
func TestRecordWinsOverStateFile(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0", subnetEnv)
	h.mustRun("ADD", "")
	h.mustRun("ADD", "", programtest.As("c2"))
	h.WantTrace("ADD bridge eth0", "ADD bridge eth0 of c2")
	h.attachedByTheirs("c1", theirs)
	h.mustRun("DEL", "")
	nodetest.Contains(t, "as it was added", h.stdin(), `"mtu":1450`)
}
