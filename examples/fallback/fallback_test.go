package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/examples/internal/programtest"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// A host is a node that fallback runs on: its state directory, and plugins to choose
// from.
type host struct {
	*programtest.Memory
	version string // of the configuration
}

func newHost(t *testing.T, version string) *host {
	t.Helper()
	works := delegatetest.Result(nil)
	h := &host{programtest.NewMemory(t, fallback()), version}
	h.Exec.Plugins = map[string]delegatetest.Fake{
		"fallback": works,
		"bridge":   works,
		"tuning":   works,
		"full":     delegatetest.FailOn("ADD", 107, "no free address", works),
		"later":    delegatetest.FailOn("ADD", types.ErrTryAgainLater, "no device yet", works),
		"garbage":  delegatetest.GarbageOn("ADD", works),
		"stuck":    delegatetest.FailOn("ADD", 107, "no free address", delegatetest.FailOn("DEL", 108, "device is busy", works)),
		"down":     delegatetest.FailOn("STATUS", 50, "no daemon", works),
		"limited":  delegatetest.FailOn("STATUS", 51, "uplink lost", works),
	}
	return h
}

// run runs a command with a configuration that has more keys, as JSON without the braces.
func (h *host) run(command, keys string, edits ...func(*skel.CmdArgs)) error {
	conf := fmt.Sprintf(`{"cniVersion":%q,"name":"pods","type":"fallback","cniDir":%q,%s`, h.version, h.Path("state"), keys)
	return h.Do(command, strings.TrimSuffix(conf, ",")+"}", edits...)
}

func (h *host) mustRun(command, keys string, edits ...func(*skel.CmdArgs)) {
	h.Helper()
	nodetest.OK(h, h.run(command, keys, edits...))
}

// A request is what a plugin receives on stdin.
type request struct {
	Name          string               `json:"name"`
	CNIVersion    string               `json:"cniVersion"`
	Bridge        string               `json:"bridge"`
	RuntimeConfig map[string]any       `json:"runtimeConfig"`
	Valid         []types.GCAttachment `json:"cni.dev/valid-attachments"`
}

// last returns what plugin received with the last call of command.
func (h *host) last(command, plugin string) (r request) {
	h.Helper()
	nodetest.OK(h, json.Unmarshal(h.Last(command+" "+plugin).Stdin, &r))
	return r
}

// choicesOf returns the key "choices" with plugins of these types.
func choicesOf(types ...string) string {
	return `"choices":[{"type":"` + strings.Join(types, `"},{"type":"`) + `"}]`
}

// The first choice that works is attached, after those before it have been undone.
// CHECK and DEL use it, whatever the configuration says by then.
func TestFirstChoiceThatWorksIsAttached(t *testing.T) {
	t.Parallel()
	const list = `{"name":"spare","cniVersion":"1.0.0","plugins":[{"type":"tuning"},%s]}`
	for _, tt := range []struct {
		name, choices string
		added, chosen []string
	}{
		{"the first", choicesOf("bridge", "tuning"), []string{"ADD bridge eth0"}, []string{"bridge"}},
		{"the second", choicesOf("full", "bridge"), []string{"ADD full eth0", "DEL full eth0", "ADD bridge eth0"}, []string{"bridge"}},
		{"the third", choicesOf("full", "garbage", "bridge"), []string{"ADD full eth0", "DEL full eth0", "ADD garbage eth0", "DEL garbage eth0", "ADD bridge eth0"}, []string{"bridge"}},
		{"the first is not installed", choicesOf("absent", "bridge"), []string{"ADD bridge eth0"}, []string{"bridge"}},
		{"a plugin of the first is not installed", `"choices":[` + fmt.Sprintf(list, `{"type":"absent"}`) + `,{"type":"bridge"}]`, []string{"ADD bridge eth0"}, []string{"bridge"}},
		{
			"the end of the first fails", `"choices":[` + fmt.Sprintf(list, `{"type":"full"}`) + `,{"type":"bridge"}]`,
			[]string{"ADD tuning eth0", "ADD full eth0", "DEL full eth0", "DEL tuning eth0", "ADD bridge eth0"},
			[]string{"bridge"},
		},
		{
			"a list", `"choices":[{"type":"full"},` + fmt.Sprintf(list, `{"type":"bridge"}`) + `]`,
			[]string{"ADD full eth0", "DEL full eth0", "ADD tuning eth0", "ADD bridge eth0"},
			[]string{"tuning", "bridge"},
		},
		{"the first would be fallback again", choicesOf("fallback", "bridge"), []string{"ADD bridge eth0"}, []string{"bridge"}},
	} {
		for _, since := range []string{"", `"choices":5`, `"choices":[{"type":"tuning"}]`, `"choices":null,"runtimeConfig":7`} {
			t.Run(tt.name+", then "+since, func(t *testing.T) {
				t.Parallel()
				h := newHost(t, "1.1.0")
				h.mustRun("ADD", tt.choices)
				h.WantTrace(tt.added...)
				nodetest.Equal(t, "printed", strings.TrimSpace(h.Printed.String()), `{"cniVersion":"1.1.0"}`)
				var checked, deleted []string
				for _, typ := range tt.chosen {
					checked = append(checked, "CHECK "+typ+" eth0")
					deleted = append([]string{"DEL " + typ + " eth0"}, deleted...)
				}
				if since == "" {
					since = tt.choices
				}
				h.mustRun("CHECK", since)
				h.WantTrace(checked...)
				h.mustRun("DEL", since)
				h.WantTrace(deleted...)
				h.WantNothing("state")
			})
		}
	}
}

// If no choice works, the error has the reason of each choice, in order. Its code is
// 11 if one choice has that code.
func TestEveryChoiceFails(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, choices string
		code          uint
		says          []string
	}{
		{"the code of the last", choicesOf("garbage", "full"), 107, []string{"choices[0]", `"garbage"`, "; choices[1]", "no free address"}},
		{"the last is not installed", choicesOf("full", "absent"), 7, []string{"choices[0]", "no free address", "; choices[1]", `"absent"`, "not found"}},
		{"try again later", choicesOf("full", "later", "absent"), 11, []string{"no free address", "; choices[1]", "no device yet", "; choices[2]", `"absent"`}},
		{"nothing is installed", choicesOf("absent", "missing"), 7, []string{`"absent"`, `"missing"`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.0.0")
			err := h.run("ADD", tt.choices)
			nodetest.Fails(t, err, tt.code, tt.says...)
			nodetest.Equal(t, "times the attachment is named", strings.Count(fmt.Sprint(err), "c1 eth0"), 1)
			h.WantNothing("state")
			nodetest.Equal(t, "printed", h.Printed.String(), "")
		})
	}
}

// If a choice cannot be undone, no other is tried. The record stays, and DEL removes
// it.
func TestNoChoiceIsTriedAfterAnUndoThatFailed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		choices string
		trace   []string
	}{
		{choicesOf("stuck", "bridge"), []string{"ADD stuck eth0", "DEL stuck eth0"}},
		{choicesOf("full", "stuck", "bridge"), []string{"ADD full eth0", "DEL full eth0", "ADD stuck eth0", "DEL stuck eth0"}},
	} {
		h := newHost(t, "1.0.0")
		nodetest.Fails(t, h.run("ADD", tt.choices), 107, "no free address", "undoing it failed as well", "device is busy")
		h.WantTrace(tt.trace...)
		nodetest.Equal(t, "there is a record", len(h.Files("state")) > 0, true)
		nodetest.Fails(t, h.run("DEL", tt.choices), 108, "device is busy")
		h.Exec.Plugins["stuck"] = delegatetest.Result(nil)
		h.mustRun("DEL", tt.choices)
		h.WantNothing("state")
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// If the result cannot be printed, no other choice is tried.
func TestNoChoiceIsTriedWhenNobodyReads(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	h.Process.Stdout = brokenPipe{}
	nodetest.Fails(t, h.run("ADD", choicesOf("full", "bridge", "tuning")), 5, "choices[0]", "no free address", "choices[1]", "cannot print")
	h.WantTrace("ADD full eth0", "DEL full eth0", "ADD bridge eth0", "DEL bridge eth0")
	h.WantNothing("state")
}

// If the interface name is in use, no choice is tried, and the DEL after that runs none.
func TestNameInUseRunsNoChoice(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	h.Taken = []string{"lo", "eth0"}
	err := h.run("ADD", choicesOf("full", "bridge"))
	nodetest.Fails(t, err, 7, "ADD c1 eth0", "is in use")
	nodetest.Equal(t, "times it is said", strings.Count(fmt.Sprint(err), "in use"), 1)
	h.mustRun("DEL", choicesOf("full", "bridge"))
	h.WantTrace()
	h.WantNothing("state")
}

// A choice inherits name and version, and receives the capability arguments that it
// declares. The result has the version of the configuration.
func TestChoiceIsCompleted(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	mac := map[string]any{"mac": "02:00:00:00:00:01"}
	keys := `"runtimeConfig":{"mac":"02:00:00:00:00:01","x":1},"choices":[
		{"type":"full","capabilities":{"mac":true}},
		{"type":"bridge","name":"spare","cniVersion":"0.4.0","capabilities":{"mac":true}}]`
	h.mustRun("ADD", keys)
	for plugin, want := range map[string]request{
		"full":   {Name: "pods", CNIVersion: "1.1.0", RuntimeConfig: mac},
		"bridge": {Name: "spare", CNIVersion: "0.4.0", RuntimeConfig: mac},
	} {
		nodetest.Equal(t, plugin, h.last("ADD", plugin), want)
	}
	nodetest.Equal(t, "printed", strings.TrimSpace(h.Printed.String()), `{"cniVersion":"1.1.0"}`)
	h.mustRun("DEL", "") // the arguments are from the record
	nodetest.Equal(t, "arguments", h.last("DEL", "bridge").RuntimeConfig, mac)
	h.WantNothing("state")
}

// STATUS succeeds if one choice is ready. Otherwise it has the reasons of all.
func TestStatus(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, choices string
		code          uint
		says, trace   []string
	}{
		{"the first is ready", choicesOf("bridge", "down"), 0, nil, []string{"STATUS bridge"}},
		{"the last is ready", choicesOf("absent", "down", "bridge"), 0, nil, []string{"STATUS down", "STATUS bridge"}},
		{"none is ready", choicesOf("absent", "down"), 50, []string{"choices[0]", `"absent"`, "; choices[1]", "no daemon"}, []string{"STATUS down"}},
		{"limited", choicesOf("down", "limited"), 51, []string{"no daemon", "uplink lost"}, []string{"STATUS down", "STATUS limited"}},
		{"one is ready, another limited", choicesOf("limited", "bridge"), 0, nil, []string{"STATUS limited", "STATUS bridge"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.1.0")
			nodetest.Fails(t, h.run("STATUS", tt.choices), tt.code, tt.says...)
			h.WantTrace(tt.trace...)
		})
	}
}

// GC removes stale attachments and tells each choice which are valid.
func TestGC(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	keys := `"choices":[{"type":"bridge","name":"first"},{"type":"tuning","name":"second"},{"type":"absent"}]`
	works := delegatetest.Result(nil)
	h.mustRun("ADD", keys, programtest.As("c1"))
	h.mustRun("ADD", keys, programtest.As("c2"))
	h.Exec.Plugins["bridge"] = delegatetest.FailOn("ADD", 107, "no free address", works)
	h.mustRun("ADD", keys, programtest.As("c3"))
	h.mustRun("ADD", keys, programtest.As("c4"))
	h.Trace()

	valid := `,"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"},{"containerID":"c3","ifname":"eth0"}]`
	h.mustRun("GC", keys+valid)
	h.WantTrace("DEL bridge eth0 of c2", "DEL tuning eth0 of c4", "GC bridge", "GC tuning")
	for plugin, id := range map[string]string{"bridge": "c1", "tuning": "c3"} {
		nodetest.Equal(t, plugin+" is told", h.last("GC", plugin).Valid, []types.GCAttachment{{ContainerID: id, IfName: "eth0"}})
	}
	nodetest.Equal(t, "attached", h.Exec.Live(), []string{"bridge c1 eth0", "tuning c3 eth0"})

	// A recorded choice gets its GC even if its plugin is no longer installed:
	// there is something that nobody collects.
	delete(h.Exec.Plugins, "tuning")
	nodetest.Fails(t, h.run("GC", keys+valid), 7, `"tuning"`, "not found")

	// Stale attachments are removed even if the choices cannot be read.
	h.Exec.Plugins["tuning"] = works
	h.mustRun("GC", `"choices":5,"cni.dev/valid-attachments":[]`)
	h.WantNothing("state")
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
		{"no choices", ``, 7, []string{`"pods"`, `"choices"`}},
		{"null among them", `"choices":[{"type":"bridge"},null]`, 7, []string{`"pods"`, `"choices[1]"`, "null"}},
		{"not a list", `"choices":{"type":"bridge"}`, 6, []string{`"choices"`}},
		{"no type", `"choices":[{"type":"bridge"},{"mtu":5}]`, 7, []string{"type"}},
		{"a key twice", `"choices":[{"type":"bridge","mtu":1,"mtu":2}]`, 6, []string{"mtu"}},
		{"runtimeConfig of the wrong type", `"choices":[{"type":"bridge"}],"runtimeConfig":5`, 6, []string{`"runtimeConfig"`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.1.0")
			for _, command := range []string{"ADD", "STATUS"} {
				nodetest.Fails(t, h.run(command, tt.keys), tt.code, tt.says...)
			}
			h.WantTrace()
			h.WantNothing("state")
			h.mustRun("DEL", tt.keys)
		})
	}
}
