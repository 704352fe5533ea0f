// Package ifname chooses, checks and lists the names of container interfaces.
//
// [Validate] and [Scheme.Plan] are pure functions: the same arguments always
// give the same names. [Taken] looks at the system: it reads the names that a
// network namespace already has, for [Scheme.Taken].
//
// Choose names once, when attaching, and record them. Names are not meant to
// be worked out again when detaching: the configuration may have changed.
package ifname

import (
	"fmt"
	"slices"
	"strconv"
	"unicode"
	"unicode/utf8"
)

// MaxLen is the longest interface name Linux accepts, in bytes (IFNAMSIZ less
// the terminating NUL).
const MaxLen = 15

// Validate returns nil when a container interface can be created as name, is
// then called exactly name, and can be deleted as name again.
//
// The error is an [*Error] with [ErrInvalid] underneath, and says what is
// wrong. It is an error when name
//
//   - is empty, or longer than [MaxLen] bytes (bytes, not characters);
//   - is "." or "..", or holds "/" or ":", which the kernel refuses;
//   - holds "%", which the kernel takes for a template: asked for "net%d" it
//     creates "net0";
//   - holds white space or a control character, in ASCII or in Unicode. NUL
//     would end the name early, and the kernel takes the others but tools
//     that print or parse them do not;
//   - holds the byte 0xA0, which the kernel takes for a space even where it is
//     one half of a letter ("à");
//   - is not valid UTF-8. The kernel would take it, but JSON cannot hold it:
//     the name in a record or a result would be another one;
//   - starts with "-", which tools take for an option;
//   - is "lo", which every namespace has, or "all" or "default", which the
//     kernel refuses for a link because /proc/sys/net/ipv4/conf has entries
//     of these names.
//
// Everything else is accepted, as the kernel does: digits only, upper case,
// "é", "@" and quotes. Validate is stricter than the rules of the CNI
// specification for CNI_IFNAME and accepts nothing that they refuse. It does
// not know which names are in use; see [Taken].
func Validate(name string) error {
	if why := fault(name); why != "" {
		return &Error{Name: name, Err: fmt.Errorf("%w: %s", ErrInvalid, why)}
	}
	return nil
}

// fault says what is wrong with name, or nothing.
func fault(name string) string {
	switch {
	case name == "":
		return "empty"
	case len(name) > MaxLen:
		return fmt.Sprintf("%d bytes, but the longest is %d", len(name), MaxLen)
	case name == "." || name == "..":
		return "a directory"
	case name == "lo":
		return "the loopback interface"
	case name == "all" || name == "default":
		return "the kernel keeps it for settings of all interfaces"
	case name[0] == '-':
		return `starts with "-"`
	case !utf8.ValidString(name):
		return "not UTF-8"
	}
	for i, r := range name {
		switch {
		case r == '/' || r == ':' || r == '%':
			return fmt.Sprintf("contains %q", r)
		case unicode.IsSpace(r):
			return fmt.Sprintf("contains the space %q", r)
		case unicode.IsControl(r):
			return fmt.Sprintf("contains the control character %q", r)
		}
		// The kernel's isspace reads Latin-1, a byte at a time.
		if slices.Contains([]byte(name[i:i+utf8.RuneLen(r)]), 0xA0) {
			return fmt.Sprintf("contains %q, in which the kernel sees a space", r)
		}
	}
	return ""
}

// A Scheme says how the interfaces of one container are named. Its zero value
// can plan interfaces that are all asked for by name; anything else needs
// Primary. A Scheme is never written to, so goroutines may share it.
type Scheme struct {
	// Primary is the name of the first interface: the runtime's CNI_IFNAME.
	// Generated names stay clear of it.
	Primary string

	// Prefix starts the names of interfaces nobody asked a name for; the
	// interface's position in the plan follows. The empty Prefix means "net".
	Prefix string

	// Taken holds names that are in use already and must not be given out:
	// those of the namespace, from [Taken], and those on record. Nil means
	// none. Its entries are compared, not validated.
	Taken []string
}

// Plan returns a name for each of requests, in order. An empty request asks
// for a generated name, except that the first request, when empty, asks for
// s.Primary. No requests give no names.
//
// Requested names are settled before generated ones, so a generated name never
// takes one that is asked for further on. The generated name of the i'th
// request (the first is 0) is s.Prefix and i, or where that is taken the next
// higher number that is free.
//
// The error is an [*Error]: with [ErrInvalid] when a name does not pass
// [Validate], generated ones included; with [ErrTaken] when a name is asked
// for twice or is among s.Taken. The first request that is wrong, in order, is
// the one reported, and no names are returned. The same arguments give the
// same plan. Plan changes nothing, and looks at nothing but its arguments.
func (s Scheme) Plan(requests ...string) ([]string, error) {
	names := slices.Clone(requests)
	if len(names) > 0 && names[0] == "" {
		names[0] = s.Primary
		if s.Primary == "" {
			return nil, &Error{Err: fmt.Errorf("%w: empty, for the first interface", ErrInvalid)}
		}
	}
	const inUse = -1 // in the container already, as opposed to planned
	owner := make(map[string]int, len(names)+len(s.Taken))
	for _, name := range s.Taken {
		owner[name] = inUse
	}
	for i, name := range names {
		if name == "" {
			continue
		}
		if err := Validate(name); err != nil {
			return nil, err
		}
		if by, ok := owner[name]; ok && by == inUse {
			return nil, &Error{Name: name, Err: fmt.Errorf("%w: in use in the container", ErrTaken)}
		} else if ok {
			return nil, &Error{Name: name, Err: fmt.Errorf("%w: asked for by interfaces %d and %d of the plan", ErrTaken, by+1, i+1)}
		}
		owner[name] = i
	}
	if _, ok := owner[s.Primary]; !ok {
		owner[s.Primary] = 0
	}
	for i, name := range names {
		if name != "" {
			continue
		}
		for n := i; ; n++ {
			name = s.prefix() + strconv.Itoa(n)
			if _, ok := owner[name]; !ok {
				break
			}
		}
		if err := Validate(name); err != nil {
			return nil, err
		}
		owner[name], names[i] = i, name
	}
	return names, nil
}

func (s Scheme) prefix() string {
	if s.Prefix == "" {
		return "net"
	}
	return s.Prefix
}
