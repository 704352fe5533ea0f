package daemon

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/metacni/metacni/examples/internal/program"
	"github.com/metacni/metacni/examples/multinet/help"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/netconf"
)

// readConfig reads the command line and the configuration file. Without --config
// it reads defaultFile, which may be missing. For --help it writes to help and
// fails with [flag.ErrHelp]. The functions add flags. If it fails it returns what it has read.
func readConfig(args []string, defaultFile string, help io.Writer, more ...func(*flag.FlagSet)) (*config, error) {
	c := newConfig()
	flags := c.flags(defaultFile)
	for _, add := range more {
		add(flags)
	}
	if err := parse(flags, args, help); err != nil {
		return c, err
	}
	if err := c.readFile(defaultFile); err != nil {
		return c, err
	}
	if err := flags.Parse(args); err != nil { // again, because flags win over the file
		return c, err
	}
	return c, c.check()
}

// readFile reads the configuration file. Without one it reads defaultFile, which may be missing.
func (c *config) readFile(defaultFile string) error {
	path := cmp.Or(c.file, defaultFile)
	data, err := program.ReadFile(path)
	if c.file == "" && errors.Is(err, fs.ErrNotExist) {
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

// parse parses a command line that has flags alone. For --help it writes to out and fails with
// [flag.ErrHelp].
func parse(flags *flag.FlagSet, args []string, out io.Writer) error {
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(out)
		flags.Usage()
	case err == nil && flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q: %w", flags.Arg(0), errMisused)
	case err != nil:
		return fmt.Errorf("%w: %w", err, errMisused)
	}
	return err
}

var errMisused = errors.New("see multinetd --help")

// flags returns the command line, whose flags set the fields of c.
func (c *config) flags(defaultFile string) *flag.FlagSet {
	flags := flag.NewFlagSet("multinetd", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	text := func(field *string, name, usage string) { flags.StringVar(field, name, *field, usage) }
	text(&c.file, "config", "configuration `file`, instead of the one below")
	text(&c.SocketDir, "socket-dir", "`directory` of the socket "+multinet.SocketName)
	text(&c.ChrootDir, "root", "root `directory` of the node")
	text(&c.QueueDir, "queue-dir", "`directory` of queued DELs")
	text(&c.MetricsAddress, "metrics-address", "`address` of metrics and probes over TCP")
	text(&c.publish.Dir, "cni-config-dir", "`directory` of the runtime's networks")
	text(&c.resident.Socket, "relay-socket", "`path` of the socket where resident plugins register")
	text(&c.resident.Dir, "relay-dir", "`directory` of resident plugins to launch")
	text(&c.cluster.StartupTaint, "startup-taint", "`key` of a taint to remove from the node once ready")
	text(&c.LogFormat, "log-format", "`form` of the log: text or json")
	flags.TextVar(&c.LogLevel, "log-level", c.LogLevel, "`level`: debug, info, warn or error")
	text(&c.probe, "probe", "ask the running daemon for a `page`: /healthz or /readyz")
	text(&c.installShim, "install-shim", "copy "+shimType+" to a `directory` of plugins")
	flags.BoolVar(&c.version, "version", c.version, "print the version")
	flags.Usage = func() {
		fmt.Fprintf(flags.Output(), "usage: multinetd [FLAGS]          the daemon\n       multinetd %s [FLAGS]  a webhook; see multinetd %[1]s --help\n       multinetd %s [FLAGS]   says what hinders the daemon\n", webhookCommand, doctorCommand)
		help.Flags(flags.Output(), flags)
		fmt.Fprintf(flags.Output(), "%s has more keys, and may be missing.\nexample: multinetd --socket-dir /run/multus --log-level debug\n", defaultFile)
	}
	return flags
}

// read reads the configuration file. Keys match in upper or lower case, as in
// encoding/json. A key may stand twice with one value.
func (c *config) read(data []byte) error {
	all, err := netconf.Decode[map[string]json.RawMessage](data)
	if err != nil {
		return err
	}
	c.repeated = netconf.Repeated(data)
	own, forRequests := folded(c.own()), folded(c.forRequests())
	for _, key := range slices.Sorted(maps.Keys(all)) {
		name, value := strings.ToLower(key), all[key]
		if other, twice := c.given[name]; twice {
			if bytes.Equal(value, all[other]) {
				continue
			}
			return fmt.Errorf("%q and %q are the same key, with two values: remove one", other, key)
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

// findCluster finds out from the environment whether there is a Kubernetes cluster. If
// there is none its keys have no effect.
func (c *config) findCluster(environ []string, tokenFile string) error {
	err := c.cluster.Discover(func(key string) string { return program.Variable(environ, key) }, tokenFile)
	if !c.cluster.On() {
		c.ignore(c.cluster.Keys())
		return err
	}
	return errors.Join(err, c.checkNADDir())
}
