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
	"io/fs"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/scratch"
)

const usage = `usage: multinet COMMAND [--dir DIR] [-o table|json]
  list                                    list all attachments
  show CONTAINER                          show the records of a container
  status CONTAINER                        print its network-status (JSON, unless -o table)
  status --diff CONTAINER [--socket-dir DIR]  compare it with what the API has, which the
                                          daemon is asked for
  gc [--dry-run]                          detach stale attachments: their container is
                                          gone, or they could not be detached before
  damaged                                 list the records that cannot be read
  forget CONTAINER [NETWORK IFNAME] [--yes]  remove records without running plugins;
                                          NETWORK IFNAME is the RECORD that list shows
  --help, --version
Commands exit with status 1 if they fail, and 0 otherwise. status --diff exits with 0 if
nothing differs, 1 if something does, and 2 if it fails.
list, show, status, damaged and gc --dry-run take no lock and change nothing.
gc also accepts --bin-dir, --conf-dir and --nad-dir, the directories of plugins, networks and
definitions of the configuration: a DEL that fails is tried with what they say now.

       multinet adopt [--dry-run] [FLAGS]  take over what other programs have attached
       multinet install [--watch] [FLAGS]  copy the program and publish its network
       multinet uninstall [--detach|--leave] [--binary] [FLAGS]  remove what is published
Add --help to one of these three for its flags`

// usageOf returns the usage of a command, or of all if it is none of them.
func usageOf(command string) string {
	lines := strings.SplitAfter(usage, "\n")
	indented := func(line string) bool { return strings.HasPrefix(line, "   ") }
	i := slices.IndexFunc(lines, func(line string) bool {
		words := strings.Fields(line)
		return strings.HasPrefix(line, "  ") && !indented(line) && words[0] == command
	})
	if i < 0 {
		return usage
	}
	ofIt := func(line string) bool {
		words := strings.Fields(line)
		return indented(line) && len(words) > 0 && words[0] != "multinet" || strings.HasPrefix(line, "  "+command+" ")
	}
	end := slices.IndexFunc(lines[i+1:], func(line string) bool { return !ofIt(line) })
	text := strings.Join(lines[i:i+1+end], "") // the last line of usage is of no command
	if command == "gc" {
		_, flags, _ := strings.Cut(usage, "gc also accepts ")
		flags, _, _ = strings.Cut(flags, "\n\n")
		text += "gc also accepts " + flags + "\n"
	}
	return "usage: multinet COMMAND [--dir DIR] [-o table|json]\n" + strings.TrimSuffix(text, "\n")
}

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
	dir := flags.String("dir", multinet.DefaultStateDir, "state directory (cniDir)")
	dryRun := flags.Bool("dry-run", false, "print what would be removed, and change nothing")
	binDir := flags.String("bin-dir", "", "directory of the plugins (binDir)")
	confDir := flags.String("conf-dir", "", "directory of networks (confDir)")
	nadDir := flags.String("nad-dir", "", "directory of definitions (nadDir)")
	yes := flags.Bool("yes", false, "do not ask")
	diff := flags.Bool("diff", false, "compare with what the API has")
	socketDir := flags.String("socket-dir", "", "directory of the daemon's socket")
	version := flags.Bool("version", false, "print the version")
	form := flags.String("o", "", "table or json")
	words, err := parse(flags, args)
	switch {
	case errors.Is(err, flag.ErrHelp), err == nil && slices.Equal(words, []string{"help"}):
		_, err := fmt.Fprintln(c.out, usageOf(args[0]))
		return err
	case err != nil:
		return fmt.Errorf("%w\n%s", err, usage)
	case *version:
		_, err := fmt.Fprintln(c.out, "multinet", plugin.Version())
		return err
	}
	t := &tool{console: c, life: &lifecycle.Manager{Dir: *dir}, json: *form == "json", yes: *yes}
	command := strings.Join(words[:min(1, len(words))], "")
	var do func() error
	switch {
	case !slices.Contains([]string{"", "table", "json"}, *form),
		(*dryRun || *binDir != "" || *confDir != "" || *nadDir != "") && command != "gc",
		*yes && command != "forget",
		*diff && command != "status",
		*socketDir != "" && !*diff:
	case command == "list" && len(words) == 1:
		do = func() error { return t.list(ctx, func(lifecycle.Record) bool { return true }) }
	case command == "gc" && len(words) == 1:
		do = func() error { return t.gc(ctx, *dir, *binDir, *confDir, *nadDir) }
		if *dryRun {
			do = func() error { return t.list(ctx, unlessAdded) }
		}
	case command == "damaged" && len(words) == 1:
		do = func() error { return t.damaged(ctx) }
	case command == "show" && len(words) == 2:
		do = func() error { return t.show(ctx, words[1]) }
	case command == "status" && len(words) == 2 && *diff:
		do = func() error { return t.diff(ctx, words[1], cmp.Or(*socketDir, wire.DefaultDir)) }
	case command == "status" && len(words) == 2:
		t.json = *form != "table" // JSON is the default here
		do = func() error { return t.status(ctx, words[1]) }
	case command == "forget" && (len(words) == 2 || len(words) == 4):
		do = func() error { return t.forget(ctx, words[1:]) }
	}
	if do == nil {
		return fmt.Errorf("cannot understand %q\n%s", strings.Join(args, " "), usage)
	}
	if err := missing(*dir); err != nil {
		return err
	}
	if len(words) > 1 {
		if words[1], err = t.container(ctx, words[1]); err != nil {
			return err
		}
	}
	return do()
}

// missing fails if the state directory does not exist, as after a typing error. The
// default one may be missing: nothing has been attached yet.
func missing(dir string) error {
	if _, err := os.Stat(dir); dir == multinet.DefaultStateDir || !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("there is no directory %q: --dir must be the cniDir of the network", dir)
}

// A tool is one command of an operator.
type tool struct {
	console
	life *lifecycle.Manager
	json bool // instead of a table
	yes  bool // do not ask
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
	if t.json {
		e := json.NewEncoder(t.out)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(all)
	}
	return t.table(append([][]string{strings.Fields(heading)}, rows...))
}

// table prints rows in columns. Package text/tabwriter would make the program one
// percent larger.
func (t *tool) table(rows [][]string) error {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var text strings.Builder
	for _, row := range rows {
		for i, cell := range row {
			text.WriteString(cell)
			if i < len(row)-1 {
				text.WriteString(strings.Repeat(" ", widths[i]+2-utf8.RuneCountInString(cell)))
			}
		}
		text.WriteByte('\n')
	}
	_, err := io.WriteString(t.out, text.String())
	return err
}

// damaged prints the records that cannot be read. It does not fail if there are some.
func (t *tool) damaged(ctx context.Context) error {
	found, err := t.find(ctx, func(scratch.Key) bool { return true })
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
	found, _ := t.find(ctx, func(k scratch.Key) bool { // the command reports errors
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
