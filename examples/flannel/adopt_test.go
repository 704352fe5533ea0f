package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/examples/internal/programtest"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

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
	for _, words := range []string{`"mtu":1400`, `10.244.9.7/24`, `10.244.9.0/24`} {
		if !strings.Contains(h.stdin(), words) {
			t.Errorf("no %s in %s", words, h.stdin())
		}
	}
	if exists(file) || !exists(other) {
		t.Error("the file is left, or the other is not")
	}
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
	if !exists(alive) || exists(stale) || exists(torn) {
		t.Error("the wrong files are there")
	}
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
	if !strings.Contains(h.stdin(), `"mtu":1450`) {
		t.Errorf("not as it was added: %s", h.stdin())
	}
}
