package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/status"
)

const (
	subnetEnv = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	dualStack = subnetEnv + "FLANNEL_IPV6_NETWORK=fd00:10::/48\nFLANNEL_IPV6_SUBNET=fd00:10:0:1::1/64\n"
)

// A host is a node that flannel runs on: its directories, and plugins to delegate
// to.
type host struct {
	dir     string
	plugin  plugin.Plugin
	exec    *delegatetest.Exec
	version string   // of the configuration
	taken   []string // interface names in every network namespace
	stdout  io.Writer
	printed bytes.Buffer
	seen    int // calls that wantTrace has compared
}

func newHost(t *testing.T, version, env string) *host {
	t.Helper()
	ipnet, err := types.ParseCIDR("10.244.1.7/24")
	if err != nil {
		t.Fatal(err)
	}
	h := &host{dir: t.TempDir(), plugin: flannel(), version: version, exec: &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{
		"flannel": delegatetest.Result(nil),
		"bridge":  delegatetest.Result(&types100.Result{CNIVersion: "1.1.0", IPs: []*types100.IPConfig{{Address: *ipnet}}}),
		"ptp":     delegatetest.Result(nil),
		"full":    delegatetest.FailOn("ADD", 107, "no free address", delegatetest.Result(nil)),
		"stuck":   delegatetest.FailOn("DEL", 108, "device is busy", delegatetest.Result(nil)),
		"both":    delegatetest.FailOn("ADD", 107, "no free address", delegatetest.FailOn("DEL", 108, "device is busy", delegatetest.Result(nil))),
	}}}
	h.stdout = &h.printed
	if env != "" {
		h.write(t, env)
	}
	return h
}

func (h *host) subnetFile() string { return filepath.Join(h.dir, "subnet.env") }
func (h *host) state() string      { return filepath.Join(h.dir, "state") }

func (h *host) write(t *testing.T, env string) {
	t.Helper()
	if err := os.WriteFile(h.subnetFile(), []byte(env), 0o600); err != nil {
		t.Fatal(err)
	}
}

// conf is a configuration with more keys, as JSON without the braces.
func (h *host) conf(keys string) string {
	if !strings.Contains(keys, `"subnetFile"`) {
		keys = strings.TrimSuffix(fmt.Sprintf(`"subnetFile":%q,`, h.subnetFile())+keys, ",")
	}
	return fmt.Sprintf(`{"cniVersion":%q,"name":"pods","type":"flannel","dataDir":%q,%s}`, h.version, h.state(), keys)
}

// run runs a command with a configuration that has more keys, for the
// attachment eth0 of the container c1 unless edits say otherwise.
func (h *host) run(t *testing.T, command, keys string, edits ...func(*skel.CmdArgs)) error {
	t.Helper()
	args := &skel.CmdArgs{
		ContainerID: "c1", Netns: filepath.Join(h.dir, "netns"), IfName: "eth0", Args: "IgnoreUnknown=1",
		Path: "/opt/a:/opt/b", StdinData: []byte(h.conf(keys)),
	}
	for _, edit := range edits {
		edit(args)
	}
	return h.plugin.Do(t.Context(), plugin.Process{
		Exec: h.exec, Stdout: h.stdout,
		InterfaceNames: func(string) ([]string, error) { return h.taken, nil },
	}, delegate.Command(command), *args)
}

func (h *host) mustRun(t *testing.T, command, keys string, edits ...func(*skel.CmdArgs)) {
	t.Helper()
	if err := h.run(t, command, keys, edits...); err != nil {
		t.Fatalf("%s: %v", command, err)
	}
}

func (h *host) wantTrace(t *testing.T, want ...string) {
	t.Helper()
	got := h.exec.Trace()[h.seen:]
	h.seen += len(got)
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// stdin returns what the last plugin received on stdin.
func (h *host) stdin(t *testing.T) string {
	t.Helper()
	calls := h.exec.Calls()
	if len(calls) == 0 {
		t.Fatal("nothing was called")
	}
	return string(calls[len(calls)-1].Stdin)
}

// clean fails unless everything was undone and no record is left.
func (h *host) clean(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(h.state(), "*.json*"))
	if live := h.exec.Live(); len(live) > 0 || len(files) > 0 || err != nil {
		t.Errorf("left: %q, in dataDir %q (%v)", live, files, err)
	}
}

func wantError(t *testing.T, err error, code uint, words ...string) {
	t.Helper()
	if status.Code(err) != code {
		t.Errorf("code %d, want %d: %v", status.Code(err), code, err)
	}
	if err == nil {
		return
	}
	text := status.Error(err).Error()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%q does not say %q", text, word)
		}
	}
}

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
			"another plugin", strings.Replace(subnetEnv, "true", "false", 1), `"delegate":{"type":"ptp"}`,
			`{"cniVersion":"1.0.0","ipMasq":true,"ipam":{"ranges":[[{"subnet":"10.244.1.0/24"}]],"routes":[{"dst":"10.244.0.0/16"}],"type":"host-local"},` +
				`"mtu":1450,"name":"pods","type":"ptp"}`,
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
			h.mustRun(t, "ADD", tt.keys)
			if got := h.stdin(t); got != tt.want {
				t.Errorf("stdin %s\nwant  %s", got, tt.want)
			}
			// DEL uses the configuration of the ADD, whatever has become of the
			// file and of flannel's configuration.
			if err := os.Remove(h.subnetFile()); err != nil {
				t.Fatal(err)
			}
			h.mustRun(t, "DEL", `"delegate":{"type":"absent","name":"x"},"ipam":5`)
			var was, is map[string]json.RawMessage
			if err := errors.Join(json.Unmarshal([]byte(tt.want), &was), json.Unmarshal([]byte(h.stdin(t)), &is)); err != nil {
				t.Fatal(err)
			}
			delete(is, "prevResult")
			if diff := cmp.Diff(was, is); diff != "" {
				t.Errorf("stdin of DEL (-ADD +DEL):\n%s", diff)
			}
			h.clean(t)
		})
	}
}

func TestLife(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0", subnetEnv)
	h.mustRun(t, "STATUS", "")
	h.mustRun(t, "ADD", "")
	h.wantTrace(t, "STATUS bridge", "ADD bridge eth0")
	if got := h.printed.String(); !strings.Contains(got, "10.244.1.7/24") || strings.Count(got, "cniVersion") != 1 {
		t.Errorf("printed %s", got)
	}
	wantError(t, h.run(t, "ADD", ""), 7, "already added")
	// A container may have several attachments.
	h.mustRun(t, "ADD", "", func(a *skel.CmdArgs) { a.IfName = "eth1" })
	h.mustRun(t, "CHECK", "")
	h.mustRun(t, "GC", `"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]`)
	h.wantTrace(t, "ADD bridge eth1", "CHECK bridge eth0", "DEL bridge eth1", "GC bridge")
	h.mustRun(t, "DEL", "")
	h.mustRun(t, "DEL", "")
	h.wantTrace(t, "DEL bridge eth0")
	wantError(t, h.run(t, "CHECK", ""), 7, "not added")
	h.clean(t)
}

// The result is the delegate's, in the version that the runtime asked for. An ADD
// whose result cannot be printed is undone.
func TestResult(t *testing.T) {
	t.Parallel()
	h := newHost(t, "0.2.0", subnetEnv)
	h.mustRun(t, "ADD", `"delegate":{"cniVersion":"1.0.0"}`)
	if got := h.printed.String(); !strings.Contains(got, `"0.2.0"`) || !strings.Contains(got, `"ip4"`) {
		t.Errorf("printed %s", got)
	}
	h = newHost(t, "0.2.0", subnetEnv)
	h.exec.Plugins["ptp"] = delegatetest.Result(&types100.Result{CNIVersion: "1.1.0"}) // 0.2.0 has no result without an address
	wantError(t, h.run(t, "ADD", `"delegate":{"type":"ptp","cniVersion":"1.0.0"}`), 1, "0.2.0")
	h.wantTrace(t, "ADD ptp eth0", "DEL ptp eth0")
	h.clean(t)
	h = newHost(t, "1.0.0", subnetEnv)
	h.stdout = brokenPipe{}
	wantError(t, h.run(t, "ADD", ""), 5, "broken pipe")
	h.wantTrace(t, "ADD bridge eth0", "DEL bridge eth0")
	h.clean(t)
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestRecordStaysUntilDELSucceeds(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0", subnetEnv)
	h.mustRun(t, "ADD", `"delegate":{"type":"stuck"}`)
	for range 2 {
		wantError(t, h.run(t, "DEL", ""), 108, `"pods"`, `"stuck"`, "device is busy")
	}
	h.wantTrace(t, "ADD stuck eth0", "DEL stuck eth0", "DEL stuck eth0")
	h.exec.Plugins["stuck"] = delegatetest.Result(nil)
	h.mustRun(t, "DEL", "")
	h.clean(t)
}

func TestFailedADDIsUndone(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0", subnetEnv)
	wantError(t, h.run(t, "ADD", `"delegate":{"type":"full"}`), 107, `"pods"`, `"full"`, "eth0", "no free address")
	h.wantTrace(t, "ADD full eth0", "DEL full eth0")
	h.clean(t)
	wantError(t, h.run(t, "ADD", `"delegate":{"type":"both"}`), 107, "no free address", "device is busy")
	wantError(t, h.run(t, "CHECK", ""), 7)
	h.exec.Plugins["both"] = delegatetest.Result(nil)
	h.mustRun(t, "DEL", "")
	h.clean(t)
}

func TestDamagedRecordIsAnErrorEachTime(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0", subnetEnv)
	h.mustRun(t, "ADD", "")
	if err := os.WriteFile(filepath.Join(h.state(), "c1@pods@eth0.json"), []byte("null"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for _, command := range []string{"DEL", "CHECK", "ADD"} {
			wantError(t, h.run(t, command, ""), 5, "pods", "c1")
		}
		wantError(t, h.run(t, "GC", `"cni.dev/valid-attachments":[]`), 5, "c1")
	}
}

// Before flanneld has written subnet.env, flannel is not ready, but DEL and GC
// work.
func TestNoSubnetFile(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0", "")
	wantError(t, h.run(t, "STATUS", ""), 50, h.subnetFile())
	wantError(t, h.run(t, "ADD", ""), 11, h.subnetFile())
	h.mustRun(t, "DEL", "")
	h.mustRun(t, "GC", `"cni.dev/valid-attachments":[]`)
	h.wantTrace(t)
	h.clean(t)
	h.write(t, "FLANNEL_MTU=x\n")
	wantError(t, h.run(t, "STATUS", ""), 50, h.subnetFile(), "FLANNEL_MTU")
	wantError(t, h.run(t, "GC", `"cni.dev/valid-attachments":[]`), 6, h.subnetFile(), "FLANNEL_MTU")
	wantError(t, h.run(t, "GC", ""), 7)
	h.write(t, subnetEnv)
	h.mustRun(t, "STATUS", "")
	wantError(t, h.run(t, "STATUS", `"delegate":{"type":"absent"}`), 50, `"absent"`)
	wantError(t, h.run(t, "STATUS", `"delegate":{"name":"x"}`), 7, "delegate.name")
	wantError(t, h.run(t, "STATUS", `"delegate":5`), 6, "delegate")
}
