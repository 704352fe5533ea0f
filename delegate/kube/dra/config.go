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

	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// A Config is the configuration of a [Driver].
type Config struct {
	// Name is the name of the driver, a DNS subdomain, in DeviceClasses, claims and slices.
	Name string

	// Node is the name of the node, and of the pool of its devices.
	Node string

	// Client is for the claims and ResourceSlices. It should send protobuf: see
	// [Driver.Attached].
	Client kubernetes.Interface

	// Store keeps the claims that are prepared. No other driver may have the same one.
	Store Store

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

	// Attachments returns what the pod of a claim is attached to because of the claim, from
	// the records of its newest sandbox. It is called at any time, by several goroutines. It
	// must end soon after its context: while the kubelet moves a claim to another pod, no
	// other claim is prepared or released.
	Attachments func(ctx context.Context, c Claim) ([]Attachment, error)

	// Detach removes all attachments that are there because of a claim, in all sandboxes of
	// its pod. It returns nil if there are none. Only c.UID and c.Pod are always set. It is
	// called by several goroutines, also for the same claim: the kubelet asks again when it
	// has waited too long. It must end soon after its context.
	Detach func(ctx context.Context, c Ref) error

	// RegistryDir is where the kubelet looks for sockets of plugins, and PluginDir is the
	// directory of the driver's own socket, and of what CDIDir makes. Empty means those of
	// /var/lib/kubelet. The first must exist. The second is made if it is missing.
	RegistryDir, PluginDir string

	// KubeletPluginDir is PluginDir as the kubelet and the runtime find it, where this
	// process has another root directory. Empty means that it is the same path.
	KubeletPluginDir string

	// CDIDir makes containers see a file with the interface and addresses of each device
	// (KEP-5304): the directory of the CDI specifications for it, which the runtime reads.
	// Empty means no such files. See [Driver.UpdateMetadata]. KubeletPluginDir must then be
	// the same directory for this process too.
	CDIDir string

	// Locate, if not nil, changes the directories of c before each attempt to serve the
	// kubelet: they may come later than the Driver. An error is that of the attempt.
	Locate func(c *Config) error

	// Networks are what the node offers to the scheduler, see [Driver.Offer]. Network returns
	// the one with the name Offer.Network, which may be zero, and why pods cannot be attached
	// to it now. [kube.ErrNotSynced] means that this is not known. Two goroutines may call it.
	Networks []Offer
	Network  func(ctx context.Context, name string) (netconf.Network, error)

	// OfferInterval is the time between two looks at all Networks. 0 means 30 seconds.
	OfferInterval time.Duration

	// RollingUpdate is the UID of the pod of this process, and lets the driver of the next
	// pod start before this one has stopped: each has sockets of its own, and calls of the
	// kubelet come one at a time. The kubelet must be 1.33 or later. Empty means that there is
	// one process at a time.
	RollingUpdate string

	// SweepInterval is the time between two passes of the claims that nobody has released. 0 means 10 minutes. A
	// negative one is an error.
	SweepInterval time.Duration

	// Logger reports what goes wrong in the background. Nil means no log.
	Logger *slog.Logger
}

func (c Config) logger() *slog.Logger {
	if c.Logger != nil {
		return c.Logger
	}
	return slog.New(slog.DiscardHandler)
}

func (c Config) check() error {
	switch {
	case c.Name == "", c.Node == "", c.Store.Dir == "":
		return errors.New("the names of the driver and the node, and a directory for claims are needed")
	case c.Client == nil, c.Attachments == nil, c.Detach == nil:
		return errors.New("a client, Attachments and Detach are needed")
	case c.Network == nil && len(c.Networks) > 0:
		return errors.New("Network is needed")
	case c.SweepInterval < 0:
		return fmt.Errorf("a negative interval, %v", c.SweepInterval)
	case c.RollingUpdate != "" && !isUID(c.RollingUpdate):
		return fmt.Errorf("RollingUpdate: %q is not a UID", c.RollingUpdate)
	}
	return Check(c.Name, c.Networks)
}

// pluginDir returns the directory of the driver's socket.
func (c Config) pluginDir() string {
	return cmp.Or(c.PluginDir, filepath.Join(kubeletplugin.KubeletPluginsDir, c.Name))
}

// kubeletPluginDir returns the same as the kubelet finds it.
func (c Config) kubeletPluginDir() string { return cmp.Or(c.KubeletPluginDir, c.pluginDir()) }

// makeDirs makes the directory of the socket, unless there is no kubelet.
func (c Config) makeDirs() error {
	if _, err := os.Stat(cmp.Or(c.RegistryDir, kubeletplugin.KubeletRegistryDir)); err != nil {
		return fmt.Errorf("the directory in which the kubelet finds plugins: %w", err)
	}
	if err := os.MkdirAll(c.pluginDir(), 0o750); err != nil {
		return err
	}
	if c.CDIDir == "" || c.kubeletPluginDir() == c.pluginDir() {
		return nil
	}
	ours, err := os.Stat(c.pluginDir())
	if err != nil {
		return err
	}
	if same, err := os.Stat(c.kubeletPluginDir()); err != nil || !os.SameFile(ours, same) {
		return fmt.Errorf("%s is not the same directory for the kubelet and for this process, which metadata needs: mount it here too", c.kubeletPluginDir())
	}
	return nil
}

func (c Config) sweepInterval() time.Duration {
	if c.SweepInterval != 0 {
		return c.SweepInterval
	}
	return 10 * time.Minute
}

func (c Config) options() []kubeletplugin.Option {
	options := []kubeletplugin.Option{
		kubeletplugin.DriverName(c.Name), kubeletplugin.NodeName(c.Node), kubeletplugin.KubeClient(c.Client),
		// A plugin that hangs while a claim is released must not delay other pods. But two
		// drivers with one Store have no other lock.
		kubeletplugin.Serialize(c.RollingUpdate != ""),
		kubeletplugin.PluginDataDirectoryPath(c.kubeletPluginDir()), kubeletplugin.FlockDirectoryPath(c.pluginDir()),
		kubeletplugin.RollingUpdate(types.UID(c.RollingUpdate)),
	}
	if c.RegistryDir != "" {
		options = append(options, kubeletplugin.RegistrarDirectoryPath(c.RegistryDir))
	}
	if c.CDIDir != "" {
		options = append(options, kubeletplugin.EnableDeviceMetadata(true), kubeletplugin.CDIDirectory(c.CDIDir),
			kubeletplugin.MetadataVersions(v1alpha1.SchemeGroupVersion))
	}
	return options
}
