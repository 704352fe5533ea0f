package delegatetest

import "context"

// A Check is one thing that [Conform] checks.
type Check struct {
	Name string // such as "del-again"; later versions keep it
	Duty string // what a plugin has to do to pass
	Why  string // what goes wrong on a node when a plugin does not

	// Where says who asks for it: headings of the CNI specification 1.1, the
	// outer one first, or a guarantee of this module, which starts with "metacni".
	Where string

	do func(context.Context, *suite) error // returns what the plugin does wrong
}

const (
	versionSelection = "Section 1: Network configuration format / Version considerations"
	operations       = "Section 2: Execution Protocol / CNI operations / "
	addOperation     = operations + "ADD: Add container to network, or apply modifications"
	delOperation     = operations + "DEL: Remove container from network, or un-apply modifications"
	checkOperation   = operations + "CHECK: Check container's networking is as expected"
	statusOperation  = operations + "STATUS: Check plugin status"
	versionOperation = operations + "VERSION: probe plugin version support"
	gcOperation      = operations + "GC: Clean up any stale resources"
	errorProtocol    = "Section 2: Execution Protocol / Errors"
	ordering         = "Section 3: Execution of Network Configurations / Lifecycle & Ordering"
	derivation       = "Section 3: Execution of Network Configurations / Deriving request configuration from plugin configuration"
	delegation       = "Section 4: Plugin Delegation / Delegated Plugin protocol"
	procedure        = "Section 4: Plugin Delegation / Delegated plugin execution procedure"
	addSuccess       = "Section 5: Result Types / ADD Success"
	errorResult      = "Section 5: Result Types / Error"
	recordGuarantee  = "metacni, package lifecycle: DEL removes what the record of the ADD names"
)

// Checks returns all checks, in the order in which Conform makes them.
func Checks() []Check {
	return []Check{
		{
			"version", "VERSION prints the supported versions",
			"A runtime that asks for the versions first cannot use the plugin at all.",
			versionOperation, checkVersion,
		}, {
			"add", "ADD succeeds and runs every delegate",
			"Pods do not start, or start without a part of their network.",
			addOperation, onAttached(checkAdd),
		}, {
			"stdout", "ADD prints one JSON document",
			"A log line or a second document on stdout makes the result unreadable: the pod does not start although its network is there.",
			addSuccess, onAttached(checkStdout),
		}, {
			"result", "ADD prints a result of the version asked for, with a delegate's address",
			"The runtime takes the pod's address from the result. Without one the cluster does not know the pod's IP; a result of another version may be misread.",
			addSuccess, onAttached(checkResult),
		}, {
			"versions", "ADD and DEL work in every supported version",
			"A configuration with another cniVersion from the plugin's own list gives pods that do not start, or that leave interfaces and addresses behind.",
			versionSelection, checkVersions,
		}, {
			"chain", "ADD with a prevResult prints the interfaces and addresses of that, too",
			"Behind other plugins in a chain, the runtime loses the addresses that those gave the pod.",
			addOperation, checkChain,
		}, {
			"request", "delegates receive name, cniVersion and their own keys unchanged",
			"A delegate works without the options that did not reach it, such as a VLAN or a rate limit, and nobody is told.",
			derivation, onAttached(checkRequest, delegates),
		}, {
			"environment", "delegates receive the plugin's environment",
			"Without CNI_PATH a delegate does not find its IPAM plugin; without the rest it attaches another interface, or behaves differently from one started by the runtime.",
			delegation, onAttached(checkEnvironment, delegates),
		}, {
			"stderr", "delegates' stderr appears on the plugin's",
			"What a delegate logged before it failed is lost, and the runtime's log does not say why pods do not start.",
			procedure, onAttached(checkStderr, delegates),
		}, {
			"undo", "an ADD whose delegate fails fails and leaves nothing",
			"Unless the runtime calls DEL, which it may not after an ADD that failed, each attempt to start the pod leaves an interface or an address on the node.",
			procedure, undone(failing),
		}, {
			"undo-killed", "an ADD whose delegate is killed fails and leaves nothing",
			"A delegate that is killed, when memory is short or its time is up, may have allocated an address before. Nobody releases it.",
			procedure, undone(KillOn),
		}, {
			"undo-garbage", "an ADD whose delegate prints no JSON fails and leaves nothing",
			"The delegate has attached its interface, whatever it printed. Interface and address stay behind.",
			procedure, undone(GarbageOn),
		}, {
			"undo-silence", "an ADD whose delegate prints nothing fails and leaves nothing",
			"The delegate has attached its interface. If the plugin takes silence for success, the pod starts without an address; if it does not undo, the address stays behind.",
			procedure, undone(silentOn),
		}, {
			"undo-two-documents", "an ADD whose delegate prints two documents fails and leaves nothing",
			"The plugin cannot know which document is the result. A wrong guess reports an address that the pod does not have.",
			procedure, undone(twiceOn),
		}, {
			"add-broken", "an ADD with a broken configuration fails cleanly, or prints a result",
			"After a mistake in a configuration pods start without the network that was meant, or fail without a message, and leave interfaces behind.",
			errorProtocol, checkAddBroken,
		}, {
			"error", "a failure is reported as one JSON object with code and msg",
			"The runtime shows operators this object and nothing else. Without it they read \"netplugin failed with no error message\".",
			errorResult, checkError,
		}, {
			"error-version", "the error object has the cniVersion of the configuration",
			"A runtime that decodes the object by its version, as the specification lets it, cannot read the error.",
			errorResult, checkErrorVersion,
		}, {
			"code", "the plugin fails with its delegate's error code",
			"Code 11 means \"try again later\", code 7 means \"mend the configuration\". With another code the runtime, and whoever reads its log, does the wrong thing.",
			procedure, checkCode,
		}, {
			"del", "DEL removes what ADD attached",
			"Interfaces, addresses and firewall rules of pods that are gone pile up on the node.",
			delOperation, onAttached(checkDel),
		}, {
			"del-again", "DEL succeeds once more",
			"Runtimes repeat a DEL, for example after their own restart. One that fails then leaves the pod in Terminating.",
			delOperation, onAttached(checkDelAgain),
		}, {
			"del-unknown", "DEL succeeds for what was never attached",
			"Runtimes call DEL for pods whose ADD never ran. One that fails then leaves the pod in Terminating.",
			delOperation, onNew(checkDelUnknown),
		}, {
			"del-failed", "DEL succeeds after an ADD that failed",
			"Runtimes must call DEL after a failed ADD. One that fails then keeps the pod from being started again.",
			ordering, onNew(checkDelFailed, delegates),
		}, {
			"del-bare", "DEL works without CNI_NETNS and prevResult",
			"After a reboot the namespace is gone, and perhaps the runtime's cache too. What is not released then stays allocated.",
			delOperation, onAttached(checkDelBare),
		}, {
			"del-broken", "DEL works when the configuration was broken after the ADD",
			"People edit configurations while pods run. If DEL needs the old one, these pods stay in Terminating, or their addresses stay allocated.",
			recordGuarantee, checkDelBroken,
		}, {
			"del-error", "DEL fails when a delegate's DEL fails",
			"The runtime takes success to mean that everything is released and never asks again: what the delegate could not release stays allocated.",
			procedure, failsWith("DEL"),
		}, {
			"del-retry", "a repeated DEL removes the rest",
			"A delegate that failed once, for example because its daemon was restarting, is not asked again: its interface and address stay on the node.",
			delOperation, onEach("DEL", checkDelRetry),
		}, {
			"check", "CHECK runs every delegate's CHECK, with prevResult",
			"A pod whose network is broken is reported as healthy.",
			checkOperation, onAttached(checkCheck, "CHECK"),
		}, {
			"check-error", "CHECK fails when a delegate's CHECK fails",
			"A pod whose network is broken is reported as healthy.",
			checkOperation, failsWith("CHECK"),
		}, {
			"gc", "GC runs every delegate's GC and prints nothing",
			"Addresses of pods that disappeared without a DEL, for example in a crash of the node, are never released.",
			gcOperation, onAttached(checkGC, "GC"),
		}, {
			"gc-error", "GC fails when a delegate's GC fails, after running the others",
			"One delegate that fails keeps the others from releasing anything, or the runtime is told that all is clean.",
			gcOperation, checkGCError,
		}, {
			"gc-valid", "GC keeps the valid attachments and passes them to delegates",
			"A delegate that does not find an attachment on its list releases the address of a running pod, and another pod gets the same one.",
			gcOperation, onAttached(checkGCValid, "GC"),
		}, {
			"status", "STATUS runs every delegate's STATUS",
			"The node is reported as ready, and pods are scheduled to it, although no ADD can succeed.",
			statusOperation, onNew(checkStatus, "STATUS"),
		}, {
			"status-error", "STATUS fails when a delegate's STATUS fails",
			"The node is reported as ready, and pods are scheduled to it, although no ADD can succeed.",
			statusOperation, failsWith("STATUS"),
		}, {
			"concurrent", "ADD and DEL work for several containers at once",
			"Runtimes start pods in parallel. Pods that start together fail, or get each other's state.",
			ordering, onNew(checkConcurrent),
		},
	}
}
