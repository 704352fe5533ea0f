package delegate

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

const (
	hidden    = "(hidden)"
	shownText = 64 // bytes of unexpected text that an error quotes
	minSecret = 6  // bytes; what is shorter is no secret, and would hide too much
)

// redact returns err without what the plugin was given to keep. A plugin that
// answered with a code chose its words, and only loses the configuration if it
// repeats all of it; everything else loses each string of the configuration.
func redact(err error, stdin []byte) error {
	if errors.Is(err, ErrNotRun) {
		return err // these words are not a plugin's
	}
	var said *types.Error
	hide := hider(stdin, !errors.As(err, &said) || said.Code == types.ErrUnknown)
	if text := err.Error(); hide.Replace(text) == text {
		return err
	}
	if err == error(said) { //nolint:errorlint // one inside another error is the next case
		return types.NewError(said.Code, hide.Replace(said.Msg), hide.Replace(said.Details))
	}
	return &redactedError{text: hide.Replace(err.Error()), err: err}
}

// A redactedError is err with another text. What it wraps cannot be had from
// it, but for the identity and the code.
type redactedError struct {
	text string
	err  error
}

func (e *redactedError) Error() string        { return e.text }
func (e *redactedError) Is(target error) bool { return errors.Is(e.err, target) }
func (e *redactedError) CNICode() uint        { return codeIn(e.err) }

// hider replaces the configuration in stdin where it is repeated, as it is or
// quoted, and if full also each string in it that may be a secret.
func hider(stdin []byte, full bool) *strings.Replacer {
	whole := string(bytes.TrimSpace(stdin))
	secrets := []string{whole}
	if full {
		var conf any
		_ = json.Unmarshal(stdin, &conf) // Request made it; of anything else there are no parts
		secrets = appendSecrets(secrets, conf)
	}
	for _, s := range slices.Clone(secrets) {
		quoted, _ := json.Marshal(s) // a string always marshals
		secrets = append(secrets, unquote(string(quoted)), unquote(strconv.Quote(s)))
	}
	secrets = slices.DeleteFunc(secrets, func(s string) bool { return len(s) < minSecret })
	slices.Sort(secrets)
	slices.Reverse(secrets) // of two that begin alike the longer first: it may hold the other
	var pairs []string
	for _, s := range slices.Compact(secrets) {
		pairs = append(pairs, s, hidden)
	}
	return strings.NewReplacer(pairs...)
}

// unquote takes the quotes off s, and leaves the escapes.
func unquote(s string) string { return s[1 : len(s)-1] }

// appendSecrets appends the strings in v, line by line, but for those that say
// which plugin it is about and what it has done so far.
func appendSecrets(secrets []string, v any) []string {
	switch v := v.(type) {
	case string:
		secrets = append(secrets, v)
		for line := range strings.Lines(v) {
			secrets = append(secrets, strings.TrimSpace(line))
		}
	case []any:
		for _, item := range v {
			secrets = appendSecrets(secrets, item)
		}
	case map[string]any:
		for key, value := range v {
			switch key {
			case "name", "type", "cniVersion", "prevResult", "cni.dev/valid-attachments", "cni.dev/attachments":
			default:
				secrets = appendSecrets(secrets, value)
			}
		}
	}
	return secrets
}

// noise quotes the beginning of what should not have been printed by a plugin
// that was given stdin, as far as it cannot be part of a configuration.
func noise(text, stdin []byte) string {
	words := text
	if i := bytes.IndexAny(words, "{["); i >= 0 {
		words = words[:i]
	}
	if len(words) == 0 {
		return "more JSON"
	}
	shown := hider(stdin, true).Replace(string(words))
	return strconv.Quote(shown[:min(len(shown), shownText)])
}
