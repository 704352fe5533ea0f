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
	if !strings.Contains(text, "\n") {
		return text
	}
	all := strings.Split(text, "\n")
	lines := all[:0]
	for _, line := range all {
		if line = strings.Trim(line, " \t\r;"); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}
