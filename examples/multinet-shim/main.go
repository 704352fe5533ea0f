// Multinet-shim is what the runtime runs where multinet is a daemon: it hands
// each command to examples/multinetd over a unix socket and prints what that
// answers. Its own part of the configuration is in plugin.go, and described in
// examples/multinetd/README.md.
package main

import "github.com/metacni/metacni/delegate/plugin"

func main() { plugin.Main(multinetShim()) }
