module github.com/metacni/metacni

go 1.25.0

require (
	github.com/containernetworking/cni v1.3.0
	github.com/containernetworking/plugins v1.9.1
	github.com/creachadair/jrpc2 v1.3.5
	github.com/fsnotify/fsnotify v1.10.1
	github.com/google/go-cmp v0.7.0
	github.com/vishvananda/netlink v1.3.1
	golang.org/x/sys v0.46.0
	sigs.k8s.io/knftables v0.0.21
)

require (
	github.com/creachadair/mds v0.26.1 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
	golang.org/x/sync v0.19.0 // indirect
)
