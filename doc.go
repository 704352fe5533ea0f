// Package metacni is the home of the SDK for CNI meta-plugins: plugins that
// attach a container to its networks by running other CNI plugins, as Multus,
// flannel and DANM do. The package itself is documentation; import the
// packages below it.
//
// A meta-plugin is started by the container runtime once for every command. On
// ADD it decides which networks the container gets, names their interfaces,
// runs the plugins of each and answers with a result. On DEL, in another
// process and perhaps after a crash, a reboot or a change of configuration, it
// removes exactly what that ADD made. In between it must not lose an address,
// an error code or a deadline. That is what the SDK is for.
//
// The life of an attachment in fifteen lines:
//
//	life := &lifecycle.Manager{Dir: stateDir, Invoker: &delegate.Invoker{Path: pluginDirs, Env: env}}
//	key := scratch.Key{Network: "multi", ContainerID: id, IfName: "eth0"}
//
//	// ADD: all networks or none. Recorded on disk before the first plugin
//	// runs; undone, last first, if anything fails.
//	_, err := life.Add(ctx, key, lifecycle.Transaction{
//		NetNS: netns,
//		Plan: func(_ context.Context, taken []string) ([]delegate.Attachment, error) {
//			names, err := ifname.Scheme{Primary: "eth0", Taken: taken}.Plan("", "storage0")
//			...
//		},
//		Report: func(_ context.Context, added []delegate.Attached) error { return added[0].PrintTo(stdout, version) },
//	})
//
//	err = life.Check(ctx, key) // CHECK: with what ADD used
//	// DEL: from the record, whatever the configuration says by now.
//	err = life.Del(ctx, lifecycle.Removal{Key: key, NetNS: netns})
//	return status.Error(err) // one error object: the cause's code, everyone's words
//
// The packages, each useful without the others as far as the arrows allow:
//
//   - [github.com/metacni/metacni/netconf]: read network configurations without
//     loss, edit them, derive what plugins receive on stdin
//   - [github.com/metacni/metacni/ifname]: choose and validate interface names
//   - [github.com/metacni/metacni/scratch]: state between ADD and DEL, and the
//     lock of a container
//   - [github.com/metacni/metacni/status]: errors, STATUS and network-status as
//     runtimes and operators read them
//   - [github.com/metacni/metacni/delegate]: run one plugin or a chain, undo it,
//     keep its error code (uses netconf)
//   - [github.com/metacni/metacni/delegate/lifecycle]: the five stitched together
//     (uses delegate, scratch and ifname)
//   - [github.com/metacni/metacni/netconf/autoconf]: publish a configuration in
//     front of the primary network's, and follow that (uses netconf)
//   - [github.com/metacni/metacni/delegate/delegatetest]: fake plugins in memory,
//     for your tests
//
// Whole meta-plugins to start from are in examples.
package metacni
