// Flannel is a CNI meta-plugin that can replace flannel's own: it completes the
// configuration of one delegated plugin with this node's subnet, which flanneld has
// written to a file, and keeps the result in a record until DEL.
//
// The plugin is in plugin.go. The file subnet.go reads what flanneld has written,
// network.go makes the delegate's configuration, and adopt.go takes over what
// flannel's own plugin has attached.
//
//go:debug updatemaxprocs=0
package main

import "github.com/metacni/metacni/delegate/plugin"

func main() { plugin.Main(flannel()) }
