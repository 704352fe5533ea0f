// Package tool is what an operator does with multinet by hand: look at records,
// remove what is stale, adopt what others have attached, install and uninstall.
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
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

const usage = `usage: multinet COMMAND [--dir DIR] [-o table|json]
  list                                    every attachment
  show CONTAINER                          what is recorded of a container
  status CONTAINER                        its network-status (JSON, unless -o table)
  gc [--dry-run]                          detaches what is stale: of containers that are
                                          gone, or what could not be detached before
  damaged                                 records that cannot be read
  forget CONTAINER [NETWORK IFNAME] [--yes]  removes records, and nothing else;
                                          list shows NETWORK IFNAME as RECORD
  --help, --version
All but gc and forget read the state directory without a lock and change nothing.
gc has --bin-dir and --conf-dir, where plugins and networks are

       multinet adopt [--dry-run] [FLAGS]  takes over what others have attached
       multinet install [--watch] [FLAGS]  copies the program, and publishes its network
       multinet uninstall [--detach|--leave] [--binary] [FLAGS]  removes what was published
--help after one of these tells of its flags`

// A console is where an operator sits.
type console struct {
	in       io.Reader
	out      io.Writer              // what the command is about
	ask      io.Writer              // questions
	terminal bool                   // whether in can answer
	self     func() (string, error) // the path of this program
	process  plugin.Process         // what runs plugins
}

// Run is multinet run by hand, with the words of its command line, on the
// standard files of this process. It returns when the command is done; install
// --watch returns when ctx ends.
func Run(ctx context.Context, args []string) error {
	in, err := os.Stdin.Stat()
	return operate(ctx, args, console{
		in: os.Stdin, out: os.Stdout, ask: os.Stderr, terminal: err == nil && in.Mode()&os.ModeCharDevice != 0,
		self: os.Executable, process: plugin.OfProcess(),
	})
}

// operate is Run on a console. It reads the state directory as it is,
// and reports damaged records after the others.
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
	dryRun := flags.Bool("dry-run", false, "only say what would be removed")
	binDir := flags.String("bin-dir", "", "directory of the plugins (binDir)")
	confDir := flags.String("conf-dir", "", "directory of networks (confDir)")
	yes := flags.Bool("yes", false, "do not ask")
	version := flags.Bool("version", false, "print the version")
	form := flags.String("o", "", "table or json")
	words, err := parse(flags, args)
	switch {
	case errors.Is(err, flag.ErrHelp), err == nil && slices.Equal(words, []string{"help"}):
		_, err := fmt.Fprintln(c.out, usage)
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
	case !slices.Contains([]string{"", "table", "json"}, *form), (*dryRun || *binDir != "" || *confDir != "") && command != "gc", *yes && command != "forget":
	case command == "list" && len(words) == 1:
		do = func() error { return t.list(ctx, func(lifecycle.Record) bool { return true }) }
	case command == "gc" && len(words) == 1:
		do = func() error { return t.gc(ctx, *dir, *binDir, *confDir) }
		if *dryRun {
			do = func() error { return t.list(ctx, unlessAdded) }
		}
	case command == "damaged" && len(words) == 1:
		do = func() error { return t.damaged(ctx) }
	case command == "show" && len(words) == 2:
		do = func() error { return t.show(ctx, words[1]) }
	case command == "status" && len(words) == 2:
		t.json = *form != "table" // it has always been JSON
		do = func() error { return t.status(ctx, words[1]) }
	case command == "forget" && (len(words) == 2 || len(words) == 4):
		do = func() error { return t.forget(ctx, words[1:]) }
	}
	if do == nil {
		return errors.New(usage)
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

// missing fails for a state directory that does not exist, which the operator
// has mistyped. Only the default one is absent where nothing was ever attached.
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
	yes  bool // the answer to what would be asked
}

// parse lets flags stand before, between and after the words.
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

// print prints rows, as a table with a heading, or else all, as JSON.
func (t *tool) print(all any, heading string, rows [][]string) error {
	if t.json {
		e := json.NewEncoder(t.out)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(all)
	}
	return t.table(append([][]string{strings.Fields(heading)}, rows...))
}

// table prints rows in columns. Package text/tabwriter, which can do more, is a
// hundredth part of the program.
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

// list prints the attachments in the records that are wanted.
func (t *tool) list(ctx context.Context, want func(lifecycle.Record) bool) error {
	all := []recordView{}
	var rows [][]string
	err := t.each(ctx, func(r lifecycle.Record) error {
		if !want(r) {
			return nil
		}
		all = append(all, view(r))
		for _, a := range r.Attached {
			rows = append(rows, []string{a.ContainerID, a.IfName, a.Network.Name(), state(r), r.Created.Format(time.RFC3339), r.Key.Network + " " + r.Key.IfName})
		}
		return nil
	})
	return errors.Join(t.print(all, "CONTAINER INTERFACE NETWORK STATE SINCE RECORD", rows), err)
}

// show prints what is recorded of a container, without the configurations of
// its networks: they may hold secrets.
func (t *tool) show(ctx context.Context, container string) error {
	all := []recordView{}
	var text strings.Builder
	err := t.of(ctx, container, func(r lifecycle.Record) error {
		v := view(r)
		fmt.Fprintf(&text, "%s: %s, created %s, last changed %s\n", r.Key, state(r), r.Created.Format(time.RFC3339), r.Updated.Format(time.RFC3339))
		for i, a := range r.Attached {
			v.Attachments[i].Result = a.Result
			result := string(a.Result)
			if a.Result == nil {
				result = "none"
			}
			fmt.Fprintf(&text, "  %s: network %q (%s) in %s\n    result %s\n",
				a.IfName, a.Network.Name(), strings.Join(v.Attachments[i].Plugins, ", "), a.NetNS, result)
		}
		all = append(all, v)
		return nil
	})
	switch {
	case errors.Is(err, errNoRecord):
		return err
	case t.json:
		return errors.Join(t.print(all, "", nil), err)
	}
	_, werr := io.WriteString(t.out, text.String())
	return errors.Join(werr, err)
}

// status prints the network-status of a container; its JSON is that of the
// annotation k8s.v1.cni.cncf.io/network-status.
func (t *tool) status(ctx context.Context, container string) error {
	all := []status.Network{}
	var rows [][]string
	err := t.of(ctx, container, func(r lifecycle.Record) error {
		if r.State != scratch.Added {
			return nil
		}
		for i, a := range r.Attached {
			result, err := a.Decode()
			if err != nil {
				return err
			}
			nets, err := status.Networks(a.Network.Name(), result, i == 0)
			if err != nil {
				return err
			}
			all = append(all, nets...)
			for _, n := range nets {
				rows = append(rows, []string{
					n.Name, cmp.Or(n.Interface, "-"), cmp.Or(strings.Join(n.IPs, ","), "-"), cmp.Or(n.MAC, "-"), strconv.FormatBool(n.Default),
				})
			}
		}
		return nil
	})
	if errors.Is(err, errNoRecord) {
		return err
	}
	return errors.Join(t.print(all, "NETWORK INTERFACE ADDRESSES MAC DEFAULT", rows), err)
}

// damaged prints the records that cannot be read. That there are some is the
// answer, and no error.
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

// container returns the ID of the container with records that word is, or that
// it begins with, as errors show it. A word that is neither it returns.
func (t *tool) container(ctx context.Context, word string) (string, error) {
	const shown = 12
	found, _ := t.find(ctx, func(k scratch.Key) bool { // the command itself meets its errors
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

// of calls do with every record of a container, see each.
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

// each calls do with every record. What is damaged, or do fails on, does not
// keep it from the others.
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
