package dra

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/api/metadata/v1alpha1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// A Config is the configuration of a [Driver].
type Config struct {
	// Name is the name of the driver, a DNS subdomain, in DeviceClasses, claims and slices.
	Name string

	// Node is the name of the node, and of the pool of its devices.
	Node string

	// View is the cluster, in which the claims and ResourceSlices are. It tells of definitions
	// that change. Close it after the Driver has stopped.
	View *kube.View

	// Dir is a directory for the claims that are prepared, see [Prepared]. It is made when
	// the first one is written. No other driver may have the same one.
	Dir string

	// Policy says which definitions the claims of a namespace may name, as if the pod had
	// selected them.
	Policy nad.Policy

	// Rules are those for networks in claims, and in DeviceClasses.
	Rules nad.Rules

	// AllowedTypes are the types that the plugins, and IPAM plugins, of a network written in a
	// claim itself may have. None means that claims may have no such network: a claim names a
	// definition, or has the parameters of its DeviceClass, which administrators write.
	// Everybody who may run pods may usually make claims, and plugins run as root: with a type
	// the user chooses all of its keys, such as the directory of host-local. A plugin that runs
	// others names them in keys of its own, which are not checked.
	AllowedTypes []string

	// Records returns the records of all sandboxes of a pod: the status of its claims shows
	// what they say. In an ADD those of its container are enough.
	//
	// With an empty podUID it returns all records of the plugin, of every directory and in any
	// state: a claim is released when none of them has it. The error then names each record
	// that cannot be read, which may be one of any claim. Without that the Driver would give
	// the device of a running pod to another one.
	//
	// It is called at any time, by several goroutines. It must end soon after its context, as
	// Detach must: an ADD of the pod may wait for the release of its claim.
	Records func(ctx context.Context, podUID string) ([]Detachable, error)

	// KubeletDir is the directory of the kubelet, as a path of the node. Empty means
	// /var/lib/kubelet. In it the kubelet looks for sockets of plugins (plugins_registry, which
	// must exist), and the driver has a directory for its own socket, and for what CDIDir makes
	// (plugins/NAME, which is made if it is missing).
	KubeletDir string

	// CDIDir makes containers see a file with the interface and addresses of each device
	// (KEP-5304): the directory of the CDI specifications for it, which the runtime reads, as
	// a path of the node. Empty means no such files. See [Driver.UpdateMetadata]. KubeletDir
	// must then be the same path for this process.
	CDIDir string

	// Resolve returns the path at which this process finds a path of the node, before each
	// attempt to serve the kubelet: directories may come later than the Driver. Nil means that
	// paths are the same.
	Resolve func(path string) (string, error)

	// Networks are what the node offers to the scheduler: devices that it can allocate to pods
	// of this node. Network returns the one with the name Offer.Network, which may be zero, and
	// why pods cannot be attached to it now. Such a network is withdrawn until they can; pods
	// that have it keep it. [kube.ErrNotSynced] means that this is not known. Two goroutines may
	// call Network.
	//
	// What an earlier process has published stays until it is known whether all definitions
	// exist, and after the end.
	Networks []Offer
	Network  func(ctx context.Context, name string) (netconf.Network, error)

	// Ready is closed when Network can be called. Nil means that it can be called at once.
	Ready <-chan struct{}

	// OfferInterval is the time between two looks at all Networks. 0 means 30 seconds.
	OfferInterval time.Duration

	// RollingUpdate is the UID of the pod of this process, and lets the driver of the next
	// pod start before this one has stopped: each has sockets of its own, and calls of the
	// kubelet come one at a time. The kubelet must be 1.33 or later. Empty means that there is
	// one process at a time.
	RollingUpdate string

	// Logger reports what goes wrong in the background. Nil means no log.
	Logger *slog.Logger

	sweepInterval time.Duration // 0 means the one below
}

// sweepInterval is the time between two passes over the claims that nobody has released.
const sweepInterval = 10 * time.Minute

// A Detachable is a record of a container, whose attachments can be removed one by one.
type Detachable struct {
	lifecycle.AddRecord

	// Detach removes the attachment of an interface, and its part of the record. It waits for
	// other operations on the container. It may be called for the same interface twice at a
	// time: the kubelet asks again when it has waited too long.
	Detach func(ctx context.Context, ifName string) error
}

func (c Config) check() error {
	switch {
	case c.Name == "", c.Node == "", c.Dir == "":
		return errors.New("the names of the driver and the node, and a directory for claims are needed")
	case c.View == nil, c.Records == nil:
		return errors.New("a View and Records are needed")
	case c.Network == nil && len(c.Networks) > 0:
		return errors.New("Network is needed")
	case c.RollingUpdate != "" && !isUID(c.RollingUpdate):
		return fmt.Errorf("RollingUpdate: %q is not a UID", c.RollingUpdate)
	}
	return Check(c.Name, c.Networks)
}

// kubelet returns the directory of the kubelet on the node, and plugin that of the driver in it.
func (c Config) kubelet() string { return cmp.Or(c.KubeletDir, "/var/lib/kubelet") }
func (c Config) plugin() string  { return filepath.Join(c.kubelet(), "plugins", c.Name) }

// resolve returns the path at which this process finds a path of the node.
func (c Config) resolve(path string) (string, error) {
	if c.Resolve == nil {
		return path, nil
	}
	return c.Resolve(path)
}

// options finds the directories in which the kubelet and the driver meet, and makes that of the
// driver's socket unless there is no kubelet. It returns its path for this process too.
func (c Config) options(client kubernetes.Interface) (options []kubeletplugin.Option, plugin string, err error) {
	kubelet, err := c.resolve(c.kubelet())
	if err != nil {
		return nil, "", err
	}
	registry, plugin := filepath.Join(kubelet, "plugins_registry"), filepath.Join(kubelet, "plugins", c.Name)
	pluginOnNode := c.plugin()
	if _, err := os.Stat(registry); err != nil {
		return nil, "", fmt.Errorf("the directory in which the kubelet finds plugins: %w", err)
	}
	if err := os.MkdirAll(plugin, 0o750); err != nil {
		return nil, "", err
	}
	options = []kubeletplugin.Option{
		kubeletplugin.DriverName(c.Name), kubeletplugin.NodeName(c.Node), kubeletplugin.KubeClient(client),
		// A plugin that hangs while a claim is released must not delay other pods. But two
		// drivers with one Dir have no other lock.
		kubeletplugin.Serialize(c.RollingUpdate != ""),
		kubeletplugin.PluginDataDirectoryPath(pluginOnNode), kubeletplugin.FlockDirectoryPath(plugin),
		kubeletplugin.RegistrarDirectoryPath(registry),
		kubeletplugin.RollingUpdate(types.UID(c.RollingUpdate)),
	}
	if c.CDIDir == "" {
		return options, plugin, nil
	}
	cdi, err := c.resolve(c.CDIDir)
	if err != nil {
		return nil, "", err
	}
	ours, err := os.Stat(plugin)
	if err != nil {
		return nil, "", err
	}
	if same, err := os.Stat(pluginOnNode); err != nil || !os.SameFile(ours, same) {
		return nil, "", fmt.Errorf("%s is not the same directory for the kubelet and for this process, which metadata needs: mount it here too", pluginOnNode)
	}
	return append(options, kubeletplugin.EnableDeviceMetadata(true), kubeletplugin.CDIDirectory(cdi),
		kubeletplugin.MetadataVersions(v1alpha1.SchemeGroupVersion)), plugin, nil
}
