package daemon

import (
	"encoding/json"
	"log/slog"
	"maps"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/internal/program"
	"github.com/metacni/metacni/examples/multinet/cluster"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/netconf"
)

const (
	defaultFile = "/etc/cni/net.d/multus.d/daemon-config.json" // that of Multus

	// webhookCommand is the first argument of the program that makes it an admission webhook.
	webhookCommand = "webhook"

	// shimType is the type of the shim in configurations, and its file name.
	shimType = "multinet-shim"
)

// A config is the configuration of the daemon, from its file and its command line.
type config struct {
	file string // of --config, or empty

	SocketDir       string
	ChrootDir       string // empty means the daemon's own root
	QueueDir        string // empty means no queue
	MetricsAddress  string // empty means none
	MetricsPort     uint16 // of all addresses, the key of Multus
	MultusMetrics   bool
	LogFormat       string
	LogLevel        level
	ConnectionLimit int // 0 means the server's default
	DrainTimeout    duration
	SweepInterval   duration // 0 means never
	SlowAfter       duration // negative means never

	publish  publishing
	resident residents
	cluster  cluster.Config
	given    map[string]string          // keys of the file as it has them, by their name in lower case
	override map[string]json.RawMessage // replaces keys of each request's configuration
	ignored  []string                   // keys of the file that have no effect
	repeated string                     // a key that the file has twice, with one value
	ofMultus bool                       // the file is one of Multus
	version  bool                       // only print the version

	// probe is a page of the daemon that runs: the program only asks for it.
	probe string

	// installShim is a directory: the program only copies the shim to it.
	installShim string

	queueOnNode string // QueueDir before its symbolic links were followed

	// stateDir is the directory of the records. If the file has no cniDir, the
	// configuration of a request may choose another one.
	stateDir string
}

// own maps the keys of the file that configure the daemon to fields.
func (c *config) own() map[string]any {
	keys := map[string]any{
		"socketDir": &c.SocketDir, "chrootDir": &c.ChrootDir, "queueDir": &c.QueueDir,
		"metricsAddress": &c.MetricsAddress, "metricsPort": &c.MetricsPort, "multusMetrics": &c.MultusMetrics,
		"logFormat": &c.LogFormat, "logLevel": &c.LogLevel,
		"connectionLimit": &c.ConnectionLimit, "drainTimeout": &c.DrainTimeout, "sweepInterval": &c.SweepInterval, "slowAfter": &c.SlowAfter,
	}
	for _, more := range []map[string]any{c.publish.keys(), c.resident.keys(), c.cluster.Keys()} {
		maps.Copy(keys, more)
	}
	return keys
}

// publishing is the part of the configuration about the published network.
type publishing struct {
	File         string          // "auto", or empty to publish nothing
	Dir          string          // directory of the published file
	Output       string          // name of the published file, without its extension
	From         string          // directory of the primary network
	Primary      string          // the only file of the primary network, or empty
	Ready        string          // readiness file, or empty
	Name         string          // of the published network
	Capabilities json.RawMessage // of the published network
	Network      json.RawMessage // more keys of the published network
	CacheDir     string          // cache directory of the runtime's libcni, or empty
	MultusDir    string          // state directory of Multus, or empty

	// Derived from these: the plugin to publish, the name of its network, the
	// configuration of its requests as the daemon sees it, and the directory of
	// their records. If nothing is published the last two are those of the daemon's own file.
	template netconf.Plugin
	network  string
	request  []byte
	stateDir string
}

// keys maps the keys of the file to fields. Multus has all keys but output,
// network, cniCacheDir and multusStateDir.
func (p *publishing) keys() map[string]any {
	return map[string]any{
		"multusConfigFile": &p.File, "cniConfigDir": &p.Dir, "output": &p.Output, "multusAutoconfigDir": &p.From, "multusMasterCNI": &p.Primary,
		"name": &p.Name, "capabilities": &p.Capabilities, "network": &p.Network, "cniCacheDir": &p.CacheDir, "multusStateDir": &p.MultusDir,
	}
}

// residents is the part of the configuration about resident plugins.
type residents struct {
	Socket string   // where they register; empty is none
	Dir    string   // executables to launch; empty is none
	Types  []string // reserved for them before they have registered
	Orphan duration // how long the types of one that has gone are reserved
}

// keys maps the keys of the configuration file to fields.
func (r *residents) keys() map[string]any {
	return map[string]any{"relaySocket": &r.Socket, "relayDir": &r.Dir, "relayTypes": &r.Types, "relayOrphan": &r.Orphan}
}

// on reports whether residents can register or be launched.
func (r *residents) on() bool { return r.Socket != "" || r.Dir != "" }

// forRequests maps keys of multinet, which replace those of each request, to fields if the
// daemon uses them too, and to nil otherwise.
func (c *config) forRequests() map[string]any {
	keys := make(map[string]any)
	for _, key := range multinet.Keys() {
		keys[key] = nil
	}
	delete(keys, "cniVersion") // belongs to each request
	delete(keys, "type")
	keys["readinessindicatorfile"], keys["nadDir"], keys["annotations"] = &c.publish.Ready, &c.cluster.NADDir, &c.cluster.Annotations
	return keys
}

// newConfig returns the defaults.
func newConfig() *config {
	return &config{
		SocketDir: multinet.DefaultSocketDir, QueueDir: multinet.DefaultQueueDir, LogFormat: "text", SweepInterval: defaultSweepInterval, SlowAfter: multinet.DefaultSlowAfter, cluster: cluster.DefaultConfig(),
		given: make(map[string]string), override: make(map[string]json.RawMessage),
	}
}

// defaultSweepInterval is how long the daemon pauses between two sweeps.
const defaultSweepInterval = duration(time.Minute)

// folded returns keys in lower case.
func folded(keys map[string]any) map[string]any {
	lower := make(map[string]any)
	for key, field := range keys {
		lower[strings.ToLower(key)] = field
	}
	return lower
}

// multinet returns the configuration of multinet that is used without a request.
func (c *config) multinet() []byte {
	keys := map[string]json.RawMessage{"type": json.RawMessage(strconv.Quote(shimType))}
	maps.Copy(keys, c.override)
	data, _ := json.Marshal(keys) // raw values that have been read
	return data
}

// replace is a [netconf.Edit] that does to keys what the server does to the
// configuration of each request: the keys in the file replace those of the same
// name, in upper or lower case.
func (c *config) replace(keys map[string]json.RawMessage) error {
	for key, value := range c.override {
		maps.DeleteFunc(keys, func(k string, _ json.RawMessage) bool { return strings.EqualFold(k, key) })
		keys[key] = value
	}
	return nil
}

// root returns the node's root directory.
func (c *config) root() plugin.Root { return plugin.Root(c.ChrootDir) }

type duration = multinet.Duration

// A level is a level of slog, written by its name.
type level slog.Level

// MarshalText writes the level's name.
func (l level) MarshalText() ([]byte, error) { return slog.Level(l).MarshalText() }

// UnmarshalText reads the name of a level, which may be one of Multus.
func (l *level) UnmarshalText(text []byte) error {
	switch strings.ToLower(string(text)) {
	case "verbose":
		text = []byte("info")
	case "panic":
		text = []byte("error")
	}
	return (*slog.Level)(l).UnmarshalText(text)
}

// A path is a configured path.
type path struct {
	key string  // of the file
	at  *string // the field
}

// tidy cleans paths, and fails if one is relative. Empty paths stay empty.
func tidy(paths ...path) error {
	for _, p := range paths {
		if *p.at == "" {
			continue
		}
		if err := program.Absolute(p.key, *p.at); err != nil {
			return err
		}
		*p.at = filepath.Clean(*p.at)
	}
	return nil
}
