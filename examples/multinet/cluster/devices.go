package cluster

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/device"
	"github.com/metacni/metacni/delegate/kube/podresources"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// kubeletTimeout limits how long an ADD waits for the kubelet. After a reboot all pods of a
// busy node ask for their devices at once.
const kubeletTimeout = 30 * time.Second

// newKubelet returns a client of the kubelet of the node. The kubelet is not asked yet, nor
// is the API server.
func (c *Cluster) newKubelet(ctx context.Context) *podresources.Client {
	dir, err := c.conf.Root.Resolve(c.conf.KubeletDir)
	if err != nil { // no reason for pods without devices to wait
		c.log.LogAttrs(ctx, slog.LevelWarn, "kubeletDir", slog.Any("error", err))
		dir = c.conf.KubeletDir
	}
	client := &podresources.Client{
		Socket:     filepath.Join(dir, "pod-resources", "kubelet.sock"),
		Checkpoint: filepath.Join(dir, "device-plugins", "kubelet_internal_checkpoint"),
		Timeout:    kubeletTimeout,
	}
	if c.conf.Node != "" {
		client.Attributes = c.view.DeviceAttributes
	}
	return client
}

// devices returns the devices of the pod p.
func (c *Cluster) devices(ctx context.Context, p nad.Pod) ([][]device.Device, error) {
	return c.kubelet.Devices(ctx, p)
}

// serves reports whether a device plugin of the node serves a resource.
func (c *Cluster) serves(ctx context.Context, resource string) (bool, error) {
	return c.kubelet.Serves(ctx, resource)
}

// tooFew reports whether err is that a pod does not have the devices that its networks need.
func tooFew(err error) bool {
	_, is := errors.AsType[*device.Error](err)
	return is && status.Code(err) == types.ErrInvalidNetworkConfig
}
