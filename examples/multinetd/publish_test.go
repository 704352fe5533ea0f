package main

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/autoconf"
)

func TestPublishingConfig(t *testing.T) {
	t.Parallel()
	root := node(t)
	nodetest.OK(t, os.Symlink("../run", root+"/var/run"))
	const annotations = `"io.kubernetes.cri.pod-annotations":true`
	auto := publishing{File: "auto", Dir: "/etc/cni/net.d", From: "/etc/cni/net.d", Output: "00-multinet"}
	for _, tt := range []struct {
		name, file string // $ROOT is a directory
		want       publishing
		plugin     string
		ignored    []string
		errs       string
	}{
		{name: "nothing", file: `{}`},
		{
			name: "without effect", file: `{"cniConfigDir":"x","name":"n","capabilities":{},"multusMasterCNI":"x","network":{},"readinessindicatorfile":"/r"}`,
			ignored: []string{"capabilities", "cniConfigDir", "multusMasterCNI", "name", "network"},
		},
		{name: "auto", file: `{"multusConfigFile":"auto"}`, want: auto, plugin: `{"capabilities":{` + annotations + `},"name":"multinet","type":"multinet-shim"}`},
		{
			name: "everything",
			file: `{"multusConfigFile":"auto","cniConfigDir":"/out/","output":"00-multus-multinet","MULTUSautoconfigDir":"/in","multusMasterCNI":"10-x.conflist","readinessindicatorfile":"/r","name":"n",
				"capabilities":{"mac":true},"network":{"cniDir":"/state","delPolicy":"exec","x":1.0},"socketDir":"/s","queueDir":"/q"}`,
			want: publishing{
				File: "auto", Dir: "/out", From: "/in", Output: "00-multus-multinet", Primary: "10-x.conflist", Ready: "/r", Name: "n",
				Capabilities: []byte(`{"mac":true}`), Network: []byte(`{"cniDir":"/state","delPolicy":"exec","x":1.0}`),
			},
			plugin: `{"capabilities":{` + annotations + `,"mac":true},"cniDir":"/state","daemonSocketDir":"/s","delPolicy":"exec","delQueueDir":"/q","name":"n","type":"multinet-shim","x":1.0}`,
		},
		{
			name:   "as the host sees it",
			file:   `{"multusConfigFile":"auto","chrootDir":"$ROOT","socketDir":"$ROOT/run/multus","queueDir":"$ROOT/q"}`,
			want:   publishing{File: "auto", Dir: root + "/etc/cni/net.d", From: root + "/etc/cni/net.d", Output: "00-multinet"},
			plugin: `{"capabilities":{` + annotations + `},"delQueueDir":"/q","name":"multinet","type":"multinet-shim"}`,
		},
		{
			name: "as the host has it by a link", file: `{"multusConfigFile":"auto","chrootDir":"$ROOT","queueDir":"/q","network":{"daemonSocketDir":"/var/run/multus/","delQueueDir":"/q"}}`,
			want: publishing{
				File: "auto", Dir: root + "/etc/cni/net.d", From: root + "/etc/cni/net.d", Output: "00-multinet",
				Network: []byte(`{"daemonSocketDir":"/var/run/multus/","delQueueDir":"/q"}`),
			},
			plugin: `{"capabilities":{` + annotations + `},"daemonSocketDir":"/var/run/multus/","delQueueDir":"/q","name":"multinet","type":"multinet-shim"}`,
		},
		{
			name: "its own words win", file: `{"multusConfigFile":"auto","name":"n","capabilities":{"mac":true},"network":{"name":"m","capabilities":{"io.kubernetes.cri.pod-annotations":false}}}`,
			want: publishing{
				File: "auto", Dir: "/etc/cni/net.d", From: "/etc/cni/net.d", Output: "00-multinet", Name: "n", Capabilities: []byte(`{"mac":true}`),
				Network: []byte(`{"name":"m","capabilities":{"io.kubernetes.cri.pod-annotations":false}}`),
			},
			plugin: `{"capabilities":{"io.kubernetes.cri.pod-annotations":false},"name":"m","type":"multinet-shim"}`,
		},
		{
			name: "no queue", file: `{"multusConfigFile":"auto","queueDir":""}`, want: auto,
			plugin: `{"capabilities":{` + annotations + `},"name":"multinet","queuePolicy":"fail","type":"multinet-shim"}`,
		},
		{name: "a file of Multus", file: `{"multusConfigFile":"/etc/multus.conf"}`, errs: "multusConfigFile"},
		{name: "wrong type", file: `{"multusConfigFile":true}`, errs: "multusConfigFile"},
		{name: "relative directory", file: `{"multusConfigFile":"auto","cniConfigDir":"x"}`, errs: "cniConfigDir"},
		{name: "a path instead of a name", file: `{"multusConfigFile":"auto","output":"x/00-multinet"}`, errs: "output"},
		{name: "relative source", file: `{"multusConfigFile":"auto","multusAutoconfigDir":"x"}`, errs: "multusAutoconfigDir"},
		{name: "relative cache", file: `{"multusConfigFile":"auto","cniCacheDir":"x"}`, errs: "cniCacheDir"},
		{name: "relative state of Multus", file: `{"multusConfigFile":"auto","multusStateDir":"x"}`, errs: "multusStateDir"},
		{name: "relative readiness file", file: `{"multusConfigFile":"auto","readinessindicatorfile":"x"}`, errs: "readinessindicatorfile"},
		{name: "readiness of the wrong type", file: `{"readinessindicatorfile":1}`, errs: "readinessindicatorfile"},
		{name: "replaced delegates", file: `{"multusConfigFile":"auto","Delegates":[]}`, errs: "Delegates"},
		{name: "replaced network", file: `{"multusConfigFile":"auto","clusterNetwork":"x"}`, errs: "clusterNetwork"},
		{name: "published delegates", file: `{"multusConfigFile":"auto","network":{"delegates":[]}}`, errs: "delegates"},
		{name: "published type", file: `{"multusConfigFile":"auto","network":{"type":"x"}}`, errs: "type"},
		{name: "published for no pod", file: `{"multusConfigFile":"auto","network":{"defaultNetworks":"x"}}`, errs: "defaultNetworks"},
		{name: "published socket elsewhere", file: `{"multusConfigFile":"auto","network":{"daemonSocketDir":"/run/x"}}`, errs: "daemonSocketDir"},
		{name: "published queue elsewhere", file: `{"multusConfigFile":"auto","network":{"delQueueDir":"/q"}}`, errs: "delQueueDir"},
		{name: "published queue of nobody", file: `{"multusConfigFile":"auto","queueDir":"","network":{"delPolicy":"queue"}}`, errs: "queueDir"},
		{name: "published queue of the wrong type", file: `{"multusConfigFile":"auto","network":{"delQueueDir":5}}`, errs: "delQueueDir"},
		{name: "no object", file: `{"multusConfigFile":"auto","network":[]}`, errs: "network"},
		{name: "capabilities of the wrong type", file: `{"multusConfigFile":"auto","capabilities":[]}`, errs: "capabilities"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, err := configOf(t, strings.ReplaceAll(tt.file, "$ROOT", root))
			if tt.errs != "" {
				nodetest.Says(t, err, tt.errs)
				return
			}
			nodetest.OK(t, err)
			nodetest.Equal(t, "configuration", c.publish, tt.want, cmpopts.IgnoreUnexported(publishing{}))
			nodetest.Equal(t, "ignored", c.ignored, tt.ignored)
			m := c.manager()
			if (m == nil) != (tt.plugin == "") {
				t.Fatalf("%v", m)
			}
			if m != nil {
				if want := strings.TrimPrefix(filepath.Join(c.publish.Dir, c.publish.Output), c.ChrootDir); m.Output != want {
					t.Errorf("published as %s, want %s", m.Output, want)
				}
				got, err := m.Template.MarshalJSON()
				if diff := cmp.Diff(tt.plugin, string(got)); diff != "" || err != nil {
					t.Errorf("%v (-want +got):\n%s", err, diff)
				}
			}
		})
	}
}

// publishes is a world with a network and a readiness file, which a daemon
// publishes a network for.
func publishes(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	w := newWorld(t, `,"multusConfigFile":"auto","cniConfigDir":"`+dir+`","readinessindicatorfile":"`+dir+`/ready","cniCacheDir":"`+dir+`/cni","multusStateDir":"`+dir+`/multus"`)
	w.put(t, "ready", "")
	w.put(t, "10-x.conflist", `{"cniVersion":"1.1.0","name":"blue","plugins":[{"type":"bridge","password":"hunter2hunter2"}]}`)
	return w
}

func (w *world) put(t *testing.T, name, text string) {
	t.Helper()
	nodetest.OK(t, os.WriteFile(filepath.Join(w.conf.publish.Dir, name), []byte(text), 0o600))
}

// request is what a runtime has of the published network for the shim.
func (w *world) request(t *testing.T) string {
	t.Helper()
	n, err := netconf.LoadFile(os.DirFS(w.conf.publish.Dir), "00-multinet.conflist")
	nodetest.OK(t, err)
	request, err := n.Request(0, netconf.Request{})
	nodetest.OK(t, err)
	return string(request)
}

// ended expects the daemon to end by itself with want.
func (w *world) ended(t *testing.T, want error) {
	t.Helper()
	if got := <-w.states; got != "STOPPING=1" {
		t.Errorf("the service manager is told %s", got)
	}
	err := w.stop()
	w.stop = func() error { return nil }
	nodetest.Is(t, err, want)
}

// A daemon that is ready has published a network that leads to it. The file stays
// when the daemon ends.
func TestReadyDaemonHasPublishedItsNetwork(t *testing.T) {
	t.Parallel()
	w := publishes(t).start(t)
	request := w.request(t)
	nodetest.Code(t, w.client.Execute(t.Context(), "ADD", w.args(request)), 0)
	w.wantTrace(t, "ADD bridge eth0")
	if _, err := os.Stat(filepath.Join(w.conf.stateDir, "c1@multinet@eth0.json")); err != nil {
		t.Errorf("not recorded under the network's name: %v", err)
	}
	nodetest.Code(t, w.client.Execute(t.Context(), "DEL", w.args(request)), 0)
	if code, body := w.get(t, wire.PathReady); code != http.StatusOK {
		t.Errorf("/readyz: %d %s", code, body)
	}
	_, text := w.get(t, "/metrics")
	if got := series(t, text); got["multinetd_network_published"] != 1 || got["multinetd_network_writes_total"] != 1 || got["multinetd_network_restores_total"] != 0 {
		t.Errorf("metrics:\n%s", text)
	}
	nodetest.Code(t, w.stop(), 0)
	if w.request(t) != request {
		t.Error("changed at the end")
	}
	if log := w.logged.String(); !strings.Contains(log, `"msg":"network"`) || strings.Contains(log, "hunter2") {
		t.Errorf("log:\n%s", log)
	}
}

// The daemon is not ready before its network is published, and says why.
func TestNotReadyUntilPublished(t *testing.T) {
	t.Parallel()
	w := publishes(t)
	nodetest.OK(t, os.Remove(w.conf.publish.Ready))
	w.begin(t)
	w.until(t, "the daemon says why", func() bool { return strings.Contains(w.logged.String(), autoconf.ErrNotReady.Error()) })
	if code, body := w.get(t, wire.PathReady+"?verbose"); code != http.StatusServiceUnavailable || !strings.Contains(body, "not published") || !strings.Contains(body, autoconf.ErrNotReady.Error()) {
		t.Errorf("/readyz: %d %s", code, body)
	}
	select {
	case got := <-w.states:
		t.Errorf("the service manager is told %s", got)
	default:
	}
	w.put(t, "ready", "")
	if got := <-w.states; got != "READY=1" {
		t.Errorf("the service manager is told %s", got)
	}
	if code, body := w.get(t, wire.PathReady); code != http.StatusOK {
		t.Errorf("/readyz: %d %s", code, body)
	}
}

// A network that can never be published ends the daemon.
func TestNetworkThatCannotBePublishedEndsTheDaemon(t *testing.T) {
	t.Parallel()
	w := publishes(t)
	w.manager.Primary = "../x"
	w.begin(t)
	w.ended(t, autoconf.ErrInvalid)
}

// cached has the runtime attach a container to the network blue, as its libcni
// records it.
func (w *world) cached(t *testing.T, container, text string) string {
	t.Helper()
	conf := `{"cniVersion":"1.0.0","name":"blue","plugins":[{"type":"bridge"}]}`
	if text == "" {
		text = fmt.Sprintf(`{"kind":"cniCacheV1","containerId":%q,"config":%q,"ifName":"eth0","networkName":"blue","netns":"/no-such-directory/x","result":{"cniVersion":"1.0.0"}}`,
			container, base64.StdEncoding.EncodeToString([]byte(conf)))
	}
	file := filepath.Join(w.conf.publish.CacheDir, "results", "blue-"+container+"-eth0")
	nodetest.OK(t, os.MkdirAll(filepath.Dir(file), 0o700))
	nodetest.OK(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// A container that the runtime attached before the daemon started is taken over when
// the daemon is ready: its DEL removes it. What cannot be taken over is logged once.
func TestTakesOverWhatTheRuntimeAttached(t *testing.T) {
	t.Parallel()
	w := publishes(t)
	file := w.cached(t, "c1", "")
	w.cached(t, "c2", "{")
	w.start(t)
	request := w.request(t)
	w.put(t, "05-y.conflist", `{"cniVersion":"1.1.0","name":"green","plugins":[{"type":"macvlan"}]}`) // another pass
	nodetest.Code(t, w.client.Execute(t.Context(), "DEL", w.args(request)), 0)
	w.wantTrace(t, "DEL bridge eth0")
	if _, err := os.Lstat(file); err == nil {
		t.Error("the runtime's file is left")
	}
	w.final(t)
	logged := w.logged.String()
	for words, times := range map[string]int{"attachment taken over": 1, "attachment not taken over": 1, "blue-c2-eth0": 1} {
		if n := strings.Count(logged, words); n != times {
			t.Errorf("%q is logged %d times:\n%s", words, n, logged)
		}
	}
}

// The DEL of a container that the runtime has attached to the old network meanwhile, and that
// no pass has seen, removes it: the published network says where the runtime's cache is.
func TestDELRemovesWhatTheRuntimeAttachedMeanwhile(t *testing.T) {
	t.Parallel()
	w := publishes(t)
	w.start(t)
	request := w.request(t)
	file := w.cached(t, "c1", "")
	for range 2 {
		nodetest.Code(t, w.client.Execute(t.Context(), "DEL", w.args(request)), 0)
	}
	w.wantTrace(t, "DEL bridge eth0")
	if _, err := os.Lstat(file); err == nil {
		t.Error("the runtime's file is left")
	}
	w.clean(t)
}

// With chrootDir the records of others are read in the root of the node.
func TestTakesOverInTheRootOfTheNode(t *testing.T) {
	t.Parallel()
	root := node(t)
	nodetest.OK(t, os.Mkdir(root+"/tmp", 0o700)) // where a world has its directory
	w := newWorld(t, `,"multusConfigFile":"auto","chrootDir":"`+root+`","cniCacheDir":"`+root+`/run/cni"`)
	a := w.adopter(t.Context())
	if a.Node.Root != root || a.Node.CacheDir != "/run/cni" || a.Node.MultusDir != "/var/lib/cni/multus" || a.Life.Root != root || a.Life.Dir != root+w.dir+"/state" {
		t.Errorf("%+v, records in %s", a.Node, a.Life.Dir)
	}
}
