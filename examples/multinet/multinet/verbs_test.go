package multinet

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
)

// ADD waits for the readiness indicator file, STATUS fails without it, and CHECK, DEL
// and GC ignore it. The clock is that of testing/synctest.
func TestReadinessIndicatorFile(t *testing.T) {
	t.Parallel()
	took := func(t *testing.T, want time.Duration, do func()) {
		t.Helper()
		start := time.Now()
		do()
		if got := time.Since(start); got != want {
			t.Errorf("took %v, want %v", got, want)
		}
	}
	bubble := func(name string, test func(t *testing.T, h *host, conf, file string)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHost(t, "1.1.0")
				file := filepath.Join(h.dir, "ready")
				test(t, h, keys(bridge, `"readinessindicatorfile":"`+file+`"`), file)
			})
		})
	}
	bubble("missing", func(t *testing.T, h *host, conf, file string) {
		t.Helper()
		took(t, readyTimeout, func() {
			wantError(t, h.run(t, "ADD", conf), 11, `"multi"`, "readinessindicatorfile", file)
		})
		took(t, 0, func() {
			wantError(t, h.run(t, "STATUS", conf), 50, `"multi"`, "readinessindicatorfile", file)
		})
		wantTrace(t, h)
		h.clean(t)
	})
	bubble("missing, with a timeout of its own", func(t *testing.T, h *host, conf, _ string) {
		t.Helper()
		for text, want := range map[string]time.Duration{"45s": 45 * time.Second, "0s": 0} {
			took(t, want, func() {
				wantError(t, h.run(t, "ADD", keys(conf, `"readinessTimeout":"`+text+`"`)), 11, "readinessindicatorfile")
			})
		}
		h.clean(t)
	})
	bubble("comes", func(t *testing.T, h *host, conf, file string) {
		t.Helper()
		time.AfterFunc(1990*time.Millisecond, func() { h.write(t, "ready", "") })
		took(t, 2*time.Second, func() { h.mustRun(t, "ADD", conf) })
		wantTrace(t, h, "ADD bridge eth0")
	})
	bubble("there, then gone", func(t *testing.T, h *host, conf, file string) {
		t.Helper()
		h.write(t, "ready", "")
		took(t, 0, func() { h.mustRun(t, "ADD", conf) })
		took(t, 0, func() { h.mustRun(t, "STATUS", conf) })
		nodetest.OK(t, os.Remove(file))
		took(t, 0, func() {
			h.mustRun(t, "CHECK", conf)
			h.mustRun(t, "GC", keys(conf, `"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]`))
			h.mustRun(t, "DEL", conf)
		})
		h.clean(t)
	})
	bubble("the caller gives up", func(t *testing.T, h *host, conf, _ string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		took(t, time.Second, func() {
			wantError(t, h.call(ctx, "ADD", h.conf(conf)), 11, "readinessindicatorfile")
		})
	})
	bubble("a configuration that is wrong is not waited with", func(t *testing.T, h *host, conf, _ string) {
		t.Helper()
		took(t, 0, func() {
			wantError(t, h.run(t, "ADD", strings.Replace(conf, `{"type":"bridge"}`, "5", 1)), 6, "delegates")
		})
	})
}

// STATUS answers 50 for what may become ready, 51 if a delegate does, and the code of
// the mistake if the configuration is wrong.
func TestStatus(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, keys string
		code       uint
		says       string
	}{
		{"ready", bridge, 0, ""},
		{"not asked for what pods select", keys(bridge, annotated("absent")), 0, ""},
		{"network that is not there yet", `"clusterNetwork":"absent"`, 50, `"absent"`},
		{"plugin that is not there yet", `"delegates":[{"type":"absent"}]`, 50, `"absent"`},
		{"not ready", `"delegates":[{"type":"later"}]`, 50, "come back"},
		{"limited", `"delegates":[{"type":"bridge"},{"type":"cut"}]`, 51, "cut off"},
		{"any other code", `"delegates":[{"type":"odd"}]`, 50, "odd"},
		{"nothing to attach", ``, 7, "delegates"},
		{"not the JSON expected", `"delegates":5`, 6, "delegates"},
		{"a bad file", `"clusterNetwork":"bad"`, 50, "bad.conf"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.1.0")
			h.exec.Plugins["later"] = delegatetest.FailOn("STATUS", 50, "come back", delegatetest.Result(nil))
			h.exec.Plugins["cut"] = delegatetest.FailOn("STATUS", 51, "cut off", delegatetest.Result(nil))
			h.exec.Plugins["odd"] = delegatetest.FailOn("STATUS", 100, "odd", delegatetest.Result(nil))
			wantError(t, h.run(t, "STATUS", tt.keys), tt.code, tt.says)
			h.clean(t)
		})
	}
}

func gcFor(attachments ...string) string {
	var all []string
	for _, a := range attachments {
		container, ifname, _ := strings.Cut(a, " ")
		all = append(all, `{"containerID":"`+container+`","ifname":"`+ifname+`"}`)
	}
	return `"cni.dev/valid-attachments":[` + strings.Join(all, ",") + `]`
}

// GC deletes attachments that the runtime does not list, and tells each delegate which
// of its own are valid.
func TestGC(t *testing.T) {
	t.Parallel()
	in := func(id string) func(*skel.CmdArgs) { return func(a *skel.CmdArgs) { a.ContainerID = id } }
	start := func(t *testing.T) *host {
		t.Helper()
		h := newHost(t, "1.1.0")
		h.mustRun(t, "ADD", keys(bridge, annotated("storage")))
		h.mustRun(t, "ADD", bridge, in("c2"))
		h.trace()
		return h
	}
	t.Run("stale", func(t *testing.T) {
		t.Parallel()
		h := start(t)
		h.mustRun(t, "GC", keys(`"delegates":[{"type":"bridge"},{"type":"tuning","name":"new"}]`, gcFor("c2 eth0")))
		got := h.trace()
		want := []string{"DEL tuning net1", "DEL macvlan net1", "DEL bridge eth0", "GC bridge", "GC tuning"}
		if strings.Join(got, ", ") != strings.Join(want, ", ") {
			t.Errorf("calls %q, want %q", got, want)
		}
		for _, c := range h.exec.Calls() {
			if c.String() == "GC bridge" && !strings.Contains(string(c.Stdin), `"cni.dev/valid-attachments":[{"containerID":"c2","ifname":"eth0"}]`) {
				t.Errorf("GC of bridge with %s", c.Stdin)
			}
			if c.String() == "GC tuning" && !strings.Contains(string(c.Stdin), `"cni.dev/valid-attachments":[]`) {
				t.Errorf("GC of a network that has no attachments with %s", c.Stdin)
			}
		}
		h.mustRun(t, "DEL", bridge, in("c2"))
		h.clean(t)
	})
	t.Run("old key", func(t *testing.T) {
		t.Parallel()
		h := start(t)
		h.mustRun(t, "GC", keys(bridge, strings.Replace(gcFor(), "valid-attachments", "attachments", 1)))
		h.clean(t)
	})
	t.Run("current configuration broken", func(t *testing.T) {
		t.Parallel()
		h := start(t)
		wantError(t, h.run(t, "GC", keys(`"clusterNetwork":"absent"`, gcFor())), 7, `"absent"`)
		h.clean(t)
	})
	for name, list := range map[string]string{
		"no list":                          `"x":1`,
		"null":                             `"cni.dev/valid-attachments":null`,
		"list of the wrong type":           `"cni.dev/valid-attachments":{}`,
		"list of nothings":                 `"cni.dev/valid-attachments":[{}]`,
		"list of what names no container":  `"cni.dev/valid-attachments":[{"ifname":"eth0"}]`,
		"list of what names no interface":  `"cni.dev/valid-attachments":[{"containerID":"c1"}]`,
		"list of which one element is bad": `"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"},null]`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := start(t)
			err := h.run(t, "GC", keys(bridge, list))
			code := uint(7)
			if strings.Contains(name, "type") {
				code = 6
			}
			wantError(t, err, code, "multi")
			wantTrace(t, h)
			if len(h.exec.Live()) == 0 {
				t.Error("everything is deleted")
			}
		})
	}
}

// A damaged record affects its own attachment only, and is reported each time.
func TestDamagedRecord(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	other := func(a *skel.CmdArgs) { a.ContainerID = "c2" }
	h.mustRun(t, "ADD", bridge)
	h.mustRun(t, "ADD", bridge, other)
	h.trace()
	h.write(t, "state/c1@multi@eth0.json", `[]`)
	for range 2 {
		for _, command := range []string{"ADD", "CHECK", "DEL"} {
			wantError(t, h.run(t, command, bridge), 5, "multi", "c1")
		}
	}
	wantTrace(t, h)
	wantError(t, h.run(t, "GC", keys(bridge, gcFor("c2 eth0"))), 5, "c1")
	h.mustRun(t, "CHECK", bridge, other)
	h.mustRun(t, "DEL", bridge, other)
	if live := strings.Join(h.exec.Live(), " "); live != "bridge c1 eth0" {
		t.Errorf("left: %q", live)
	}
}

// DEL works without a network namespace, and with one that does not exist.
func TestDELWithoutNamespace(t *testing.T) {
	t.Parallel()
	for _, netns := range []string{"", "/absent", "/proc/self/ns/net"} {
		h := newHost(t, "1.0.0")
		h.mustRun(t, "ADD", bridge)
		h.mustRun(t, "DEL", bridge, func(a *skel.CmdArgs) { a.Netns, a.Args = netns, "" })
		h.clean(t)
	}
}

// DEL of a network leaves other networks of the container alone. Under a name that the
// attachment does not have it removes the only one with its interface.
func TestDELOfOneOfSeveralNetworks(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	blue := strings.Replace(h.conf(bridge), `"multi"`, `"blue"`, 1)
	eth1 := func(a *skel.CmdArgs) { a.IfName = "eth1" }
	h.mustRun(t, "ADD", bridge)
	nodetest.OK(t, h.call(t.Context(), "ADD", blue, eth1))
	h.mustRun(t, "DEL", bridge)
	h.mustRun(t, "DEL", bridge)
	if live := h.exec.Live(); len(live) != 1 || live[0] != "bridge c1 eth1" {
		t.Errorf("left: %q", live)
	}
	h.mustRun(t, "DEL", bridge, eth1) // "blue" is called "multi" by now
	h.clean(t)
}

// The error about a damaged record says what an operator can do.
func TestDamagedRecordSaysWhatToDo(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	h.mustRun(t, "ADD", bridge)
	h.write(t, "state/c1@multi@eth0.json", "garbage")
	for _, command := range []string{"ADD", "CHECK", "DEL"} {
		wantError(t, h.run(t, command, bridge), 5, "corrupt record", `let "multinet forget" remove its record`)
	}
	wantError(t, h.run(t, "GC", keys(bridge, gcFor())), 5, `"multinet forget"`)
}

// CHECK, GC and DEL need no key of the configuration except the ones that find the
// record: the others may have any type.
func TestKeysOfTheWrongTypeDoNotStopDEL(t *testing.T) {
	t.Parallel()
	for _, key := range Keys() {
		if key == "name" || key == "cniDir" {
			continue
		}
		for _, value := range []string{`5`, `[[5]]`, `{"a":{"b":5}}`} {
			h := newHost(t, "1.1.0")
			h.mustRun(t, "ADD", bridge)
			broken := `"` + key + `":` + value
			h.mustRun(t, "CHECK", broken)
			h.mustRun(t, "GC", keys(broken, `"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]`))
			h.mustRun(t, "DEL", broken)
			h.clean(t)
		}
	}
}
