package tool

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/scratch"
)

// gc runs the command gc on h's records.
func (h *host) gc(t *testing.T, words ...string) (out, said string, err error) {
	t.Helper()
	var stdout, stderr strings.Builder
	err = operate(t.Context(), append(words, "gc", "--dir", h.state()), console{
		out: &stdout, ask: &stderr, process: plugin.Process{Exec: h.Exec},
	})
	return stdout.String(), stderr.String(), err
}

// gc detaches stale attachments only. It reports those that it cannot detach, and
// fails. When that is repaired, nothing is left.
func TestGCDetachesStaleAttachments(t *testing.T) {
	t.Parallel()
	h := populated(t)
	out, _, err := h.gc(t, "-o", "json")
	if err == nil || !strings.Contains(err.Error(), "1 of 2 could not be removed") {
		t.Errorf("gc: %v", err)
	}
	var got []sweptView
	if err := json.Unmarshal([]byte(out), &got); err != nil || len(got) != 2 {
		t.Fatalf("%v: %s", err, out)
	}
	for _, v := range got {
		if v.Removed != (v.Container == "gone") || v.Removed != (v.Error == "") {
			t.Errorf("%+v", v)
		}
	}
	if live := h.Exec.Live(); cmp.Diff([]string{"both half eth0", "bridge c1 eth0", "macvlan c1 net1", "tuning c1 net1"}, live) != "" {
		t.Errorf("attached %q", live)
	}
	h.Exec.Plugins["both"] = delegatetest.Result(nil)
	if out, said, err := h.gc(t); err != nil || !strings.Contains(out, "half") || !strings.Contains(out, "removed") || said != "" {
		t.Errorf("gc: %v\n%s%s", err, out, said)
	}
	if out, said, err := h.gc(t); err != nil || strings.Count(out, "\n") != 1 || said != "" { // the heading
		t.Errorf("gc of nothing: %v\n%s%s", err, out, said)
	}
}

// A DEL that a mistake in a definition makes fail is tried with the definition that is in
// --nad-dir now.
func TestGCFindsDefinitionsAsADDDoes(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.Exec.Plugins["picky"] = func(_ context.Context, c delegatetest.Call) ([]byte, error) {
		if strings.Contains(string(c.Stdin), "mistake") {
			return nil, types.NewError(107, "a mistake", "")
		}
		return []byte(`{"cniVersion":"1.0.0"}`), nil
	}
	h.Write("nads/a/blue.conf", `{"cniVersion":"1.0.0","type":"picky","mistake":true}`)
	err := h.run(t, "ADD", bridge, func(a *skel.CmdArgs) {
		a.Args = "K8S_POD_NAMESPACE=a;K8S_POD_NAME=p"
		a.StdinData = []byte(strings.Replace(string(a.StdinData), `"delegates"`,
			`"nadDir":"`+h.Dir+`/nads","runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"k8s.v1.cni.cncf.io/networks":"blue"}},"delegates"`, 1))
	})
	wantError(t, err, 107)
	h.Write("nads/a/blue.conf", `{"cniVersion":"1.0.0","type":"picky"}`)
	if out, _, err := h.gc(t); err == nil {
		t.Errorf("without the directory: %s", out)
	}
	if out, _, err := h.gc(t, "--nad-dir", filepath.Join(h.Dir, "nads")); err != nil || !strings.Contains(out, "removed") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := h.tool(t, "list", "--nad-dir", h.Dir); err == nil {
		t.Errorf("another command takes it: %s", out)
	}
}

// The help of a command is about that command.
func TestHelpOfACommand(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	for command, want := range map[string]string{
		"gc": "usage: multinet COMMAND [--dir DIR] [-o table|json]\n  gc [--dry-run]", "damaged": "  damaged ", "status": "  status --diff CONTAINER",
	} {
		out, err := h.tool(t, command, "--help")
		if err != nil || !strings.Contains(out, want) || strings.Contains(out, "forget") || strings.Contains(out, "adopt") || (command == "gc") != strings.Contains(out, "--nad-dir") {
			t.Errorf("%s: %v\n%s", command, err, out)
		}
	}
	if out, err := h.tool(t, "--help"); err != nil || strings.TrimSpace(out) != usageOf("") || !strings.Contains(out, "multinet adopt") {
		t.Errorf("%v\n%s", err, out)
	}
}

// gc fails if the state directory cannot be read.
func TestGCOfUnreadableDirectory(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	nodetest.OK(t, os.WriteFile(h.state(), nil, 0o600))
	if out, _, err := h.gc(t); err == nil || !strings.Contains(out, "not a directory") {
		t.Errorf("%v: %s", err, out)
	}
}

// gc leaves a container alone while an operation on it is running, and says so.
func TestGCLeavesBusyContainersAlone(t *testing.T) {
	t.Parallel()
	h := populated(t)
	l, err := (scratch.Store[struct{}]{Dir: h.state()}).Lock(t.Context(), "gone")
	nodetest.OK(t, err)
	defer func() { _ = l.Unlock() }()
	h.Exec.Plugins["both"] = delegatetest.Result(nil)
	_, said, err := h.gc(t)
	if err != nil || !strings.Contains(said, "1 left alone") {
		t.Errorf("%v, %s", err, said)
	}
}

// A record that was forgotten is not taken over again: forget also removes the files
// that it was taken over from.
func TestForgetOfAdoptedRecord(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	entry := filepath.Join(h.Dir, "entry")
	nodetest.OK(t, os.WriteFile(entry, nil, 0o600))
	n := nodetest.Parse(`{"cniVersion":"1.0.0","name":"cbr","type":"bridge"}`)
	adopted, err := (&lifecycle.Manager{Dir: h.state()}).Adopt(t.Context(), lifecycle.Adoption{
		Key:      scratch.Key{Network: "multi", ContainerID: "c1", IfName: "eth0"},
		Sources:  []string{entry},
		Attached: []delegate.Attached{{Attachment: delegate.Attachment{Network: n, ContainerID: "c1", IfName: "eth0"}}},
	})
	if err != nil || !adopted {
		t.Fatalf("adopted %v: %v", adopted, err)
	}
	if _, err := h.tool(t, "forget", "c1", "--yes"); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(entry); !os.IsNotExist(err) {
		t.Errorf("the entry is there: %v", err)
	}
}
