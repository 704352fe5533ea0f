// Fallback is a CNI meta-plugin that attaches a container to the first network
// that works, of those in its configuration.
package main

import "github.com/metacni/metacni/delegate/plugin"

func main() { plugin.Main(fallback()) }
