// Flannel is a CNI meta-plugin in the manner of flannel's: it completes the
// configuration of one delegated plugin with this host's subnet, which flanneld
// has written to a file, and remembers what it made of it until DEL.
//
// The plugin is in plugin.go, what it reads from flanneld in subnet.go, the
// configuration it makes of both in network.go.
package main

import "github.com/metacni/metacni/delegate/plugin"

func main() { plugin.Main(flannel()) }
