package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/examples/internal/programtest"
	"github.com/metacni/metacni/status"
)

// tool runs the operator's command on h's state directory.
func (h *host) tool(words ...string) (string, error) {
	var out strings.Builder
	err := operate(append(words, "--dir", h.state()), &out)
	return out.String(), err
}

// populated is a host with a container on three networks, one that is gone
// without a DEL and one whose ADD could not be undone.
func populated(t *testing.T) *host {
	t.Helper()
	h := newHost(t, "1.0.0")
	h.write(t, "netns", "")
	h.mustRun(t, "ADD", keys(bridge, annotated("storage@data")))
	h.mustRun(t, "ADD", bridge, func(a *skel.CmdArgs) { a.ContainerID, a.Netns = "gone", "/absent/netns" })
	h.exec.Plugins["both"] = delegatetest.FailOn("ADD", 107, "no", delegatetest.FailOn("DEL", 108, "no", delegatetest.Result(nil)))
	err := h.run(t, "ADD", `"delegates":[{"type":"both"}]`, func(a *skel.CmdArgs) { a.ContainerID = "half" })
	wantError(t, err, 107, "108"[:0])
	return h
}

func TestToolList(t *testing.T) {
	t.Parallel()
	h := populated(t)
	out, err := h.tool("list")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		got = append(got, strings.Join(fields[:4], " "))
	}
	want := "CONTAINER INTERFACE NETWORK STATE; c1 eth0 multi added; c1 data storage added; gone eth0 multi added; half eth0 multi deleting"
	if strings.Join(got, "; ") != want {
		t.Errorf("list:\n%s\nwant %s", out, want)
	}
}

// What a GC would take is what has no namespace any more.
func TestToolGC(t *testing.T) {
	t.Parallel()
	h := populated(t)
	before := programtest.Files(t, h.dir)
	out, err := h.tool("gc", "--dry-run")
	if err != nil || !strings.Contains(out, "gone") || strings.Contains(out, "c1") {
		t.Errorf("gc: %v\n%s", err, out)
	}
	if after := programtest.Files(t, h.dir); len(after) != len(before) {
		t.Errorf("changed %q to %q", before, after)
	}
}

func TestToolShow(t *testing.T) {
	t.Parallel()
	h := populated(t)
	out, err := h.tool("show", "c1")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"multi/c1/eth0: added", `eth0: network "multi" (bridge)`, `data: network "storage" (macvlan, tuning)`, "10.9.0.2/24", filepath.Join(h.dir, "netns")} {
		if !strings.Contains(out, want) {
			t.Errorf("show does not say %q:\n%s", want, out)
		}
	}
	if out, err := h.tool("show", "half"); err != nil || !strings.Contains(out, "result none") {
		t.Errorf("show: %v\n%s", err, out)
	}
	if out, err := h.tool("show", "absent"); err == nil || !strings.Contains(err.Error(), `"absent"`) || out != "" {
		t.Errorf("show of what is not there: %v\n%s", err, out)
	}
}

func TestToolStatus(t *testing.T) {
	t.Parallel()
	h := populated(t)
	out, err := h.tool("status", "c1")
	var nets []status.Network
	if err == nil {
		err = json.Unmarshal([]byte(out), &nets)
	}
	if err != nil || len(nets) != 2 || nets[0].Name != "multi" || !nets[0].Default || nets[1].Name != "storage" || nets[1].Default {
		t.Errorf("status: %v\n%s", err, out)
	}
	for _, container := range []string{"half", "absent"} {
		if out, err := h.tool("status", container); container == "half" && (err != nil || strings.TrimSpace(out) != "[]") || container == "absent" && err == nil {
			t.Errorf("status %s: %v\n%s", container, err, out)
		}
	}
}

// Damaged records are reported every time, after the others, and keep nobody
// from them (G11).
func TestG11ToolDamaged(t *testing.T) {
	t.Parallel()
	for _, garbage := range []string{"", "[]", "null", "\x00\xff", `0123456789abcdef {"version":1}` + "\n"} {
		h := populated(t)
		h.write(t, "state/gone/multi@eth0.json", garbage)
		h.write(t, "state/foreign.txt", "x")
		for range 2 {
			for _, words := range [][]string{{"list"}, {"show", "c1"}, {"status", "c1"}, {"gc", "--dry-run"}} {
				out, err := h.tool(words...)
				wantError(t, err, 5, "gone")
				if words[0] != "gc" && !strings.Contains(out, "storage") {
					t.Errorf("%v says nothing of the others:\n%s", words, out)
				}
			}
		}
	}
}

func TestToolUsage(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	for _, words := range [][]string{nil, {"help"}, {"list", "x"}, {"show"}, {"show", "a", "b"}, {"status"}, {"gc"}, {"gc", "--force"}, {"--what"}, {"forget", "c1"}} {
		out, err := h.tool(words...)
		if err == nil || !strings.Contains(err.Error(), "usage: multinet") || out != "" {
			t.Errorf("%q: %v, %q", words, err, out)
		}
	}
	// Where nothing has ever been kept there is nothing to list, or to make.
	if out, err := h.tool("list"); err != nil || strings.Count(out, "\n") != 1 {
		t.Errorf("list of nothing: %v, %q", err, out)
	}
	if _, err := os.Stat(h.state()); !os.IsNotExist(err) {
		t.Errorf("made %s: %v", h.state(), err)
	}
}
