package daemon

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/examples/multinet/cluster"
	"github.com/metacni/metacni/examples/multinet/publish"
	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/autoconf"
)

func defaults(edit func(*config)) *config {
	c := newConfig()
	edit(c)
	c.cluster.Root = c.root()
	return c
}

// raw decodes an object, whose values stay as they are written.
func raw(object string) (keys map[string]json.RawMessage) {
	if err := json.Unmarshal([]byte(object), &keys); err != nil {
		panic(err)
	}
	return keys
}

// configOf reads a configuration file with this text, and a command line.
func configOf(t *testing.T, text string, args ...string) (*config, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "daemon.json")
	nodetest.OK(t, os.WriteFile(file, []byte(text), 0o600))
	return readConfig(args, file, nil)
}

// node makes a root directory as nodes have it.
func node(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	for _, dir := range []string{"/etc", "/run", "/var/lib", "/opt"} {
		nodetest.OK(t, os.MkdirAll(root+dir, 0o755))
	}
	return root
}

func TestConfig(t *testing.T) {
	t.Parallel()
	root, host := node(t), t.TempDir()
	for _, dir := range []string{"/etc", "/run"} { // mounts of a container
		nodetest.OK(t, os.Symlink(root+dir, host+dir))
	}
	for _, tt := range []struct {
		name string
		file string // $ROOT is a directory; empty is no file
		args []string
		want func(*config)
		errs string
	}{
		{name: "nothing", want: func(*config) {}},
		{
			name: "everything",
			file: `{"socketDir":"/run/x/","chrootDir":"$ROOT","queueDir":"/q","metricsAddress":"127.0.0.1:9","multusMetrics":true,"logFormat":"json",
				"logLevel":"debug","connectionLimit":7,"drainTimeout":"1m","sweepInterval":"0s","slowAfter":"-1s"}`,
			want: func(c *config) {
				*c = config{
					SocketDir: root + "/run/x", ChrootDir: root, QueueDir: root + "/q", MetricsAddress: "127.0.0.1:9", MultusMetrics: true, LogFormat: "json",
					LogLevel: level(slog.LevelDebug), ConnectionLimit: 7, DrainTimeout: duration(time.Minute), SlowAfter: -duration(time.Second), cluster: cluster.DefaultConfig(),
				}
			},
		},
		{
			name: "flags win",
			file: `{"socketDir":"/a","chrootDir":"/absent","queueDir":"/q","metricsAddress":"a:1","logFormat":"json","logLevel":"debug"}`,
			args: []string{"--socket-dir", "/b", "--root", root, "--queue-dir", "", "--metrics-address", "b:2", "--log-format", "text", "--log-level", "warn"},
			want: func(c *config) {
				c.SocketDir, c.ChrootDir, c.QueueDir, c.MetricsAddress, c.LogLevel = root+"/b", root, "", "b:2", level(slog.LevelWarn)
			},
		},
		{
			name: "Multus's own",
			file: `{"chrootDir":"$ROOT","cniVersion":"0.3.1","logLevel":"verbose","logToStderr":true,"cniConfigDir":"$HOST/etc/cni/net.d",
				"multusAutoconfigDir":"$HOST/etc/cni/net.d","multusConfigFile":"auto","socketDir":"$HOST/run/multus/","metricsPort":9091,"namespaceIsolation":true,
				"globalNamespaces":"default, shared","perNodeCertificate":{"enabled":true}}`,
			want: func(c *config) {
				c.ChrootDir, c.SocketDir, c.MetricsPort, c.MetricsAddress = root, root+"/run/multus", 9091, ":9091"
				c.QueueDir = root + c.QueueDir
				c.ignored, c.ofMultus = []string{"cniVersion", "logToStderr", "perNodeCertificate"}, true
				c.override = raw(`{"globalNamespaces":"default, shared","legacyArgs":true,"namespaceIsolation":true}`)
				c.publish = publishing{File: "auto", Dir: root + "/etc/cni/net.d", From: root + "/etc/cni/net.d", Output: "00-multinet"}
			},
		},
		{
			name: "multinet's keys are for requests, as they are written, and others have no effect",
			file: `{"binDir":"/opt/x","cniDir":"/state","runtimeConfig":{"n":9007199254740993,"y":[1.0]},"READINESSindicatorfile":"/f","SocketDir":"/s",
				"delegate":[],"logFile":"/l","type":"x","cniVersion":"1.0.0","name":"n","delPolicy":"exec","metricAddress":"x"}`,
			want: func(c *config) {
				c.SocketDir = "/s"
				c.override = raw(`{"READINESSindicatorfile":"/f","binDir":"/opt/x","cniDir":"/state","legacyArgs":true,"runtimeConfig":{"n":9007199254740993,"y":[1.0]}}`)
				c.ignored = []string{"cniVersion", "delPolicy", "delegate", "logFile", "metricAddress", "name", "type"}
				c.ofMultus = true
			},
		},
		{
			name: "shims get paths of the node",
			file: `{"chrootDir":"$ROOT","cniDir":"$HOST/run/state","binDir":"$ROOT/opt/x","clusterNetwork":"$HOST/etc/a.conf","confDir":"/etc/x",
				"readinessindicatorfile":"$HOST/run/f","multusNamespace":"n","parallel":true}`,
			want: func(c *config) {
				c.ChrootDir, c.SocketDir, c.QueueDir = root, root+c.SocketDir, root+c.QueueDir
				c.override = raw(`{"binDir":"/opt/x","clusterNetwork":"/etc/a.conf","cniDir":"/run/state","confDir":"/etc/x","multusNamespace":"n",` +
					`"parallel":true,"readinessindicatorfile":"/run/f"}`)
			},
		},
		{
			name: "Kubernetes",
			file: `{"kubeconfig":"/etc/k","nodeName":"n1","events":"off","nadDir":"/var/lib/nads/","annotations":"api","multusNamespace":"net","logToStderr":true,"legacyArgs":false}`,
			want: func(c *config) {
				c.cluster.Kubeconfig, c.cluster.Node, c.cluster.Events, c.cluster.NADDir, c.cluster.Annotations = "/etc/k", "n1", "off", "/var/lib/nads", "api"
				c.override = raw(`{"annotations":"api","legacyArgs":false,"multusNamespace":"net","nadDir":"/var/lib/nads/"}`)
				c.ignored, c.ofMultus = []string{"logToStderr"}, true
			},
		},
		{
			name: "resident plugins",
			file: `{"relaySocket":"/run/x/../relay.sock","relayDir":"/opt/relay.d/","relayTypes":["static"],"relayOrphan":"10m"}`,
			want: func(c *config) {
				c.resident = residents{Socket: "/run/relay.sock", Dir: "/opt/relay.d", Types: []string{"static"}, Orphan: duration(10 * time.Minute)}
			},
		},
		{
			name: "flags for the network and for resident plugins win", file: `{"multusConfigFile":"auto","cniConfigDir":"/a","relaySocket":"/a","relayDir":"/a"}`,
			args: []string{"--cni-config-dir", "/b/", "--relay-socket", "/b", "--relay-dir", ""},
			want: func(c *config) {
				c.publish.File, c.publish.Dir, c.publish.From, c.publish.Output, c.resident.Socket = "auto", "/b", "/b", "00-multinet", "/b"
			},
		},
		{name: "orphans without resident plugins", file: `{"relayOrphan":"1s"}`, errs: "relaySocket"},
		{name: "the socket of the daemon itself", file: `{"relaySocket":"/run/multus/multus.sock"}`, errs: "socket of the daemon itself"},
		{name: "a relative relaySocket", file: `{"relaySocket":"run/x"}`, errs: "relaySocket"},
		{name: "a type that is a path", file: `{"relayDir":"/a","relayTypes":["../static"]}`, errs: `"../static"`},
		{name: "the address before the port", file: `{"metricsPort":1,"metricsAddress":"a:2"}`, want: func(c *config) { c.MetricsPort, c.MetricsAddress = 1, "a:2" }},
		{name: "version", args: []string{"--version"}, want: func(c *config) { c.version = true }},

		{name: "not JSON", file: `{`, errs: "daemon.json"},
		{name: "a key twice", file: `{"x":1,"x":2}`, errs: `"x"`},
		{name: "privileges that are none", file: `{"delegatePrivileges":{"*":"none"}}`, errs: `"none" for "*" is neither "keep" nor "noNew"`},
		{name: "a key twice with one value, also in other letters", file: `{"legacyArgs":true,"legacyArgs":true,"LEGACYARGS":true,"connectionLimit":3,"ConnectionLimit":3}`, want: func(c *config) {
			c.repeated = "legacyArgs"
			c.ConnectionLimit, c.override = 3, map[string]json.RawMessage{"LEGACYARGS": json.RawMessage("true")}
		}},
		{name: "a key twice, in other letters", file: `{"binDir":"/a","bindir":"/b"}`, errs: `"binDir" and "bindir"`},
		{name: "a number for a duration", file: `{"drainTimeout":25}`, errs: `"drainTimeout"`},
		{name: "negative duration", file: `{"drainTimeout":"-1s"}`, errs: "drainTimeout"},
		{name: "the runtime's queue", args: []string{"--queue-dir", "/var/lib/cni"}, errs: "queueDir"},
		{name: "no root", args: []string{"--root", "/does/not/exist"}, errs: "chrootDir"},
		{name: "the host's root is no root", args: []string{"--root", "/"}, want: func(*config) {}},
		{name: "no socket", file: `{"socketDir":""}`, errs: "socketDir"},
		{name: "a path of no node", file: `{"chrootDir":"$ROOT","queueDir":"/proc/q"}`, errs: "queueDir"},
		{name: "isolation of the wrong type", file: `{"namespaceIsolation":"yes"}`, errs: "namespaceIsolation"},
		{name: "state of the wrong type", file: `{"cniDir":5}`, errs: "cniDir"},
		{name: "an argument", args: []string{"start"}, errs: `"start"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := configOf(t, strings.NewReplacer("$ROOT", root, "$HOST", host).Replace(cmp.Or(tt.file, "{}")), tt.args...)
			if tt.errs != "" {
				nodetest.Says(t, err, tt.errs)
				return
			}
			nodetest.OK(t, err)
			nodetest.Equal(t, "configuration", got, defaults(tt.want), gocmp.AllowUnexported(config{}), cmpopts.IgnoreFields(config{}, "queueOnNode", "stateDir", "given"), cmpopts.IgnoreUnexported(publishing{}))
		})
	}
}

// A configuration file that is named must exist. The default one may be missing.
func TestNamedFileMustExist(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	absent := filepath.Join(dir, "absent")
	_, err := readConfig(nil, absent, nil)
	nodetest.OK(t, err)
	_, err = readConfig([]string{"--config", absent}, absent, nil)
	nodetest.Is(t, err, os.ErrNotExist)
	named := filepath.Join(dir, "named")
	nodetest.OK(t, os.WriteFile(named, []byte(`{"socketDir":"/named"}`), 0o600))
	if c, err := readConfig([]string{"--config", named}, absent, nil); err != nil || c.SocketDir != "/named" {
		t.Errorf("%+v, %v", c, err)
	}
	var help bytes.Buffer
	if _, err := readConfig([]string{"--help"}, "/default/file", &help); !errors.Is(err, flag.ErrHelp) || !strings.Contains(help.String(), "/default/file") || !strings.Contains(help.String(), "multinetd webhook [FLAGS]") {
		t.Errorf("%v: %s", err, help.String())
	}
}

// Users write definitions. The daemon keeps no copy of them where it, or the runtime,
// would take the files for networks or plugins of the node.
func TestDefinitionsAreKeptApart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	nodetest.OK(t, os.Symlink("nets", filepath.Join(dir, "link")))
	nodetest.OK(t, os.Mkdir(filepath.Join(dir, "nets"), 0o700))
	const on = `"kubeconfig":"/absent",`
	for _, tt := range []struct{ file, says string }{
		{on + `"nadDir":"$DIR/nads","confDir":"$DIR/nets"`, ""},
		{on + `"nadDir":"$DIR/nets2","confDir":"$DIR/nets"`, ""},
		{`"nadDir":"$DIR/nets","confDir":"$DIR/nets"`, ""}, // which is read only
		{on + `"nadDir":"$DIR/nets/","CONFDIR":"$DIR//nets"`, "confDir"},
		{on + `"nadDir":"$DIR/link","confDir":"$DIR/nets"`, "confDir"},
		{on + `"nadDir":"/etc/cni/multinet/net.d"`, "confDir"},
		{on + `"nadDir":"$DIR/nets","multusConfigFile":"auto","cniConfigDir":"$DIR/nets"`, "cniConfigDir"},
		{on + `"nadDir":"$DIR/nets","clusterNetwork":"$DIR/nets/10.conf"`, "clusterNetwork"},
		{on + `"nadDir":"$DIR/state","cniDir":"$DIR/state"`, "cniDir"},
	} {
		text := strings.ReplaceAll("{"+tt.file+"}", "$DIR", dir)
		c, err := configOf(t, text)
		nodetest.OK(t, err)
		err = c.findCluster(nil, filepath.Join(dir, "token"))
		if tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s: error %v, want %q", text, err, tt.says)
		}
	}
}

// The configuration that the daemon uses without a request consists of the keys in its file. The
// records of the published network are in the directory that its requests use: keys in the file
// replace those of the network, in upper or lower case.
func TestConfigurationWithoutARequest(t *testing.T) {
	t.Parallel()
	const published = `"multusConfigFile":"auto","network":{"cniDir":"/other"}`
	for text, want := range map[string]struct{ conf, records, published string }{
		`{"cniDir":"/state/","type":"x"}`:       {`{"cniDir":"/state/","type":"multinet-shim"}`, "/state", "/state"},
		`{"parallel":false,"CNIDIR":"/s"}`:      {`{"CNIDIR":"/s","parallel":false,"type":"multinet-shim"}`, "/s", "/s"},
		`{` + published + `}`:                   {`{"type":"multinet-shim"}`, "/var/lib/cni/multinet", "/other"},
		`{"cniDir":"/state",` + published + `}`: {`{"cniDir":"/state","type":"multinet-shim"}`, "/state", "/state"},
		`{"CNIDIR":"/state",` + published + `}`: {`{"CNIDIR":"/state","type":"multinet-shim"}`, "/state", "/state"},
	} {
		c, err := configOf(t, text)
		nodetest.OK(t, err)
		if got := string(c.multinet()); got != want.conf || c.stateDir != want.records || c.publish.stateDir != want.published {
			t.Errorf("%s: %s, records in %s, of the published network in %s", text, got, c.stateDir, c.publish.stateDir)
		}
	}
}

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
	nodetest.Equal(t, "logged", w.logged.Count("earlier daemon cannot be read"), 1)
}

// An ADD keeps the keys of a later release in what is saved, and replaces what is damaged.
func TestSavedConfigurationKeepsKeysOfALaterRelease(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/state"
	for _, tt := range []struct{ there, request, cniPath, want string }{
		{``, `{"type":"multinet","runtimeConfig":{}}`, "/bin", `{"cniPath":"/bin","conf":{"type":"multinet"}}`},
		{`{"later":{"b":[1.0]},"conf":{"type":"multinet","x":"<"},"cniPath":"/bin","a":null}`, `{"type":"multinet","y":1e3}`, "", `{"a":null,"cniPath":"","conf":{"type":"multinet","y":1e3},"later":{"b":[1.0]}}`},
		{`{"later":1`, `{"type":"multinet"}`, "", `{"cniPath":"","conf":{"type":"multinet"}}`},
	} {
		a, err := newAddConfig("multi", []byte(tt.request), tt.cniPath)
		nodetest.OK(t, err)
		if tt.there != "" {
			nodetest.OK(t, os.WriteFile(dir+".asked/multi", []byte(tt.there), 0o600))
		}
		for range 2 {
			nodetest.OK(t, a.save(dir))
			text, err := os.ReadFile(dir + ".asked/multi")
			nodetest.OK(t, err)
			nodetest.Equal(t, "saved after "+tt.there, string(text), tt.want)
		}
		var c addConfigs
		nodetest.OK(t, c.load(dir, netconf.Remove("none")))
		nodetest.Equal(t, "CNI_PATH", c.of(dir, "multi").CNIPath, tt.cniPath)
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
	nodetest.Equal(t, "CNI_PATH", a.CNIPath, "/opt/other/bin")
}

// A network for which nothing was asked has the daemon's own configuration, not that of
// another network.
func TestConfigurationIsThatOfTheSameNetwork(t *testing.T) {
	t.Parallel()
	var c addConfigs
	nodetest.Equal(t, "without any", string(c.of("/a", "blue").args().StdinData), "null")
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
		nodetest.Equal(t, network, string(c.of("/a", network).args().StdinData), want)
	}
	nodetest.Equal(t, "the newest is of", c.newest("/a").network, "red")
}

func TestPublishingConfig(t *testing.T) {
	t.Parallel()
	root := node(t)
	nodetest.OK(t, os.Symlink("../run", root+"/var/run"))
	const (
		annotations = `"io.kubernetes.cri.pod-annotations":true`
		at          = "/etc/cni/net.d/00-multinet from /etc/cni/net.d "
	)
	for _, tt := range []struct {
		name, file string // $ROOT is a directory
		want       string // what is published, from where, and the primary, the readiness file and the root
		plugin     string
		ignored    []string
		errs       string
	}{
		{name: "nothing", file: `{}`},
		{
			name: "without effect", file: `{"cniConfigDir":"x","name":"n","capabilities":{},"multusMasterCNI":"x","network":{},"readinessindicatorfile":"/r"}`,
			ignored: []string{"capabilities", "cniConfigDir", "multusMasterCNI", "name", "network"},
		},
		{name: "auto", file: `{"multusConfigFile":"auto"}`, want: at + "[  ]", plugin: `{"capabilities":{` + annotations + `},"name":"multinet","type":"multinet-shim"}`},
		{
			name: "everything",
			file: `{"multusConfigFile":"auto","cniConfigDir":"/out/","output":"00-multus-multinet","MULTUSautoconfigDir":"/in","multusMasterCNI":"10-x.conflist","readinessindicatorfile":"/r","name":"n",
				"capabilities":{"mac":true},"network":{"cniDir":"/state","delPolicy":"exec","x":1.0},"socketDir":"/s","queueDir":"/q"}`,
			want:   "/out/00-multus-multinet from /in [10-x.conflist /r ]",
			plugin: `{"capabilities":{` + annotations + `,"mac":true},"cniDir":"/state","daemonSocketDir":"/s","delPolicy":"exec","delQueueDir":"/q","name":"n","runtimeConfDir":"/out","type":"multinet-shim","x":1.0}`,
		},
		{
			name: "as the host has it by a link", file: `{"multusConfigFile":"auto","chrootDir":"$ROOT","queueDir":"/q","network":{"daemonSocketDir":"/var/run/multus/","delQueueDir":"/q"}}`,
			want:   at + "[  " + root + "]",
			plugin: `{"capabilities":{` + annotations + `},"daemonSocketDir":"/var/run/multus/","delQueueDir":"/q","name":"multinet","type":"multinet-shim"}`,
		},
		{
			name: "its own words win", file: `{"multusConfigFile":"auto","name":"n","capabilities":{"mac":true},"network":{"name":"m","capabilities":{"io.kubernetes.cri.pod-annotations":false}}}`,
			want: at + "[  ]", plugin: `{"capabilities":{"io.kubernetes.cri.pod-annotations":false},"name":"m","type":"multinet-shim"}`,
		},
		{
			name: "no queue", file: `{"multusConfigFile":"auto","queueDir":""}`, want: at + "[  ]",
			plugin: `{"capabilities":{` + annotations + `},"name":"multinet","queuePolicy":"fail","type":"multinet-shim"}`,
		},
		{name: "a file of Multus", file: `{"multusConfigFile":"/etc/multus.conf"}`, errs: "multusConfigFile"},
		{name: "a path instead of a name", file: `{"multusConfigFile":"auto","output":"x/00-multinet"}`, errs: "output"},
		{name: "replaced delegates", file: `{"multusConfigFile":"auto","Delegates":[]}`, errs: "Delegates"},
		{name: "replaced network", file: `{"multusConfigFile":"auto","clusterNetwork":"x"}`, errs: "remove clusterNetwork, and set multusMasterCNI"},
		{name: "published type", file: `{"multusConfigFile":"auto","network":{"type":"x"}}`, errs: "type"},
		{name: "published for no pod", file: `{"multusConfigFile":"auto","network":{"defaultNetworks":"x"}}`, errs: "defaultNetworks"},
		{name: "published socket elsewhere", file: `{"multusConfigFile":"auto","network":{"daemonSocketDir":"/run/x"}}`, errs: "daemonSocketDir"},
		{name: "published queue elsewhere", file: `{"multusConfigFile":"auto","network":{"delQueueDir":"/q"}}`, errs: "delQueueDir"},
		{name: "published queue of nobody", file: `{"multusConfigFile":"auto","queueDir":"","network":{"queuePolicy":"queue"}}`, errs: "queueDir"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, err := configOf(t, strings.ReplaceAll(tt.file, "$ROOT", root))
			if tt.errs != "" {
				nodetest.Says(t, err, tt.errs)
				return
			}
			nodetest.OK(t, err)
			nodetest.Equal(t, "ignored", c.ignored, tt.ignored)
			var got, plugin string
			if m := c.manager(); m != nil {
				text, err := m.Template.MarshalJSON()
				nodetest.OK(t, err)
				plugin, got = string(text), fmt.Sprint(m.Output, " from ", m.Dir, " ", []string{m.Primary, m.Ready, m.Root})
			}
			nodetest.Equal(t, "published", got, tt.want)
			nodetest.Equal(t, "plugin", plugin, tt.plugin)
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
	nodetest.Equal(t, "the service manager is told", <-w.states, "STOPPING=1")
	err := w.stop()
	w.stop = func() error { return nil }
	nodetest.Is(t, err, want)
}

// The daemon is not ready before its network is published, and says why. The network leads to it, and
// stays when the daemon ends.
func TestReadyDaemonHasPublishedItsNetwork(t *testing.T) {
	t.Parallel()
	w := publishes(t)
	nodetest.OK(t, os.Remove(w.conf.publish.Ready))
	w.begin(t)
	why := autoconf.ErrNotReady.Error()
	w.until(t, "the daemon says why", func() bool { return strings.Contains(w.logged.String(), why) })
	w.answers(t, wire.PathReady+"?verbose", http.StatusServiceUnavailable, "not published", why)
	nodetest.Equal(t, "told", len(w.states), 0)
	w.put(t, "ready", "")
	nodetest.Equal(t, "told", <-w.states, "READY=1")
	request := w.request(t)
	nodetest.Code(t, w.client.Execute(t.Context(), "ADD", w.args(request)), 0)
	w.wantTrace(t, "ADD bridge eth0")
	_, err := os.Stat(filepath.Join(w.conf.stateDir, "c1@multinet@eth0.json"))
	nodetest.Equal(t, "error of the record under the name of the network", err, nil)
	nodetest.Code(t, w.client.Execute(t.Context(), "DEL", w.args(request)), 0)
	wantSeries(t, w.scrape(t), map[string]float64{
		"multinetd_network_published": 1, "multinetd_network_writes_total": 1, "multinetd_network_restores_total": 0,
	})
	nodetest.Code(t, w.stop(), 0)
	nodetest.Equal(t, "published at the end", w.request(t), request)
	nodetest.Contains(t, "log", w.logged.String(), `"msg":"network"`)
	nodetest.Equal(t, "secrets in the log", w.logged.Count("hunter2"), 0)
}

// A network that can never be published ends the daemon.
func TestNetworkThatCannotBePublishedEndsTheDaemon(t *testing.T) {
	t.Parallel()
	w := publishes(t)
	w.manager.Primary = "../x"
	w.begin(t)
	w.ended(t, autoconf.ErrInvalid)
}

// cached has the runtime attach a container to the network blue, as its libcni records it.
func (w *world) cached(t *testing.T, container string) string {
	t.Helper()
	return (&nodetest.Node{TB: t, Dir: w.conf.publish.CacheDir}).Cached("", container,
		`{"cniVersion":"1.0.0","name":"blue","plugins":[{"type":"bridge"}]}`, "/no-such-directory/x")
}

// A container that the runtime attached before the daemon started is taken over when the daemon is
// ready: its DEL removes it. What cannot be taken over is logged once. The DEL of a container that the
// runtime has attached to the old network meanwhile, and that a pass need not have seen, removes it as
// well: the published network says where the runtime's cache is.
func TestTakesOverWhatTheRuntimeAttached(t *testing.T) {
	t.Parallel()
	w := publishes(t)
	files := []string{w.cached(t, "c1")}
	nodetest.OK(t, os.WriteFile(w.cached(t, "c2"), []byte("{"), 0o600))
	w.start(t)
	a := w.args(w.request(t))
	files = append(files, w.cached(t, "c3"))
	for _, id := range []string{"c3", "c3", "c1"} {
		a.ContainerID = id
		nodetest.OK(t, w.client.Execute(t.Context(), "DEL", a))
		if id == "c3" {
			w.put(t, "05-y.conflist", `{"cniVersion":"1.1.0","name":"green","plugins":[{"type":"macvlan"}]}`) // another pass
		}
	}
	w.wantTrace(t, "DEL bridge eth0", "DEL bridge eth0")
	for _, file := range files {
		_, err := os.Lstat(file)
		nodetest.Is(t, err, os.ErrNotExist)
	}
	w.final(t)
	for words, times := range map[string]int{`attachment taken over","container":"c1"`: 1, "attachment not taken over": 1, "blue-c2-eth0": 1} {
		nodetest.Equal(t, words, w.logged.Count(words), times)
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
