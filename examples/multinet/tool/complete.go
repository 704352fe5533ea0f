package tool

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
)

// completionCommand prints the completion of a shell, and is asked by that for the words that
// may come next: multinet completion words WORD...
const completionCommand = "completion"

// completion returns the script for a shell, or "". Where there are no words shells complete
// files.
func completion(shell string) string {
	switch shell {
	case "bash":
		return `_multinet() {
	local IFS=$'\n'
	COMPREPLY=($(compgen -W "$(multinet completion words "${COMP_WORDS[@]:1:COMP_CWORD-1}" 2>/dev/null)" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _multinet multinet`
	case "fish":
		return `complete -c multinet -a '(multinet completion words (commandline -opc)[2..] 2>/dev/null)'`
	case "zsh":
		return `#compdef multinet
_multinet() {
	local -a all=(${(f)"$(multinet completion words "${(@)words[2,CURRENT-1]}" 2>/dev/null)"})
	if (( $#all )); then compadd -a all; else _files; fi
}
compdef _multinet multinet`
	}
	return ""
}

func shells() []string { return []string{"bash", "fish", "zsh"} }

// complete prints the completion of a shell, or the words that may come after others.
func (t *tool) complete(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == "words" {
		for _, word := range t.next(ctx, args[1:]) {
			fmt.Fprintln(t.out, word)
		}
		return nil
	}
	if len(args) != 1 || completion(args[0]) == "" {
		return fmt.Errorf("usage: multinet %s %s", completionCommand, strings.Join(shells(), "|"))
	}
	_, err := fmt.Fprintln(t.out, completion(args[0]))
	return err
}

// next returns the words that may come after others: commands; the flags of a command, and the
// containers that have records; or the values of a flag. It is empty before the name of a file.
func (t *tool) next(ctx context.Context, words []string) (next []string) {
	if len(words) == 0 {
		for _, c := range commands() {
			next = append(next, c.name)
		}
		return append(next, completionCommand)
	}
	if words[0] == completionCommand && len(words) == 1 {
		return shells()
	}
	c := commandNamed(words[0])
	if c == nil {
		return nil
	}
	flags, _ := c.new(t)
	last, isFlag := strings.CutPrefix(words[len(words)-1], "-")
	last = strings.TrimPrefix(last, "-")
	if f := flags.Lookup(last); isFlag && f != nil {
		if last == "o" {
			return []string{"table", "wide", "json"}
		}
		if b, ok := f.Value.(interface{ IsBoolFlag() bool }); !ok || !b.IsBoolFlag() {
			return nil // a file, or text
		}
	}
	have, err := parse(flags, words[1:])
	if strings.Contains(c.args, "CONTAINER") && err == nil && len(have) == 0 {
		found, _ := t.find(ctx) // those that can be read
		for _, f := range found {
			next = append(next, f.Key.ContainerID)
		}
		next = slices.Compact(slices.Sorted(slices.Values(next)))
	}
	flags.VisitAll(func(f *flag.Flag) {
		if len(f.Name) > 1 {
			next = append(next, "--"+f.Name)
		} else {
			next = append(next, "-"+f.Name)
		}
	})
	return next
}
