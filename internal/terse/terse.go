// Package terse shortens what errors show to operators.
package terse

import "strings"

// The lengths of a container ID as runtimes make them, in hexadecimal digits,
// and of the beginning that their tools show and accept.
const (
	full  = 64
	short = 12
)

// ID returns the first 12 digits of a container ID of 64 hexadecimal digits, and
// any other id unchanged.
func ID(id string) string {
	if len(id) != full || strings.Trim(id, "0123456789abcdef") != "" {
		return id
	}
	return id[:short]
}

// Line returns text in one line: its lines, without spaces and semicolons around
// them, separated by "; ". Empty lines are left out.
func Line(text string) string {
	all := strings.Split(text, "\n")
	lines := all[:0]
	for _, line := range all {
		if line = strings.Trim(line, " \t\r;"); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}

// Within returns the text of err, in one line, for use in the text of another
// error. That error may name things which the errors in the tree of err name as
// well. retell returns the text of such an error without them, and false for
// every other error, whose own causes are then looked at.
func Within(err error, retell func(error) (string, bool)) string {
	if text, ok := retell(err); ok {
		return Line(text)
	}
	var text strings.Builder
	rest := Line(err.Error())
	for _, cause := range causes(err) {
		if before, after, ok := strings.Cut(rest, Line(cause.Error())); ok {
			text.WriteString(before + Within(cause, retell))
			rest = after
		}
	}
	return text.String() + rest
}

// causes returns what err wraps.
func causes(err error) []error {
	switch err := err.(type) { //nolint:errorlint // one step in the tree
	case interface{ Unwrap() []error }:
		return err.Unwrap()
	case interface{ Unwrap() error }:
		if cause := err.Unwrap(); cause != nil {
			return []error{cause}
		}
	}
	return nil
}
