package scratch

import (
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/containernetworking/cni/pkg/utils"

	"github.com/metacni/metacni/internal/records"
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
	if records.Hashed(id) {
		return nil
	}
	return checkContainer(id)
}

// checkStoredKey is checkKey for a key that may come from file names, where a
// long name is known only by its hash.
func checkStoredKey(k Key) error {
	if records.Hashed(k.ContainerID) {
		k.ContainerID = "c"
	}
	if records.Hashed(k.Network) {
		k.Network = "n"
	}
	return checkKey(k)
}

// validName reports whether s is a name by the specification's rule for
// container IDs and network names.
func validName(s string) bool { return utils.ValidateContainerID(s) == nil }

// validIfName refuses what neither the kernel nor the specification has as an
// interface name, and what JSON cannot carry. What the kernel would merely
// change is not for this package to know.
func validIfName(s string) bool {
	return utils.ValidateInterfaceName(s) == nil && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// fileName is the name of k's record. It is injective. Valid names neither
// begin with "#" nor hold "@" or "%".
func fileName(k Key) string {
	return records.Part(k.ContainerID) + "@" + records.Part(k.Network) + "@" + escape(k.IfName) + records.RecordSuffix
}

// escape keeps a name legible and makes it one path element without "@".
func escape(name string) string { return url.QueryEscape(name) }

// unescape undoes escape, and refuses what escape does not produce.
func unescape(s string) (string, bool) {
	name, err := url.QueryUnescape(s)
	return name, err == nil && escape(name) == s
}

// parseName reads the name of a record back. Long parts come back as their hashes.
// ok is false for what is no record's name.
func parseName(name string) (k Key, ok bool) {
	base, isRecord := strings.CutSuffix(name, records.RecordSuffix)
	container, rest, _ := strings.Cut(base, "@")
	network, escaped, _ := strings.Cut(rest, "@")
	if !isRecord || !storedName(container) || !storedName(network) {
		return Key{}, false
	}
	ifName, ok := unescape(escaped)
	return Key{ContainerID: container, Network: network, IfName: ifName}, ok && validIfName(ifName)
}

// storedName reports whether s can be a network name or a container ID in a file name. It is for
// directories with thousands of files, and does without the regular expression of validName.
func storedName(s string) bool {
	const first, more = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", "_.-"
	return records.Hashed(s) || s != "" && len(s) <= records.MaxPart && strings.Trim(s, first+more) == "" && !strings.Contains(more, s[:1])
}

// sameFile reports whether a and b are the same key as far as file names tell.
// b may come from one, with hashes in place of long parts.
func sameFile(a, b Key) bool {
	return a == b || a.IfName == b.IfName && records.SamePart(a.ContainerID, b.ContainerID) && records.SamePart(a.Network, b.Network)
}
