package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"

	"github.com/metacni/metacni/examples/multinet/publish"
	"github.com/metacni/metacni/internal/kubetest"
)

// ask has a pod attached by the network of this name, with more keys of the runtime.
func (w *world) ask(t *testing.T, pod, network, keys string) {
	t.Helper()
	a := w.pod(t, pod)
	w.edit(pod, "blue")
	a.StdinData = []byte(strings.Replace(conf(annotated("blue")+keys), `"multi"`, `"`+network+`"`, 1))
	nodetest.OK(t, w.client.Execute(t.Context(), "ADD", a))
}

// What pods may have does not depend on when the daemon was started: it is what the last ADD
// of their network said, whichever daemon has served it. The file of the daemon takes
// precedence.
func TestPolicyOfARunningPodOutlivesTheDaemon(t *testing.T) {
	t.Parallel()
	w := newFollowing(t, "").start(t)
	w.ask(t, "one", "multi", `,"namespaceIsolation":true`)
	w.ask(t, "two", "other", `,"namespaceIsolation":false`)
	edit := func(when, selection string, may ...string) {
		t.Helper()
		for _, pod := range []string{"one", "two"} {
			forbidden := func() int { return w.told(pod, "FailedAddingInterface", "namespaceIsolation") }
			before := forbidden()
			w.edit(pod, "blue,"+selection)
			if slices.Contains(may, pod) {
				w.until(t, when+": "+pod+" has it", func() bool { return len(w.recorded(t, "c-"+pod)) == 2 })
				w.edit(pod, "blue")
				w.until(t, when+": "+pod+" does not have it", func() bool { return len(w.recorded(t, "c-"+pod)) == 1 })
			} else {
				w.until(t, when+": "+pod+" may not have it", func() bool { return forbidden() > before })
				w.edit(pod, "blue")
			}
		}
	}
	edit("the daemon of the ADD", "other/red", "two")
	w = w.next(t, following).start(t)
	edit("the next daemon", "other/red", "two")
	w = w.next(t, following+`,"namespaceIsolation":true`).start(t)
	edit("a daemon that isolates", "other/red")
	w = w.next(t, following+`,"namespaceIsolation":false`).start(t)
	edit("a daemon that does not", "other/red", "one", "two")
	for _, file := range []string{"multi", "other"} {
		text, err := os.ReadFile(w.dir + "/state.asked/" + file)
		if err != nil || strings.Contains(string(text), "runtimeConfig") {
			t.Errorf("%s, %v", text, err)
		}
	}
	nodetest.OK(t, os.WriteFile(w.dir+"/state.asked/multi", []byte("{"), 0o600))
	w = w.next(t, following)
	if n := strings.Count(w.logged.String(), "earlier daemon cannot be read"); n != 1 {
		t.Errorf("logged %d times: %s", n, w.logged)
	}
}

// What the daemon publishes is the configuration of the next ADD, whatever the last one asked.
func TestPublishedPolicyHoldsBeforeTheFirstADD(t *testing.T) {
	t.Parallel()
	w := newFollowing(t, "").start(t)
	w.ask(t, "one", publish.Network, `,"namespaceIsolation":false`)
	const keys = `,"multusConfigFile":"auto","cniConfigDir":"$DIR/net.d","name":"` + publish.Network + `","network":{"namespaceIsolation":true}`
	nodetest.OK(t, os.Mkdir(w.dir+"/net.d", 0o700))
	nodetest.OK(t, os.WriteFile(w.dir+"/net.d/10-pods.conf", []byte(`{"cniVersion":"1.0.0","name":"pods","type":"bridge"}`), 0o600))
	kubetest.Put(w.api, kubetest.Definition{Namespace: "other", Name: "green", Config: `{"cniVersion":"1.0.0","type":"bridge"}`})
	w = w.next(t, following+strings.ReplaceAll(keys, "$DIR", w.dir)).start(t)
	w.edit("one", "blue,other/green")
	w.until(t, "the pod may not have it", func() bool { return w.told("one", "FailedAddingInterface", "namespaceIsolation") > 0 })
	a := w.configs.of(w.conf.stateDir, publish.Network)
	if a.CNIPath != "/opt/other/bin" {
		t.Errorf("CNI_PATH %q", a.CNIPath)
	}
}

// A network for which nothing was asked has the daemon's own configuration, not that of
// another network.
func TestConfigurationIsThatOfTheSameNetwork(t *testing.T) {
	t.Parallel()
	var c addConfigs
	if got := string(c.of("/a", "blue").args().StdinData); got != "null" {
		t.Errorf("without any: %s", got)
	}
	for _, text := range []string{"own", "red 1", "blue 1", "red 2"} {
		network, conf, _ := strings.Cut(text, " ")
		if network == "own" {
			network, conf = "", "0"
		}
		a, err := newAddConfig(network, []byte(`{"type":"x`+conf+`","prevResult":{}}`), "")
		nodetest.OK(t, err)
		c.note("/a", a)
	}
	for network, want := range map[string]string{"blue": `{"type":"x1"}`, "red": `{"type":"x2"}`, "green": `{"type":"x0"}`} {
		if got := string(c.of("/a", network).args().StdinData); got != want {
			t.Errorf("%s: %s, want %s", network, got, want)
		}
	}
	if got := c.newest("/a").network; got != "red" {
		t.Errorf("the newest is of %s", got)
	}
}
