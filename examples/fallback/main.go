// Fallback is a CNI meta-plugin that attaches a container to the first network of its
// configuration that works.
package main

import "github.com/metacni/metacni/delegate/plugin"

func main() { plugin.Main(fallback()) }
