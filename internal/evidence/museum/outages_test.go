package museum

import (
	"maps"
	"os"
	"slices"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// Subjects with what a case needs.
var (
	lists = []string{"multinet", "multinetd", "cnitool", "Multus"}              // lists of plugins
	many  = []string{"multinet", "multinetd", "Multus"}                         // several networks
	every = slices.Concat([]string{"flannel"}, lists, []string{"flannel's"})    // one plugin
	gcs   = []string{"flannel", "multinet", "multinetd", "Multus", "flannel's"} // cnitool's GC has no list of valid containers
	thick = []string{"multinetd"}
)

// masked returns a bridge with rules for each of its containers.
func (n *node) masked(i int) object {
	conf := n.bridge(i, 24)
	conf["ipMasq"] = true
	return conf
}

func (n *node) firewall() object { return object{"type": "firewall", "backend": "iptables"} }

func (n *node) portmap() object {
	return object{"type": "portmap", "backend": "iptables", "capabilities": object{"portMappings": true}}
}

// ipam sets keys of the plugin's address management.
func ipam(plugin, keys object) object {
	conf, _ := plugin["ipam"].(object)
	maps.Copy(conf, keys)
	return plugin
}

// outages returns the cases: ADDs that fail, deadlines, DELs, disks and reboots, daemons.
func outages() []outage {
	return []outage{{
		issue: "containerd/containerd#12130", title: "IP Address Leak with Chained CNI Plugins When Teardown Fails",
		lost: "A chained plugin fails in ADD and in DEL. Each try of the pod costs an address.", on: lists,
		script: func(n *node) {
			p := n.pod(n.network(0, n.bridge(0, 24), n.fake("ADD", "fail", "DEL", "fail")))
			n.fails("ADD", p)
			_ = n.run("DEL", p) // containerd ignores its error, as there is no result
			n.vanish(p)
			n.leftAddress(p)
		},
	}, {
		issue: "cni-genie/CNI-Genie#221", title: "Can not delete pod when create pod failed",
		lost: "A plugin was never installed. Pods that could not start cannot be deleted either.", on: every,
		script: func(n *node) {
			plugin := n.bridge(0, 24)
			plugin["type"] = "weave"
			p := n.pod(n.network(0, plugin))
			n.fails("ADD", p)
			n.must("DEL", p)
			n.must("DEL", p)
		},
	}, {
		issue: "containernetworking/cni#797", title: "AddNetworkList will cause something leak",
		lost: "A chained plugin fails in ADD. What the plugins before it made stays until a DEL, if one comes.", on: lists,
		script: func(n *node) {
			p := n.pod(n.network(0, n.masked(0), n.firewall(), n.fake("ADD", "fail")))
			n.fails("ADD", p)
			n.leftNetwork(p)
		},
	}, {
		issue: "containernetworking/plugins#426", title: "flannel /var/lib/cni/flannel/cid not be removed if cni run failed",
		lost: "There is no address left, and each try of the pod leaves a state file.", on: every,
		script: func(n *node) {
			network := n.network(0, n.bridge(0, 30)) // one address for a pod
			n.ok("ADD", n.pod(network))
			p := n.pod(network)
			n.fails("ADD", p)
			n.left(p)
		},
	}, {
		issue: "aws/amazon-vpc-cni-k8s#1248", title: "Log to standard output result in garbage character in add funcation",
		lost: "A plugin attaches the pod and prints a line too many. The ADD has failed, and the pod stays attached.", on: every,
		script: func(n *node) {
			p := n.pod(n.network(0, n.behind(n.bridge(0, 24), "ADD", "noise")))
			n.fails("ADD", p)
			n.leftNetwork(p)
		},
	}, {
		issue: "containerd/containerd#10507", title: "Containerd calls Multus in infinite loop after node reboot and pod is struck in ContainerCreating state",
		lost: "The kubelet tries the pod again and again, each time with another container. When the cause is mended there is no address left.", on: every,
		script: func(n *node) {
			network := n.network(0, n.behind(n.bridge(0, 28), "ADD", "fail"))
			for range 14 {
				n.fails("ADD", n.pod(network))
			}
			n.Cure()
			n.must("ADD", n.pod(network))
		},
	}, {
		issue: "containerd/go-cni#60", title: "ip may be leaked when call RunPodSandbox failed",
		lost: "A chained plugin fails in the only DEL that comes. The plugins before it in the chain never get theirs.", on: lists,
		script: func(n *node) {
			p := n.pod(n.network(0, n.bridge(0, 24), n.fake("DEL", "fail")))
			n.ok("ADD", p)
			n.fails("DEL", p)
			n.vanish(p)
			n.leftAddress(p)
		},
	}, {
		issue: "containerd/containerd#5768", title: "Containerd IP leakage",
		lost: "Attaching is slow. The runtime gives up and sends DEL, and then the plugin attaches.", on: every,
		script: func(n *node) {
			p := n.pod(n.network(0, n.behind(n.bridge(0, 24), "ADD", "late")))
			add := n.start("ADD", p)
			n.Ready()
			add.kill()
			n.must("DEL", p)
			n.Open()
			n.OrphansEnd()
			n.left(p)
		},
	}, {
		issue: "containerd/containerd#5438", title: "CRI fails to invoke CNI plugin to teardown network when RunPodSandbox times out",
		lost: "The runtime gives up after its deadline and never sends DEL. Its GC finds nothing.", on: gcs,
		script: func(n *node) {
			network := n.network(0, n.behind(n.bridge(0, 24), "ADD", "gate"))
			p, stays := n.pod(network), n.pod(n.network(0, n.bridge(0, 24)))
			n.ok("ADD", stays)
			add := n.start("ADD", p)
			n.Ready()
			add.kill()
			n.Open()
			n.OrphansEnd()
			n.vanish(p)
			n.gc(stays, stays)
			n.left(p)
			n.attached(stays, "eth0")
		},
	}, {
		issue: "containernetworking/cni#567", title: "No timeout when cni call cni binary file.",
		lost: "A plugin hangs for good. It stays, and so does what it has made.", on: every,
		script: func(n *node) {
			p, other := n.pod(n.network(0, n.behind(n.bridge(0, 24), "ADD", "deaf"))), n.pod(n.network(1, n.bridge(1, 24)))
			add := n.start("ADD", p)
			n.Ready()
			add.kill()
			n.must("ADD", other)
			n.must("DEL", other)
			n.must("DEL", p)
			if len(n.Running()) > 0 {
				n.lose("process left")
			}
			n.left(p)
		},
	}, {
		issue: "k8snetworkplumbingwg/multus-cni#355", title: "netconf cache file shouldn't be deleted if delegate cni call failed in cmdDel",
		lost: "A plugin fails in DEL once. The next DEL reports success and does nothing.", on: every,
		script: func(n *node) {
			p := n.pod(n.network(0, n.behind(n.bridge(0, 24), "DEL", "fail")))
			n.ok("ADD", p)
			n.fails("DEL", p)
			n.Cure()
			n.must("DEL", p)
			n.left(p)
		},
	}, {
		issue: "containernetworking/cni#924", title: "Proposal: Chained deletions should ignore errors",
		lost: "Either a failing plugin holds the address, or its late DEL takes the rules of the pod that has got the address since.", on: lists,
		script: func(n *node) {
			single := ipam(n.bridge(0, 24), object{"rangeStart": n.subnet(0) + "5", "rangeEnd": n.subnet(0) + "5"})
			p := n.pod(n.network(0, single, n.behind(n.firewall(), "DEL", "fail")))
			next := n.pod(n.network(0, single, n.firewall()))
			n.ok("ADD", p)
			n.fails("DEL", p)
			if n.run("ADD", next) != nil {
				n.lose("the next pod gets no address")
				return
			}
			has := n.Rules(next.ID, n.subnet(0)+"5")
			n.Cure()
			n.must("DEL", p)
			if !slices.Equal(n.Rules(next.ID, n.subnet(0)+"5"), has) {
				n.lose("rules of the next pod")
			}
			n.attached(next, "eth0")
		},
	}, {
		issue: "k8snetworkplumbingwg/multus-cni#1449", title: "Delegated CNI conflist passed with add, but not check/del",
		lost: "DEL passes a plugin less of its configuration than ADD did. It looks for the address in another place.", on: every,
		shown: "if DEL passes a key less",
		script: func(n *node) {
			nodetest.OK(n, os.Mkdir(n.File("leases"), 0o700))
			p := n.pod(n.network(0, ipam(n.bridge(0, 24), object{"dataDir": n.File("leases")})))
			n.ok("ADD", p)
			if len(n.leases(p)) == 0 {
				n.Fatal("nothing is reserved: this shows nothing")
			}
			n.must("DEL", p)
			n.left(p)
		},
	}, {
		issue: "k8snetworkplumbingwg/multus-cni#199", title: "Network attachment definition controller or net-attach-def controller",
		lost: "A network's definition is deleted while pods use it. Their DEL has nothing to go by.", on: lists,
		script: func(n *node) {
			p := n.pod(n.network(0, n.bridge(0, 24), n.firewall()), n.network(1, n.bridge(1, 24)))
			n.ok("ADD", p)
			p.networks = []object{n.network(2, n.bridge(2, 24))}
			n.must("DEL", p)
			n.left(p)
		},
	}, {
		issue: "m-lab/k8s-support#342", title: "Nodes sometimes run out of internal IPs",
		lost: "One container is attached twice by the same plugin. The second state replaces the first.", on: every,
		script: func(n *node) {
			p := n.pod(n.network(0, n.bridge(0, 24)))
			second := *p
			second.IfName, second.networks = "net1", []object{n.network(1, n.bridge(1, 24))}
			n.ok("ADD", p)
			n.ok("ADD", &second)
			n.must("DEL", &second)
			n.must("DEL", p)
			n.left(p)
		},
	}, {
		issue: "containerd/nerdctl#3253", title: "bridge network (?) appears to leave a bunch of dangling iptables rules",
		lost: "The runtime's DEL does not name the namespace. The bridge's rules stay.", on: slices.DeleteFunc(slices.Clone(every), func(s string) bool { return s == "cnitool" }),
		script: func(n *node) {
			p := n.pod(n.network(0, n.masked(0)))
			n.ok("ADD", p)
			address := n.leases(p)
			if len(n.Rules(p.ID)) == 0 {
				n.Fatal("there are no rules: this shows nothing")
			}
			p.gone = true
			n.must("DEL", p)
			n.vanish(p)
			n.left(p, address...)
		},
	}, {
		issue: "hashicorp/nomad#16455", title: "Cleanup iptables rules for other CNI networks",
		lost: "The container that holds the namespace is removed behind the runtime's back. Rules that forward a port stay, and the sweep does not know the network.", on: many,
		script: func(n *node) {
			network := n.network(0, n.bridge(0, 24), n.firewall(), n.portmap())
			p, stays := n.pod(network), n.pod(network)
			p.ports, stays.ports = 8000+2*n.ID, 8001+2*n.ID
			n.ok("ADD", p)
			n.ok("ADD", stays)
			address, has := n.leases(p), n.Rules(append(n.leases(stays), stays.ID)...)
			if len(n.Rules(p.ID)) == 0 || len(has) == 0 {
				n.Fatal("there are no rules: this shows nothing")
			}
			n.vanish(p)
			n.gc(stays, stays)
			n.left(p, address...)
			if !slices.Equal(n.Rules(append(n.leases(stays), stays.ID)...), has) {
				n.lose("rules of another pod")
			}
			n.attached(stays, "eth0")
		},
	}, {
		issue: "k8snetworkplumbingwg/multus-cni#1087", title: "Causing ip leak after reboot node cause multus cache file damaged",
		lost: "A power cut leaves an empty state file. DEL reports success and removes nothing.", on: every,
		script: func(n *node) {
			p, other := n.pod(n.network(0, n.bridge(0, 24))), n.pod(n.network(0, n.bridge(0, 24)))
			n.ok("ADD", p)
			n.ok("ADD", other)
			for _, path := range n.state(p) {
				nodetest.OK(n, os.Truncate(path, 0))
			}
			if n.run("DEL", p) == nil && len(n.leases(p)) > 0 {
				n.lose("DEL reports success, address left")
			}
			n.must("DEL", other)
			n.left(other)
		},
	}, {
		issue: "containernetworking/cni#1055", title: "Failed to destroy the network because of empty cached cni result.",
		lost: "The state of an ADD could not be written as a whole. Every DEL fails, also after there is room again.", on: every,
		script: func(n *node) {
			empty := n.fullDisk()
			p := n.pod(n.network(0, n.bridge(0, 24)))
			n.fails("ADD", p)
			empty()
			n.must("DEL", p)
			n.left(p)
		},
	}, {
		issue: "containernetworking/plugins#697", title: "Proposal : Worker nodes running out of IPs in IP range after node reboot",
		lost: "The node reboots and the runtime has forgotten the pods. Their addresses stay reserved for ever.", on: gcs,
		script: func(n *node) {
			network := n.network(0, n.bridge(0, 29))
			old, older, next := n.pod(network), n.pod(network), n.pod(network)
			n.ok("ADD", old)
			n.ok("ADD", older)
			n.reboot(old, older)
			n.boot(nil)
			n.ok("ADD", next)
			n.gc(next, next)
			n.left(old)
			n.left(older)
			n.attached(next, "eth0")
		},
	}, {
		issue: "k8snetworkplumbingwg/multus-cni#1346", title: "[OOMKilled] High memory consumption",
		lost: "Many pods start at once. The daemon outgrows its memory and is killed, with all ADDs.", on: thick,
		shown:  "`connectionLimit` has no effect",
		script: (*node).burst,
	}, {
		issue: "k8snetworkplumbingwg/multus-cni#1221", title: "Race issue after node reboot",
		lost: "The shim waits for the daemon, and the daemon's pod cannot replace the shim that runs.", on: thick,
		shown:  "the shim is written in place",
		script: (*node).replaceShim,
	}, {
		issue: "k8snetworkplumbingwg/multus-cni#1387", title: "Container is not getting additional interface on k8s node reboot",
		lost: "While the daemon restarts the runtime finds another configuration. Pods start without their further networks.", on: thick,
		shown:  "the daemon removes its file at SIGTERM",
		script: (*node).window,
	}, {
		issue: "k8snetworkplumbingwg/multus-cni#1361", title: "After node restart multus fails to create interface",
		lost: "Pods are there before the daemon after a reboot. They do not get their interfaces afterwards either.", on: thick,
		shown: "if DEL fails without the daemon",
		script: func(n *node) {
			networks := []object{n.network(0, n.bridge(0, 24)), n.network(1, n.bridge(1, 24))}
			p, next := n.pod(networks...), n.pod(networks...)
			n.ok("ADD", p)
			n.reboot(p)
			add := n.start("ADD", next) // which waits
			n.must("DEL", p)
			n.boot(nil)
			if add.wait() != nil {
				n.must("ADD", next) // the runtime tries again
			}
			n.attached(next, "eth0", "net1")
			nodetest.Until(n, "the daemon has removed the pod of before", func() bool { return len(n.state(p)) == 0 })
			n.left(p)
		},
	}, {
		issue: "istio/istio#57432", title: "The Istio-cni configuration is injected into both Multus and Calico, causes application pods to get stuck in the init phase due to iptables rule conflicts.",
		lost: "Another agent adds its plugin to the published network and to the primary one. It runs twice in each pod.", on: thick,
		shown:  "the daemon does not restore its file",
		script: (*node).injected,
	}}
}

// attached notes if p, which runs, has lost an interface or its address.
func (n *node) attached(p *pod, interfaces ...string) {
	n.Helper()
	if !slices.Equal(n.interfaces(p), interfaces) {
		n.lose("interface of another pod")
	}
	if len(n.leases(p)) < len(interfaces) {
		n.lose("address of another pod")
	}
}

// reboot crashes the daemon and removes the namespaces of all pods and what is in /run.
func (n *node) reboot(pods ...*pod) {
	n.Helper()
	n.crash()
	for _, p := range pods {
		n.vanish(p)
	}
	nodetest.OK(n, os.RemoveAll(n.File("d")))
}
