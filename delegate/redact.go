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
// answered with an error object chose its words: of these go the configuration
// as a whole and what its keys call a credential. Everything else loses each
// string and number of the configuration. (A program made with package skel
// gives every plain error code 999, so the code tells nothing of the words.)
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
// quoted, each credential in it, and if full also each string and number in it
// that may be a secret.
func hider(stdin []byte, full bool) *strings.Replacer {
	var conf any
	dec := json.NewDecoder(bytes.NewReader(stdin))
	dec.UseNumber()
	_ = dec.Decode(&conf) // Request made it; of anything else there are no parts
	secrets := appendSecrets([]string{string(bytes.TrimSpace(stdin))}, conf, full)
	for _, s := range slices.Clone(secrets) {
		quoted, _ := json.Marshal(s) // a string always marshals
		secrets = append(secrets, unquote(string(quoted)), unquote(string(encode(s))), unquote(strconv.Quote(s)))
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

// appendSecrets appends what is secret in v: the values of keys that are called
// like credentials, and if full all strings, line by line, and numbers, except
// those that say which plugin it is about and what it has done so far.
func appendSecrets(secrets []string, v any, full bool) []string {
	switch v := v.(type) {
	case string:
		if !full {
			break
		}
		secrets = append(secrets, v)
		for line := range strings.Lines(v) {
			secrets = append(secrets, strings.TrimSpace(line))
		}
	case json.Number:
		if full {
			secrets = append(secrets, v.String())
		}
	case []any:
		for _, item := range v {
			secrets = appendSecrets(secrets, item, full)
		}
	case map[string]any:
		for key, value := range v {
			switch key {
			case "name", "type", "cniVersion", "prevResult", "cni.dev/valid-attachments", "cni.dev/attachments":
			default:
				secrets = appendSecrets(secrets, value, full || credential(key))
			}
		}
	}
	return secrets
}

// credential reports whether a key is called like one that has a secret value.
func credential(key string) bool {
	key = strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(key))
	return slices.ContainsFunc([]string{"password", "passwd", "passphrase", "secret", "token", "credential", "apikey", "privatekey", "psk"},
		func(word string) bool { return strings.Contains(key, word) })
}

// noise quotes the beginning of what should not have been printed by a plugin
// that was given stdin, as far as it cannot be part of a configuration.
func noise(text, stdin []byte) string {
	shown := hider(stdin, true).Replace(string(text)) // before it is cut: half a secret is not found
	if i := strings.IndexAny(shown, "{["); i >= 0 {
		shown = shown[:i]
	}
	if len(shown) == 0 {
		return "more JSON"
	}
	return strconv.Quote(shown[:min(len(shown), shownText)])
}
