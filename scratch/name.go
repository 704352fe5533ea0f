package scratch

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	recordSuffix = ".json"
	lockSuffix   = "@lock"

	// maxPart is how long a network name or a container ID may be in a file
	// name. Two of them, an interface name of 15 escaped bytes, two "@", the
	// longest suffix and the prefix of a temporary file fit in 255 bytes.
	maxPart = 95

	maxIfName = 15 // the kernel's IFNAMSIZ, less the NUL
	hashedLen = 1 + 2*sha256.Size
)

// checkKey refuses keys that no runtime may use.
func checkKey(k Key) error {
	if err := checkContainer(k.ContainerID); err != nil {
		return err
	}
	if !validName(k.Network) {
		return &keyError{code: 7, part: "network name", name: k.Network}
	}
	if !validIfName(k.IfName) {
		return &keyError{code: 4, part: "interface name", name: k.IfName}
	}
	return nil
}

func checkContainer(id string) error {
	if !validName(id) {
		return &keyError{code: 4, part: "container ID", name: id}
	}
	return nil
}

// checkStoredContainer is checkContainer for an ID that may be a hash.
func checkStoredContainer(id string) error {
	if hashed(id) {
		return nil
	}
	return checkContainer(id)
}

// checkStoredKey is checkKey for a key that may come from file names, where a
// long name is known only by its hash.
func checkStoredKey(k Key) error {
	if hashed(k.ContainerID) {
		k.ContainerID = "c"
	}
	if hashed(k.Network) {
		k.Network = "n"
	}
	return checkKey(k)
}

// validName reports whether s is a name by the specification's rule for
// container IDs and network names.
func validName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !alphanumeric(c) && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return s != ""
}

func alphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// validIfName refuses what neither the kernel nor the specification has as an
// interface name, and what JSON cannot carry. What the kernel would merely
// change is not for this package to know.
func validIfName(s string) bool {
	if s == "" || len(s) > maxIfName || s == "." || s == ".." || !utf8.ValidString(s) {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return r == '/' || r == ':' || unicode.IsSpace(r) || unicode.IsControl(r)
	})
}

// fileName is the name of k's record. It is injective. Valid names neither
// begin with "#" nor hold "@" or "%".
func fileName(k Key) string {
	return part(k.ContainerID) + "@" + part(k.Network) + "@" + escape(k.IfName) + recordSuffix
}

func lockName(containerID string) string { return part(containerID) + lockSuffix }

// part returns name as it is in a file name: a long one is replaced by its hash.
func part(name string) string {
	if len(name) <= maxPart || hashed(name) {
		return name
	}
	return hash(name)
}

func hash(name string) string {
	sum := sha256.Sum256([]byte(name))
	return "#" + hex.EncodeToString(sum[:])
}

// hashed reports whether s is what part makes of long names.
func hashed(s string) bool {
	return len(s) == hashedLen && s[0] == '#' && strings.Trim(s[1:], "0123456789abcdef") == ""
}

const upperHex = "0123456789ABCDEF"

// escape keeps a name legible and makes it one path element without "@".
func escape(s string) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if alphanumeric(c) || c == '.' || c == '_' || c == '-' {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', upperHex[c>>4], upperHex[c&15]})
		}
	}
	return b.String()
}

// unescape undoes escape, and refuses what escape does not produce.
func unescape(s string) (string, bool) {
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '%' && i+2 < len(s) {
			if raw, err := hex.DecodeString(s[i+1 : i+3]); err == nil {
				c = raw[0]
				i += 2
			}
		}
		b = append(b, c)
	}
	name := string(b)
	return name, escape(name) == s
}

// parseName reads the name of a record back. Long parts come back as their hashes.
// ok is false for what is no record's name.
func parseName(name string) (k Key, ok bool) {
	base, ok := strings.CutSuffix(name, recordSuffix)
	parts := strings.Split(base, "@")
	if !ok || len(parts) != 3 || !storedName(parts[0]) || !storedName(parts[1]) {
		return Key{}, false
	}
	ifName, ok := unescape(parts[2])
	return Key{ContainerID: parts[0], Network: parts[1], IfName: ifName}, ok && validIfName(ifName)
}

// storedName reports whether s can be what part returned.
func storedName(s string) bool { return hashed(s) || validName(s) && len(s) <= maxPart }

// sameFile reports whether a and b are the same key as far as file names tell.
// b may come from one, with hashes in place of long parts.
func sameFile(a, b Key) bool {
	return a == b || a.IfName == b.IfName && samePart(a.ContainerID, b.ContainerID) && samePart(a.Network, b.Network)
}

func samePart(a, b string) bool { return a == b || hashed(b) && hash(a) == b }
