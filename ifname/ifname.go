// Package ifname plans, checks and lists the names of container interfaces.
//
// [Validate] and [Scheme.Plan] are pure functions: the same arguments always
// give the same names. [Taken] looks at the system: it reads the names that a
// network namespace already has, for [Scheme.Taken].
//
// Plan names once, in ADD, and record them. DEL needs the recorded names, because
// the configuration may have changed.
package ifname

import (
	"fmt"
	"slices"
	"strconv"
	"unicode"
	"unicode/utf8"
)

// maxLen is the longest interface name Linux accepts, in bytes (IFNAMSIZ less
// the terminating NUL).
const maxLen = 15

// Validate returns nil when a container interface can be created and deleted with
// exactly this name. Otherwise it returns an [*Error] that wraps [ErrInvalid] and
// says what is wrong: when name
//
//   - is empty, or longer than 15 bytes (bytes, not characters);
//   - is "." or "..", or holds "/" or ":", which the kernel refuses;
//   - holds "%", which the kernel takes for a template: asked for "net%d" it
//     creates "net0";
//   - holds white space or a control character, in ASCII or in Unicode. NUL
//     would end the name early. The kernel accepts the others, but tools that
//     print or parse names do not;
//   - holds the byte 0xA0, which the kernel takes for a space even where it is
//     half of a letter ("à");
//   - is not valid UTF-8. The kernel would accept it, but JSON cannot hold it:
//     a record or a result would have another name;
//   - starts with "-", which tools take for an option;
//   - is "lo", which every namespace has, or "all" or "default", which the
//     kernel refuses for a link because /proc/sys/net/ipv4/conf has entries
//     of these names.
//
// Validate accepts everything else, as the kernel does: digits only, upper case,
// "é", "@" and quotes. It refuses every name that the CNI specification refuses as
// CNI_IFNAME. It does not know which names are in use; see [Taken].
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
	case len(name) > maxLen:
		return fmt.Sprintf("%d bytes, but the longest is %d", len(name), maxLen)
	case name == "." || name == "..":
		return "a directory"
	case name == "lo":
		return "the loopback interface"
	case name == "all" || name == "default":
		return "reserved by the kernel"
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

// A Scheme plans the names of the interfaces of one container. The zero value can
// plan interfaces that all have a requested name; otherwise set Primary. Goroutines
// may share a Scheme.
type Scheme struct {
	// Primary is the name of the first interface: the runtime's CNI_IFNAME.
	// Generated names stay clear of it.
	Primary string

	// Prefix starts generated names; the interface's position in the plan
	// follows. The empty Prefix means "net".
	Prefix string

	// Taken holds the names that are in use: those in the namespace, from
	// [Taken], and those on record. They are compared, not validated.
	Taken []string
}

// Plan returns a name for each request, in order. An empty request asks for a
// generated name; as the first request it asks for s.Primary.
//
// Plan assigns requested names first, so that a generated name never takes a name
// that a later request asks for. The generated name of the i'th request (the first
// is 0) is s.Prefix and i, or the next higher number that is free.
//
// Plan fails with [ErrInvalid] when a name, requested or generated, does not pass
// [Validate], and with [ErrTaken] when a name is requested twice or is in s.Taken.
// The [*Error] is about the first request that is wrong. The same arguments always
// give the same plan.
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
