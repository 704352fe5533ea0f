// Package host makes private hosts of processes, on Linux: for tests of plugins that change the
// kernel's state, and for demonstrations. A private host is a network namespace and a mount namespace
// with an empty /run and /var/lib/cni. The kernel removes both when the last process in them ends. A
// private host needs root, or a kernel with user namespaces for ordinary users, and no other program,
// such as iproute2 or sudo.
//
// [Command] starts a process in new namespaces, and [Setup], called by this process, makes a host of
// them. [Tests] runs the tests of a package in such a process. [NewNS], [Do], [Interfaces] and [Reach]
// are for the process itself. On other systems the package is empty.
package host
