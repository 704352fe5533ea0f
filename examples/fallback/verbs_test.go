package main

import (
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate/delegatetest"
)

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
		{"no choices", `"choices":[]`, 7, []string{`"choices"`}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.1.0")
			wantError(t, h.run("STATUS", tt.choices), tt.code, tt.says...)
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
	of := func(id string) func(*skel.CmdArgs) { return func(a *skel.CmdArgs) { a.ContainerID = id } }
	h.mustRun(t, "ADD", keys, of("c1"))
	h.mustRun(t, "ADD", keys, of("c2"))
	h.Exec.Plugins["bridge"] = delegatetest.FailOn("ADD", 107, "no free address", works)
	h.mustRun(t, "ADD", keys, of("c3"))
	h.mustRun(t, "ADD", keys, of("c4"))
	h.Trace()

	valid := `,"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"},{"containerID":"c3","ifname":"eth0"}]`
	h.mustRun(t, "GC", keys+valid)
	h.WantTrace("DEL bridge eth0 of c2", "DEL tuning eth0 of c4", "GC bridge", "GC tuning")
	for plugin, id := range map[string]string{"bridge": "c1", "tuning": "c3"} {
		if got := h.last(t, "GC", plugin).Valid; !cmp.Equal(got, []types.GCAttachment{{ContainerID: id, IfName: "eth0"}}) {
			t.Errorf("%s is told that %v are valid, want %s", plugin, got, id)
		}
	}
	if diff := cmp.Diff([]string{"bridge c1 eth0", "tuning c3 eth0"}, h.Exec.Live()); diff != "" {
		t.Errorf("attached (-want +got):\n%s", diff)
	}

	// A recorded choice gets its GC even if its plugin is no longer installed:
	// there is something that nobody collects.
	delete(h.Exec.Plugins, "tuning")
	wantError(t, h.run("GC", keys+valid), 7, `"tuning"`, "not found")

	// Stale attachments are removed even if the choices cannot be read.
	h.Exec.Plugins["tuning"] = works
	h.mustRun(t, "GC", `"choices":5,"cni.dev/valid-attachments":[]`)
	h.WantNothing("state")
	wantError(t, h.run("GC", keys), 7, "no list of valid attachments")
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
		{"null", `"choices":null`, 7, []string{`"pods"`, `"choices"`}},
		{"empty", `"choices":[]`, 7, []string{`"pods"`, `"choices"`}},
		{"null among them", `"choices":[{"type":"bridge"},null]`, 7, []string{`"pods"`, `"choices[1]"`, "null"}},
		{"not a list", `"choices":{"type":"bridge"}`, 6, []string{`"choices"`}},
		{"no object", `"choices":[5]`, 6, []string{`choices`}},
		{"no type", `"choices":[{"type":"bridge"},{"mtu":5}]`, 7, []string{"type"}},
		{"empty plugins", `"choices":[{"name":"x","plugins":[]}]`, 7, []string{"plugins"}},
		{"name of the wrong type", `"choices":[{"type":"bridge","name":5}]`, 6, []string{"name"}},
		{"a key twice", `"choices":[{"type":"bridge","mtu":1,"mtu":2}]`, 6, []string{"mtu"}},
		{"runtimeConfig of the wrong type", `"choices":[{"type":"bridge"}],"runtimeConfig":5`, 6, []string{`"runtimeConfig"`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.1.0")
			for _, command := range []string{"ADD", "STATUS"} {
				wantError(t, h.run(command, tt.keys), tt.code, tt.says...)
			}
			h.WantTrace()
			h.WantNothing("state")
			h.mustRun(t, "DEL", tt.keys)
		})
	}
}
