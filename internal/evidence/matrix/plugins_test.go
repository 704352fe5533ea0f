package matrix

import "slices"

// A plugin is a row of the table.
type plugin struct {
	name    string // of the row, and of the executable but for what is in parentheses
	module  string // path
	version string // or a commit
	pkg     string // of the executable, below the module
	dir     string // of the module in its repository
	cgo     bool
	conf    string            // {dir} is a directory of the host, {bin} that of the plugins
	files   map[string]string // in {dir}
	fakes   map[string]string // results, by type
	flags   []string
	needs   string // what not every machine has
}

// The reference plugins, of the version in internal/e2e/go.mod and of the newest.
const (
	reference = "github.com/containernetworking/plugins"
	ours      = "v1.9.1"
	newest    = "v1.10.0"
)

// ports is the runtimeConfig of a pod with a port.
const ports = `"capabilities":{"portMappings":true},"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}`

// gateway is the result of a delegate for addresses, with the gateway that some plugins need.
const gateway = `{"cniVersion":"1.1.0","ips":[{"address":"10.22.0.5/24","gateway":"10.22.0.1"}],"routes":[{"dst":"0.0.0.0/0"}]}`

// plugins returns the rows of the table.
func plugins() []plugin {
	return slices.Concat(references(ours), references(newest), others())
}

// references returns the reference plugins of a version.
func references(version string) []plugin {
	hostLocal := map[string]string{"host-local": gateway}
	ref := func(name, pkg, conf string, fakes map[string]string, flags ...string) plugin {
		return plugin{name: name, module: reference, version: version, pkg: "plugins/" + pkg, conf: conf, fakes: fakes, flags: flags, needs: map[string]string{
			"ipvlan": "a kernel with ipvlan", "vlan": "a kernel with 802.1q", "dummy": "a kernel with dummy", "vrf": "a kernel with VRF",
			"dhcp": "an interface in the container and a DHCP server",
		}[name]}
	}
	return []plugin{
		ref("bridge", "main/bridge", `{"bridge":"mx0","isGateway":true,"ipMasq":true,"ipam":{"type":"host-local"}}`, hostLocal),
		ref("bridge (nftables)", "main/bridge", `{"bridge":"mx0","isGateway":true,"ipMasq":true,"ipMasqBackend":"nftables","ipam":{"type":"host-local"}}`, hostLocal),
		ref("macvlan", "main/macvlan", `{"master":"up0","ipam":{"type":"host-local"}}`, hostLocal),
		ref("ipvlan", "main/ipvlan", `{"master":"up0","ipam":{"type":"host-local"}}`, hostLocal),
		ref("vlan", "main/vlan", `{"master":"up0","vlanId":5,"ipam":{"type":"host-local"}}`, hostLocal),
		ref("ptp", "main/ptp", `{"ipMasq":true,"ipam":{"type":"host-local"}}`, hostLocal),
		ref("tap", "main/tap", `{"ipam":{"type":"host-local"}}`, hostLocal),
		ref("host-device", "main/host-device", `{"device":"dev0","ipam":{"type":"host-local"}}`, hostLocal),
		ref("dummy", "main/dummy", `{"ipam":{"type":"host-local"}}`, hostLocal),
		ref("loopback", "main/loopback", `{}`, nil),
		ref("portmap", "meta/portmap", `{`+ports+`,"snat":true}`, nil),
		ref("portmap (nftables)", "meta/portmap", `{`+ports+`,"snat":true,"backend":"nftables"}`, nil),
		ref("firewall", "meta/firewall", `{"backend":"iptables"}`, nil),
		ref("tuning", "meta/tuning", `{"sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"},"mtu":1400,"dataDir":"{dir}/tuning"}`, nil),
		ref("bandwidth", "meta/bandwidth", `{"ingressRate":1000000,"ingressBurst":1000000,"egressRate":1000000,"egressBurst":1000000}`, nil),
		ref("sbr", "meta/sbr", `{}`, nil),
		ref("vrf", "meta/vrf", `{"vrfname":"red"}`, nil),
		ref("host-local", "ipam/host-local", `{"type":"bridge","ipam":{"type":"host-local","ranges":[[{"subnet":"10.33.0.0/28"}]],"routes":[{"dst":"0.0.0.0/0"}],"dataDir":"{dir}/leases"}}`, nil),
		ref("static", "ipam/static", `{"type":"bridge","ipam":{"type":"static","addresses":[{"address":"10.34.0.5/24","gateway":"10.34.0.1"}],"routes":[{"dst":"0.0.0.0/0"}]}}`, nil),
		ref("dhcp", "ipam/dhcp", `{"type":"bridge","ipam":{"type":"dhcp","daemonSocketPath":"{dir}/dhcp.sock"}}`, nil,
			"-daemon", "{bin}/dhcp daemon -socketpath {dir}/dhcp.sock"),
	}
}

// others returns the plugins of other projects.
func others() []plugin {
	hostLocal := map[string]string{"host-local": gateway}
	return []plugin{
		{
			name: "multus", module: "gopkg.in/k8snetworkplumbingwg/multus-cni.v4", version: "v4.3.0", pkg: "cmd/multus",
			conf: `{"name":"multus","cniDir":"{dir}/state","confDir":"{dir}/net.d","delegates":[{"name":"first","cniVersion":"1.1.0","type":"bridge"},{"name":"second","cniVersion":"1.1.0","type":"macvlan"}]}`,
		},
		{
			name: "multus-shim", module: "gopkg.in/k8snetworkplumbingwg/multus-cni.v4", version: "v4.3.0", pkg: "cmd/multus-shim",
			conf: `{"name":"multus","socketDir":"{dir}/run"}`, flags: []string{"-kind", "shim", "-timeout", "5s"},
			needs: "multus-daemon, which needs a Kubernetes API server",
		},
		{
			name: "passthru-cni", module: "gopkg.in/k8snetworkplumbingwg/multus-cni.v4", version: "v4.3.0", pkg: "cmd/passthru-cni",
			conf: `{}`,
		},
		{
			name: "flannel", module: "github.com/flannel-io/cni-plugin", version: "092e6d26e43c", pkg: ".",
			conf:  `{"subnetFile":"{dir}/subnet.env","dataDir":"{dir}/state","delegate":{"type":"bridge"}}`,
			files: map[string]string{"subnet.env": "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"},
		},
		{
			name: "route-override", module: "github.com/redhat-nfvpe/cni-route-override", version: "391c1b0361e1", pkg: "cmd/route-override",
			conf: `{"addroutes":[{"dst":"198.51.100.0/24"}]}`,
		},
		{
			name: "bond", module: "github.com/intel/bond-cni", version: "258926ad54a7", pkg: "bond",
			conf: `{"mode":"active-backup","miimon":"100","linksInContainer":false,"links":[{"name":"port0"},{"name":"port1"}],"ipam":{"type":"host-local"}}`, fakes: hostLocal,
			needs: "a kernel with bonding",
		},
		{
			name: "tc-redirect-tap", module: "github.com/awslabs/tc-redirect-tap", version: "34bf829e9a5c", pkg: "cmd/tc-redirect-tap",
			conf: `{}`,
		},
		{
			name: "egress-router", module: "github.com/openshift/egress-router-cni", version: "5e0f8d1b5458", pkg: "cmd/egress-router",
			conf:  `{"interfaceType":"macvlan","interfaceArgs":{"master":"up0"},"ip":{"addresses":["192.0.2.99/24"],"gateway":"192.0.2.1"},"log_file":"{dir}/egress-router.log"}`,
			flags: []string{"-link", "up0"},
		},
		{
			name: "cni-nftables-portmap", module: "github.com/greenpau/cni-plugins", version: "v1.0.12", pkg: "cmd/cni-nftables-portmap",
			conf: `{` + ports + `}`,
		},
		{
			name: "cni-nftables-firewall", module: "github.com/greenpau/cni-plugins", version: "v1.0.12", pkg: "cmd/cni-nftables-firewall",
			conf: `{"forward_chain_name":"forward"}`,
		},
		{
			name: "egress-cni", module: "github.com/aws/amazon-vpc-cni-k8s", version: "v1.23.2", pkg: "cmd/egress-cni-plugin",
			conf:  `{"mtu":"1500","enabled":"true","nodeIP":"192.0.2.1","ipam":{"type":"host-local"},"pluginLogFile":"{dir}/egress.log","pluginLogLevel":"INFO"}`,
			fakes: map[string]string{"host-local": `{"cniVersion":"1.1.0","ips":[{"address":"169.254.172.5/22","gateway":"169.254.172.1"}],"routes":[{"dst":"0.0.0.0/0"}]}`},
		},
		{
			name: "cni-kindnet", module: "github.com/aojea/kindnet/cmd/cni-kindnet", version: "f74eae9d7370", pkg: ".", dir: "cmd/cni-kindnet", cgo: true,
			conf: `{"ranges":["10.44.0.0/28"]}`,
		},
		{
			name: "whereabouts", module: "github.com/k8snetworkplumbingwg/whereabouts", version: "v0.9.2", pkg: "cmd",
			conf:  `{"type":"bridge","ipam":{"type":"whereabouts","range":"10.45.0.0/28","kubernetes":{"kubeconfig":"{dir}/kubeconfig"}}}`,
			needs: "a Kubernetes API server",
		},
		{
			name: "coil", module: "github.com/cybozu-go/coil/v2", version: "v2.15.0", pkg: "cmd/coil",
			conf:  `{"socket":"{dir}/coild.sock"}`,
			needs: "coild, which needs a Kubernetes API server",
		},
		{
			name: "ovs", module: "github.com/k8snetworkplumbingwg/ovs-cni", version: "v0.39.0", pkg: "cmd/plugin",
			conf:  `{"bridge":"br0"}`,
			needs: "Open vSwitch",
		},
		{
			name: "rdma", module: "github.com/k8snetworkplumbingwg/rdma-cni", version: "v1.6.0", pkg: "cmd/rdma",
			conf:  `{}`,
			needs: "an RDMA device",
		},
		{
			name: "sriov", module: "github.com/k8snetworkplumbingwg/sriov-cni", version: "1b7acc5bfc62", pkg: "cmd/sriov",
			conf:  `{"deviceID":"0000:03:02.0"}`,
			needs: "an SR-IOV device",
		},
	}
}
