module github.com/metacni/metacni/internal/e2e/power

go 1.25.0

replace github.com/metacni/metacni => ../../..

require (
	github.com/containernetworking/cni v1.3.0
	github.com/hanwen/go-fuse/v2 v2.12.1
	github.com/metacni/metacni v0.0.0-00010101000000-000000000000
	golang.org/x/sys v0.46.0
)

require (
	github.com/containernetworking/plugins v1.9.1 // indirect
	github.com/creachadair/jrpc2 v1.3.5 // indirect
	github.com/creachadair/mds v0.26.1 // indirect
	github.com/fsnotify/fsnotify v1.10.1 // indirect
	github.com/google/go-cmp v0.7.0 // indirect
	github.com/vishvananda/netlink v1.3.1 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
	golang.org/x/sync v0.19.0 // indirect
)
