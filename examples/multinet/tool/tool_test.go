package tool

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/examples/internal/programtest"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

// tool runs the operator's command on h's state directory.
func (h *host) tool(t *testing.T, words ...string) (string, error) {
	t.Helper()
	var out strings.Builder
	err := operate(t.Context(), append(words, "--dir", h.state()), console{out: &out})
	return out.String(), err
}

// populated is a host with a container on three networks, one that is gone
// without a DEL and one whose ADD could not be undone.
func populated(t *testing.T) *host {
	t.Helper()
	h := newHost(t)
	h.Write("netns", "")
	h.mustRun(t, "ADD", bridge+`,{"name":"storage","plugins":[{"type":"macvlan"},{"type":"tuning"}]}`)
	h.mustRun(t, "ADD", bridge, func(a *skel.CmdArgs) { a.ContainerID, a.Netns = "gone", "/absent" })
	h.Exec.Plugins["both"] = delegatetest.FailOn("ADD", 107, "no", delegatetest.FailOn("DEL", 108, "no", delegatetest.Result(nil)))
	err := h.run(t, "ADD", `{"type":"both"}`, func(a *skel.CmdArgs) { a.ContainerID = "half" })
	wantError(t, err, 107)
	return h
}

// No command prints the configurations of networks, which hold credentials.
func TestToolPrintsNoConfigurations(t *testing.T) {
	t.Parallel()
	h := populated(t)
	for _, words := range [][]string{{"list"}, {"show", "c1"}, {"status", "c1"}, {"gc", "--dry-run"}, {"list", "-o", "json"}, {"show", "c1", "-o", "json"}, {"damaged"}} {
		if out, err := h.tool(t, words...); err != nil || strings.Contains(out, secret) {
			t.Errorf("%v: %v: %s", words, err, out)
		}
	}
}

func TestToolList(t *testing.T) {
	t.Parallel()
	h := populated(t)
	out, err := h.tool(t, "list")
	nodetest.OK(t, err)
	var got []string
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		got = append(got, strings.Join(slices.Concat(fields[:7], fields[8:]), " "))
	}
	want := "CONTAINER POD INTERFACE NETWORK NAD USE STATE RECORD; c1 - eth0 multi - cluster added multi eth0; c1 - net1 storage - default added multi eth0; " +
		"gone - eth0 multi - cluster added multi eth0; half - eth0 multi - cluster leftover multi eth0"
	if strings.Join(got, "; ") != want {
		t.Errorf("list:\n%s\nwant %s", out, want)
	}
}

// gc --dry-run lists attachments without a network namespace, and those that could not
// be detached before.
func TestToolGCDryRun(t *testing.T) {
	t.Parallel()
	h := populated(t)
	before := programtest.Files(t, h.Dir)
	out, err := h.tool(t, "gc", "--dry-run")
	if err != nil || !strings.Contains(out, "gone") || !strings.Contains(out, "half") || strings.Contains(out, "c1") {
		t.Errorf("gc: %v\n%s", err, out)
	}
	if after := programtest.Files(t, h.Dir); len(after) != len(before) {
		t.Errorf("changed %q to %q", before, after)
	}
}

func TestToolShow(t *testing.T) {
	t.Parallel()
	h := populated(t)
	out, err := h.tool(t, "show", "c1")
	nodetest.OK(t, err)
	for _, want := range []string{"multi/c1/eth0: added", `eth0: network "multi" (bridge)`, `net1: network "storage" (macvlan, tuning)`, "10.9.0.2/24", filepath.Join(h.Dir, "netns")} {
		if !strings.Contains(out, want) {
			t.Errorf("show does not say %q:\n%s", want, out)
		}
	}
	if out, err := h.tool(t, "show", "half"); err != nil || !strings.Contains(out, "result none") {
		t.Errorf("show: %v\n%s", err, out)
	}
	if out, err := h.tool(t, "show", "absent"); err == nil || !strings.Contains(err.Error(), `"absent"`) || out != "" {
		t.Errorf("show of what is not there: %v\n%s", err, out)
	}
}

func TestToolStatus(t *testing.T) {
	t.Parallel()
	h := populated(t)
	out, err := h.tool(t, "status", "c1")
	var nets []status.Network
	if err == nil {
		err = json.Unmarshal([]byte(out), &nets)
	}
	if err != nil || len(nets) != 2 || nets[0].Name != "multi" || !nets[0].Default || nets[1].Name != "storage" || nets[1].Default {
		t.Errorf("status: %v\n%s", err, out)
	}
	for _, container := range []string{"half", "absent"} {
		if out, err := h.tool(t, "status", container); container == "half" && (err != nil || strings.TrimSpace(out) != "[]") || container == "absent" && err == nil {
			t.Errorf("status %s: %v\n%s", container, err, out)
		}
	}
}

// Each command reports damaged records, after all others.
func TestToolReportsDamagedRecords(t *testing.T) {
	t.Parallel()
	for _, garbage := range []string{"", "[]", "null", "\x00\xff", `0123456789abcdef {"version":1}` + "\n"} {
		h := populated(t)
		h.Write("state/gone@multi@eth0.json", garbage)
		h.Write("state/foreign.txt", "x")
		for range 2 {
			for _, words := range [][]string{{"list"}, {"list", "-o", "json"}, {"show", "c1"}, {"show", "c1", "-o", "json"}, {"status", "c1"}, {"status", "c1", "-o", "table"}, {"gc", "--dry-run"}} {
				out, err := h.tool(t, words...)
				wantError(t, err, 5, "gone")
				if words[0] != "gc" && !strings.Contains(out, "storage") {
					t.Errorf("%v says nothing of the others:\n%s", words, out)
				}
			}
		}
	}
}

// The JSON output has what the tables have.
func TestToolJSON(t *testing.T) {
	t.Parallel()
	h := populated(t)
	type attachment struct {
		Network, Interface, NetNS string
		Plugins                   []string
		Result                    map[string]any
	}
	type record struct {
		Network, Container, Interface, State string
		Created, Updated                     time.Time
		Attachments                          []attachment
	}
	read := func(words ...string) (rs []record) {
		out, err := h.tool(t, append(words, "-o", "json")...)
		if err == nil {
			err = json.Unmarshal([]byte(out), &rs)
		}
		if err != nil {
			t.Errorf("%v: %v\n%s", words, err, out)
		}
		for i, r := range rs {
			if r.Created.IsZero() || r.Updated.Before(r.Created) {
				t.Errorf("%v: created %v, updated %v", words, r.Created, r.Updated)
			}
			rs[i].Created, rs[i].Updated = time.Time{}, time.Time{}
		}
		return rs
	}
	ns := filepath.Join(h.Dir, "netns")
	c1 := record{"multi", "c1", "eth0", "added", time.Time{}, time.Time{}, []attachment{
		{"multi", "eth0", ns, []string{"bridge"}, nil}, {"storage", "net1", ns, []string{"macvlan", "tuning"}, nil},
	}}
	gone := record{"multi", "gone", "eth0", "added", time.Time{}, time.Time{}, []attachment{{"multi", "eth0", "/absent", []string{"bridge"}, nil}}}
	half := record{"multi", "half", "eth0", "leftover", time.Time{}, time.Time{}, []attachment{{"multi", "eth0", ns, []string{"both"}, nil}}}
	for _, tt := range []struct {
		words []string
		want  []record
	}{
		{[]string{"list"}, []record{c1, gone, half}},
		{[]string{"gc", "--dry-run"}, []record{gone, half}},
		{[]string{"show", "half"}, []record{half}},
	} {
		if d := cmp.Diff(tt.want, read(tt.words...)); d != "" {
			t.Errorf("%v (-want +got):\n%s", tt.words, d)
		}
	}
	if shown := read("show", "c1"); len(shown) != 1 || shown[0].Attachments[0].Result["ips"] == nil {
		t.Errorf("show has no result: %+v", shown)
	}
	empty := newHost(t)
	empty.Write("state/lock", "")
	for _, words := range [][]string{{"list"}, {"damaged"}, {"gc", "--dry-run"}} { // an empty list is one
		if out, err := empty.tool(t, append(words, "-o", "json")...); err != nil || strings.TrimSpace(out) != "[]" {
			t.Errorf("%v of nothing: %v, %q", words, err, out)
		}
	}
}

func TestToolStatusTable(t *testing.T) {
	t.Parallel()
	h := populated(t)
	out, err := h.tool(t, "status", "c1", "-o", "table")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if err != nil || len(lines) != 3 || strings.Join(strings.Fields(lines[0]), " ") != "NETWORK INTERFACE ADDRESSES MAC DEFAULT" {
		t.Fatalf("status: %v\n%s", err, out)
	}
	for i, want := range []string{"multi 10.9.0.2/24 true", "storage 10.9.1.2/24 false"} {
		for word := range strings.FieldsSeq(want) {
			if !strings.Contains(lines[i+1], strings.TrimSuffix(word, "/24")) {
				t.Errorf("line %q does not say %q", lines[i+1], word)
			}
		}
	}
}

// The command damaged succeeds if there are damaged records.
func TestToolListsDamagedRecords(t *testing.T) {
	t.Parallel()
	h := populated(t)
	if out, err := h.tool(t, "damaged"); err != nil || strings.Count(out, "\n") != 1 {
		t.Errorf("damaged: %v\n%s", err, out)
	}
	h.Write("state/gone@multi@eth0.json", "garbage")
	for range 2 {
		out, err := h.tool(t, "damaged")
		if err != nil || strings.Count(out, "\n") != 2 || !strings.Contains(out, "gone") || !strings.Contains(out, "corrupt") {
			t.Errorf("damaged: %v\n%s", err, out)
		}
	}
	out, err := h.tool(t, "damaged", "-o", "json")
	var all []map[string]string
	if err == nil {
		err = json.Unmarshal([]byte(out), &all)
	}
	if err != nil || len(all) != 1 || all[0]["container"] != "gone" || all[0]["network"] != "multi" || all[0]["interface"] != "eth0" || all[0]["error"] == "" {
		t.Errorf("damaged: %v\n%s", err, out)
	}
}

// Commands that read do not wait for a DEL that hangs.
func TestToolReadsWithoutALock(t *testing.T) {
	t.Parallel()
	h := populated(t)
	l := h.lock(t, "c1")
	for _, words := range [][]string{{"list"}, {"show", "c1"}, {"status", "c1"}, {"gc", "--dry-run"}, {"damaged"}} {
		if out, err := h.tool(t, words...); err != nil {
			t.Errorf("%v: %v\n%s", words, err, out)
		}
	}
	nodetest.OK(t, l.Unlock())
}

func (h *host) lock(t *testing.T, container string) *scratch.Lock {
	t.Helper()
	l, err := scratch.Store[struct{}]{Dir: h.state()}.Lock(t.Context(), container)
	nodetest.OK(t, err)
	return l
}

func TestToolUsage(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	for _, words := range [][]string{nil, {"help", "x"}, {"list", "x"}, {"show"}, {"show", "a", "b"}, {"status"}, {"gc", "x"}, {"gc", "--force"}, {"list", "--bin-dir", "x"}, {"--what"}, {"damaged", "x"}, {"forget"}, {"forget", "c1", "multi"}, {"list", "--yes"}, {"list", "--dry-run"}, {"list", "-o", "xml"}} {
		out, err := h.tool(t, words...)
		if err == nil || !strings.Contains(err.Error(), "usage: multinet") || out != "" {
			t.Errorf("%q: %v, %q", words, err, out)
		}
	}
	for _, words := range [][]string{{"help"}, {"--help"}, {"-h"}, {"list", "--help"}, {"forget", "c1", "-h"}} {
		if out, err := h.tool(t, words...); err != nil || !strings.HasPrefix(out, "usage: multinet") {
			t.Errorf("%q: %v, %q", words, err, out)
		}
	}
}

// A state directory that does not exist is an error. The default one may be missing:
// nothing has been attached on this node yet.
func TestToolNamesMissingDirectory(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	for _, words := range [][]string{{"list"}, {"gc", "--dry-run"}, {"damaged"}, {"show", "c1"}, {"status", "c1"}, {"forget", "c1", "--yes"}} {
		if out, err := h.tool(t, words...); err == nil || !strings.Contains(err.Error(), "no directory "+strconv.Quote(h.state())) || out != "" {
			t.Errorf("%q: %v, %q", words, err, out)
		}
	}
	if _, err := os.Stat(h.state()); !os.IsNotExist(err) {
		t.Errorf("made %s: %v", h.state(), err)
	}
	nodetest.OK(t, existing("dir", multinet.DefaultStateDir, multinet.DefaultStateDir))
}
