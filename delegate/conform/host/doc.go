// Package host makes private hosts of processes, on Linux: for tests of plugins that change the
// kernel's state, and for demonstrations. A private host is a network namespace and a mount namespace
// with an empty /run and /var/lib/cni. Nothing of it is left when it ends. It needs root, or a kernel
// with user namespaces for ordinary users, and no other program, such as iproute2 or sudo.
//
// [Command] starts a process whose host it is, the whole of it after [Setup]: [Tests] runs the tests
// of a package so, and [NewNS], [Do], [Interfaces] and [Reach] are for such a process. On other
// systems the package is empty.
package host
