package nad_test

import (
	"fmt"
	"log"

	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// The networks that a pod selects, from its annotation to what the plugins receive.
func Example() {
	policy := nad.Policy{Isolation: true}
	rules := nad.Rules{CNIVersion: "1.1.0", Own: []string{"my-meta-plugin"}}
	mirror := files(map[string]string{
		"team-a/storage.conf":  `{"type":"macvlan","master":"ens2","capabilities":{"ips":true}}`,
		"team-b/payments.conf": `{"type":"macvlan","master":"ens3"}`,
	})
	annotations := map[string]string{
		nad.NetworksAnnotation: `[{"name":"storage","ips":["10.0.0.5/24"]},{"name":"payments","namespace":"team-b"}]`,
	}
	selections, err := netconf.ParseSelection(annotations[nad.NetworksAnnotation])
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range selections {
		ref, err := policy.Ref("team-a", s, nad.UseSelected)
		if err == nil {
			_, err = policy.Decide("team-a", ref, nad.UseSelected)
		}
		var definition nad.Definition
		if err == nil {
			definition, err = nad.Load(mirror, ref)
		}
		var network netconf.Network
		if err == nil {
			network, err = definition.Network(rules)
		}
		if err == nil {
			err = s.ServedBy(network)
		}
		if err != nil {
			fmt.Println(err)
			continue
		}
		request, err := network.Request(0, netconf.Request{CapabilityArgs: s.CapabilityArgs()})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %s\n", ref, request)
	}
	// Output:
	// team-a/storage: {"capabilities":{"ips":true},"cniVersion":"1.1.0","master":"ens2","name":"storage","runtimeConfig":{"ips":["10.0.0.5/24"]},"type":"macvlan"}
	// NAD team-b/payments: not allowed: namespaceIsolation keeps pods of namespace "team-a" from definitions of namespace "team-b": define the network in the pod's namespace, or in one of globalNamespaces
}
