package e2e

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestBadInputIsRefusedBeforeAnythingRuns: the error names the mistake and has
// the right code. No plugin runs and no file is written.
func TestBadInputIsRefusedBeforeAnythingRuns(t *testing.T) {
	type change func(w *world, p *pod)
	delegates := func(ds ...any) change { return func(_ *world, p *pod) { p.conf["delegates"] = ds } }
	key := func(name string, v any) change { return func(_ *world, p *pod) { p.conf[name] = v } }
	selects := func(s string) change {
		return func(_ *world, p *pod) { p.annotations = map[string]string{annotation: s} }
	}
	for name, c := range map[string]struct {
		change change
		code   uint
		words  []string
	}{
		"no delegates":          {delegates(), 7, []string{"delegates"}},
		"plugins is empty":      {delegates(object{"name": "x", "cniVersion": "1.0.0", "plugins": []any{}}), 7, []string{"plugins"}},
		"plugins is null":       {delegates(object{"name": "x", "cniVersion": "1.0.0", "plugins": nil}), 0, nil},
		"delegate without type": {delegates(object{"name": "x"}), 7, []string{"type"}},
		"delegate is a string":  {delegates("bridge"), 6, nil},
		"type is a number":      {delegates(object{"type": 7}), 6, []string{"type"}},
		"delegates is a string": {key("delegates", "bridge"), 6, []string{"delegates"}},
		"cniDir is a list":      {key("cniDir", []int{1}), 6, []string{"cniDir"}},
		"runtimeConfig a list":  {key("runtimeConfig", []int{1}), 6, []string{"runtimeConfig"}},
		"type is a path":        {delegates(object{"type": "../fake"}), 0, nil},
		"missing plugin":        {delegates(object{"type": "missing"}), 7, []string{"missing"}},
		"missing second plugin": {delegates(object{"name": "x", "cniVersion": "1.0.0", "plugins": []object{{"type": "fake"}, {"type": "missing"}}}), 7, []string{"missing"}},
		"delegates to itself":   {delegates(object{"type": "multinet"}), 7, []string{"multinet"}},
		"name for the kernel":   {func(_ *world, p *pod) { p.ifname = "net%d" }, 4, []string{"net%d"}},
		"name of 16 bytes":      {func(_ *world, p *pod) { p.ifname = strings.Repeat("x", 16) }, 4, nil},
		"name with a slash":     {func(_ *world, p *pod) { p.ifname = "a/b" }, 4, nil},
		"container with slash":  {func(_ *world, p *pod) { p.id = "a/b" }, 4, nil},
		"container dot dot":     {func(_ *world, p *pod) { p.id = ".." }, 4, nil},
		"network with slash":    {key("name", "../x"), 7, nil},
		"unknown network":       {selects("unknown"), 7, []string{"unknown"}},
		"network is a path":     {selects("../net.d/blue"), 0, nil},
		"annotation is garbage": {selects("[{"), 0, nil},
		"asked for net%d":       {selects(`[{"name":"blue","interface":"net%d"}]`), 0, []string{"net%d"}},
		"asked for twice":       {selects("blue@net1,blue@net1"), 7, []string{"net1"}},
		"asked for eth0":        {selects("blue@eth0"), 7, []string{"eth0"}},
		"annotation of numbers": {func(_ *world, p *pod) {
			p.conf["runtimeConfig"] = object{"io.kubernetes.cri.pod-annotations": object{annotation: 7}}
		}, 6, []string{"pod-annotations"}},
		"broken network file": {func(w *world, p *pod) {
			p.annotations = map[string]string{annotation: "broken"}
			if err := os.WriteFile(w.file("net.d", "10-broken.conf"), []byte(`{"name": "broken", "type": 7}`), 0o600); err != nil {
				t.Error(err)
			}
		}, 0, []string{"10-broken.conf", "type"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.network("blue", w.with(w.fake("blue"), object{"cniVersion": "1.0.0"}))
			p := w.pod(w.multinet("1.0.0", w.fake("a")))
			c.change(w, p)
			before := w.list(w.dir)
			a := w.call("ADD", p)
			if a.err == nil {
				t.Fatalf("attached: %s", a.stdout)
			}
			if c.code == 0 { // any of three codes
				if a.err.Code != 4 && a.err.Code != 6 && a.err.Code != 7 {
					t.Errorf("code %d: %s", a.err.Code, a.stdout)
				}
				c.code = a.err.Code
			}
			w.failed(a, c.code, c.words...)
			w.trace()
			var after []string
			for _, f := range w.list(w.dir) {
				if f != "state" {
					after = append(after, f)
				}
			}
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("files (-before +after):\n%s", diff)
			}
		})
	}
}

// TestInputThatIsNotJSONIsAnswered: every kind of input on stdin gets an error
// object with a code.
func TestInputThatIsNotJSONIsAnswered(t *testing.T) {
	w := newWorld(t)
	p := w.pod(w.multinet("1.0.0", w.fake("a")))
	for _, plugin := range []string{"multinet", "flannel"} {
		for _, stdin := range []string{"", "not JSON", "null", "[]", "7", `{"cniVersion": 1}`, `{"cniVersion":"1.0.0","name":"x","type":"` + plugin + `"} {}`} {
			a := w.wait(w.exec(built(plugin), map[string]string{
				"CNI_COMMAND": "ADD", "CNI_CONTAINERID": p.id, "CNI_NETNS": p.netns, "CNI_IFNAME": "eth0", "CNI_PATH": w.bin,
			}, []byte(stdin)))
			if a.err == nil {
				t.Errorf("%s: %q: %s", plugin, stdin, a.stdout)
			}
		}
	}
	w.nothingLeft()
}

// TestSecretsAreNeverPrinted: no part of a configuration is printed, neither to
// stderr nor in an error object.
func TestSecretsAreNeverPrinted(t *testing.T) {
	const secret = "hunter2"
	for _, fault := range []string{"", "fail", "noise", "garbage"} {
		t.Run("fault "+fault, func(t *testing.T) {
			w := newWorld(t)
			p := w.pod(w.multinet("1.0.0", w.with(w.fake("a", "ADD", fault), object{"password": secret})))
			for _, command := range []string{"ADD", "DEL"} {
				if a := w.call(command, p); strings.Contains(string(a.stdout)+a.stderr, secret) {
					t.Errorf("%s: the secret is out: %s %s", command, a.stdout, a.stderr)
				}
			}
			w.nothingLeft()
		})
	}
}

// TestMultinetInsideItselfFailsAtOnce: a multinet that would run inside itself
// under another name, with the same state directory and container, fails at
// once instead of waiting for its own lock.
func TestMultinetInsideItselfFailsAtOnce(t *testing.T) {
	w := newWorld(t)
	text, err := os.ReadFile(built("multinet"))
	if err != nil {
		t.Fatal(err)
	}
	w.private("fake")
	if err := os.WriteFile(w.file("bin", "other"), text, 0o700); err != nil {
		t.Fatal(err)
	}
	inner := w.multinet("1.0.0", w.fake("inner"))
	inner["type"] = "other"
	p := w.pod(w.multinet("1.0.0", w.fake("outer"), inner))
	a := w.fails(7, "ADD", p, nil)
	if a.took > 8*time.Second {
		t.Errorf("answered after %v", a.took)
	}
	w.trace("ADD outer eth0", "DEL outer eth0")
	w.nothingLeft()
}
