// Package redact hides the values of a plugin's configuration in what the
// plugin says: configurations hold credentials, and plugins repeat theirs.
package redact

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/metacni/metacni/internal/rawjson"
)

const (
	// Hidden is what stands in the place of a hidden value.
	Hidden = "(hidden)"

	// MinSecret is the length in bytes of the shortest value that is hidden. To
	// hide shorter ones would make texts unreadable.
	MinSecret = 6
)

// A Hider hides the values of one configuration. It is safe for concurrent use.
type Hider struct {
	replacer *strings.Replacer
	longest  int
}

// Values returns a Hider for the whole text of the configuration conf, and for each
// string and number in it. It does not hide the values of "name", "type" and
// "cniVersion", which say which plugin a text is about, nor the results and
// attachments that the runtime adds. If conf is not JSON, only the whole text is
// hidden.
func Values(conf []byte) *Hider { return hider(conf, true) }

// Credentials returns a Hider for the whole text of conf, and for the strings and
// numbers under keys that have one of the words of [Words] in their name, in any case:
// "password", "authToken", "privateKey".
func Credentials(conf []byte) *Hider { return hider(conf, false) }

// Hide returns text with [Hidden] in place of each value. It finds a value as it
// is, line by line, and quoted by JSON or by Go.
func (h *Hider) Hide(text string) string { return h.replacer.Replace(text) }

// Longest returns the length of the longest text that Hide replaces. To cut a text,
// keep that many bytes more, call Hide, and then cut: half a secret is not found.
func (h *Hider) Longest() int { return h.longest }

func hider(conf []byte, full bool) *Hider {
	conf = bytes.TrimSpace(conf)
	secrets := appendParsed([]string{string(conf)}, conf, full)
	for _, s := range slices.Clone(secrets) {
		forHTML, _ := json.Marshal(s) // a string always marshals
		asWritten, _ := rawjson.Marshal(s)
		secrets = append(secrets, unquote(strconv.Quote(s)), unquote(string(forHTML)), unquote(string(asWritten)))
	}
	secrets = slices.DeleteFunc(secrets, func(s string) bool { return len(s) < MinSecret })
	slices.Sort(secrets)
	slices.Reverse(secrets) // of two that begin alike the longer first: it may hold the other
	h := &Hider{}
	var pairs []string
	for _, s := range slices.Compact(secrets) {
		pairs = append(pairs, s, Hidden)
		h.longest = max(h.longest, len(s))
	}
	h.replacer = strings.NewReplacer(pairs...)
	return h
}

// appendParsed appends the secrets of text, which is JSON or has none, also with
// the escapes that they are written with.
func appendParsed(secrets []string, text []byte, full bool) []string {
	var value any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if d.Decode(&value) != nil {
		return secrets
	}
	first := len(secrets)
	secrets = appendSecrets(secrets, value, full)
	secret := make(map[string]bool)
	for _, s := range secrets[first:] {
		secret[s] = true
	}
	for literal := range literals(text) {
		var s string
		if json.Unmarshal([]byte(literal), &s) == nil && secret[s] {
			secrets = append(secrets, unquote(literal))
		}
	}
	return secrets
}

// appendSecrets appends the strings and numbers in v, or if not full those under
// the keys of credentials.
func appendSecrets(secrets []string, v any, full bool) []string {
	switch v := v.(type) {
	case string:
		if full {
			secrets = append(secrets, v)
			for line := range strings.Lines(v) {
				secrets = append(secrets, strings.TrimSpace(line))
			}
		}
		if strings.ContainsAny(v, "{[") { // JSON in a string
			secrets = appendParsed(secrets, []byte(v), full)
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

// literals yields the strings of the JSON text that have an escape, quotes and
// escapes included.
func literals(text []byte) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for {
			start := bytes.IndexByte(text, '"')
			if start < 0 {
				return
			}
			text = text[start:]
			end, escaped := 1, false
			for end < len(text) && text[end] != '"' {
				if text[end] == '\\' {
					escaped = true
					end++
				}
				end++
			}
			if end >= len(text) || escaped && !yield(string(text[:end+1])) {
				return
			}
			text = text[end+1:]
		}
	}
}

// Words are in the names of keys that have credentials as their values. They are few
// and short: to hide a harmless value costs less than to show a password.
func Words() []string {
	return []string{"auth", "bearer", "cred", "key", "pass", "psk", "pwd", "secret", "token"}
}

// credential reports whether a key is called like one that has a secret value.
func credential(key string) bool {
	key = strings.ToLower(key)
	return slices.ContainsFunc(Words(), func(word string) bool { return strings.Contains(key, word) })
}

// unquote takes the quotes off s, and leaves the escapes.
func unquote(s string) string { return s[1 : len(s)-1] }
