package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate/delegatetest"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/status"
)

// theirs is a state file of flannel's own plugin.
const theirs = `{"cniVersion":"1.0.0","hairpinMode":true,"ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.244.9.0/24"}]],"type":"host-local"},"mtu":1400,"name":"pods","type":"bridge"}`

// attachedByTheirs writes the state file of a container that flannel's own plugin
// attached an hour ago.
func (h *host) attachedByTheirs(t *testing.T, container, recorded string) string {
	t.Helper()
	file := filepath.Join(h.state(), container)
	nodetest.OK(t, errors.Join(os.MkdirAll(h.state(), 0o700), os.WriteFile(file, []byte(recorded), 0o600), os.Chtimes(file, time.Time{}, time.Now().Add(-time.Hour))))
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
	file := h.attachedByTheirs(t, "c1", theirs)
	other := h.attachedByTheirs(t, "c2", theirs)
	nodetest.OK(t, os.WriteFile(filepath.Join(h.Dir, "netns"), nil, 0o600))
	const prev = `"prevResult":{"cniVersion":"1.0.0","ips":[{"address":"10.244.9.7/24"}]}`
	h.mustRun(t, "CHECK", prev)
	h.WantTrace("CHECK bridge eth0")
	h.mustRun(t, "DEL", prev)
	h.WantTrace("DEL bridge eth0")
	for _, words := range []string{`"mtu":1400`, `10.244.9.7/24`, `10.244.9.0/24`} {
		if !strings.Contains(h.stdin(), words) {
			t.Errorf("no %s in %s", words, h.stdin())
		}
	}
	if exists(file) || !exists(other) {
		t.Error("the file is left, or the other is not")
	}
	h.mustRun(t, "DEL", prev)
	h.WantTrace()
	h.clean()
}

// If the DEL of an adopted container fails, the next DEL tries again.
func TestFailedDELOfAdoptedContainer(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0", subnetEnv)
	file := h.attachedByTheirs(t, "c1", strings.Replace(theirs, "bridge", "stuck", 1))
	if err := h.run(t, "DEL", ""); status.Code(err) != 108 || !exists(file) {
		t.Errorf("DEL: %v", err)
	}
	h.Exec.Plugins["stuck"] = delegatetest.Result(nil)
	h.mustRun(t, "DEL", "")
	if exists(file) {
		t.Error("the file is left")
	}
	h.clean()
}

// A state file that cannot be used is replaced by today's configuration or is an
// error. DEL never succeeds without doing anything, and never uses the file of
// another network.
func TestBadStateFiles(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, file, env, keys string
		want                  string // the call
		code                  uint
	}{
		{name: "whole", file: theirs, want: "DEL bridge eth0"},
		{name: "without subnet.env", file: theirs, env: "none", want: "DEL bridge eth0"},
		{name: "empty", want: "DEL bridge eth0"},
		{name: "torn", file: theirs[:40], want: "DEL bridge eth0"},
		{name: "empty without subnet.env", env: "none", code: 5},
		{name: "torn without subnet.env", file: theirs[:40], env: "none", code: 6},
		{name: "no plugin", file: `{"name":"pods"}`, code: 7},
		{name: "of another network", file: strings.Replace(theirs, "pods", "other", 1)},
		{name: "with a result that is none", file: theirs, keys: `"prevResult":{"cniVersion":"9.9.9"}`, want: "DEL bridge eth0"},
		{name: "with null for a result", file: theirs, keys: `"prevResult":null`, want: "DEL bridge eth0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			env := subnetEnv
			if tt.env != "" {
				env = ""
			}
			h := newHost(t, "1.0.0", env)
			file := h.attachedByTheirs(t, "c1", tt.file)
			if err := h.run(t, "DEL", tt.keys); status.Code(err) != tt.code {
				t.Errorf("code %d, want %d: %v", status.Code(err), tt.code, err)
			}
			if tt.want == "" {
				h.WantTrace()
			} else {
				h.WantTrace(tt.want)
			}
			if exists(file) != (tt.want == "") {
				t.Errorf("the file is there: %t", exists(file))
			}
			h.clean()
		})
	}
}

// GC removes stale attachments of flannel's own plugin.
func TestGCAdoptsStaleContainers(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0", subnetEnv)
	alive, stale, torn := h.attachedByTheirs(t, "alive", theirs), h.attachedByTheirs(t, "stale", theirs), h.attachedByTheirs(t, "torn", "{")
	if err := h.run(t, "GC", ""); status.Code(err) != 7 || !exists(stale) {
		t.Errorf("without a list: %v", err)
	}
	h.mustRun(t, "GC", `"cni.dev/valid-attachments":[{"containerID":"alive","ifname":"eth0"}]`)
	h.WantTrace("DEL bridge eth0 of stale", "DEL bridge eth0 of torn", "GC bridge")
	if !exists(alive) || exists(stale) || exists(torn) {
		t.Error("the wrong files are there")
	}
	// Without subnet.env there is nothing to replace a torn file by.
	torn = h.attachedByTheirs(t, "torn", "{")
	nodetest.OK(t, os.Remove(h.subnetFile()))
	if err := h.run(t, "GC", `"cni.dev/valid-attachments":[{"containerID":"alive","ifname":"eth0"}]`); err == nil || !strings.Contains(err.Error(), torn) {
		t.Errorf("torn: %v", err)
	}
}

// DEL uses the record, not a state file of flannel's own plugin, if there are both.
func TestRecordWinsOverStateFile(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0", subnetEnv)
	h.mustRun(t, "ADD", "")
	h.mustRun(t, "ADD", "", func(a *skel.CmdArgs) { a.ContainerID = "c2" })
	h.WantTrace("ADD bridge eth0", "ADD bridge eth0 of c2")
	h.attachedByTheirs(t, "c1", theirs)
	h.mustRun(t, "DEL", "")
	if !strings.Contains(h.stdin(), `"mtu":1450`) {
		t.Errorf("not as it was added: %s", h.stdin())
	}
}
