// Package tool is the command line of multinet for operators. It lists records,
// detaches stale attachments, adopts what other programs have attached, and installs
// and uninstalls multinet.
package tool

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/scratch"
)

// The usage of all commands is usageHead, the usage of each command, and usageRest.
const (
	usageHead = "usage: multinet COMMAND [--dir DIR] [-o table|json]\n"
	usageGC   = `gc also accepts --bin-dir, --conf-dir and --nad-dir, the directories of plugins, networks and
definitions of the configuration: a DEL that fails is tried with what they say now.
`
	usageRest = `  --help, --version
Commands exit with status 1 if they fail, and 0 otherwise. status --diff exits with 0 if
nothing differs, 1 if something does, and 2 if it fails.
list, show, status, damaged and gc --dry-run take no lock and change nothing.
` + usageGC + `
       multinet adopt [--dry-run] [FLAGS]  take over what other programs have attached
       multinet install [--watch] [FLAGS]  copy the program and publish its network
       multinet uninstall [--detach|--leave] [--binary] [FLAGS]  remove what is published
Add --help to one of these three for its flags`
)

// A command is one that works on the records in a directory.
type command struct {
	name  string
	usage string
	args  []int    // how many arguments it may have
	flags []string // that it has, beside --dir and -o
	run   func(t *tool, ctx context.Context, args []string) error
}

func commands() []command {
	return []command{
		{
			name: "list", args: []int{0}, run: func(t *tool, ctx context.Context, _ []string) error {
				return t.list(ctx, func(lifecycle.Record) bool { return true })
			},
			usage: "  list                                    list all attachments\n",
		},
		{
			name: "show", args: []int{1}, run: func(t *tool, ctx context.Context, args []string) error { return t.show(ctx, args[0]) },
			usage: "  show CONTAINER                          show the records of a container\n",
		},
		{
			name: "status", args: []int{1}, flags: []string{"diff", "socket-dir"}, run: (*tool).status,
			usage: `  status CONTAINER                        print its network-status (JSON, unless -o table)
  status --diff CONTAINER [--socket-dir DIR]  compare it with what the API has, which the
                                          daemon is asked for
`,
		},
		{
			name: "gc", args: []int{0}, flags: []string{"dry-run", "bin-dir", "conf-dir", "nad-dir"}, run: (*tool).gc,
			usage: `  gc [--dry-run]                          detach stale attachments: their container is
                                          gone, or they could not be detached before
`,
		},
		{
			name: "damaged", args: []int{0}, run: (*tool).damaged,
			usage: "  damaged                                 list the records that cannot be read\n",
		},
		{
			name: "forget", args: []int{1, 3}, flags: []string{"yes"}, run: (*tool).forget,
			usage: `  forget CONTAINER [NETWORK IFNAME] [--yes]  remove records without running plugins;
                                          NETWORK IFNAME is the RECORD that list shows
`,
		},
	}
}

// usageOf returns the usage of a command, or of all if it is none of them.
func usageOf(name string) string {
	var all strings.Builder
	for _, c := range commands() {
		switch {
		case c.name == name && name == "gc":
			return strings.TrimSuffix(usageHead+c.usage+usageGC, "\n")
		case c.name == name:
			return strings.TrimSuffix(usageHead+c.usage, "\n")
		}
		all.WriteString(c.usage)
	}
	return usageHead + all.String() + usageRest
}

// misused returns err with the usage of all commands.
func misused(err error) error { return fmt.Errorf("%w\n%s", err, usageOf("")) }

// A console is what a command has of the process that it runs in.
type console struct {
	in       io.Reader
	out      io.Writer              // the command's output
	ask      io.Writer              // questions and messages
	terminal bool                   // in is a terminal
	self     func() (string, error) // returns the path of this program
	process  plugin.Process         // runs plugins
}

// Run runs the command in args on the standard streams of process, and returns the exit
// status. It returns when the command is done; install --watch returns when ctx ends.
func Run(ctx context.Context, args []string, process plugin.Process) (exit int) {
	c := console{in: process.Stdin, out: process.Stdout, ask: process.Stderr, self: os.Executable, process: process}
	if in, ok := process.Stdin.(*os.File); ok {
		info, err := in.Stat()
		c.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	err := operate(ctx, args, c)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errDiffers): // which has been printed
		return 1
	}
	fmt.Fprintln(process.Stderr, "multinet:", err)
	if slices.ContainsFunc(args, isDiff) {
		return 2 // 1 means that something differs
	}
	return 1
}

// isDiff reports whether a word of a command line is the flag --diff.
func isDiff(word string) bool {
	name, _, _ := strings.Cut(strings.TrimLeft(word, "-"), "=")
	return name == "diff" && word[0] == '-'
}

// operate is Run on a console. Commands report damaged records after all others.
func operate(ctx context.Context, args []string, c console) error {
	switch {
	case len(args) == 0:
	case args[0] == "install" || args[0] == "uninstall":
		return install(ctx, args, c)
	case args[0] == "adopt":
		return takeOver(ctx, args[1:], c)
	}
	flags := flag.NewFlagSet("multinet", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	t := &tool{console: c, life: &lifecycle.Manager{}}
	flags.StringVar(&t.life.Dir, "dir", multinet.DefaultStateDir, "state directory (cniDir)")
	flags.StringVar(&t.form, "o", "", "table or json")
	flags.BoolVar(&t.dryRun, "dry-run", false, "print what would be removed, and change nothing")
	flags.StringVar(&t.binDir, "bin-dir", "", "directory of the plugins (binDir)")
	flags.StringVar(&t.confDir, "conf-dir", "", "directory of networks (confDir)")
	flags.StringVar(&t.nadDir, "nad-dir", "", "directory of definitions (nadDir)")
	flags.BoolVar(&t.yes, "yes", false, "do not ask")
	flags.BoolVar(&t.compare, "diff", false, "compare with what the API has")
	flags.StringVar(&t.socketDir, "socket-dir", "", "directory of the daemon's socket")
	version := flags.Bool("version", false, "print the version")
	words, err := parse(flags, args)
	switch {
	case errors.Is(err, flag.ErrHelp), err == nil && slices.Equal(words, []string{"help"}):
		_, err := fmt.Fprintln(c.out, usageOf(args[0]))
		return err
	case err != nil:
		return misused(err)
	case *version:
		_, err := fmt.Fprintln(c.out, "multinet", plugin.Version())
		return err
	}
	do := find(flags, words)
	if do == nil || !slices.Contains([]string{"", "table", "json"}, t.form) || t.socketDir != "" && !t.compare {
		return misused(fmt.Errorf("cannot understand %q", strings.Join(args, " ")))
	}
	if err := existing("dir", t.life.Dir, multinet.DefaultStateDir); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no directory %q: --dir must be the cniDir of the network", t.life.Dir)
	}
	if len(words) > 1 {
		if words[1], err = t.container(ctx, words[1]); err != nil {
			return err
		}
	}
	return do.run(t, ctx, words[1:])
}

// find returns the command of a command line, or nil if none has these words and flags.
func find(flags *flag.FlagSet, words []string) *command {
	for _, c := range commands() {
		if len(words) == 0 || c.name != words[0] || !slices.Contains(c.args, len(words)-1) {
			continue
		}
		fits := true
		flags.Visit(func(f *flag.Flag) {
			fits = fits && slices.Contains(append([]string{"dir", "o"}, c.flags...), f.Name)
		})
		if fits {
			return &c
		}
	}
	return nil
}

// A tool is one command of an operator.
type tool struct {
	console
	life *lifecycle.Manager // of the records

	form                               string // "table" or "json", or empty
	yes, dryRun, compare               bool
	binDir, confDir, nadDir, socketDir string
}

// parse parses flags before, between and after words, and returns the words.
func parse(flags *flag.FlagSet, args []string) (words []string, err error) {
	for len(args) > 0 {
		if err := flags.Parse(args); err != nil {
			return nil, err
		}
		if args = flags.Args(); len(args) > 0 {
			words, args = append(words, args[0]), args[1:]
		}
	}
	return words, nil
}

// print prints rows as a table with a heading, or all as JSON.
func (t *tool) print(all any, heading string, rows [][]string) error {
	if t.form == "json" {
		e := json.NewEncoder(t.out)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(all)
	}
	table := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{strings.Fields(heading)}, rows...) {
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	return table.Flush()
}

// damaged prints the records that cannot be read. It does not fail if there are some.
func (t *tool) damaged(ctx context.Context, _ []string) error {
	found, err := t.records(ctx, func(scratch.Key) bool { return true })
	all := []damagedView{}
	var rows [][]string
	for _, f := range found {
		if f.why != "" {
			all = append(all, damagedView{viewKey(f.key), f.why})
			rows = append(rows, []string{f.key.ContainerID, f.key.Network, f.key.IfName, f.why})
		}
	}
	return errors.Join(t.print(all, "CONTAINER NETWORK INTERFACE WHY", rows), err)
}

// container returns the ID of the container with records that is word or begins with
// word, which errors shorten to 12 characters. It returns word if there is none.
func (t *tool) container(ctx context.Context, word string) (string, error) {
	const shown = 12
	found, _ := t.records(ctx, func(k scratch.Key) bool { // the command reports errors
		return k.ContainerID == word || len(word) >= shown && strings.HasPrefix(k.ContainerID, word)
	})
	whole := word
	for _, f := range found {
		switch id := f.key.ContainerID; {
		case id == word:
			return word, nil
		case whole != word && whole != id:
			return "", fmt.Errorf("%q begins the IDs of more than one container", word)
		default:
			whole = id
		}
	}
	return whole, nil
}

var errNoRecord = errors.New("there is no record of it")

// of calls do with each record of a container; see each.
func (t *tool) of(ctx context.Context, container string, do func(lifecycle.Record) error) error {
	found := false
	err := t.each(ctx, func(r lifecycle.Record) error {
		if r.Key.ContainerID != container {
			return nil
		}
		found = true
		return do(r)
	})
	if !found {
		return errors.Join(fmt.Errorf("container %q: %w", container, errNoRecord), err)
	}
	return err
}

// each calls do with each record, even if others are damaged or do has failed.
func (t *tool) each(ctx context.Context, do func(lifecycle.Record) error) error {
	var errs []error
	for r, err := range t.life.Records(ctx) {
		if err == nil {
			err = do(r)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
