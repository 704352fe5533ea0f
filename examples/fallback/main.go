// Fallback is a CNI meta-plugin that attaches a container to the first network of its
// configuration that works.
//
//go:debug updatemaxprocs=0
package main

import "github.com/metacni/metacni/delegate/plugin"

func main() { plugin.Main(fallback()) }
