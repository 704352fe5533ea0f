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
	"unicode/utf8"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/multinet/doctor"
	"github.com/metacni/metacni/examples/multinet/help"
)

// A command is the first word of a command line, and what it does.
type command struct {
	name, args, about, example string
	words                      []int // how many arguments it may have
	flags                      func(*tool, *flag.FlagSet) runner
}

func commands() []command {
	return []command{
		{"list", "", "list attachments and their states", "-o json", []int{0}, (*tool).list},
		{"show", "[--timing] CONTAINER", "show the records of a container", "3f9c0e5b7a12", []int{1}, (*tool).show},
		{"status", "[--diff] CONTAINER", "print or compare its network-status", "--diff 3f9c0e5b7a12", []int{1}, (*tool).status},
		{"gc", "[--unknown] [--dry-run]", "detach stale attachments", "--dry-run", []int{0}, (*tool).gc},
		{"damaged", "", "list records that cannot be read", "--dir /var/lib/cni/multinet", []int{0}, (*tool).damaged},
		{"forget", "CONTAINER [NETWORK IFNAME]", "remove records, and run no plugin", "3f9c0e5b7a12 multinet eth0", []int{1, 3}, (*tool).forget},
		{"adopt", "[--dry-run]", "take over what others have attached", "--dry-run", []int{0}, (*tool).adopt},
		{"doctor", "", "say what hinders multinet on the node", "--root /host", []int{0}, (*tool).doctor},
		{"install", "[--watch]", "copy the program, publish its network", "--cluster-network 10-calico.conflist", []int{0}, (*tool).install},
		{"uninstall", "[--detach|--leave] [--binary]", "remove the published network", "--detach", []int{0}, (*tool).uninstall},
		{completionCommand, strings.Join(shells(), "|"), "print the completion of a shell", "bash", []int{1}, (*tool).completion},
	}
}

// usage returns the usage of all commands.
func usage() string {
	var text strings.Builder
	text.WriteString("usage: multinet COMMAND [FLAGS]\n")
	for _, c := range commands() {
		fmt.Fprintf(&text, "  %-10s %-29s %s\n", c.name, c.args, c.about)
	}
	return text.String() + `  --help, --version
multinet COMMAND --help prints the flags of a command, and an example.
A command that fails has the exit status 1. status --diff has 1 if something
differs, and 2 if it fails. list, show, status, damaged, doctor and
gc --dry-run take no lock and change nothing.`
}

// usage returns the usage of c alone.
func (c command) usage() string {
	return fmt.Sprintf("usage: multinet %s\n%s", strings.TrimSpace(c.name+" "+c.args), c.about)
}

// help prints the usage of c, its flags, and an example.
func (c command) help(w io.Writer, flags *flag.FlagSet) {
	fmt.Fprintln(w, c.usage())
	help.Flags(w, flags)
	fmt.Fprintf(w, "example: multinet %s %s\n", c.name, c.example)
}

// misused returns err with the usage of all commands.
func misused(err error) error { return fmt.Errorf("%w\n%s", err, usage()) }

// misused returns err with the usage of c.
func (c command) misused(format string, args ...any) error {
	return fmt.Errorf(format+"\n%s\nmultinet %s --help prints its flags", append(args, c.usage(), c.name)...)
}

// Run runs the command in args on the standard streams of process, and returns the exit
// status. It returns when the command is done; install --watch returns when ctx ends.
func Run(ctx context.Context, args []string, process plugin.System) (exit int) {
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
	if len(args) > 1 && args[0] == completionCommand && args[1] == wordsRequest {
		return t.complete(ctx, args[2:])
	}
	c := commandNamed(args[0])
	if c == nil {
		return misused(fmt.Errorf("there is no command %q", args[0]))
	}
	flags, do := c.new(t)
	words, err := parse(flags, args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		c.help(t.out, flags)
		return nil
	case err != nil:
		return c.misused("%w", err)
	case !slices.Contains(c.words, len(words)):
		return c.misused("%s does not take the arguments %q", c.name, words)
	case !slices.Contains([]string{"", "table", "wide", "json"}, t.form):
		return c.misused("-o %s: want table, wide or json", t.form)
	}
	return do(ctx, words)
}

// commandNamed returns the command with a name, or nil.
func commandNamed(name string) *command {
	for _, c := range commands() {
		if c.name == name {
			return &c
		}
	}
	return nil
}

// new returns the flags of c, and what runs it in t once they are parsed.
func (c command) new(t *tool) (*flag.FlagSet, runner) {
	flags := flag.NewFlagSet("multinet "+c.name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	return flags, c.flags(t, flags)
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
	process  plugin.System          // runs plugins

	life *lifecycle.Manager // of the records
	form string             // "table", "wide" or "json", or empty
}

// say writes a line to stderr.
func (t *tool) say(format string, args ...any) { fmt.Fprintf(t.ask, "multinet: "+format+"\n", args...) }

func (t *tool) formFlag(flags *flag.FlagSet) {
	flags.StringVar(&t.form, "o", "", "`form` of the output: table, wide or json")
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

// An output is the text of a command: a list for programs, and the same as a table for people.
type output struct {
	list []any
	rows [][]string
}

// newOutput returns an output without elements, whose table has this heading.
func newOutput(heading string) *output {
	return &output{list: []any{}, rows: [][]string{strings.Fields(heading)}}
}

// row adds a row to the table alone.
func (o *output) row(cells ...string) {
	for i, cell := range cells {
		cells[i] = cmp.Or(doctor.Printable(cell), "-")
	}
	o.rows = append(o.rows, cells)
}

// add adds an element, which is a row of the table.
func (o *output) add(element any, cells ...string) {
	o.list = append(o.list, element)
	o.row(cells...)
}

// screen is how many columns a table for people has, narrow how many a cell keeps that is
// shortened, and gap how many are between two cells.
const screen, narrow, gap = 80, 9, 2

// fit shortens cells of columns, the longest first, until the table fits on a screen. It keeps
// the beginnings and the ends of cells.
func (o *output) fit(columns ...int) {
	for limit := screen; limit >= narrow && o.width() > screen; limit-- {
		for _, row := range o.rows {
			for _, i := range columns {
				if cell := []rune(row[i]); len(cell) > limit {
					head := limit / 2
					row[i] = string(cell[:head]) + "…" + string(cell[len(cell)-(limit-head-1):])
				}
			}
		}
	}
}

// width returns how many columns of a screen the table has.
func (o *output) width() (width int) {
	for i := range o.rows[0] {
		widest := 0
		for _, row := range o.rows {
			widest = max(widest, utf8.RuneCountInString(row[i]))
		}
		width += widest + gap
	}
	return width - gap
}

// print prints o in the form of the flag -o.
func (t *tool) print(o *output) error {
	if t.form == "json" {
		e := json.NewEncoder(t.out)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(o.list)
	}
	table := tabwriter.NewWriter(t.out, 0, 0, gap, ' ', 0)
	for _, row := range o.rows {
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	return table.Flush()
}
