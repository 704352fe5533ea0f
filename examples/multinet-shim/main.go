// Multinet-shim is the executable that a runtime runs if multinet is a daemon. It sends
// each command to examples/multinetd over a unix socket and prints the answer. Its own
// keys of the configuration are in plugin.go; see examples/multinetd/README.md.
//
//go:debug updatemaxprocs=0
package main

import "github.com/metacni/metacni/delegate/plugin"

func main() { plugin.Main(multinetShim()) }
