package conform

import (
	"context"

	"github.com/metacni/metacni/delegate/delegatetest"
)

// A Check is one thing that [Test] checks.
type Check struct {
	Name string // such as "del-again"; later versions keep it
	Duty string // what a plugin has to do to pass
	Why  string // what goes wrong on a node when a plugin does not

	// Where says who asks for it: headings of the CNI specification 1.1, the
	// outer one first, or a guarantee of this module, which starts with "metacni".
	Where string

	Kinds     []string // of plugins that it is for; nil means all
	Delegates bool     // whether it is for plugins with delegates only
	Strict    bool     // whether it asks for more than the specification; see [Config.Strict]

	command string   // that the plugin's versions must have, beside ADD and DEL
	real    bool     // whether it needs real containers
	process bool     // whether it needs a plugin that is a process
	after   []string // checks: when one of them fails, this one would fail for the same reason

	do func(context.Context, *suite) error // returns what the plugin does wrong
}

const (
	operations      = "Section 2: Execution Protocol / CNI operations / "
	addOperation    = operations + "ADD: Add container to network, or apply modifications"
	delOperation    = operations + "DEL: Remove container from network, or un-apply modifications"
	checkOperation  = operations + "CHECK: Check container's networking is as expected"
	statusOperation = operations + "STATUS: Check plugin status"
	gcOperation     = operations + "GC: Clean up any stale resources"
	ordering        = "Section 3: Execution of Network Configurations / Lifecycle & Ordering"
	procedure       = "Section 4: Plugin Delegation / Delegated plugin execution procedure"
	addSuccess      = "Section 5: Result Types / ADD Success"
	errorResult     = "Section 5: Result Types / Error"
)

// Checks returns all checks, in the order in which Test makes them.
func Checks() []Check {
	return []Check{
		{
			Name: "version", Duty: "VERSION prints the supported versions",
			Why:   "A runtime that asks for the versions first cannot use the plugin at all.",
			Where: operations + "VERSION: probe plugin version support",
			do:    checkVersion,
		}, {
			Name: "add", Duty: "ADD succeeds and runs every delegate",
			Why:   "Pods do not start, or start without a part of their network.",
			Where: addOperation,
			do:    checkAdd,
		}, {
			Name: "stdout", Duty: "ADD prints one JSON document",
			Why:   "A log line or a second document on stdout makes the result unreadable: the pod does not start although its network is there.",
			Where: addSuccess,
			do:    onAttached(checkStdout),
		}, {
			Name: "request", Duty: "delegates receive name, cniVersion and their own keys unchanged",
			Why:   "A delegate works without the options that did not reach it, such as a VLAN or a rate limit, and nobody is told.",
			Where: "Section 3: Execution of Network Configurations / Deriving request configuration from plugin configuration", Delegates: true,
			do: onAttached(checkRequest),
		}, {
			Name: "environment", Duty: "delegates receive the plugin's environment",
			Why:   "Without CNI_PATH a delegate does not find its IPAM plugin; without the rest it attaches another interface, or behaves differently from one started by the runtime.",
			Where: "Section 4: Plugin Delegation / Delegated Plugin protocol", Delegates: true,
			do: onAttached(checkEnvironment),
		}, {
			Name: "stderr", Duty: "delegates' stderr appears on the plugin's",
			Why:   "What a delegate logged before it failed is lost, and the runtime's log does not say why pods do not start.",
			Where: procedure, Kinds: []string{"meta", "main", "chained", "ipam"}, Delegates: true,
			process: true,
			do:      onAttached(checkStderr),
		}, {
			Name: "result", Duty: "ADD prints a result of the version asked for, with a delegate's address",
			Why:   "The runtime takes the pod's address from the result. Without one the cluster does not know the pod's IP; a result of another version may be misread.",
			Where: addSuccess, after: []string{"stdout"},
			do: onAttached(checkResult),
		}, {
			Name: "interface", Duty: "the interface is in the container, with its addresses, and in the result with its sandbox",
			Why:   "The runtime finds the pod's interface and address by the sandbox in the result. Without it the pod has no IP for the cluster, or an IP that nothing answers.",
			Where: addSuccess, Kinds: []string{"main"}, real: true, after: []string{"result"},
			do: onAttached(checkInterface),
		}, {
			Name: "ipam-result", Duty: "ADD of an IPAM plugin prints addresses and no interfaces",
			Why:   "The plugin that asked for the address takes an interface in the result for one of its own, or cannot read the result.",
			Where: "Section 5: Result Types / Delegated plugins (IPAM)", Kinds: []string{"ipam"}, after: []string{"result"},
			do: onAttached(checkIPAMResult),
		}, {
			Name: "chain", Duty: "ADD prints what prevResult has, except for what it has removed",
			Why:   "Behind other plugins in a chain, the runtime loses the addresses, routes and name servers that those gave the pod.",
			Where: addOperation, Kinds: []string{"meta", "main", "chained", "shim"}, after: []string{"result"},
			do: checkChain,
		}, {
			Name: "undo", Duty: "an ADD whose delegate fails fails and leaves nothing",
			Why:   "Until the runtime calls DEL, which it does not when it crashes or gives up, each attempt to start the pod leaves an interface or an address on the node.",
			Where: procedure, Delegates: true,
			do: undone(failing),
		}, {
			Name: "undo-killed", Duty: "an ADD whose delegate is killed fails and leaves nothing",
			Why:   "A delegate that is killed, when memory is short or its time is up, may have allocated an address before. Nobody releases it.",
			Where: procedure, Delegates: true, after: []string{"undo"},
			do: undone(delegatetest.KillOn),
		}, {
			Name: "undo-garbage", Duty: "an ADD whose delegate prints no JSON fails and leaves nothing",
			Why:   "The delegate has attached its interface, whatever it printed. Interface and address stay behind.",
			Where: procedure, Delegates: true, after: []string{"undo"},
			do: undone(delegatetest.GarbageOn),
		}, {
			Name: "undo-silence", Duty: "an ADD whose delegate prints nothing fails and leaves nothing",
			Why:   "The delegate has attached its interface. If the plugin takes silence for success, the pod starts without an address; if it does not undo, the address stays behind.",
			Where: procedure, Delegates: true, after: []string{"undo-garbage"},
			do: undone(silent),
		}, {
			Name: "undo-two-documents", Duty: "an ADD whose delegate prints two documents fails and leaves nothing",
			Why:   "The plugin cannot know which document is the result. A wrong guess reports an address that the pod does not have.",
			Where: procedure, Delegates: true, after: []string{"undo-garbage"},
			do: undone(twice),
		}, {
			Name: "add-exists", Duty: "ADD fails when the container has an interface of that name",
			Why:   "A pod in which another plugin has made the interface loses it, or runs with two networks that take each other's packets.",
			Where: addOperation, Kinds: []string{"main"}, real: true, after: []string{"interface"},
			do: onNew(checkAddExists),
		}, {
			Name: "error", Duty: "a failure is reported as one JSON object with code and msg",
			Why:   "The runtime shows operators this object and nothing else. Without it they read \"netplugin failed with no error message\".",
			Where: errorResult,
			do:    checkError,
		}, {
			Name: "error-version", Duty: "the error object has the cniVersion of the configuration",
			Why:   "A runtime that decodes the object by its version, as the specification lets it, cannot read the error.",
			Where: errorResult, after: []string{"error"},
			do: checkErrorVersion,
		}, {
			Name: "version-unknown", Duty: "ADD refuses a cniVersion that the plugin does not know, with code 1",
			Why:   "Keys of another version mean something else: the pod runs with another network than its author wrote, and nobody is told.",
			Where: errorResult, after: []string{"error"},
			do: checkVersionUnknown,
		}, {
			Name: "add-broken", Duty: "an ADD with a broken configuration fails cleanly, or prints a result",
			Why:   "After a mistake in a configuration pods start without the network that was meant, or fail without a message, and leave interfaces behind.",
			Where: "Section 2: Execution Protocol / Errors", after: []string{"result", "error"},
			do: checkAddBroken,
		}, {
			Name: "del", Duty: "DEL removes what ADD attached",
			Why:   "Interfaces, addresses and firewall rules of pods that are gone pile up on the node.",
			Where: delOperation,
			do:    onAttached(checkDel),
		}, {
			Name: "del-again", Duty: "DEL succeeds once more",
			Why:   "Runtimes repeat a DEL, for example after their own restart. One that fails then leaves the pod in Terminating.",
			Where: delOperation, after: []string{"del"},
			do: onAttached(checkDelAgain),
		}, {
			Name: "del-bare", Duty: "DEL works without CNI_NETNS, and up to CNI 0.4.0 without prevResult",
			Why:   "After a reboot the namespace is gone, and perhaps the runtime's cache too. What is not released then stays allocated.",
			Where: delOperation, after: []string{"del"},
			do: checkDelBare,
		}, {
			Name: "del-unknown", Duty: "DEL succeeds for what was never attached",
			Why:   "Runtimes call DEL for pods whose ADD never ran. One that fails then leaves the pod in Terminating.",
			Where: delOperation, after: []string{"del-again", "del-bare"},
			do: onNew(checkDelUnknown),
		}, {
			Name: "del-failed", Duty: "DEL succeeds after an ADD that failed, and leaves nothing",
			Why:   "Runtimes must call DEL after a failed ADD. One that fails then keeps the pod from being started again; what it leaves stays on the node with each try.",
			Where: ordering, after: []string{"del", "del-unknown"},
			do: checkDelFailed,
		}, {
			Name: "del-gone", Duty: "DEL succeeds when the namespace is gone, and leaves nothing",
			Why:   "After a crash of the pod or a reboot the namespace is gone before DEL. One that fails then leaves the pod in Terminating; one that gives up leaves addresses and rules on the node.",
			Where: delOperation, real: true, after: []string{"del-bare", "del-again"},
			do: onAttached(checkDelGone),
		}, {
			Name: "del-broken", Duty: "DEL works when the configuration was broken after the ADD",
			Why:   "People edit configurations while pods run. If DEL needs the old one, these pods stay in Terminating, or their addresses stay allocated.",
			Where: "metacni, package lifecycle: DEL removes what the record of the ADD names", Kinds: []string{"meta", "shim"}, Strict: true, after: []string{"del-bare"},
			do: checkDelBroken,
		}, {
			Name: "del-error", Duty: "DEL fails when a delegate's DEL fails",
			Why:   "The runtime takes success to mean that everything is released and never asks again: what the delegate could not release stays allocated.",
			Where: procedure, Delegates: true, after: []string{"del"},
			do: failsWith("DEL"),
		}, {
			Name: "del-retry", Duty: "a repeated DEL removes the rest",
			Why:   "A delegate that failed once, for example because its daemon was restarting, is not asked again: its interface and address stay on the node.",
			Where: delOperation, Delegates: true, after: []string{"del-error"},
			do: onEach("DEL", checkDelRetry),
		}, {
			Name: "ipam-unique", Duty: "two containers get two addresses",
			Why:   "Two pods with one address receive each other's connections.",
			Where: "Section 4: Plugin Delegation", Kinds: []string{"ipam"}, after: []string{"ipam-result"},
			do: onNew(checkIPAMUnique),
		}, {
			Name: "ipam-release", Duty: "DEL releases the address, and no other, also without CNI_NETNS",
			Why:   "Each pod that ends takes an address with it, until no pod starts on the node.",
			Where: delOperation, Kinds: []string{"ipam"}, after: []string{"del-bare", "ipam-unique"},
			do: onNew(checkIPAMRelease),
		}, {
			Name: "check-fresh", Duty: "CHECK succeeds right after ADD",
			Why:   "A healthy pod is reported as broken. A runtime that acts on CHECK ends it.",
			Where: checkOperation, command: "CHECK", after: []string{"interface"},
			do: onAttached(checkFresh),
		}, {
			Name: "check", Duty: "CHECK runs every delegate's CHECK, with prevResult",
			Why:   "A pod whose network is broken is reported as healthy.",
			Where: checkOperation, Delegates: true, command: "CHECK", after: []string{"add", "check-fresh"},
			do: onAttached(checkCheck),
		}, {
			Name: "check-error", Duty: "CHECK fails when a delegate's CHECK fails",
			Why:   "A pod whose network is broken is reported as healthy.",
			Where: checkOperation, Delegates: true, command: "CHECK", after: []string{"check"},
			do: failsWith("CHECK"),
		}, {
			Name: "check-gone", Duty: "CHECK fails when what ADD made is gone",
			Why:   "A pod whose network is broken is reported as healthy.",
			Where: checkOperation, Kinds: []string{"main", "chained", "ipam"}, command: "CHECK", after: []string{"interface", "check-fresh", "del", "ipam-release"},
			do: checkGone,
		}, {
			Name: "gc-quiet", Duty: "GC succeeds and prints nothing",
			Why:   "The runtime reports a node on which nothing can be cleaned up, or reads the output as an error.",
			Where: gcOperation, command: "GC",
			do: onAttached(checkGCQuiet),
		}, {
			Name: "gc", Duty: "GC runs every delegate's GC",
			Why:   "Addresses of pods that disappeared without a DEL, for example in a crash of the node, are never released.",
			Where: gcOperation, Delegates: true, command: "GC", after: []string{"add", "gc-quiet"},
			do: onAttached(checkGC),
		}, {
			Name: "gc-error", Duty: "GC fails when a delegate's GC fails, after running the others",
			Why:   "One delegate that fails keeps the others from releasing anything, or the runtime is told that all is clean.",
			Where: gcOperation, Delegates: true, command: "GC", after: []string{"gc"},
			do: checkGCError,
		}, {
			Name: "gc-valid", Duty: "GC keeps the valid attachments and passes them to delegates",
			Why:   "A delegate that does not find an attachment on its list releases the address of a running pod, and another pod gets the same one.",
			Where: gcOperation, Delegates: true, command: "GC", after: []string{"gc", "environment"},
			do: onAttached(checkGCValid),
		}, {
			Name: "gc-stale", Duty: "GC removes the traces of a container that is gone, and keeps the others",
			Why:   "Firewall rules and interfaces of pods that disappeared without a DEL pile up on the node, or pods that run lose theirs.",
			Where: gcOperation, Kinds: []string{"main", "chained"}, command: "GC", real: true, after: []string{"interface", "del", "gc-quiet", "gc"},
			do: onAttached(checkGCStale),
		}, {
			Name: "status-ready", Duty: "STATUS succeeds where ADD does",
			Why:   "The node is reported as not ready, and pods are not scheduled to it, although each ADD would succeed.",
			Where: statusOperation, command: "STATUS",
			do: onNew(checkStatusReady),
		}, {
			Name: "status", Duty: "STATUS runs every delegate's STATUS",
			Why:   "The node is reported as ready, and pods are scheduled to it, although no ADD can succeed.",
			Where: statusOperation, Delegates: true, command: "STATUS", after: []string{"add", "status-ready"},
			do: onNew(checkStatus),
		}, {
			Name: "status-error", Duty: "STATUS fails when a delegate's STATUS fails",
			Why:   "The node is reported as ready, and pods are scheduled to it, although no ADD can succeed.",
			Where: statusOperation, Delegates: true, command: "STATUS", after: []string{"status"},
			do: failsWith("STATUS"),
		}, {
			Name: "ipam-gc", Duty: "GC releases the addresses of containers that are gone, and keeps the others",
			Why:   "Addresses of pods that disappeared without a DEL are never free again, or a pod gets the address of another that runs.",
			Where: gcOperation, Kinds: []string{"ipam"}, command: "GC", after: []string{"gc-quiet", "ipam-release"},
			do: onNew(checkIPAMGC),
		}, {
			Name: "ipam-full", Duty: "STATUS fails when no address is left",
			Why:   "The node is reported as ready, and pods are scheduled to it, although no ADD can succeed.",
			Where: statusOperation, Kinds: []string{"ipam"}, command: "STATUS", after: []string{"status-ready", "ipam-release"},
			do: onNew(checkIPAMFull),
		}, {
			Name: "code", Duty: "the plugin fails with its delegate's error code",
			Why:   "Code 11 means \"try again later\", code 7 means \"mend the configuration\". With another code the runtime, and whoever reads its log, does the wrong thing.",
			Where: "metacni, package status: the delegate's error code reaches the runtime", Delegates: true, Strict: true, after: []string{"error"},
			do: checkCode,
		}, {
			Name: "concurrent", Duty: "ADD and DEL work for several containers at once",
			Why:   "Runtimes start pods in parallel. Pods that start together fail, or get each other's state.",
			Where: ordering, after: []string{"del", "ipam-unique"},
			do: onNew(checkConcurrent),
		}, {
			Name: "names", Duty: "DEL of one interface leaves what the others of the container have, whatever they are called",
			Why:   "The author of a pod who may name an interface rids another one of its rules.",
			Where: delOperation, after: []string{"del", "check-gone", "concurrent", "del-unknown", "del-failed"},
			do: checkNames,
		}, {
			Name: "versions", Duty: "ADD and DEL work in every supported version",
			Why:   "A configuration with another cniVersion from the plugin's own list gives pods that do not start, or that leave interfaces and addresses behind.",
			Where: "Section 1: Network configuration format / Version considerations", after: []string{"result", "del-bare"},
			do: checkVersions,
		},
	}
}
