// Package help prints the flags of a command.
package help

import (
	"flag"
	"fmt"
	"io"
	"strings"
)

// Flags prints a line for each of flags: its name, value and meaning, and its default in
// brackets. The value is the word in back quotes in the flag's usage, as in
// [flag.UnquoteUsage].
func Flags(w io.Writer, flags *flag.FlagSet) {
	short := strings.NewReplacer("directory", "dir", "address", "addr", "permissions", "mode")
	var left, right []string
	width := 0
	flags.VisitAll(func(f *flag.Flag) {
		value, usage := flag.UnquoteUsage(f)
		dash := "--"
		if len(f.Name) == 1 {
			dash = "-"
		}
		name := strings.TrimSpace(dash + f.Name + " " + strings.ToUpper(short.Replace(value)))
		if f.DefValue != "" && f.DefValue != "false" {
			usage += " [" + f.DefValue + "]"
		}
		left, right = append(left, name), append(right, usage)
		width = max(width, len(name))
	})
	for i := range left {
		fmt.Fprintf(w, "  %-*s  %s\n", width, left[i], right[i])
	}
}
