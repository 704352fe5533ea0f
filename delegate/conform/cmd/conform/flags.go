package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// options are the flags, and the plugin.
type options struct {
	path      string
	kind      string
	conf      string
	files     string
	delegates string
	idle      string
	dirs      []string // in which plugins are looked for
	links     []string
	daemon    []string
	fakes     map[string]string // files, by type
	args      string
	env       []string
	skip      map[string]string // reasons, by check
	strict    bool
	netns     choice
	timeout   time.Duration
	json      bool
	junit     string
	markdown  string
	baseline  string
	list      bool
}

const usage = `Usage: conform [flags] PATH

Conform checks that the CNI plugin at PATH does what the CNI specification 1.1
asks of it. The plugin really runs: as root, or where the kernel lets users make
namespaces, on a private host for each check; otherwise here.

  conform -conf bridge.json /opt/cni/bin/bridge

Exit status: 0 no check failed, 1 one failed, 2 the checks could not be made.

Flags:
`

// parse reads the arguments.
func (p process) parse() (*options, error) {
	o := &options{fakes: make(map[string]string), skip: make(map[string]string)}
	var path string
	f := flag.NewFlagSet("conform", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&o.conf, "conf", "", "`file` with the plugin's configuration: one JSON object, or a network configuration list that has the plugin. In it, {dir} stands for an empty directory that each check gets. Default: an object with the type only")
	f.Func("kind", "`kind` of the plugin: "+strings.Join(kinds(), ", ")+". Default: conform finds out", func(arg string) error {
		if o.kind = strings.ToLower(arg); !slices.Contains(kinds(), o.kind) {
			return fmt.Errorf("want one of %s", strings.Join(kinds(), ", "))
		}
		return nil
	})
	f.BoolVar(&o.strict, "strict", false, "make the checks for guarantees of metacni, too, which the specification does not give")
	f.StringVar(&o.files, "files", "", "copy the files in this `directory` to {dir} before each check, with {dir} replaced in them")
	f.StringVar(&o.delegates, "delegates", "", "`types` of the plugins that must run in an ADD, separated by commas; \"-\" means none. Default: each \"type\" in the configuration at ipam, delegate, delegates and plugins, and elsewhere if -path has a plugin of that name")
	f.StringVar(&o.idle, "idle", "", "`types` of more plugins to delegate to, which need not run in an ADD: a plugin that tries alternatives has the first in -delegates and the rest here")
	f.StringVar(&path, "path", "", "`directories` to look for plugins in, a list as in CNI_PATH. Default: that of the plugin, and CNI_PATH")
	f.Func("fake", "`type=file`: what the delegate of this type prints in ADD, a CNI result. Default: an address of 192.0.2.0/24 without a gateway", pair(func(typ, file string) { o.fakes[typ] = file }))
	f.Func("link", "`name` of an interface that the host must have, beside eth0; may be repeated. The names at master, device, link, parent and links in the configuration need no flag", func(name string) error {
		if !isLink(name) {
			return errors.New("no interface can have this name")
		}
		o.links = append(o.links, name)
		return nil
	})
	f.Func("daemon", "`command` with arguments that starts the daemon of the plugin, on each host that conform makes", func(arg string) (err error) {
		o.daemon, err = words(arg)
		return err
	})
	f.StringVar(&o.args, "args", "", "more of CNI_ARGS: `KEY=value;KEY=value`")
	f.Func("env", "`name=value` in the environment of the plugin. It has PATH, and no other of this process's variables", pair(func(name, value string) { o.env = append(o.env, name+"="+value) }))
	f.BoolFunc("netns", "make real containers: network namespaces, on a private host for each check, with root or in a user namespace. Default: where it can", func(arg string) error {
		b, err := strconv.ParseBool(arg)
		o.netns = choice(strconv.FormatBool(b))
		return err
	})
	f.DurationVar(&o.timeout, "timeout", 30*time.Second, "how long the plugin may take for one command")
	f.Func("skip", "`check=reason`: do not make this check", pair(func(check, reason string) { o.skip[check] = reason }))
	f.BoolVar(&o.json, "json", false, "print JSON instead of text")
	f.StringVar(&o.junit, "junit", "", "write a report as JUnit XML to this `file`, too")
	f.StringVar(&o.markdown, "markdown", "", "write a report as Markdown to this `file`, too")
	f.StringVar(&o.baseline, "baseline", "", "`file` that an earlier run with -json has printed: its findings are known, and do not fail")
	f.BoolVar(&o.list, "list", false, "print the checks, those of -kind if that is given, and exit")
	if err := f.Parse(p.args); errors.Is(err, flag.ErrHelp) {
		f.SetOutput(p.stdout)
		_, _ = io.WriteString(p.stdout, usage)
		f.PrintDefaults()
		return nil, err
	} else if err != nil {
		return nil, fmt.Errorf("%w: see conform -h", err)
	}
	if o.list {
		return o, nil
	}
	if f.NArg() != 1 {
		return nil, fmt.Errorf("want the path of one plugin, after the flags, and got %q: see conform -h", f.Args())
	}
	abs, err := filepath.Abs(f.Arg(0))
	if err != nil {
		return nil, err
	}
	if o.path, err = exec.LookPath(abs); errors.Is(err, fs.ErrNotExist) && filepath.Base(f.Arg(0)) == f.Arg(0) {
		o.path, err = exec.LookPath(f.Arg(0)) // in PATH
	}
	if err != nil {
		return nil, err
	}
	if path == "" {
		path = filepath.Dir(o.path) + string(filepath.ListSeparator) + p.getenv("CNI_PATH")
	}
	o.dirs = filepath.SplitList(path)
	return o, nil
}

// kinds are the names that -kind takes.
func kinds() []string { return []string{"meta", "main", "chained", "ipam", "shim"} }

// typ returns the type of the plugin.
func (o *options) typ() string { return strings.TrimSuffix(filepath.Base(o.path), ".exe") }

// getenv returns a variable of the environment.
func (p process) getenv(name string) (value string) {
	for _, kv := range p.environ {
		if k, v, _ := strings.Cut(kv, "="); k == name {
			value = v
		}
	}
	return value
}

// A choice is a flag that may be absent.
type choice string

const (
	on  choice = "true"
	off choice = "false"
)

// pair returns what a flag such as -env, which may be repeated, does with its value.
func pair(set func(key, value string)) func(string) error {
	return func(arg string) error {
		key, value, ok := strings.Cut(arg, "=")
		if !ok || key == "" {
			return errors.New("want NAME=VALUE")
		}
		set(key, value)
		return nil
	}
}

// words splits a command as a shell does. It knows spaces, quotes and backslashes.
func words(command string) (all []string, err error) {
	var word []rune
	var quote rune
	open, escaped := false, false // a word; after a backslash
	for _, c := range command {
		switch {
		case escaped:
			word, escaped = append(word, c), false
		case c == '\\' && quote != '\'':
			open, escaped = true, true
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			open, quote = true, c
		case quote == 0 && strings.ContainsRune(" \t\n", c):
			if open {
				all = append(all, string(word))
			}
			word, open = nil, false
		default:
			word, open = append(word, c), true
		}
	}
	if quote != 0 || escaped {
		return nil, errors.New("a quote is not closed")
	}
	if open {
		all = append(all, string(word))
	}
	if len(all) == 0 {
		return nil, errors.New("there is no command")
	}
	return all, nil
}

// list splits types at commas.
func list(types string) (all []string) {
	for typ := range strings.SplitSeq(types, ",") {
		if typ = strings.TrimSpace(typ); typ != "" && typ != "-" {
			all = append(all, typ)
		}
	}
	return all
}

// flags replaces the fields of conform.Config and Binary in a text by the flags
// that set them.
func flags(text string) string {
	names := map[string]string{
		"Stdin": "-conf, -files", "Delegates": "-delegates", "Idle": "-idle", "Fakes": "-fake", "NetNS": "-netns",
		"Kind": "-kind", "Links": "-link", "Timeout": "-timeout", "Skip": "-skip", "Env": "-env", "Daemon": "-daemon",
	}
	return regexp.MustCompile(`\b(?:(?:Config|Binary)\.)?[A-Z]\w+\b`).ReplaceAllStringFunc(text, func(word string) string {
		if name, ok := names[word[strings.Index(word, ".")+1:]]; ok {
			return name
		}
		return word
	})
}
