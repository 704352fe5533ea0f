// Package tool is the command line of multinet for operators. It lists records,
// detaches stale attachments, adopts what other programs have attached, and installs
// and uninstalls multinet.
package tool

import (
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
		for i, cell := range row {
			if cell == "" {
				row[i] = "-"
			}
		}
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	return table.Flush()
}
