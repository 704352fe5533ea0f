// Package metacni is the root of the SDK for CNI meta-plugins: plugins that attach
// a container to its networks by running other CNI plugins, as Multus, flannel and
// DANM do. This package is documentation only; import the packages below it.
//
// # What a meta-plugin does
//
// The container runtime starts a plugin once for each command. On ADD a meta-plugin
// decides which networks the container gets, names their interfaces, runs the
// plugins of each network and prints a result. DEL is another process, perhaps after
// a crash, a reboot or a change of configuration. It must remove what that ADD
// attached. In between, no address, error code or deadline may be lost. The SDK does
// all of this; the author says which networks.
//
// Most plugins are one value of type plugin.Plugin, whose package comment shows a
// whole plugin. It runs as an executable, in a daemon, as a resident plugin, and in
// a test without a process.
//
// # The life of an attachment
//
// Below plugin.Plugin is package lifecycle. ADD, CHECK and DEL with it, in fifteen
// lines:
//
//	life := &lifecycle.Manager{Dir: stateDir, Invoker: &delegate.Invoker{Path: pluginDirs, Env: env}}
//	key := scratch.Key{Network: "multi", ContainerID: id, IfName: "eth0"}
//
//	// ADD attaches all networks or none. They are on disk before the first plugin
//	// runs. If anything fails, what was attached is detached, last first.
//	_, err := life.Add(ctx, key, lifecycle.Transaction{
//		Plan: lifecycle.Plan(
//			delegate.Attachment{Network: pods, ContainerID: id, NetNS: netns, IfName: "eth0"},
//			delegate.Attachment{Network: storage, ContainerID: id, NetNS: netns, IfName: "net1"}),
//		Report: func(_ context.Context, added []delegate.Attached) error { return added[0].PrintTo(stdout, "1.1.0") },
//	})
//
//	err = life.Check(ctx, key, netns)                // CHECK, with what ADD used
//	err = life.Del(ctx, key, lifecycle.DelRequest{}) // DEL, from the record
//	return status.Error(err)                         // the failing plugin's code, the full error text
//
// # Packages
//
// An arrow is an import. Packages without one import no other package of the SDK.
//
//   - [github.com/metacni/metacni/delegate/plugin]: the main of a plugin: arguments,
//     signals, error object, all commands (→ lifecycle)
//   - [github.com/metacni/metacni/delegate/lifecycle]: attachments from ADD to DEL:
//     lock, record, undo, CHECK, GC; one more network for a running container
//     (→ delegate, scratch, ifname)
//   - [github.com/metacni/metacni/delegate]: runs a plugin or a chain, undoes
//     failures, preserves error codes, enforces deadlines (→ netconf)
//   - [github.com/metacni/metacni/delegate/delegatetest]: fake plugins, for tests
//     (→ delegate)
//   - [github.com/metacni/metacni/delegate/conform]: the conformance suite (→ delegatetest)
//   - [github.com/metacni/metacni/delegate/conform/host]: private hosts with containers, for
//     tests and demonstrations of what changes the kernel
//   - [github.com/metacni/metacni/netconf]: network configurations without loss
//   - [github.com/metacni/metacni/scratch]: state from ADD to DEL that survives a
//     crash, and the lock of a container
//   - [github.com/metacni/metacni/ifname]: validation and plans of interface names
//   - [github.com/metacni/metacni/status]: CNI error objects, STATUS, network-status
//   - [github.com/metacni/metacni/delegate/thick]: the plugin as a daemon (→ plugin)
//   - [github.com/metacni/metacni/delegate/thick/shim]: the small program in front of the
//     daemon (→ plugin)
//   - [github.com/metacni/metacni/delegate/thick/wire]: their messages
//   - [github.com/metacni/metacni/delegate/resident]: resident plugins, called over a
//     socket instead of executed (→ plugin)
//   - [github.com/metacni/metacni/delegate/adopt]: takes over what other programs
//     attached (→ lifecycle)
//   - [github.com/metacni/metacni/netconf/autoconf]: writes the node's CNI
//     configuration and keeps it in step with the cluster network (→ netconf)
//   - [github.com/metacni/metacni/netconf/nad]: networks from Kubernetes'
//     NetworkAttachmentDefinitions, without a Kubernetes client (→ netconf)
//   - [github.com/metacni/metacni/delegate/device]: which of a pod's devices each of
//     its attachments gets, and device information files (→ delegate, netconf/nad, status)
//
// The module delegate/otel has
//
//   - github.com/metacni/metacni/delegate/otel: commands as traces of OpenTelemetry (→ plugin)
//
// and the module delegate/kube, for daemons in a Kubernetes cluster,
//
//   - github.com/metacni/metacni/delegate/kube: definitions, pods, status and Events
//     (→ netconf/nad, status)
//   - github.com/metacni/metacni/delegate/kube/podresources: the devices that the kubelet has
//     given to a pod (→ device)
//   - github.com/metacni/metacni/delegate/kube/webhook: refuses what an ADD would refuse
//     (→ netconf/nad)
//   - github.com/metacni/metacni/delegate/kube/dra: networks by ResourceClaim (→ kube,
//     lifecycle)
//   - github.com/metacni/metacni/delegate/kube/dra/dratest: a kubelet that prepares claims, for
//     tests
//   - github.com/metacni/metacni/delegate/kube/podresources/podresourcestest: a kubelet with
//     pods and devices, for tests
//
// Whole plugins to copy, and a first one in ten minutes, are in
// https://github.com/metacni/metacni/tree/main/examples.
package metacni
