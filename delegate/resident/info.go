package resident

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
)

const maxName = 64 // bytes

// Info identifies a resident plugin.
type Info struct {
	Index string   `json:"index"` // two digits
	Name  string   `json:"name"`  // letters, digits and _ . + -
	Types []string `json:"types"` // the plugin types it serves
}

// String returns index and name: "10-static".
func (i Info) String() string { return i.Index + "-" + i.Name }

// check refuses an invalid Info.
func (i Info) check() error {
	switch {
	case !isIndex(i.Index):
		return refused("index %.16q is not two digits", i.Index)
	case !isName(i.Name):
		return refused("name %.80q is not 1 to %d letters, digits and _ . + -, or begins with a dot", i.Name, maxName)
	case len(i.Types) == 0:
		return refused("%s serves no types", i)
	}
	for _, t := range i.Types {
		if !isType(t) {
			return refused("%s: type %.80q is not a valid plugin name", i, t)
		}
	}
	return nil
}

// named returns the index and the name in a file name.
func named(base string) (Info, error) {
	index, name, _ := strings.Cut(base, "-")
	if isIndex(index) && isName(name) {
		return Info{Index: index, Name: name}, nil
	}
	return Info{}, fmt.Errorf("%w: its name is not two digits, a dash and a name of letters, digits and _ . + -", errSkipped)
}

func isIndex(s string) bool {
	return len(s) == 2 && strings.Trim(s, "0123456789") == ""
}

func isName(s string) bool {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.+-"
	return s != "" && len(s) <= maxName && s[0] != '.' && strings.Trim(s, allowed) == ""
}

// isType reports whether s can be the file name of a plugin. A type becomes part
// of paths and log lines.
func isType(s string) bool {
	return s != "" && s[0] != '.' && len(s) <= 255 && !strings.ContainsFunc(s, func(r rune) bool {
		return r == '/' || r == unicode.ReplacementChar || !unicode.IsPrint(r)
	})
}

// A State is the state of a resident.
type State string

// The states of residents.
const (
	Joining State = "joining" // registered, but not told what is attached yet
	Ready   State = "ready"   // serves calls
	Gone    State = "gone"    // was ready and is not connected
	Refused State = "refused" // may not register, or failed to
	Skipped State = "skipped" // a file in Dir that is not launched
)

// A Status describes a resident.
type Status struct {
	Info
	State State
	Path  string    // of the executable in Dir; empty if the resident has connected to Listener
	UID   int       // of the process of a resident that has connected to Listener; otherwise -1
	PID   int       // of a launched process; otherwise 0
	Since time.Time // of the state; Ready keeps the time of Joining
	Err   error     // why it is gone, refused or skipped; nil if it is gone because of Stop
}

// as returns s in another state from now on.
func (s Status) as(state State, err error) Status {
	s.State, s.Since, s.Err = state, time.Now(), err
	return s
}

// same reports whether s and o are the same resident, or the same file of Dir.
func (s Status) same(o Status) bool {
	return s.String() == o.String() && (s.Name != "" || s.Path == o.Path)
}

// without returns s without some of its types.
func (s Status) without(some func(typ string) bool) Status {
	s.Types = slices.DeleteFunc(slices.Clone(s.Types), some)
	return s
}
