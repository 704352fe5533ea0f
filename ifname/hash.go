package ifname

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"io"
	"strings"
)

// minDigest is the least room for a digest that Hash accepts, in bytes of
// five bits each.
const minDigest = 8

// Hash returns a host-side interface name that is the same for the same parts:
// prefix, then as much of a SHA-256 digest of parts as [MaxLen] leaves room
// for, in the digits 0-9 and a-v. The result is always MaxLen bytes long and
// passes [Validate].
//
// Each part counts with its length, so Hash(p, "ab", "c") differs from
// Hash(p, "a", "bc"). Different parts may still meet in one name: every byte
// of digest is 5 bits, so a prefix of four bytes leaves 55, and among a
// thousand interfaces the odds are about one to 7e10. Where that matters, look
// whether the name is in use.
//
// Hash panics when prefix leaves fewer than 8 bytes or is not the beginning of
// a valid name; prefix is meant to be a constant of the program. The empty
// prefix is fine.
func Hash(prefix string, parts ...string) string {
	room := MaxLen - len(prefix)
	if room < minDigest {
		panic("ifname: Hash: prefix " + prefix + " leaves too little room")
	}
	h := sha256.New()
	for _, p := range parts {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		_, _ = io.WriteString(h, p) // a hash never fails
	}
	digest := base32.HexEncoding.EncodeToString(h.Sum(nil))
	name := prefix + strings.ToLower(digest[:room])
	if err := Validate(name); err != nil {
		panic(err.Error())
	}
	return name
}
