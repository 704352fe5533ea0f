package netconf

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
)

// A scanner goes through valid JSON, without making anything of it: its methods
// return parts of the text. It is for what encoding/json has no word for, keys
// given twice and values as they were written.
type scanner struct {
	text []byte
	at   int
}

// space skips white space and returns the byte after it, or 0 at the end.
func (s *scanner) space() byte {
	for ; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

// next reports whether the array or object has another element, and goes to
// it, past what comes before: the opening bracket, or a comma.
func (s *scanner) next() bool {
	c := s.space()
	s.at++
	if c == '[' || c == '{' {
		c = s.space()
		if c == ']' || c == '}' {
			s.at++
			return false
		}
	}
	return c != ']' && c != '}'
}

// key reads a key, its quotes included, and the colon after it.
func (s *scanner) key() []byte {
	key := s.value()
	s.space()
	s.at++
	return key
}

// value reads a value.
func (s *scanner) value() []byte {
	switch c := s.space(); c {
	case '"':
		start := s.at
		for s.at++; s.text[s.at] != '"'; s.at++ {
			if s.text[s.at] == '\\' {
				s.at++
			}
		}
		s.at++
		return s.text[start:s.at:s.at]
	case '{', '[':
		start := s.at
		for s.next() {
			if c == '{' {
				s.key()
			}
			s.value()
		}
		return s.text[start:s.at:s.at]
	}
	start := s.at
	for s.at < len(s.text) && bytes.IndexByte([]byte(",]} \t\r\n"), s.text[s.at]) < 0 {
		s.at++
	}
	return s.text[start:s.at:s.at]
}

// plain returns what the string raw, with its quotes, says if it says it
// without escapes, and whether it does.
func plain(raw []byte) ([]byte, bool) {
	if len(raw) < 2 || raw[0] != '"' || bytes.IndexByte(raw, '\\') >= 0 {
		return nil, false
	}
	return raw[1 : len(raw)-1], true
}

// unquote returns what the string raw, with its quotes, says.
func unquote(raw []byte) string {
	if said, ok := plain(raw); ok {
		return string(said)
	}
	var said string
	_ = json.Unmarshal(raw, &said) // cannot fail: it is a string
	return said
}

// repeatedKey reads one value and returns the path of a key that occurs twice
// in an object, or "".
func (s *scanner) repeatedKey() string {
	switch s.space() {
	case '{':
		var seen keySet
		for s.next() {
			key := s.key()
			if !seen.add(key) {
				return cmp.Or(unquote(key), `""`)
			}
			if inner := s.repeatedKey(); inner != "" {
				return joinKey(unquote(key), inner)
			}
		}
	case '[':
		for i := 0; s.next(); i++ {
			if inner := s.repeatedKey(); inner != "" {
				return joinKey(fmt.Sprintf("[%d]", i), inner)
			}
		}
	default:
		s.value()
	}
	return ""
}

// A keySet is the keys of one object. Most have few.
type keySet struct {
	few  [16][]byte
	n    int // of few
	many map[string]bool
}

// add reports whether the set was without raw, a string with its quotes.
func (k *keySet) add(raw []byte) bool {
	key, ok := plain(raw)
	if !ok {
		key = []byte(unquote(raw))
	}
	if slices.ContainsFunc(k.few[:k.n], func(f []byte) bool { return bytes.Equal(f, key) }) || k.many[string(key)] {
		return false
	}
	if k.n < len(k.few) {
		k.few[k.n] = key
		k.n++
		return true
	}
	if k.many == nil {
		k.many = make(map[string]bool)
	}
	k.many[string(key)] = true
	return true
}
