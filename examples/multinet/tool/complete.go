package tool

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// completionCommand prints the completion of a shell. With wordsRequest the shell asks for the
// words that may come next: multinet completion words WORD...
const completionCommand, wordsRequest = "completion", "words"

// completions returns the scripts of shells. Where there are no words shells complete files.
func completions() map[string]string {
	return map[string]string{
		"bash": `_multinet() {
	local IFS=$'\n'
	COMPREPLY=($(compgen -W "$(multinet completion words "${COMP_WORDS[@]:1:COMP_CWORD-1}" 2>/dev/null)" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _multinet multinet`,
		"fish": `function __multinet
	set -l all (multinet completion words (commandline -opc)[2..] 2>/dev/null)
	count $all >/dev/null; and printf '%s\n' $all; or __fish_complete_path (commandline -ct)
end
complete -c multinet -f -a '(__multinet)'`,
		"zsh": `#compdef multinet
_multinet() {
	local -a all=(${(f)"$(multinet completion words "${(@)words[2,CURRENT-1]}" 2>/dev/null)"})
	if (( $#all )); then compadd -a all; else _files; fi
}
compdef _multinet multinet`,
	}
}

func shells() []string { return slices.Sorted(maps.Keys(completions())) }

func (t *tool) completion(*flag.FlagSet) runner {
	return func(_ context.Context, words []string) error {
		script := completions()[words[0]]
		if script == "" {
			return commandNamed(completionCommand).misused("there is no completion of %q", words[0])
		}
		_, err := fmt.Fprintln(t.out, script)
		return err
	}
}

// complete prints the words that may come after others.
func (t *tool) complete(ctx context.Context, words []string) error {
	for _, word := range t.next(ctx, words) {
		fmt.Fprintln(t.out, word)
	}
	return nil
}

// next returns the words that may come after others: commands; the flags of a command, and the
// containers that have records; or the values of a flag. It is empty before the name of a file.
func (t *tool) next(ctx context.Context, words []string) (next []string) {
	if len(words) == 0 {
		for _, c := range commands() {
			next = append(next, c.name)
		}
		return next
	}
	// bash has "=" as a word of its own.
	words = strings.Split(strings.TrimSuffix(strings.ReplaceAll(strings.Join(words, "\x00"), "\x00=\x00", "="), "\x00="), "\x00")
	c := commandNamed(words[0])
	switch {
	case c == nil:
		return nil
	case c.name == completionCommand:
		return shells()
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
