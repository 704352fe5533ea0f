package matrix

import (
	"fmt"
	"slices"
)

// A cause is why some checks fail with some plugins of a project.
type cause struct {
	draft   string              // issues/DRAFT.md
	fails   map[string][]string // checks, by plugin
	fixed   string              // the version without it, if there is one
	section string              // of the specification
	verdict string              // why the findings are true
	shows   string              // what the commands of the draft print
	lacks   string              // and what they do not print
}

// Sections of the specification.
const (
	add        = "2, ADD"
	del        = "2, DEL"
	checking   = "2, CHECK"
	collecting = "2, GC"
	status     = "2, STATUS"
	delegation = "4, Delegated Plugin protocol"
	procedure  = "4, Delegated plugin execution procedure"
	success    = "5, ADD Success"
)

// causes returns the causes of all findings.
func causes() []cause {
	return []cause{
		{
			draft: "cni-error-version", fails: everyone("error-version"), section: "5, Error",
			verdict: "An error object should have the key cniVersion. skel.PluginMainFuncs prints errors without it.",
			shows:   "\"code\": 4", lacks: "cniVersion",
		}, {
			draft: "plugins-chain", fails: mains("chain"), section: add,
			verdict: "A prevResult MUST be passed through or modified. The result has only what the plugin made.",
			shows:   "10.1.0.5", lacks: "before0",
		}, {
			draft: "plugins-undo", fails: mains("undo"), section: procedure,
			verdict: "After an ADD of the IPAM plugin that failed, its DEL should run before ADD fails. The clean-up is set up after the IPAM plugin has succeeded.",
			shows:   "ipam-demo: ADD", lacks: "ipam-demo: DEL",
		}, {
			draft: "plugins-gc", fails: mains("gc"), section: collecting,
			verdict: "GC MUST be forwarded to delegates. These plugins support 1.1.0 and have no GC.",
			shows:   "exit status 0\n10.1.0.2\n",
		}, {
			draft: "plugins-gc-stale", section: collecting,
			fails: map[string][]string{
				"portmap": {"gc-stale"}, "portmap (nftables)": {"gc-stale"}, "firewall": {"gc-stale"}, "bandwidth": {"gc-stale"},
			},
			verdict: "GC SHOULD remove as many stale resources as possible, such as firewall rules. These plugins support 1.1.0 and have no GC.",
			shows:   "--dport 8080 -j DNAT",
		}, {
			draft: "plugins-del-gone", section: del,
			fails:   map[string][]string{"bridge": {"del-gone"}, "bridge (nftables)": {"del-gone"}, "ptp": {"del-gone"}},
			verdict: "bridge should clean up its own resources even if the namespace no longer exists. Masquerade rules stay, because their addresses are read from the interface.",
			shows:   "-j MASQUERADE",
		}, {
			draft: "plugins-host-device-del-again", section: del,
			fails:   map[string][]string{"host-device": {"del-again", "del-bare"}},
			verdict: "Several DELs MUST be accepted, and CNI_NETNS is optional. The second DEL fails; one without CNI_NETNS returns before it runs the IPAM plugin.",
			shows:   "Link not found",
		}, {
			draft: "plugins-tap-add-exists", section: add,
			fails:   map[string][]string{"tap": {"add-exists"}},
			verdict: "An interface of that name MUST be an error. The error of the rename is overwritten, and ADD goes on with the interface that was there.",
			shows:   "exit status 0",
		}, {
			draft: "plugins-host-local-ipam-gc", section: collecting, fixed: newest,
			fails:   map[string][]string{"host-local": {"ipam-gc"}},
			verdict: "GC should remove IPAM reservations of attachments that are not listed. v1.9.1 has no GC; v1.10.0 has.",
			shows:   "10.1.0.2\n",
		}, {
			draft: "plugins-host-local-ipam-full", section: status,
			fails:   map[string][]string{"host-local": {"ipam-full"}},
			verdict: "STATUS should fail when addresses are exhausted. host-local has no STATUS.",
			shows:   "exit status 0",
		}, {
			draft: "plugins-sbr-del-bare", section: del,
			fails:   map[string][]string{"sbr": {"del-bare"}},
			verdict: "CNI_NETNS is optional in DEL. sbr opens it as a lock file and fails.",
			shows:   "no such file or directory",
		}, {
			draft: "plugins-sbr-check", section: checking,
			fails:   map[string][]string{"sbr": {"check-gone"}},
			verdict: "CHECK must return an error if a resource that the plugin made is missing. sbr returns nil.",
			shows:   "exit status 0", lacks: "exit status 1",
		}, {
			draft: "multus-chain", section: add, fails: map[string][]string{"multus": {"chain"}},
			verdict: "A prevResult MUST be passed through or modified. Multus prints the result of its first delegate.",
			shows:   "10.1.0.5", lacks: "before0",
		}, {
			draft: "multus-environment", section: delegation, fails: map[string][]string{"multus": {"environment"}},
			verdict: "A delegate must receive the environment of the plugin. Multus puts five keys in front of CNI_ARGS, empty or twice.",
			shows:   "IgnoreUnknown=true;K8S_POD_NAMESPACE=;K8S_POD_NAME=;K8S_POD_INFRA_CONTAINER_ID=;K8S_POD_UID=;IgnoreUnknown=1",
		}, {
			draft: "multus-request", section: "1, Plugin configuration objects", fails: map[string][]string{"multus": {"request"}},
			verdict: "Unknown fields must be preserved. Integers above 2^53 are rounded.",
			shows:   "12345678901234567000",
		}, {
			draft: "multus-gc", section: collecting + "; " + status, fails: map[string][]string{"multus": {"gc", "status"}},
			verdict: "GC MUST be forwarded to delegates that the plugin is configured to use, and STATUS must run theirs. Only the first one is asked.",
			shows:   "net-demo: STATUS", lacks: "net-demo2: GC",
		}, {
			draft: "multus-del-retry", section: del + "; " + procedure, fails: map[string][]string{"multus": {"del-retry"}},
			verdict: "DEL must run the delegates. After a DEL in which one failed, the next runs none and succeeds (retryDeleteOnError is off by default).",
			shows:   "exit status 1\nexit status 0\n",
		}, {
			draft: "multus-versions", section: success, fails: map[string][]string{"multus": {"versions"}},
			verdict: "The result must have the version supplied on input. Multus prints that of its delegate.",
			shows:   "\"cniVersion\": \"1.1.0\"", lacks: "\"cniVersion\": \"0.4.0\"",
		}, {
			draft: "passthru-cni-chain", section: success + "; " + add, fails: map[string][]string{"passthru-cni": {"chain", "interface"}},
			verdict: "A plugin that changes nothing must print prevResult, and a plugin should make or adjust an interface. It prints an empty result; that it makes no interface is by design.",
			shows:   "\"cniVersion\": \"1.1.0\"", lacks: "before0",
		}, {
			draft: "flannel-chain", section: add, fails: map[string][]string{"flannel": {"chain"}},
			verdict: "A prevResult MUST be passed through or modified. flannel prints the result of its delegate, which does not get prevResult.",
			shows:   "10.1.0.5", lacks: "before0",
		}, {
			draft: "flannel-undo", section: procedure, fails: map[string][]string{"flannel": {"undo"}},
			verdict: "After an ADD of the delegate that failed, its DEL should run before ADD fails. It does not.",
			shows:   "net-demo: ADD\nc1\n", lacks: "net-demo: DEL",
		}, {
			draft: "flannel-del-retry", section: procedure, fails: map[string][]string{"flannel": {"del-retry"}},
			verdict: "DEL must run the delegate. After a DEL in which it failed, the next does not run it and succeeds: the deferred clean-up sees another err.",
			shows:   "exit status 1\nexit status 0\n",
		}, {
			draft: "flannel-check", section: procedure + "; " + status, fails: map[string][]string{"flannel": {"check", "gc", "status"}},
			verdict: "CHECK, GC and STATUS must run the delegate's. flannel supports 1.1.0 and has none of the three.",
			shows:   "net-demo: ADD", lacks: "net-demo: CHECK",
		}, {
			draft: "flannel-request", section: "1, Plugin configuration objects", fails: map[string][]string{"flannel": {"request"}},
			verdict: "Unknown fields must be preserved. Integers above 2^53 are rounded.",
			shows:   "12345678901234567000",
		}, {
			draft: "route-override-check-fresh", section: checking, fails: map[string][]string{"route-override": {"check-fresh"}},
			verdict: "CHECK right after ADD must be handled. For a route without gw, which the README allows, ADD sets no gateway and CHECK wants one.",
			shows:   "cannot find gateway",
		}, {
			draft: "egress-router-add-exists", section: "2, Errors; " + add, fails: map[string][]string{"egress-router": {"add-exists"}},
			verdict: "A plugin must exit with non-zero on failure. The error of ADD is ignored.",
			shows:   "exit status 0", lacks: "cniVersion",
		}, {
			draft: "egress-router-chain", section: add, fails: map[string][]string{"egress-router": {"chain"}},
			verdict: "A prevResult MUST be passed through or modified (0.4.0: \"It is a violation of this specification to be unaware of the prevResult field\"). It is ignored.",
			shows:   "192.0.2.99", lacks: "before0",
		}, {
			draft: "egress-router-check-gone", section: checking, fails: map[string][]string{"egress-router": {"check-gone"}},
			verdict: "CHECK should fail when an interface in prevResult that the plugin made is missing. It returns nil.",
			shows:   "exit status 0",
		}, {
			draft: "kindnet-interface", section: success, fails: map[string][]string{"cni-kindnet": {"interface", "versions"}},
			verdict: "The result must have the sandbox of an interface in the container, and the version supplied on input. It has no sandbox, and is always of version 0.4.0.",
			shows:   "\"cniVersion\": \"0.4.0\"", lacks: "sandbox",
		}, {
			draft: "kindnet-chain", section: add, fails: map[string][]string{"cni-kindnet": {"chain"}},
			verdict: "A prevResult MUST be passed through or modified (0.4.0: \"It is a violation of this specification to be unaware of the prevResult field\"). It is ignored.",
			shows:   "10.44.0.", lacks: "before0",
		}, {
			draft: "kindnet-del-gone", section: del, fails: map[string][]string{"cni-kindnet": {"del-gone"}},
			verdict: "DEL should succeed if the namespace no longer exists. It fails.",
			shows:   "no IPs available",
		}, {
			draft: "cni-nftables-portmap-del", section: del, fails: map[string][]string{"cni-nftables-portmap": {"del"}},
			verdict: "DEL should undo what ADD did. ADD makes a jump for each address of the host; DEL removes one, and cannot remove the chain.",
			shows:   "resource busy",
		}, {
			draft: "cni-nftables-firewall-del-bare", section: "0.4.0: CNI operations, DEL", fails: map[string][]string{"cni-nftables-firewall": {"del-bare"}},
			verdict: "In 0.4.0, the version that it supports, DEL without prevResult should return a successful response. It fails.",
			shows:   "did not contain network interfaces",
		}, {
			draft: "egress-cni-del", section: del, fails: map[string][]string{"egress-cni": {"del"}},
			verdict: "DEL should undo what ADD did. The interface stays in the container, and its address is free.",
			shows:   "exit status 0\nv4if0",
		}, {
			draft: "egress-cni-check", section: procedure + "; " + status, fails: map[string][]string{"egress-cni": {"check", "gc", "status"}},
			verdict: "CHECK, GC and STATUS must run the IPAM plugin's. It supports 1.1.0 and has none of the three.",
			shows:   "STATUS: exit status 0", lacks: "ipam-demo: ",
		},
	}
}

// everyone returns a check for all plugins.
func everyone(check string) map[string][]string {
	fails := map[string][]string{}
	for _, p := range plugins() {
		fails[p.name] = []string{check}
	}
	return fails
}

// mains returns a check for the main plugins of the reference that ask an IPAM plugin.
func mains(check string) map[string][]string {
	fails := map[string][]string{}
	for _, name := range []string{"bridge", "bridge (nftables)", "macvlan", "ptp", "tap", "host-device"} {
		fails[name] = []string{check}
	}
	return fails
}

// of returns the checks that a plugin fails for this cause.
func (c cause) of(p plugin) []string {
	if c.fixed != "" && c.fixed == p.version {
		return nil
	}
	return c.fails[p.name]
}

// expected returns the checks that a plugin fails.
func expected(p plugin) (checks []string) {
	for _, c := range causes() {
		checks = append(checks, c.of(p)...)
	}
	slices.Sort(checks)
	return checks
}

// causeOf returns the cause of a finding.
func causeOf(p plugin, check string) (cause, error) {
	for _, c := range causes() {
		if slices.Contains(c.of(p), check) {
			return c, nil
		}
	}
	return cause{}, fmt.Errorf("%s: %s has no cause", p.id(), check)
}
