package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/examples/internal/daemon"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/examples/multinetd/cluster"
	"github.com/metacni/metacni/netconf"
)

const (
	defaultFile     = "/etc/cni/net.d/multus.d/daemon-config.json" // that of Multus
	defaultQueueDir = "/var/lib/cni/multinet.queue"

	// webhookCommand is the first argument of the program that makes it an admission webhook.
	webhookCommand = "webhook"

	// shimType is the type of the shim in configurations, and its file name.
	shimType = "multinet-shim"
)

// A config is the configuration of the daemon, from its file and its command line.
type config struct {
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

	publish  publishing
	resident residents
	cluster  cluster.Config
	given    map[string]string          // keys of the file as it has them, by their name in lower case
	override map[string]json.RawMessage // replaces keys of each request's configuration
	ignored  []string                   // keys of the file that have no effect
	ofMultus bool                       // the file is one of Multus
	version  bool                       // only print the version

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
		"connectionLimit": &c.ConnectionLimit, "drainTimeout": &c.DrainTimeout, "sweepInterval": &c.SweepInterval,
	}
	for _, more := range []map[string]any{c.publish.keys(), c.resident.keys(), c.cluster.Keys()} {
		maps.Copy(keys, more)
	}
	return keys
}

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
		SocketDir: wire.DefaultDir, QueueDir: defaultQueueDir, LogFormat: "text", SweepInterval: defaultSweepInterval, cluster: cluster.DefaultConfig(),
		given: make(map[string]string), override: make(map[string]json.RawMessage),
	}
}

// readConfig reads the command line and the configuration file. Without --config
// it reads defaultFile, which may be missing. For --help it writes to help and
// fails with [flag.ErrHelp].
func readConfig(args []string, defaultFile string, help io.Writer) (*config, error) {
	c := newConfig()
	file := ""
	flags := c.flags(&file, defaultFile)
	if err := parse(flags, args, help); err != nil {
		return nil, err
	}
	if err := c.readFile(file, defaultFile); err != nil {
		return nil, err
	}
	if err := c.flags(&file, defaultFile).Parse(args); err != nil { // again, because flags win over the file
		return nil, err
	}
	return c, c.check()
}

// readFile reads a configuration file. Without one it reads defaultFile, which may be missing.
func (c *config) readFile(file, defaultFile string) error {
	path := cmp.Or(file, defaultFile)
	data, err := daemon.ReadFile(path)
	if file == "" && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := c.read(data); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// parse parses a command line that has flags alone. For --help it writes to help and fails with
// [flag.ErrHelp].
func parse(flags *flag.FlagSet, args []string, help io.Writer) error {
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(help)
		flags.Usage()
	case err == nil && flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return err
}

// flags returns the command line, whose flags set the fields of c.
func (c *config) flags(file *string, defaultFile string) *flag.FlagSet {
	flags := flag.NewFlagSet("multinetd", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	text := func(field *string, name, usage string) { flags.StringVar(field, name, *field, usage) }
	text(file, "config", "configuration `file`; the default "+defaultFile+" may be missing")
	text(&c.SocketDir, "socket-dir", "`directory` of the socket "+wire.SocketName)
	text(&c.ChrootDir, "root", "root `directory` of the node, which has the plugins and network namespaces")
	text(&c.QueueDir, "queue-dir", "`directory` in which shims queue DELs; empty means no queue")
	text(&c.MetricsAddress, "metrics-address", "`address` for metrics and probes over TCP, in addition to the socket")
	text(&c.resident.Socket, "relay-socket", "`path` of the socket where resident plugins register; empty means none")
	text(&c.resident.Dir, "relay-dir", "`directory` of executables to launch as resident plugins; empty means none")
	text(&c.cluster.StartupTaint, "startup-taint", "`key` of a taint to remove from the node when the daemon is ready; empty means none")
	text(&c.LogFormat, "log-format", "text or json")
	flags.TextVar(&c.LogLevel, "log-level", c.LogLevel, "debug, info, warn or error")
	text(&c.installShim, "install-shim", "copy the program "+shimType+" from the directory of this program to a `directory` of plugins, and end")
	flags.BoolVar(&c.version, "version", c.version, "print the version")
	flags.Usage = func() {
		fmt.Fprintf(flags.Output(), "usage: multinetd [FLAGS]          the daemon\n       multinetd %s [FLAGS]  an admission webhook; see multinetd %[1]s --help\n", webhookCommand)
		flags.PrintDefaults()
	}
	return flags
}

// read reads the configuration file. Keys match in upper or lower case, as in
// encoding/json.
func (c *config) read(data []byte) error {
	all, err := netconf.Decode[map[string]json.RawMessage](data)
	if err != nil {
		return err
	}
	own, forRequests := folded(c.own()), folded(c.forRequests())
	for key, value := range all {
		name := strings.ToLower(key)
		if other, twice := c.given[name]; twice {
			return fmt.Errorf("%q and %q are the same key", min(key, other), max(key, other))
		}
		c.given[name] = key
		field, known := own[name]
		if !known {
			if field, known = forRequests[name]; known {
				c.override[key] = value
			} else {
				c.ignored = append(c.ignored, key)
				c.ofMultus = c.ofMultus || withoutEffect[name].multus
			}
		}
		if field == nil {
			continue
		}
		if err := json.Unmarshal(value, field); err != nil {
			return fmt.Errorf("key %q: %w", key, err)
		}
	}
	if c.ofMultus && c.given["legacyargs"] == "" {
		c.override["legacyArgs"] = json.RawMessage("true") // its networks may depend on it
	}
	slices.Sort(c.ignored)
	return nil
}

// folded returns keys in lower case.
func folded(keys map[string]any) map[string]any {
	lower := make(map[string]any)
	for key, field := range keys {
		lower[strings.ToLower(key)] = field
	}
	return lower
}

// findCluster finds out from the environment whether there is a Kubernetes cluster. If
// there is none its keys have no effect.
func (c *config) findCluster(environ []string, tokenFile string) error {
	err := c.cluster.Discover(func(key string) string { return daemon.Variable(environ, key) }, tokenFile)
	if !c.cluster.On() {
		c.ignore(c.cluster.Keys())
		return err
	}
	return errors.Join(err, c.checkNADDir())
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
