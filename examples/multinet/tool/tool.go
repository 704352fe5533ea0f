// Package tool is the command line of multinet for operators. It lists records,
// detaches stale attachments, adopts what other programs have attached, and installs
// and uninstalls multinet.
package tool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
)

// A command is the first word of a command line, and what it does.
type command struct {
	name, args, about string
	words             []int // how many arguments it may have
	flags             func(*tool, *flag.FlagSet) runner
}

func commands() []command {
	return []command{
		{"list", "", "list all attachments and their states", []int{0}, (*tool).list},
		{"show", "CONTAINER", "show the records of a container", []int{1}, (*tool).show},
		{"status", "[--diff] CONTAINER", "print its network-status, or compare it with what the API has", []int{1}, (*tool).status},
		{"gc", "[--dry-run]", "detach stale attachments: their container is gone, or they could not be detached", []int{0}, (*tool).gc},
		{"damaged", "", "list the records that cannot be read", []int{0}, (*tool).damaged},
		{"forget", "CONTAINER [NETWORK IFNAME]", "remove records without running plugins; NETWORK IFNAME is the RECORD of list", []int{1, 3}, (*tool).forget},
		{"adopt", "[--dry-run]", "take over what other programs have attached", []int{0}, (*tool).adopt},
		{"install", "[--watch]", "copy the program and publish its network", []int{0}, (*tool).install},
		{"uninstall", "[--detach|--leave] [--binary]", "remove what is published", []int{0}, (*tool).uninstall},
	}
}

// usage returns the usage of all commands.
func usage() string {
	var text strings.Builder
	text.WriteString("usage: multinet COMMAND [FLAGS]\n")
	for _, c := range commands() {
		fmt.Fprintf(&text, "  %-39s %s\n", strings.TrimSpace(c.name+" "+c.args), c.about)
	}
	return text.String() + `  --help, --version
COMMAND --help prints the flags of a command. Commands exit with status 1 if they fail, and 0
otherwise; status --diff with 0 if nothing differs, 1 if something does, and 2 if it fails.
list, show, status, damaged and gc --dry-run take no lock and change nothing.`
}

// misused returns err with the usage of all commands.
func misused(err error) error { return fmt.Errorf("%w\n%s", err, usage()) }

// Run runs the command in args on the standard streams of process, and returns the exit
// status. It returns when the command is done; install --watch returns when ctx ends.
func Run(ctx context.Context, args []string, process plugin.Process) (exit int) {
	t := &tool{in: process.Stdin, out: process.Stdout, ask: process.Stderr, self: os.Executable, process: process}
	if in, ok := process.Stdin.(*os.File); ok {
		info, err := in.Stat()
		t.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	err := t.run(ctx, args)
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

// run is Run in t. Commands report damaged records after all others.
func (t *tool) run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return misused(errors.New("which command?"))
	}
	switch strings.TrimLeft(args[0], "-") {
	case "help", "h":
		_, err := fmt.Fprintln(t.out, usage())
		return err
	case "version":
		_, err := fmt.Fprintln(t.out, "multinet", plugin.Version())
		return err
	}
	all := commands()
	i := slices.IndexFunc(all, func(c command) bool { return c.name == args[0] })
	if i < 0 {
		return misused(fmt.Errorf("there is no command %q", args[0]))
	}
	c := all[i]
	flags := flag.NewFlagSet("multinet "+c.name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	do := c.flags(t, flags)
	words, err := parse(flags, args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(t.out, "usage: multinet %s\n%s\n", strings.TrimSpace(c.name+" "+c.args), c.about)
		flags.SetOutput(t.out)
		flags.PrintDefaults()
		return nil
	case err != nil:
		return misused(err)
	case !slices.Contains(c.words, len(words)):
		return misused(fmt.Errorf("%s does not take the arguments %q", c.name, words))
	case !slices.Contains([]string{"", "table", "json"}, t.form):
		return misused(fmt.Errorf("-o %s: want table or json", t.form))
	}
	return do(ctx, words)
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

// A runner runs a command, whose flags have been parsed, with its arguments.
type runner func(ctx context.Context, words []string) error

// A tool is one command of an operator, and what it has of the process that it runs in.
type tool struct {
	in       io.Reader
	out      io.Writer              // the command's output
	ask      io.Writer              // questions and messages
	terminal bool                   // in is a terminal
	self     func() (string, error) // returns the path of this program
	process  plugin.Process         // runs plugins

	life *lifecycle.Manager // of the records
	form string             // "table" or "json", or empty
}

// say writes a line to stderr.
func (t *tool) say(format string, args ...any) { fmt.Fprintf(t.ask, "multinet: "+format+"\n", args...) }

func (t *tool) formFlag(flags *flag.FlagSet) {
	flags.StringVar(&t.form, "o", "", "`form`, table or json")
}

// existing fails if dir, the value of a flag, does not exist, unless it is empty or the usual
// one.
func existing(name, dir, usual string) error {
	if dir == "" || dir == usual {
		return nil
	}
	if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("--%s: %w", name, err)
	}
	return nil
}

// An output is what a command prints: a list for programs, and the same as text for people.
type output struct {
	list []any
	text strings.Builder // a table, whose cells are separated by tabs
}

// newOutput returns an output without elements, whose table has this heading.
func newOutput(heading string) *output {
	o := &output{list: []any{}}
	o.row(strings.Fields(heading))
	return o
}

// add adds an element, which is a row of the table.
func (o *output) add(element any, cells ...string) {
	o.list = append(o.list, element)
	o.row(cells)
}

func (o *output) row(cells []string) {
	for i, cell := range cells {
		cells[i] = cmp.Or(cell, "-")
	}
	fmt.Fprintln(&o.text, strings.Join(cells, "\t"))
}

// print prints o in the form of the flag -o.
func (t *tool) print(o *output) error {
	if t.form == "json" {
		e := json.NewEncoder(t.out)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(o.list)
	}
	table := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
	_, err := io.WriteString(table, o.text.String())
	return errors.Join(err, table.Flush())
}
