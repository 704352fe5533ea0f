// Package kubename says which names Kubernetes takes. A regular expression would cost every
// plugin more at start-up than all of this does at work.
package kubename

import "strings"

// IsNamespace reports whether s can be the name of a namespace: a DNS label of RFC 1123 in
// lower case, which is up to 63 letters, digits and inner hyphens.
func IsNamespace(s string) bool { return isLabel(s) && len(s) <= 63 }

// IsObject reports whether s can be the name of an object: a DNS subdomain, which is up to
// 253 bytes of labels of any length, with dots between them.
func IsObject(s string) bool {
	for label := range strings.SplitSeq(s, ".") {
		if !isLabel(label) {
			return false
		}
	}
	return len(s) <= 253
}

// isLabel reports whether s is a DNS label of any length.
func isLabel(s string) bool {
	for i, r := range s {
		switch {
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9':
		case r == '-' && 0 < i && i < len(s)-1:
		default:
			return false
		}
	}
	return s != ""
}
