//go:build linux

package main

import (
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/conform/host"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
)

const (
	uplink   = "uplink0"               // the host's network card
	stateDir = "/var/lib/cni/multinet" // multinet's default
	networks = "k8s.v1.cni.cncf.io/networks"
)

// The configurations are files that you can change: lab.conf is what a runtime has in
// /etc/cni/net.d, and net.d holds the networks that pods can select.
//
//go:embed lab.conf net.d
var configs embed.FS

// stdio are the standard streams and the environment of the process.
type stdio struct {
	out, err io.Writer
	env      []string
}

// A cluster is a container runtime with one network, lab, of multinet.
type cluster struct {
	out     io.Writer
	runtime *delegate.Invoker
	bin     string
	network netconf.Network
	macvlan error // why this kernel cannot make macvlan interfaces
}

// newCluster prepares the private host: its network card, and multinet's
// configuration. bin is the directory of the plugins.
func newCluster(bin string, std stdio) (*cluster, error) {
	card, err := host.AddCard(uplink)
	if err != nil {
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex = "probe0", card
	missing := host.Offers(&netlink.Macvlan{LinkAttrs: attrs})

	dir, err := os.MkdirTemp("/run", "lab-")
	if err == nil {
		err = os.CopyFS(dir, configs)
	}
	if err != nil {
		return nil, err
	}
	conf, err := netconf.LoadFile(os.DirFS(dir), "lab.conf")
	if err != nil {
		return nil, err
	}
	// The directories are known only now. All else is in the file.
	conf, err = conf.EditPlugins(
		netconf.Set("binDir", bin),
		netconf.Set("confDir", filepath.Join(dir, "net.d")),
		netconf.Set("cniDir", stateDir),
	)
	if err != nil {
		return nil, err
	}
	// An Invoker can run plugins for a runtime, too.
	runtime := &delegate.Invoker{Exec: &delegate.Process{Stderr: std.err}, Path: []string{bin}, Env: std.env}
	return &cluster{out: std.out, runtime: runtime, bin: bin, network: conf, macvlan: missing}, nil
}

// pod returns a container with a network namespace. selection is the value of its
// annotation k8s.v1.cni.cncf.io/networks. containerd and CRI-O pass all annotations of a
// pod to plugins that declare the capability.
func (c *cluster) pod(id, selection string) (delegate.Attachment, error) {
	netns, err := host.NewNS(id)
	if err != nil {
		return delegate.Attachment{}, err
	}
	annotations, err := json.Marshal(map[string]string{networks: selection})
	return delegate.Attachment{
		Network:        c.network,
		ContainerID:    id,
		NetNS:          netns,
		IfName:         "eth0",
		Args:           fmt.Sprintf("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=%s", id),
		CapabilityArgs: map[string]json.RawMessage{plugin.PodAnnotationsCapability: annotations},
	}, err
}
