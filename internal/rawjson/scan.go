package rawjson

import (
	"bytes"
	"encoding/json"
)

// A Scanner goes through valid JSON, without making anything of it: its methods
// return parts of the text. It is for what encoding/json has no word for, keys
// given twice and values as they were written.
type Scanner struct {
	text []byte
	at   int
}

// Scan returns a Scanner of text, which must be valid JSON.
func Scan(text []byte) Scanner { return Scanner{text: text} }

// Space skips white space and returns the byte after it, or 0 at the end.
func (s *Scanner) Space() byte {
	for ; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

// Next reports whether the array or object has another element, and goes to
// it, past what comes before: the opening bracket, or a comma.
func (s *Scanner) Next() bool {
	c := s.Space()
	s.at++
	if c == '[' || c == '{' {
		c = s.Space()
		if c == ']' || c == '}' {
			s.at++
			return false
		}
	}
	return c != ']' && c != '}'
}

// Key reads a key, its quotes included, and the colon after it.
func (s *Scanner) Key() []byte {
	key := s.Value()
	s.Space()
	s.at++
	return key
}

// Value reads a value.
func (s *Scanner) Value() []byte {
	switch c := s.Space(); c {
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
		for s.Next() {
			if c == '{' {
				s.Key()
			}
			s.Value()
		}
		return s.text[start:s.at:s.at]
	}
	start := s.at
	for s.at < len(s.text) && bytes.IndexByte([]byte(",]} \t\r\n"), s.text[s.at]) < 0 {
		s.at++
	}
	return s.text[start:s.at:s.at]
}

// Unquote returns what the string raw, with its quotes, says.
func Unquote(raw []byte) string {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1])
	}
	var said string
	_ = json.Unmarshal(raw, &said) // cannot fail: it is a string
	return said
}
