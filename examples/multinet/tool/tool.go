// Package tool is the command line of multinet for operators. It lists records,
// detaches stale attachments, adopts what other programs have attached, and installs
// and uninstalls multinet.
package tool

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
)

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
	text strings.Builder // tabs separate the cells of a table
}

// newOutput returns an output without elements. Text begins with the heading of a table, if
// that is not empty.
func newOutput(heading string) *output {
	o := &output{list: []any{}}
	if heading != "" {
		o.row(strings.Fields(heading))
	}
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
	fmt.Fprint(table, o.text.String())
	return table.Flush()
}
