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
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/netconf"
)

const (
	defaultFile     = "/etc/cni/net.d/multus.d/daemon-config.json" // where Multus has it
	defaultQueueDir = "/var/lib/cni/multinet.queue"

	// shimType is the plugin type of the shim.
	shimType = "multinet-shim"
)

// A config is the configuration of the daemon, from its file and its command line.
type config struct {
	SocketDir       string
	ChrootDir       string // empty is the daemon's own root
	QueueDir        string // empty is no queue
	MetricsAddress  string // empty is none
	MetricsPort     uint16 // as Multus has it: of all addresses
	MultusMetrics   bool
	LogFormat       string
	LogLevel        level
	ConnectionLimit int // 0 is the server's default
	DrainTimeout    duration
	SweepInterval   duration // 0 is never

	publish  publishing
	resident residents
	override json.RawMessage // of each request's configuration; nil is none
	ignored  []string        // keys of the file that mean nothing here
	version  bool            // only say which

	// installShim is the directory to copy the shim to, if not empty. The
	// program does nothing else then.
	installShim string

	queueOnNode string // QueueDir before its links were followed

	// stateDir is where the records are, unless the runtime's configuration has
	// another cniDir and the file has none.
	stateDir string
}

// own returns the fields for the daemon's own keys of the file.
func (c *config) own() map[string]any {
	keys := map[string]any{
		"socketDir": &c.SocketDir, "chrootDir": &c.ChrootDir, "queueDir": &c.QueueDir,
		"metricsAddress": &c.MetricsAddress, "metricsPort": &c.MetricsPort, "multusMetrics": &c.MultusMetrics,
		"logFormat": &c.LogFormat, "logLevel": &c.LogLevel,
		"connectionLimit": &c.ConnectionLimit, "drainTimeout": &c.DrainTimeout, "sweepInterval": &c.SweepInterval,
	}
	maps.Copy(keys, c.publish.keys())
	maps.Copy(keys, c.resident.keys())
	return keys
}

// readConfig reads the command line and the file that it names, or the default file
// if that exists. If the command line asks for help, readConfig writes that to help
// and fails with [flag.ErrHelp].
func readConfig(args []string, defaultFile string, help io.Writer) (*config, error) {
	c := &config{SocketDir: wire.DefaultDir, QueueDir: defaultQueueDir, LogFormat: "text", SweepInterval: defaultSweepInterval}
	file := ""
	flags := c.flags(&file, defaultFile)
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(help)
		flags.Usage()
		return nil, err
	case err != nil:
		return nil, err
	case flags.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	data, err := os.ReadFile(cmp.Or(file, defaultFile))
	switch {
	case err == nil:
		if err := c.read(data); err != nil {
			return nil, fmt.Errorf("%s: %w", cmp.Or(file, defaultFile), err)
		}
	case file != "" || !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	if err := c.flags(&file, defaultFile).Parse(args); err != nil { // again, because flags win over the file
		return nil, err
	}
	return c, c.check()
}

// flags returns the command line, whose flags set the fields of c.
func (c *config) flags(file *string, defaultFile string) *flag.FlagSet {
	flags := flag.NewFlagSet("multinetd", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	text := func(field *string, name, usage string) { flags.StringVar(field, name, *field, usage) }
	text(file, "config", "configuration `file`; "+defaultFile+" if it is there")
	text(&c.SocketDir, "socket-dir", "`directory` of the socket "+wire.SocketName)
	text(&c.ChrootDir, "root", "root `directory` of the host, where plugins and network namespaces are")
	text(&c.QueueDir, "queue-dir", "`directory` in which shims leave their DELs; empty is none")
	text(&c.MetricsAddress, "metrics-address", "`address` for metrics over TCP, besides the socket")
	text(&c.resident.Socket, "relay-socket", "`path` where resident plugins register; empty is none")
	text(&c.resident.Dir, "relay-dir", "`directory` of executables to launch as resident plugins; empty is none")
	text(&c.LogFormat, "log-format", "text or json")
	flags.TextVar(&c.LogLevel, "log-level", c.LogLevel, "debug, info, warn or error")
	text(&c.installShim, "install-shim", "copy the program "+shimType+", which is beside this one, to a `directory` of plugins, and end")
	flags.BoolVar(&c.version, "version", c.version, "print the version")
	return flags
}

// read takes what the file says. Keys are those of JSON in Go: whatever the
// case of their letters.
func (c *config) read(data []byte) error {
	all, err := netconf.Decode[map[string]json.RawMessage](data)
	if err != nil {
		return err
	}
	own, multinets := c.own(), multinet.Keys()
	override := make(map[string]json.RawMessage)
	seen := make(map[string]string)
	for key, value := range all {
		folded := strings.ToLower(key)
		if other, twice := seen[folded]; twice {
			return fmt.Errorf("%q and %q are one key", min(key, other), max(key, other))
		}
		seen[folded] = key
		var target any
		for name, t := range own {
			if strings.EqualFold(name, key) {
				target = t
				if _, ok := c.publish.keys()[name]; ok {
					c.publish.given = append(c.publish.given, key)
				}
			}
		}
		switch {
		case target != nil:
			if err := json.Unmarshal(value, target); err != nil {
				return fmt.Errorf("key %q: %w", key, err)
			}
		case folded == "cniversion", folded == "type", !slices.ContainsFunc(multinets, func(k string) bool { return strings.EqualFold(k, key) }):
			c.ignored = append(c.ignored, key) // each request's own, or nobody's
		default:
			override[key] = value
			if strings.EqualFold(key, "readinessindicatorfile") { // for both
				if err := json.Unmarshal(value, &c.publish.Ready); err != nil {
					return fmt.Errorf("key %q: %w", key, err)
				}
			}
		}
	}
	slices.Sort(c.ignored)
	if len(override) > 0 {
		c.override, err = json.Marshal(override)
	}
	return err
}

// check checks the configuration and cleans its paths.
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
	return errors.Join(c.checkPublishing(), c.checkResidents())
}

// multinet is the configuration of multinet where no request brings one.
func (c *config) multinet() []byte {
	keys := map[string]json.RawMessage{"type": json.RawMessage(strconv.Quote(shimType))}
	_ = c.replace(keys)
	data, _ := json.Marshal(keys) // raw values that have been read
	return data
}

// replace is the [netconf.Edit] by which the server makes a configuration of
// multinet of that of a request: the keys of the file take the place of those that
// differ in the case of their letters alone.
func (c *config) replace(keys map[string]json.RawMessage) error {
	var own map[string]json.RawMessage
	_ = json.Unmarshal(c.override, &own) // made by read, or nil
	for key, value := range own {
		maps.DeleteFunc(keys, func(k string, _ json.RawMessage) bool { return strings.EqualFold(k, key) })
		keys[key] = value
	}
	return nil
}

// root returns the node's root directory.
func (c *config) root() plugin.Root { return plugin.Root(c.ChrootDir) }

type duration = multinet.Duration

// A level is a level of slog.
type level slog.Level

// MarshalText returns the level's name.
func (l level) MarshalText() ([]byte, error) { return slog.Level(l).MarshalText() }

// UnmarshalText sets the level by its name or by the name that Multus has for it.
func (l *level) UnmarshalText(text []byte) error {
	levels := map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
		"verbose": slog.LevelInfo, "panic": slog.LevelError,
	}
	found, ok := levels[strings.ToLower(string(text))]
	if !ok {
		return fmt.Errorf("%q is none of debug, info, warn and error", text)
	}
	*l = level(found)
	return nil
}
