// Package host makes a private host: a network namespace and a mount namespace in which
// real plugins can run. Nothing of it is left when the last process in it ends.
//
// The lab and the end-to-end tests run in it. It needs root, or a kernel with user
// namespaces for ordinary users. It needs no other program, such as iproute2 or sudo.
package host

import (
	"net/netip"
	"time"
)

// An Interface is one interface of a namespace, as `ip address` shows it.
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
