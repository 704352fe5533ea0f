// Package records has what package scratch shares with package lifecycle: the names of the
// files in the directory of a store, for those who look at it themselves, and values of
// which a note writes only a part.
package records

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"slices"
	"strings"
)

const (
	// RecordSuffix ends the name of a record's file.
	RecordSuffix = ".json"

	lockSuffix = "@lock"

	// MaxPart is how long a network name or a container ID may be in a file
	// name. Two of them, an interface name of 15 escaped bytes, two "@", the
	// longest suffix and the prefix of a temporary file fit in 255 bytes.
	MaxPart = 95

	hashedLen = 1 + 2*sha256.Size
)

// Part returns name as it is in a file name: a long one is replaced by its hash, "#" and
// 64 hexadecimal digits.
func Part(name string) string {
	if len(name) <= MaxPart || Hashed(name) {
		return name
	}
	return hash(name)
}

func hash(name string) string {
	sum := sha256.Sum256([]byte(name))
	return "#" + hex.EncodeToString(sum[:])
}

// Hashed reports whether s is a hash in place of a long name.
func Hashed(s string) bool {
	return len(s) == hashedLen && s[0] == '#' && strings.Trim(s[1:], "0123456789abcdef") == ""
}

// SamePart reports whether a and b are the same name. b may be a hash.
func SamePart(a, b string) bool { return a == b || Hashed(b) && hash(a) == b }

// LockName returns the name of the lock's file of a container.
func LockName(containerID string) string { return Part(containerID) + lockSuffix }

// Collector stands for a container's ID in the name of the lock that plugins of a GC inherit. It
// is the hash of a name that no container has.
func Collector() string { return hash("@gc") }

// Unused returns the containers that have a lock's file in dir, or one that a crash has left of their
// first record, and no other file: an operation is running, or a process has died. A long ID is its
// hash. A directory that is missing or cannot be read has none.
func Unused(dir string) (ids []string) {
	all, _ := os.ReadDir(dir)
	used := make(map[string]bool)
	for _, f := range all {
		name, temporary := strings.CutPrefix(f.Name(), ".tmp-")
		id, _, _ := strings.Cut(name, "@")
		isLock := strings.HasSuffix(name, lockSuffix)
		isRecord := strings.HasSuffix(name, RecordSuffix) && strings.Count(name, "@") == 2
		if !temporary && isLock || temporary && isRecord {
			ids = append(ids, id)
		}
		used[id] = used[id] || !temporary && !isLock
	}
	slices.Sort(ids)
	return slices.DeleteFunc(slices.Compact(ids), func(id string) bool { return used[id] })
}

// A Changer is a value of which a note may write only a part.
type Changer interface {
	// Noted returns what has changed since the value was last written, which
	// encoding/json encodes. Nil means that all of it may have changed.
	Noted() any

	// Make makes a change that was noted. A change for which it returns an error
	// is ignored.
	Make(Change) error
}

// A Change is the JSON of what [Changer.Noted] returned.
type Change json.RawMessage
