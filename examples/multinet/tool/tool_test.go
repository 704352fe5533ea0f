package tool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/internal/programtest"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

// A node is where the operator's commands find what multinet has recorded. The
// plugin itself is tested in its package.
type node struct {
	*programtest.Memory
	said, printed strings.Builder // on stderr, on stdout
}

func newNode(t *testing.T) *node {
	t.Helper()
	h := &node{Memory: programtest.NewMemory(t, multinet.New(multinet.Cluster{}))}
	h.Exec.Plugins["tuning"] = delegatetest.Result(nil)
	h.Exec.Plugins["bridge"] = delegatetest.Result(nodetest.Result("10.9.0.2/24"))
	h.Exec.Plugins["macvlan"] = delegatetest.Result(nodetest.Result("10.9.1.2/24"))
	return h
}

func (h *node) state() string { return h.Path("state") }
func (h *node) life() *lifecycle.Manager {
	return &lifecycle.Manager{Dir: h.state(), Invoker: &delegate.Invoker{Exec: h.Exec}}
}

const (
	bridge = `{"type":"bridge","password":"` + secret + `"}`
	secret = "hunter2hunter2"
)

// run runs a command of multinet's with the delegates given, for a container.
func (h *node) run(command, delegates, container string, edits ...func(*skel.CmdArgs)) error {
	conf := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"multi","type":"multinet","cniDir":%q,"delegates":[%s]}`, h.state(), delegates)
	return h.Do(command, conf, append(edits, programtest.As(container))...)
}

// tool runs the operator's command on h's state directory.
func (h *node) tool(words ...string) (out string, err error) {
	h.printed.Reset()
	h.said.Reset()
	err = (&tool{out: &h.printed, ask: &h.said, process: plugin.System{Exec: h.Exec}}).run(h.Context(), append(words, "--dir", h.state()))
	return h.printed.String(), err
}

// wantTool wants the operator's command to print all of words, which may span cells of a
// table. It returns what is printed.
func (h *node) wantTool(words []string, want ...string) string {
	h.Helper()
	out, err := h.tool(words...)
	for _, text := range want {
		if err != nil || !strings.Contains(strings.Join(strings.Fields(out), " "), text) {
			h.Errorf("%q does not say %q: %v\n%s", words, text, err, out)
		}
	}
	return out
}

// wantError wants an error with these words, or none.
func wantError(t *testing.T, err error, words string) {
	t.Helper()
	if (err != nil) != (words != "") || err != nil && !strings.Contains(err.Error(), words) {
		t.Errorf("err = %v, want %q", err, words)
	}
}

// populated is a node with a container on three networks, one that is dead
// without a DEL and one whose ADD could not be undone.
func populated(t *testing.T) *node {
	t.Helper()
	h := newNode(t)
	nodetest.OK(t, h.run("ADD", bridge+`,{"name":"storage","plugins":[{"type":"macvlan"},{"type":"tuning"}]}`, "c1"))
	nodetest.OK(t, h.run("ADD", bridge, "gone", func(a *skel.CmdArgs) { a.Netns = "/absent" }))
	h.Restarted("state", "gone")
	h.Exec.Plugins["both"] = delegatetest.FailOn("ADD", 107, "no", delegatetest.FailOn("DEL", 108, "no", delegatetest.Result(nil)))
	nodetest.Code(t, h.run("ADD", `{"type":"both"}`, "half"), 107)
	return h
}

// reading are the commands that change nothing.
func reading() [][]string {
	return [][]string{
		{"list"},
		{"list", "-o", "json"},
		{"show", "c1"},
		{"show", "c1", "-o", "json"},
		{"status", "c1"},
		{"status", "c1", "-o", "table"},
		{"gc", "--dry-run"},
		{"damaged"},
	}
}

// Commands that read do not wait for a DEL that hangs, change nothing, and print no
// configuration of a network, which holds credentials.
func TestCommandsThatReadOnlyRead(t *testing.T) {
	t.Parallel()
	h := populated(t)
	l := h.lock("c1")
	before := h.Files("state")
	for _, words := range reading() {
		if out, err := h.tool(words...); err != nil || strings.Contains(out, secret) {
			t.Errorf("%v: %v: %s", words, err, out)
		}
	}
	nodetest.Equal(t, "files", h.Files("state"), before)
	nodetest.OK(t, l.Unlock())
}

func (h *node) lock(container string) *scratch.Lock {
	h.Helper()
	l, err := scratch.Store[struct{}]{Dir: h.state()}.Lock(h.Context(), container)
	nodetest.OK(h, err)
	return l
}

func TestTables(t *testing.T) {
	t.Parallel()
	h := populated(t)
	times := regexp.MustCompile(` (20\d\d-\S+|\d+s)( |$)`)
	list := func(words ...string) (got []string) {
		for line := range strings.Lines(h.wantTool(words)) {
			got = append(got, times.ReplaceAllString(strings.Join(strings.Fields(line), " "), " T$2"))
		}
		return got
	}
	const unseen = " no network namespace was seen when it was recorded"
	nodetest.Equal(t, "list", list("list"), []string{
		"CONTAINER POD IFNAME NETWORK USE STATE LIFE AGE", "c1 - eth0 multi cluster added unknown T", "c1 - net1 storage default added unknown T",
		"gone - eth0 multi cluster added dead T", "half - eth0 multi cluster leftover unknown T",
	})
	nodetest.Equal(t, "the wide list", list("list", "-o", "wide"), []string{
		"CONTAINER POD INTERFACE NETWORK NAD USE STATE LIFE SINCE RECORD WHY", "c1 - eth0 multi - cluster added unknown T multi eth0" + unseen,
		"c1 - net1 storage - default added unknown T multi eth0" + unseen, "gone - eth0 multi - cluster added dead T multi eth0 the machine has been restarted since",
		"half - eth0 multi - cluster leftover unknown T multi eth0" + unseen,
	})
	nodetest.Equal(t, "show", strings.Fields(h.wantTool([]string{"show", "half", "-o", "wide"}))[11:17], []string{"half", "-", "eth0", "multi", "-", "cluster"})
	h.wantTool([]string{"status", "c1", "-o", "table"}, "NETWORK INTERFACE ADDRESSES MAC DEFAULT multi eth0 10.9.0.2 - true storage net1 10.9.1.2 - false")
	h.wantTool([]string{"status", "half"}, "[]")
	var nets []status.Network
	nodetest.OK(t, json.Unmarshal([]byte(h.wantTool([]string{"status", "c1"})), &nets))
	if len(nets) != 2 || nets[0].Name != "multi" || !nets[0].Default || nets[1].Name != "storage" || nets[1].Default {
		t.Errorf("status: %+v", nets)
	}
	for _, command := range []string{"show", "status"} {
		out, err := h.tool(command, "absent")
		nodetest.Says(t, err, `"absent"`)
		nodetest.Equal(t, command+" of what is not there", out, "")
	}
}

// The JSON output has what the tables have.
func TestJSON(t *testing.T) {
	t.Parallel()
	h := populated(t)
	times, reason := regexp.MustCompile(`"20\d\d-[^"]+"`), regexp.MustCompile(`"reason":"[^"]+",`) // which gc adds
	lines := func(text string) (all []string) {
		for _, entry := range entries(text) {
			all = append(all, strings.ReplaceAll(reason.ReplaceAllString(times.ReplaceAllString(canonical(entry), `"T"`), ""), h.Dir, "$DIR"))
		}
		return all
	}
	const (
		unseen = `,"why":"no network namespace was seen when it was recorded"}`
		c1     = `{"attachments":[{"interface":"eth0","netns":"$DIR/netns","network":"multi","origin":{"use":"cluster"},"plugins":["bridge"],"state":"added"},` +
			`{"interface":"net1","netns":"$DIR/netns","network":"storage","origin":{"use":"default"},"plugins":["macvlan","tuning"],"state":"added"}],` +
			`"container":"c1","created":"T","interface":"eth0","life":"unknown","network":"multi","state":"added",` +
			`"todo":"let the runtime delete the containers, or run its GC; or see multinet gc --unknown --dry-run --dir $DIR/state","updated":"T"` + unseen
		gone = `{"attachments":[{"interface":"eth0","netns":"/absent","network":"multi","origin":{"use":"cluster"},"plugins":["bridge"],"state":"added"}],` +
			`"container":"gone","created":"T","interface":"eth0","life":"dead","network":"multi","state":"added","updated":"T","why":"the machine has been restarted since"}`
		half = `{"attachments":[{"interface":"eth0","netns":"$DIR/netns","network":"multi","origin":{"use":"cluster"},"plugins":["both"],"state":"leftover"}],` +
			`"container":"half","created":"T","interface":"eth0","life":"unknown","network":"multi","state":"leftover","updated":"T"` + unseen
	)
	for words, want := range map[string][]string{"list": {c1, gone, half}, "gc --dry-run": {gone, half}, "gc --dry-run --unknown": {c1, gone, half}, "show half": {half}} {
		nodetest.Equal(t, words, lines(h.wantTool(append(strings.Fields(words), "-o", "json"))), want)
	}
	h.wantTool([]string{"show", "c1", "-o", "json"}, `"result": { "cniVersion": "1.0.0", "ips": [`)
	empty := newNode(t)
	empty.Write("state/lock", "")
	for _, words := range [][]string{{"list"}, {"damaged"}, {"gc", "--dry-run"}} { // an empty list is one
		nodetest.Equal(t, words[0]+" of nothing", strings.TrimSpace(empty.wantTool(append(words, "-o", "json"))), "[]")
	}
}

// Each command reports damaged records, after all others; the command damaged succeeds if
// there are some.
func TestDamagedRecordsAreReported(t *testing.T) {
	t.Parallel()
	h := populated(t)
	nodetest.Equal(t, "lines of damaged", strings.Count(h.wantTool([]string{"damaged"}), "\n"), 1)
	h.Write("state/gone@multi@eth0.json", `0123456789abcdef {"version":1}`+"\n")
	h.Write("state/foreign.txt", "x")
	for range 2 {
		for _, words := range reading()[:7] {
			out, err := h.tool(words...)
			nodetest.Fails(t, err, 5, "gone")
			if words[0] != "gc" && !strings.Contains(out, "storage") {
				t.Errorf("%v says nothing of the others:\n%s", words, out)
			}
		}
		nodetest.Equal(t, "lines of damaged", strings.Count(h.wantTool([]string{"damaged"}, "gone", "corrupt"), "\n"), 2)
	}
	var all []damagedView
	nodetest.OK(t, json.Unmarshal([]byte(h.wantTool([]string{"damaged", "-o", "json"})), &all))
	if len(all) != 1 || all[0].keyView != (keyView{"multi", "gone", "eth0"}) || all[0].Error == "" {
		t.Errorf("damaged: %+v", all)
	}
}

// A command line that is wrong is answered with the usage, and --help with that of a command.
func TestUsage(t *testing.T) {
	t.Parallel()
	h := newNode(t)
	for _, words := range []string{"", "list x", "show", "show a b", "gc --force", "list --nad-dir x", "--what", "forget c1 multi", "list --yes", "list -o xml"} {
		h.Write("state/lock", "")
		out, err := h.tool(strings.Fields(words)...)
		nodetest.Says(t, err, "usage: multinet")
		nodetest.Equal(t, words, out, "")
		command, _, _ := strings.Cut(words, " ")
		if known := commandNamed(command) != nil; known != strings.Contains(err.Error(), "multinet "+command+" --help") || known == strings.Contains(err.Error(), "COMMAND") {
			t.Errorf("%q is not answered with the usage of its command: %v", words, err)
		}
	}
	_, err := h.tool("gc", "--delegate-privileges", "none")
	nodetest.Says(t, err, "none: want keep or noNew")
	for _, words := range []string{"help", "--help", "-h"} {
		h.wantTool([]string{words}, "usage: multinet COMMAND", "adopt [--dry-run]", "--version")
	}
	for command, want := range map[string]string{"gc": "usage: multinet gc [--unknown] [--dry-run] detach", "status": "--socket-dir DIR", "install": "--readiness-file FILE", "adopt": "--cache-dir", "uninstall": "--detach "} {
		if out := h.wantTool([]string{command, "--help"}, want); strings.Contains(out, "forget") || (command == "gc") != strings.Contains(out, "-nad-dir") {
			t.Errorf("%s: %s", command, out)
		}
	}
}

// A state directory that does not exist, or cannot be read, is an error and not an empty list.
// The default one may be missing: nothing has been attached on this node yet.
func TestUnusableStateDirectory(t *testing.T) {
	t.Parallel()
	all := append(reading(), []string{"forget", "c1", "--yes"})
	missing, unreadable := newNode(t), newNode(t)
	unreadable.Write("state", "")
	for _, words := range all {
		out, err := missing.tool(words...)
		nodetest.Says(t, err, "no directory "+strconv.Quote(missing.state()))
		nodetest.Equal(t, words[0], out, "")
		_, err = unreadable.tool(words...)
		nodetest.Fails(t, err, 5, "state")
	}
	if out, err := unreadable.tool("gc"); err == nil || !strings.Contains(out, "not a directory") {
		t.Errorf("gc: %v: %s", err, out)
	}
	nodetest.Equal(t, "files", missing.Files(""), nil)
	nodetest.OK(t, existing("dir", multinet.DefaultStateDir, multinet.DefaultStateDir))
}

const podArgs = "IgnoreUnknown=1;K8S_POD_NAMESPACE=team-a;K8S_POD_NAME=web-0;K8S_POD_UID=u-1;K8S_POD_INFRA_CONTAINER_ID=c1"

func key(container string) scratch.Key {
	return scratch.Key{Network: "multi", ContainerID: container, IfName: "eth0"}
}

// attach records a container c1 with these CNI_ARGS. Its networks are multi, of the
// configuration, and storage, which has the origin.
func (h *node) attach(args string, origin json.RawMessage) {
	h.Helper()
	h.attachTo("c1", args, origin)
}

func (h *node) attachTo(container, args string, origin json.RawMessage) {
	h.Helper()
	var plan []delegate.Attachment
	for i, plugin := range []string{"bridge", "macvlan"} {
		info := h.Path("devinfo/" + plugin)
		plan = append(plan, delegate.Attachment{
			Network:     nodetest.Parse(fmt.Sprintf(`{"cniVersion":"1.1.0","name":%q,"type":%q,"password":%q}`, []string{"multi", "storage"}[i], plugin, secret)),
			ContainerID: container, IfName: []string{"eth0", "net1"}[i], Args: args,
			CapabilityArgs: map[string]json.RawMessage{"CNIDeviceInfoFile": json.RawMessage(strconv.Quote(info))}, Files: []string{info},
		})
	}
	if origin != nil {
		plan[0].Origin, plan[1].Origin = nad.Origin{Use: nad.UseCluster}.JSON(), origin
	}
	h.add(key(container), plan...)
}

// add attaches a container to networks.
func (h *node) add(k scratch.Key, plan ...delegate.Attachment) {
	h.Helper()
	_, err := h.life().Add(h.Context(), k, lifecycle.Transaction{Plan: lifecycle.Plan(plan...)})
	nodetest.OK(h, err)
}

// selected is the origin of a network that a pod has selected.
func selected() nad.Origin {
	return nad.Origin{
		Use: nad.UseSelected, Definition: nad.Ref{Namespace: "team-b", Name: "fast"}, UID: "u-2", Version: "77", PodSource: "file",
		Selection: json.RawMessage(`{"name":"fast","namespace":"team-b","ipam-claim-reference":"vm-1"}`),
	}
}

// The commands say whose attachment it is, and why the container has it: a selection, or the
// device of a claim, which a driver and an administrator compare.
func TestWhoseAttachmentItIsAndWhy(t *testing.T) {
	t.Parallel()
	claim := nad.Claim{UID: "u-3", Name: "storage", Request: "net/fast", Pool: "node-1", Device: "vf0", Share: "s-4"}
	fast := nad.Origin{Use: nad.UseClaimed, Claim: claim, Definition: nad.Ref{Namespace: "team-b", Name: "fast"}, UID: "u-2", Version: "77", PodSource: "api"}
	for _, tt := range []struct {
		origin        nad.Origin
		network, list string
	}{
		{selected(), "team-b/fast", "net1 storage team-b/fast selected added"},
		{nad.Origin{Use: nad.UseClaimed, Claim: claim}, "storage", "net1 storage - claimed added"},
		{fast, "team-b/fast", "net1 storage team-b/fast claimed added"},
	} {
		h := newNode(t)
		h.attach(podArgs, tt.origin.JSON())
		h.wantTool([]string{"list", "-o", "wide"}, "CONTAINER POD INTERFACE NETWORK NAD USE STATE", "c1 team-a/web-0 eth0 multi - cluster added", "c1 team-a/web-0 "+tt.list)
		h.wantTool([]string{"list"}, "c1 team-a/web-0 net1 "+tt.network+" "+string(tt.origin.Use)+" added")
		h.Write("devinfo/macvlan", `{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:3b:02.1"}}`)
		h.wantTool([]string{"status", "c1"}, `"name": "multi"`, `"name": "`+tt.network+`"`, `"device-info": { "type": "pci"`)
		for _, words := range [][]string{{"list"}, {"show", "c1"}} {
			text := h.wantTool(append(words, "-o", "json"), `"pod": { "namespace": "team-a", "name": "web-0", "uid": "u-1" }`)
			var all []recordView
			nodetest.OK(t, json.Unmarshal([]byte(text), &all))
			if len(all) != 1 || all[0].Pod != (podView{"team-a", "web-0", "u-1"}) || canonical(all[0].Attachments[1].Origin) != canonical(tt.origin.JSON()) {
				t.Errorf("%v: %+v", words, all)
			}
		}
	}
}

// A record of an older version has no origin, and a damaged one is none. The commands show
// the rest, and the status has the name of the network.
func TestRecordsWithoutAnOrigin(t *testing.T) {
	t.Parallel()
	for _, origin := range []string{"", "7", `{"use":"selected","definition":"../x"}`} {
		h := newNode(t)
		h.Exec.Plugins["macvlan"] = delegatetest.Result(nil) // whose result does not decide what is in the status
		h.attach("K8S_POD_NAME", json.RawMessage(origin))
		for _, words := range reading()[:6] {
			nodetest.Lacks(t, words[0]+" of "+origin, h.wantTool(words, "storage"), "../x", `"pod"`)
		}
		h.wantTool([]string{"list"}, "c1 - net1 storage - added")
		h.wantTool([]string{"status", "c1", "-o", "table"}, "storage - - - false")
	}
	h := newNode(t) // some runtimes tell the namespace of a pod alone
	h.attach("K8S_POD_NAMESPACE=team-a", nil)
	h.wantTool([]string{"list"}, "c1 team-a/- eth0 multi")
}

// A network whose attach was interrupted is not shown as added, and the others are. The
// status has what is whole.
func TestIncompleteRecord(t *testing.T) {
	t.Parallel()
	h := newNode(t)
	nodetest.OK(t, h.run("ADD", bridge, "c1"))
	green := nodetest.Parse(`{"cniVersion":"1.0.0","name":"green","type":"dies"}`)
	h.Exec.Plugins["dies"] = func(context.Context, delegatetest.Invocation) ([]byte, error) { runtime.Goexit(); return nil, nil }
	died := make(chan struct{})
	go func() {
		defer close(died)
		_, err := h.life().Attach(t.Context(), key("c1"), lifecycle.Transaction{Plan: lifecycle.Plan(delegate.Attachment{Network: green, ContainerID: "c1", IfName: "hot0"})})
		t.Errorf("it did not die: %v", err)
	}()
	<-died
	h.wantTool([]string{"list"}, "c1 - eth0 multi cluster added", "c1 - hot0 green - incomplete")
	nodetest.Lacks(t, "status", h.wantTool([]string{"status", "c1"}, `"eth0"`), "green")
}

// left returns the record files in h's state directory.
func (h *node) left() string {
	return strings.Join(slices.DeleteFunc(h.Files("state"), func(f string) bool { return !strings.HasSuffix(f, ".json") }), " ")
}

// forget removes the records that the operator agrees to, and runs no plugin. The
// container can be added again.
func TestForget(t *testing.T) {
	t.Parallel()
	const (
		all         = "c1@multi@eth0.json gone@multi@eth0.json half@multi@eth0.json"
		withoutGone = "c1@multi@eth0.json half@multi@eth0.json"
	)
	for name, tt := range map[string]struct {
		words    string
		terminal bool
		answer   string
		want     string // what is left
		errs     string
	}{
		"yes":                {words: "gone --yes", want: withoutGone},
		"one key":            {words: "gone multi eth0 --yes", want: withoutGone},
		"not damaged":        {words: "half", terminal: true, answer: "yes\n", want: "c1@multi@eth0.json gone@multi@eth0.json"},
		"asked, y":           {words: "gone", terminal: true, answer: "y\n", want: withoutGone},
		"asked, n":           {words: "gone", terminal: true, answer: "n\n", want: all, errs: "nothing was forgotten"},
		"asked, end":         {words: "gone", terminal: true, want: all, errs: "nothing was forgotten"},
		"nobody to ask":      {words: "gone", answer: "y\n", want: all, errs: "no terminal"},
		"no container":       {words: "absent --yes", want: all, errs: "no record"},
		"a delegate's names": {words: "c1 storage net1 --yes", want: all, errs: "c1 storage net1: the container's records are of multi eth0: there is no record of it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := populated(t)
			h.Write("state/gone@multi@eth0.json", "garbage")
			h.wantTool([]string{"damaged"})
			h.Trace()
			words := append([]string{"forget", "--dir", h.state()}, strings.Fields(tt.words)...)
			var out, ask strings.Builder
			err := (&tool{in: strings.NewReader(tt.answer), out: &out, ask: &ask, terminal: tt.terminal}).run(t.Context(), words)
			wantError(t, err, tt.errs)
			nodetest.Equal(t, "left", h.left(), tt.want)
			h.WantTrace()
			if tt.terminal != strings.Contains(ask.String(), "multi/"+words[3]+"/eth0: ") {
				t.Errorf("asked %q", ask.String())
			}
			if done := strings.Contains(out.String(), words[3]); done != (err == nil) {
				t.Errorf("said %q", out.String())
			}
			if err == nil {
				nodetest.OK(t, h.run("ADD", bridge, words[3]))
			}
		})
	}
}

// forget waits for operations on the container, and keeps a record that they have
// changed.
func TestForgetTakesTheLock(t *testing.T) {
	t.Parallel()
	h := populated(t)
	l := h.lock("half")
	ctx, cancel := context.WithCancel(t.Context())
	forget := func(ctx context.Context, meanwhile func()) error {
		in := readFunc(func(p []byte) (int, error) { meanwhile(); return copy(p, "y\n"), nil })
		return (&tool{in: in, out: io.Discard, ask: io.Discard, terminal: true}).run(ctx, []string{"forget", "half", "--dir", h.state()})
	}
	err := forget(ctx, cancel) // it is about to wait for the lock
	nodetest.Fails(t, err, 11, "half")
	nodetest.OK(t, l.Unlock())
	h.Exec.Plugins["both"] = delegatetest.Result(nil)
	err = forget(t.Context(), func() { nodetest.OK(t, errors.Join(h.run("DEL", bridge, "half"), h.run("ADD", bridge, "half"))) })
	nodetest.Is(t, err, errChanged)
	nodetest.Equal(t, "the record is there", strings.Contains(h.left(), "half"), true)
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

// A record that was forgotten is not taken over again: forget also removes the files
// that it was taken over from, and those that belong to an attachment.
func TestForgetOfAdoptedRecord(t *testing.T) {
	t.Parallel()
	h := newNode(t)
	entry, info := h.Write("entry", ""), h.Write("info", "")
	n := nodetest.Parse(`{"cniVersion":"1.0.0","name":"cbr","type":"bridge"}`)
	adopted, err := h.life().Adopt(t.Context(), lifecycle.Adoption{
		Key: key("c1"), Sources: []string{entry},
		Attached: []delegate.Attached{{Attachment: delegate.Attachment{Network: n, ContainerID: "c1", IfName: "eth0", Files: []string{info}}}},
	})
	if err != nil || !adopted {
		t.Fatalf("adopted %v: %v", adopted, err)
	}
	h.wantTool([]string{"forget", "c1", "--yes"}, "c1")
	nodetest.Equal(t, "files", h.Files(""), []string{"state"})
}

// A container is found by the first 12 characters of its ID, unless another ID begins
// with them.
func TestShortContainerID(t *testing.T) {
	t.Parallel()
	h := newNode(t)
	long := strings.Repeat("0123456789abcdef", 4)
	other := long[:63] + "0"
	nodetest.OK(t, h.run("ADD", bridge, long))
	h.wantTool([]string{"show", long[:12]}, "10.9.0.2")
	h.wantTool([]string{"status", long[:20]}, "10.9.0.2")
	for _, words := range [][]string{{"show", long[:11]}, {"show", long[1:13]}, {"forget", long[:11], "--yes"}} {
		_, err := h.tool(words...)
		nodetest.Is(t, err, errNoRecord)
	}
	nodetest.OK(t, h.run("ADD", bridge, other))
	for _, words := range [][]string{{"show", long[:12]}, {"status", long[:12]}, {"forget", long[:12], "multi", "eth0", "--yes"}} {
		out, err := h.tool(words...)
		nodetest.Says(t, err, "more than one container")
		nodetest.Equal(t, words[0], out, "")
	}
	h.wantTool([]string{"forget", other, "--yes"}, other)
	h.wantTool([]string{"forget", long[:12], "--yes"}, long)
	nodetest.Equal(t, "left", h.left(), "")
}

// gc runs the command gc on h's records.
func (h *node) gc(words ...string) (out, said string, err error) {
	out, err = h.tool(append([]string{"gc"}, words...)...)
	return out, h.said.String(), err
}

// gc detaches stale attachments only. It reports those that it cannot detach, and
// fails. When that is repaired, nothing is left.
func TestGCDetachesStaleAttachments(t *testing.T) {
	t.Parallel()
	h := populated(t)
	const c1 = "multinet: 1 of containers of which it is not known whether they live: see multinet list\n"
	out, _, err := h.gc("-o", "json")
	nodetest.Says(t, err, "1 of 2 could not be removed")
	var got []sweptView
	nodetest.OK(t, json.Unmarshal([]byte(out), &got))
	for _, v := range got {
		if len(got) != 2 || v.Removed != (v.Container == "gone") || v.Removed != (v.Error == "") {
			t.Errorf("%+v", v)
		}
	}
	nodetest.Equal(t, "attached", h.Exec.Live(), []string{"both half eth0", "bridge c1 eth0", "macvlan c1 net1", "tuning c1 net1"})
	h.Exec.Plugins["both"] = delegatetest.Result(nil)
	l := h.lock("half")
	if out, _, err := h.gc(); err == nil || !strings.Contains(err.Error(), "1 left alone") {
		t.Errorf("gc of a busy container: %v\n%s", err, out)
	}
	nodetest.OK(t, l.Unlock())
	if out, said, err := h.gc(); err != nil || !strings.Contains(out, "half") || !strings.Contains(out, "removed") || said != c1 {
		t.Errorf("gc: %v\n%s%s", err, out, said)
	}
	if out, said, err := h.gc(); err != nil || strings.Count(out, "\n") != 1 || said != c1 { // the heading
		t.Errorf("gc of nothing: %v\n%s%s", err, out, said)
	}
}

// With --unknown gc also detaches those of which nobody knows whether they live, and --dry-run says
// why of each. Without it they stay, and do not change the exit status.
func TestGCOfUnknownContainersIsTheOperatorsWord(t *testing.T) {
	t.Parallel()
	h := newNode(t)
	nodetest.OK(t, errors.Join(h.run("ADD", bridge, "c1"), h.run("ADD", bridge, "c2")))
	h.Restarted("state", "c2")
	const why = " no network namespace was seen when it was recorded"
	for words, want := range map[string][]string{
		"gc --dry-run":           {"c2 eth0 multi added dead the machine has been restarted since"},
		"gc --dry-run --unknown": {"c1 eth0 multi added unknown" + why, "c2 eth0 multi added dead the machine has been restarted since"},
	} {
		var got []string
		for line := range strings.Lines(h.wantTool(strings.Fields(words), "CONTAINER INTERFACE NETWORK STATE LIFE WHY")) {
			got = append(got, strings.Join(strings.Fields(line), " "))
		}
		nodetest.Equal(t, words, got[1:], want)
	}
	out, said, err := h.gc()
	nodetest.OK(t, err)
	nodetest.Equal(t, "said", said, "multinet: 1 of containers of which it is not known whether they live: see multinet list\n")
	nodetest.Lacks(t, "gc", out, "c1")
	nodetest.Equal(t, "left", h.left(), "c1@multi@eth0.json")
	if out, said, err := h.gc("--unknown"); err != nil || said != "" || !strings.Contains(out, "c1") || h.left() != "" {
		t.Errorf("%v: %s%s", err, said, out)
	}
	nodetest.Equal(t, "attached", h.Exec.Live(), nil)
}

// gc makes another pass, a second later, while that may know more, and counts all. What one pass
// could not remove is not tried again by the next.
func TestGCLooksAgain(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		passes []lifecycle.SweepStats
		want   lifecycle.SweepStats
	}{
		"nothing more to know": {[]lifecycle.SweepStats{{Removed: 1, Unknown: 2}}, lifecycle.SweepStats{Removed: 1, Unknown: 2}},
		"one is dead":          {[]lifecycle.SweepStats{{Removed: 1, Unknown: 2, Pending: 2}, {Removed: 1, Unknown: 1}}, lifecycle.SweepStats{Removed: 2, Unknown: 1}},
		"one fails":            {[]lifecycle.SweepStats{{Failed: 1, Pending: 1}, {Waiting: 2}}, lifecycle.SweepStats{Failed: 1, Waiting: 1}},
		"pending for ever":     {slices.Repeat([]lifecycle.SweepStats{{Pending: 1}}, mostLooks), lifecycle.SweepStats{Pending: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				passes, begin := tt.passes, time.Now()
				got, err := sweepUntilKnown(t.Context(), func(context.Context) (lifecycle.SweepStats, error) {
					pass := passes[0]
					passes = passes[1:]
					return pass, nil
				})
				nodetest.OK(t, err)
				nodetest.Equal(t, "swept", got, tt.want)
				if len(passes) != 0 || time.Since(begin) != time.Duration(len(tt.passes)-1)*time.Second {
					t.Errorf("%d passes left, after %v", len(passes), time.Since(begin))
				}
			})
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := sweepUntilKnown(ctx, func(context.Context) (lifecycle.SweepStats, error) {
		cancel()
		return lifecycle.SweepStats{Pending: 1}, nil
	})
	nodetest.Is(t, err, context.Canceled)
}

// The mark of an ADD that was refused is no attachment. It is not listed.
func TestRefusedADDsAreNotListed(t *testing.T) {
	t.Parallel()
	h := newNode(t)
	nodetest.OK(t, h.run("ADD", bridge, "c1"))
	nodetest.Code(t, h.run("ADD", bridge, "c1", func(a *skel.CmdArgs) {
		a.StdinData = []byte(strings.Replace(string(a.StdinData), `"multi"`, `"second"`, 1))
	}), 7)
	if !strings.Contains(h.left(), "c1@second@eth0.json") {
		t.Fatalf("there is no mark: %s", h.left())
	}
	for _, words := range [][]string{{"list"}, {"show", "c1"}, {"gc", "--dry-run", "--unknown"}} {
		nodetest.Lacks(t, words[0], h.wantTool(words, "multi"), "second")
	}
	nodetest.OK(t, h.run("DEL", bridge, "c1"))
}

// A DEL that a mistake in a definition makes fail is tried with the definition that is in
// --nad-dir now.
func TestGCFindsDefinitionsAsADDDoes(t *testing.T) {
	t.Parallel()
	h := newNode(t)
	h.Exec.Plugins["picky"] = func(_ context.Context, c delegatetest.Invocation) ([]byte, error) {
		if strings.Contains(string(c.Stdin), "mistake") {
			return nil, types.NewError(107, "a mistake", "")
		}
		return []byte(`{"cniVersion":"1.0.0"}`), nil
	}
	h.Write("nads/a/blue.conf", `{"cniVersion":"1.0.0","type":"picky","mistake":true}`)
	nodetest.Code(t, h.run("ADD", bridge, "c1", func(a *skel.CmdArgs) {
		a.Args = "K8S_POD_NAMESPACE=a;K8S_POD_NAME=p"
		a.StdinData = []byte(strings.Replace(string(a.StdinData), `"delegates"`,
			`"nadDir":"`+h.Dir+`/nads","runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"k8s.v1.cni.cncf.io/networks":"blue"}},"delegates"`, 1))
	}), 107)
	h.Write("nads/a/blue.conf", `{"cniVersion":"1.0.0","type":"picky"}`)
	_, _, err := h.gc()
	nodetest.Refused(t, "without the directory", err)
	if out, _, err := h.gc("--nad-dir", h.Path("nads")); err != nil || !strings.Contains(out, "removed") {
		t.Errorf("%v: %s", err, out)
	}
}

// serve serves a daemon's socket, and returns its directory.
func serve(t *testing.T, pages http.HandlerFunc) string {
	t.Helper()
	dir := nodetest.ShortDir(t)
	l, err := net.Listen("unix", filepath.Join(dir, "multus.sock"))
	nodetest.OK(t, err)
	s := &http.Server{Handler: pages} //nolint:gosec // its only client is the test
	done := make(chan error)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close(); <-done })
	return dir
}

// answers is a daemon that answers always the same.
func answers(t *testing.T, status int, body string) string {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	})
}

// process runs the operator's command as the executable does.
func (h *node) process(words ...string) (exit int, out, said string) {
	var stdout, stderr bytes.Buffer
	exit = Run(h.Context(), append(words, "--dir", h.state()), plugin.System{Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr})
	return exit, stdout.String(), stderr.String()
}

const (
	multiStatus   = `{"name":"multi","interface":"eth0","ips":["10.9.0.2"],"default":true}`
	storageStatus = `{"name":"team-b/fast","interface":"net1","ips":["10.9.1.2"]}`
)

func TestStatusIsComparedWithThePods(t *testing.T) {
	t.Parallel()
	changed := strings.Replace(storageStatus, "10.9.1.2", "10.9.1.9", 1)
	third := `{"name":"by-hand","interface":"net7"}`
	for _, tt := range []struct {
		name, pod string
		want      []string // interface and difference
		text      string   // part of the table
	}{
		{"equal", "[" + multiStatus + "," + storageStatus + "]", []string{"eth0", "net1"}, "eth0 equal records {"},
		{"equal in another form", "[\n  {\"default\": true, \"ips\": [\"10.9.0.2\"], \"interface\": \"eth0\", \"name\": \"multi\"},\n " + storageStatus + "\n]\n", []string{"eth0", "net1"}, ""},
		{
			"changed", "[" + multiStatus + "," + changed + "]",
			[]string{"eth0", "net1 changed"},
			`net1 changed records {"interface":"net1","ips":["10.9.1.2"],"name":"team-b/fast"} - - pod {"interface":"net1","ips":["10.9.1.9"],`,
		},
		{"missing", "[" + storageStatus + "]", []string{"eth0 missing", "net1"}, "- - pod - net1 equal"},
		{"not written", "", []string{"eth0 missing", "net1 missing"}, ""},
		{"unexpected", "[" + multiStatus + "," + third + "," + storageStatus + "]", []string{"eth0", "net1", "net7 unexpected"}, `net7 unexpected records - - - pod {"interface":"net7","name":"by-hand"}`},
		{"moved", "[" + storageStatus + "," + multiStatus + "]", []string{"eth0", "net1 moved"}, "net1 moved"},
		{"twice", "[" + multiStatus + "," + multiStatus + "," + storageStatus + "]", []string{"eth0", "net1", "eth0 unexpected"}, ""},
		{"no list", "{<", []string{"eth0 missing", "net1 missing", " unexpected"}, `- unexpected records - - - pod "{`},
		{"elements of another form", `[7,null]`, []string{"eth0 missing", "net1 missing", " unexpected", " unexpected"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newNode(t)
			h.attach(podArgs, selected().JSON())
			socket := answers(t, http.StatusOK, tt.pod)
			exit := 1
			if len(tt.want) == 2 && !strings.Contains(strings.Join(tt.want, ""), " ") {
				exit = 0
			}
			got, out, said := h.process("status", "--diff", "c1", "--socket-dir", socket)
			if got != exit || said != "" || !strings.Contains(strings.Join(strings.Fields(out), " "), tt.text) {
				t.Errorf("status %d, want %d: %s\n%s", got, exit, said, out)
			}
			got, out, said = h.process("status", "c1", "--diff", "--socket-dir", socket, "-o", "json")
			var pairs []pairView
			if err := json.Unmarshal([]byte(out), &pairs); err != nil || got != exit || said != "" {
				t.Fatalf("status %d, want %d: %v, %s\n%s", got, exit, err, said, out)
			}
			var differences []string
			for _, p := range pairs {
				if (p.Recorded == nil) != (p.Difference == "unexpected") || (p.Pod == nil) != (p.Difference == "missing") {
					t.Errorf("%+v", p)
				}
				differences = append(differences, strings.TrimRight(p.Interface+" "+p.Difference, " "))
			}
			nodetest.Equal(t, "got", differences, tt.want)
		})
	}
}

// The daemon is asked once, for the pod that the runtime has named. A static pod has another
// UID in the API.
func TestDiffAsksForThePod(t *testing.T) {
	t.Parallel()
	for source, uid := range map[string]string{"api": "a&b=c d", "file": ""} {
		h := newNode(t)
		origin := selected()
		origin.PodSource = source
		h.attach(strings.Replace(podArgs, "UID=u-1", "UID=a&b=c d", 1), origin.JSON())
		asked := make(chan *http.Request, 9)
		socket := serve(t, func(w http.ResponseWriter, r *http.Request) {
			asked <- r
			// Larger than the buffer of the server, which then does not know the length.
			fmt.Fprint(w, "["+multiStatus+","+storageStatus+"]"+strings.Repeat(" ", 100<<10))
		})
		if exit, out, said := h.process("status", "--diff", "c1", "--socket-dir", socket); exit != 0 {
			t.Errorf("status %d: %s\n%s", exit, said, out)
		}
		r := <-asked
		want := url.Values{"namespace": {"team-a"}, "name": {"web-0"}, "uid": {uid}}
		if d := cmp.Diff(want, r.URL.Query()); d != "" || r.Method != http.MethodGet || r.URL.Path != "/network-status" || len(asked) > 0 {
			t.Errorf("pod from %q: %s %s, and %d more (-want +got):\n%s", source, r.Method, r.URL, len(asked), d)
		}
	}
}

// Failing is not the same as a difference: the status is 2, and the reason is on stderr.
func TestDiffThatFailsSaysWhy(t *testing.T) {
	t.Parallel()
	h := newNode(t)
	h.attach(podArgs, selected().JSON())
	for _, tt := range []struct {
		status     int
		body, want string
	}{
		{404, "pod team-a/web-0 has another UID\n", "pod team-a/web-0: it is gone: pod team-a/web-0 has another UID"},
		{404, `{"code":999,"msg":"unknown path \"/network-status\""}`, "the daemon does not work with Kubernetes"},
		{503, `{"code":11,"msg":"try later","details":"connection refused"}`, "the API cannot be asked at the moment: try later; connection refused"},
		{403, `{"code":999,"msg":"user 7 may not connect"}`, "status 403: user 7 may not connect"},
		{500, "a\n\tb" + strings.Repeat("x", 9999), "status 500: a bxx"},
	} {
		exit, out, said := h.process("status", "--diff", "c1", "--socket-dir", answers(t, tt.status, tt.body))
		if exit != 2 || out != "" || !strings.Contains(said, tt.want) || strings.Count(said, "\n") != 1 || len(said) > 600 {
			t.Errorf("%d %s: status %d, %q, %q", tt.status, tt.body, exit, out, said)
		}
	}
	half := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "9")
		_, _ = w.Write([]byte("[]"))
	})
	absent := h.Path("absent")
	for want, words := range map[string][]string{
		"no daemon answers on " + absent: {"status", "--diff", "c1", "--socket-dir", absent},
		"incomplete":                     {"status", "--diff", "c1", "--socket-dir", half},
		"no record":                      {"status", "--diff", "other", "--socket-dir", absent},
		"usage":                          {"status", "--diff"},
		"not defined":                    {"status", "-diff", "c1", "--what"},
		"provided but":                   {"list", "--diff"},
		"connect: ":                      {"status", "--diff=true", "c1", "--socket-dir", absent},
	} {
		if exit, out, said := h.process(words...); exit != 2 || out != "" || !strings.Contains(said, want) {
			t.Errorf("%v: status %d, %q, %q", words, exit, out, said)
		}
	}
	exit, _, _ := h.process("show", "diff")
	nodetest.Equal(t, "status of a container of that name", exit, 1)
	lone := newNode(t)
	lone.attach("IgnoreUnknown=1", nil)
	if exit, _, said := lone.process("status", "--diff", "c1", "--socket-dir", absent); exit != 2 || !strings.Contains(said, "not attached for a pod") {
		t.Errorf("without a pod: status %d, %q", exit, said)
	}
}

// wantScreen fails the test unless text fits on a screen of 80 columns and rows.
func wantScreen(t *testing.T, what, text string, rows int) {
	t.Helper()
	for line := range strings.Lines(text) {
		if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > screen {
			t.Errorf("%s is too wide: %s", what, line)
		}
	}
	if n := strings.Count(text, "\n"); n > rows {
		t.Errorf("%s has %d lines", what, n)
	}
}

// The help of each command fits on a screen, names each flag with its value, and has an example
// that can be parsed.
func TestHelpFitsOnAScreen(t *testing.T) {
	t.Parallel()
	h := newNode(t)
	wantScreen(t, "help", h.wantTool([]string{"help"}), 24)
	for _, c := range commands() {
		help := h.wantTool([]string{c.name, "--help"}, "example: multinet "+c.name+" "+c.example)
		wantScreen(t, c.name, help, 24)
		flags, _ := c.new(&tool{})
		_, err := parse(flags, strings.Fields(c.example))
		nodetest.Equal(t, "error of the example of "+c.name, err, nil)
	}
}

// The list fits into 80 columns, whatever the names of pods, definitions and containers are. What
// is shortened keeps its beginning and its end.
func TestListFitsOnAScreen(t *testing.T) {
	t.Parallel()
	h := newNode(t)
	o := selected()
	o.Definition.Name = strings.Repeat("storage-", 6) + "west"
	id := strings.Repeat("0123456789abcdef", 4)
	h.attachTo(id, "K8S_POD_NAMESPACE=team-a;K8S_POD_NAME=web-frontend-production-7d9c6b5f4-x2x9p", o.JSON())
	list := h.wantTool([]string{"list"}, "0123456789ab team-a", "x2x9p net1 team-b", "-west selected added unknown")
	wantScreen(t, "list", list, 3)
	h.wantTool([]string{"list", "-o", "wide"}, id+" team-a/web-frontend-production-7d9c6b5f4-x2x9p eth0", o.Definition.String())
	h.wantTool([]string{"show", "0123456789ab"}, id)
	long := strings.Repeat("storage-", 12) + "west"
	nodetest.OK(t, h.run("ADD", `{"name":"`+long+`","type":"bridge"}`, "c1"))
	for form, whole := range map[string]bool{"table": false, "wide": true} {
		out := h.wantTool([]string{"show", "--timing", "-o", form, "c1"})
		nodetest.Equal(t, form, strings.Contains(out, long), whole)
	}
}

// Where the time of an ADD went is a table on a screen, or a list for programs.
func TestTiming(t *testing.T) {
	t.Parallel()
	h := populated(t)
	table := h.wantTool([]string{"show", "--timing", "c1"}, "STAGE NETWORK IFNAME TIME lock multi eth0 ", "record multi eth0 ",
		"ADD bridge multi eth0 ", "ADD macvlan storage net1 ", "ADD tuning storage net1 ", "whole multi eth0 ")
	wantScreen(t, "timing", table, 7)
	var list []struct {
		Stage, Network, Container, Interface string
		Seconds                              float64
	}
	nodetest.OK(t, json.Unmarshal([]byte(h.wantTool([]string{"show", "--timing", "-o", "json", "c1"})), &list))
	if last := list[5]; len(list) != 6 || last.Stage != "whole" || last.Network != "multi" || last.Container != "c1" || last.Interface != "eth0" || last.Seconds <= list[2].Seconds {
		t.Errorf("list %+v", list)
	}
	if out, err := h.tool("show", "--timing", "half"); !errors.Is(err, errNoTiming) || out != "" {
		t.Errorf("of an ADD that failed: %v, %s", err, out)
	}
	nodetest.Code(t, h.run("ADD", `{"type":"both"}`, "c1", func(a *skel.CmdArgs) { a.IfName = "eth1" }), 107)
	out, err := h.tool("show", "--timing", "c1")
	nodetest.Equal(t, "beside an ADD that failed", len(strings.Split(out, "\n")), len(strings.Split(table, "\n")))
	if !errors.Is(err, errNoTiming) || !strings.Contains(err.Error(), `network "multi", eth1`) {
		t.Errorf("of the ADD that failed: %v", err)
	}
}

// A shell completes commands, flags, forms and containers.
func TestCompletion(t *testing.T) {
	t.Parallel()
	h := populated(t)
	for _, tt := range []struct {
		words      string
		has, lacks string
	}{
		{"", "list show status gc damaged forget adopt install uninstall completion", "--dir"},
		{"list", "--dir -o", "c1"},
		{"list -o", "table wide json", "--dir"},
		{"list -o =", "table wide json", "--dir"},
		{"show --dir = " + h.state(), "c1 gone half --dir --timing", "--yes"},
		{"show --dir " + h.state(), "c1 gone half --dir", "--yes"},
		{"nothing", "", "list"},
		{"gc --dry-run", "--bin-dir --dry-run", "c1"},
		{"forget --dir " + h.state() + " --yes", "c1 gone half --yes", ""},
		{"forget --dir " + h.state() + " c1", "--yes", "gone"},
		{"install --watch", "--conf-dir --cluster-network", "c1"},
	} {
		var out strings.Builder
		nodetest.OK(t, (&tool{out: &out}).run(t.Context(), append([]string{"completion", "words"}, strings.Fields(tt.words)...)))
		got := " " + strings.Join(strings.Fields(out.String()), " ") + " "
		for word := range strings.FieldsSeq(tt.has) {
			if strings.Count(got, " "+word+" ") != 1 {
				t.Errorf("after %q there is no %q:%s", tt.words, word, got)
			}
		}
		for word := range strings.FieldsSeq(tt.lacks) {
			if strings.Contains(got, " "+word+" ") {
				t.Errorf("after %q there is %q:%s", tt.words, word, got)
			}
		}
	}
	for _, words := range []string{"completion", "completion csh", "completion bash x"} {
		var out strings.Builder
		nodetest.Says(t, (&tool{out: &out}).run(t.Context(), strings.Fields(words)), "usage: multinet completion bash|fish|zsh")
	}
}

// The scripts are accepted by their shells, and bash completes with its own.
func TestCompletionOfShells(t *testing.T) {
	t.Parallel()
	for _, shell := range shells() {
		if path, err := exec.LookPath(shell); err == nil {
			if out, err := exec.CommandContext(t.Context(), path, "-n", "-c", completions()[shell]).CombinedOutput(); err != nil {
				t.Errorf("%s: %v %s", shell, err, out)
			}
		}
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	// The program is played by a function.
	script := `multinet() { printf '%s\n' list leftover "show $#"; }
` + completions()["bash"] + `
COMP_WORDS=(multinet -x "a b" l) COMP_CWORD=3
_multinet
echo "${COMPREPLY[@]}"`
	out, err := exec.CommandContext(t.Context(), bash, "-c", script).Output()
	nodetest.OK(t, err)
	nodetest.Equal(t, "completions of l", string(out), "list leftover\n")
}
