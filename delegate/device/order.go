package device

import (
	"cmp"
	"strconv"
	"strings"
)

// compareIDs compares two IDs of devices: PCI addresses come first, in the order of their
// numbers, then all others in natural order. It is 0 for equal IDs only.
func compareIDs(a, b string) int {
	pa, aIsPCI := pciAddress(a)
	pb, bIsPCI := pciAddress(b)
	switch {
	case aIsPCI && bIsPCI:
		return cmp.Or(cmp.Compare(pa, pb), cmp.Compare(a, b))
	case aIsPCI:
		return -1
	case bIsPCI:
		return 1
	}
	return natural(a, b)
}

// pciAddress returns a PCI address such as "0000:3b:0a.1" as a number. Its digits are
// hexadecimal, so that natural order is not that of addresses.
func pciAddress(s string) (address uint64, ok bool) {
	domain, rest, ok1 := strings.Cut(s, ":")
	bus, rest, ok2 := strings.Cut(rest, ":")
	dev, function, ok3 := strings.Cut(rest, ".")
	if !ok1 || !ok2 || !ok3 {
		return 0, false
	}
	for _, part := range []struct {
		text string
		bits int
	}{{domain, 32}, {bus, 8}, {dev, 8}, {function, 8}} {
		n, err := strconv.ParseUint(part.text, 16, part.bits)
		if err != nil {
			return 0, false
		}
		address = address<<part.bits | n
	}
	return address, true
}

// natural compares strings as people do: runs of digits by their values, everything else
// byte by byte. Strings that differ only in leading zeros are in the order of their bytes.
func natural(a, b string) int {
	for restA, restB := a, b; restA != "" && restB != ""; {
		var partA, partB string
		partA, restA = next(restA)
		partB, restB = next(restB)
		c := cmp.Compare(partA, partB)
		if digit(partA[0]) && digit(partB[0]) {
			partA, partB = strings.TrimLeft(partA, "0"), strings.TrimLeft(partB, "0")
			c = cmp.Or(cmp.Compare(len(partA), len(partB)), cmp.Compare(partA, partB))
		}
		if c != 0 {
			return c
		}
		if restA == "" || restB == "" {
			if c := cmp.Compare(len(restA), len(restB)); c != 0 {
				return c
			}
		}
	}
	return cmp.Compare(a, b)
}

// next splits a string that is not empty behind its first run of digits, or its first
// byte.
func next(s string) (part, rest string) {
	n := 1
	for digit(s[0]) && n < len(s) && digit(s[n]) {
		n++
	}
	return s[:n], s[n:]
}

func digit(c byte) bool { return '0' <= c && c <= '9' }
