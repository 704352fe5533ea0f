package netconf

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
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

// unquote returns what the string raw, with its quotes, says.
func unquote(raw []byte) string {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1])
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
		seen := make(map[string]bool)
		for s.next() {
			key := unquote(s.key())
			if seen[key] {
				return cmp.Or(key, `""`)
			}
			seen[key] = true
			if inner := s.repeatedKey(); inner != "" {
				return joinKey(key, inner)
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
