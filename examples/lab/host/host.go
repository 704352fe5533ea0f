// Package host makes a private host: a network and a mount namespace of its
// own, in which real plugins can do as they please and of which nothing is
// left when the last process in it ends.
//
// It is what the lab and the end-to-end tests run in. It needs root, or a
// kernel that gives user namespaces to ordinary users, and no other program:
// neither iproute2 nor sudo.
package host

import (
	"net/netip"
	"time"
)

// An Interface is one line of what a namespace has: what `ip address` would
// say.
type Interface struct {
	Name      string
	Kind      string // "veth", "macvlan", "bridge", ...; "device" for lo
	MAC       string // empty when it has none
	MTU       int
	Up        bool
	Addresses []netip.Prefix // without link-local ones
	AltNames  []string
}

// A Reply is an answer to Ping.
type Reply struct {
	From netip.Addr
	Took time.Duration
}
