// Multinetd is multinet as a daemon: see package daemon.
package main

import "github.com/metacni/metacni/examples/multinet/daemon"

func main() { daemon.Main() }
