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
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

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
	maps.Copy(keys, c.publish.keys())
	maps.Copy(keys, c.resident.keys())
	maps.Copy(keys, c.cluster.Keys())
	return keys
}

// shared maps keys of multinet that the daemon uses too to fields, in lower case.
func (c *config) shared() map[string]any {
	return map[string]any{"readinessindicatorfile": &c.publish.Ready, "naddir": &c.cluster.NADDir, "annotations": &c.cluster.Annotations}
}

// readConfig reads the command line and the configuration file. Without --config
// it reads defaultFile, which may be missing. For --help it writes to help and
// fails with [flag.ErrHelp].
func readConfig(args []string, defaultFile string, help io.Writer) (*config, error) {
	c := &config{SocketDir: wire.DefaultDir, QueueDir: defaultQueueDir, LogFormat: "text", SweepInterval: defaultSweepInterval, cluster: cluster.DefaultConfig()}
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
	c.given, c.override = make(map[string]string), make(map[string]json.RawMessage)
	own, shared, multinets := folded(c.own()), c.shared(), multinet.Keys()
	for key, value := range all {
		name := strings.ToLower(key)
		if other, twice := c.given[name]; twice {
			return fmt.Errorf("%q and %q are the same key", min(key, other), max(key, other))
		}
		c.given[name] = key
		target := own[name]
		switch {
		case target != nil:
		case name == "cniversion", name == "type", !slices.ContainsFunc(multinets, func(k string) bool { return strings.EqualFold(k, key) }):
			c.ignored = append(c.ignored, key) // belongs to each request, or is unknown
			_, multus := withoutEffect(key)
			c.ofMultus = c.ofMultus || multus
		default:
			c.override[key] = value
			target = shared[name]
		}
		if target == nil {
			continue
		}
		if err := json.Unmarshal(value, target); err != nil {
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

// ignore notes that those of keys that the file has are without effect.
func (c *config) ignore(keys map[string]any) {
	for name := range folded(keys) {
		if key, ok := c.given[name]; ok {
			c.ignored = append(c.ignored, key)
		}
	}
	slices.Sort(c.ignored)
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

// check validates the configuration and derives everything else from it.
func (c *config) check() error {
	if c.SocketDir == "" {
		return errors.New(`socketDir "" is not an absolute path`)
	}
	if err := tidy([]path{{"chrootDir", &c.ChrootDir}}); err != nil {
		return err
	}
	if c.ChrootDir == "/" {
		c.ChrootDir = ""
	}
	if c.ChrootDir != "" {
		if info, err := os.Stat(c.ChrootDir); err != nil {
			return fmt.Errorf("chrootDir: %w", err)
		} else if !info.IsDir() {
			return fmt.Errorf("chrootDir %q is not a directory", c.ChrootDir)
		}
	}
	if c.QueueDir != "" {
		if _, err := plugin.CheckStateDir(c.root().OnNode(c.QueueDir)); err != nil {
			return fmt.Errorf("queueDir: %w", err)
		}
	}
	if c.LogFormat != "text" && c.LogFormat != "json" {
		return fmt.Errorf("logFormat %q is neither text nor json", c.LogFormat)
	}
	if c.ConnectionLimit < 0 {
		return fmt.Errorf("connectionLimit %d is negative", c.ConnectionLimit)
	}
	if c.DrainTimeout < 0 {
		return fmt.Errorf("drainTimeout %v is negative", time.Duration(c.DrainTimeout))
	}
	if c.SweepInterval < 0 {
		return fmt.Errorf("sweepInterval %v is negative", time.Duration(c.SweepInterval))
	}
	if c.MetricsAddress == "" && c.MetricsPort != 0 {
		c.MetricsAddress = net.JoinHostPort("", strconv.Itoa(int(c.MetricsPort)))
	}
	if err := c.findInRoot(); err != nil {
		return err
	}
	var err error
	if c.stateDir, err = multinet.StateDir(c.root(), c.multinet()); err != nil {
		return err
	}
	c.forShims()
	return errors.Join(c.checkPublishing(), c.checkResidents(), c.cluster.Check())
}

// forShims makes each path in override a path of the node: shims execute DELs with it while
// the daemon is away.
func (c *config) forShims() {
	if c.ChrootDir == "" {
		return
	}
	for key, value := range c.override {
		var path string
		if json.Unmarshal(value, &path) != nil || !filepath.IsAbs(path) {
			continue
		}
		if strings.EqualFold(key, "cniDir") {
			path = c.stateDir // which may be mounted elsewhere
		}
		c.override[key], _ = json.Marshal(c.root().OnNode(path)) // a string
	}
}

// overrides returns override for the server: nil replaces nothing.
func (c *config) overrides() json.RawMessage {
	if len(c.override) == 0 {
		return nil
	}
	text, _ := json.Marshal(c.override) // raw values that have been read
	return text
}

// multinet returns the configuration of multinet that is used without a request.
func (c *config) multinet() []byte {
	keys := map[string]json.RawMessage{"type": json.RawMessage(strconv.Quote(shimType))}
	_ = c.replace(keys)
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
	levels := map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
		"verbose": slog.LevelInfo, "panic": slog.LevelError,
	}
	found, ok := levels[strings.ToLower(string(text))]
	if !ok {
		return fmt.Errorf("%q is not debug, info, warn or error", text)
	}
	*l = level(found)
	return nil
}

// withoutEffect returns why a key of the configuration of Multus's daemon has no effect
// here. The reason is empty for any other key. multus is true if only files of Multus
// have the key.
func withoutEffect(key string) (why string, multus bool) {
	switch strings.ToLower(key) {
	case "cniversion":
		return "the version of each request counts", false
	case "type":
		return "the type of each request counts", false
	case "logtostderr", "logfile", "logoptions":
		return "the log goes to stderr", true
	case "pernodecertificate":
		return "no certificate is requested: the daemon uses the token of its pod, or kubeconfig", true
	case "retrydeleteonerror":
		return "a record is always kept until its DEL has succeeded", true
	case "forcecniversion":
		return "the published network has the version of the primary network", true
	case "overridenetworkname":
		return "name chooses the name of the published network", true
	case "daemonsocketdir":
		return "a key of the shim: the daemon's own is socketDir", false
	case "delqueuedir":
		return "a key of the shim: the daemon's own is queueDir", false
	case "delpolicy", "delqueuewait":
		return "a key of the shim: put it into network", false
	}
	return "", false
}
