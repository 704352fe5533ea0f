// Package podresources asks the kubelet which devices it has allocated to a pod, and which
// resources have devices.
//
// A [Client] asks the kubelet's PodResources API, over a socket of the node. It answers in
// the form that package delegate/device takes:
//
//	client := &podresources.Client{}
//	defer client.Close()
//	containers, err := client.Devices(ctx, pod)
//	ids, err := device.Allocate(containers, nil, requests...)
//
// The kubelet answers 100 requests a second, and rejects all others. A Client needs one
// connection, asks for single pods while the kubelet lets it, and for all pods together
// when it does not. So any number of pods can start at the same time.
//
// The kubelet knows pods by name and does not tell their UIDs. If a pod was replaced by
// another one of the same name, the devices may be those of the other one.
package podresources

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/metacni/metacni/delegate/device"
	"github.com/metacni/metacni/delegate/kube/internal/coded"
	"github.com/metacni/metacni/netconf/nad"
)

// What zero fields of a [Client] mean.
const (
	defaultSocket     = "/var/lib/kubelet/pod-resources/kubelet.sock"
	defaultCheckpoint = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
	defaultTimeout    = 10 * time.Second
)

// maxSize is the size in bytes over which an answer of the kubelet, or its checkpoint, is
// refused.
const maxSize = 16 << 20

// A Client asks the kubelet. The zero Client asks that of this node. The fields must not
// change once it is in use. Goroutines may share it.
type Client struct {
	// Socket is the path of the socket of the kubelet's PodResources API. Empty means
	// /var/lib/kubelet/pod-resources/kubelet.sock.
	Socket string

	// Checkpoint is the path of the file in which the kubelet's device manager keeps
	// what it has allocated. Devices reads it if there is no Socket, unless there was one
	// before: a kubelet that restarts makes it again. Empty means
	// /var/lib/kubelet/device-plugins/kubelet_internal_checkpoint.
	Checkpoint string

	// Timeout limits how long Devices and Serves take, each. Zero means 10 seconds.
	Timeout time.Duration

	// Attributes returns the attributes of a device that is allocated by a
	// ResourceClaim: those in its ResourceSlice that are strings, under their
	// qualified names, as DeviceAttributes of a View of package kube. It returns nil for
	// a device that no ResourceSlice has. It is called only for pods that have claims.
	// Several goroutines may call it at the same time. A nil Attributes knows no device.
	Attributes func(ctx context.Context, driver, pool, name string) (map[string]string, error)

	mu     sync.Mutex
	conn   *grpc.ClientConn // made by the first call, as pods and served
	pods   *shared[*api.ListPodResourcesResponse]
	served *shared[*api.AllocatableResourcesResponse]
	closed bool
	noGet  atomic.Bool // the kubelet does not answer Get
}

// Devices returns the devices of each container of pod that the kubelet reports: first the
// init containers that go on running, then the containers, both in the order of the pod. It
// returns none for a pod without devices, and does not look for a pod that has no name.
//
// It asks the kubelet for that pod. If the kubelet cannot answer that, or rejects the
// request because of its rate limit, Devices asks for all pods, together with all other
// calls that wait. That is repeated, with growing pauses, while the kubelet is not there or
// rejects it, until ctx ends or Client.Timeout is over.
//
// If there is no socket, and c has not found one before, Devices reads the checkpoint. That
// knows pods by their UID, and nothing of claims. Its containers are in the order of their
// names.
//
// Devices of claims belong to the resource in their attribute
// k8s.cni.cncf.io/resourceName; those without it are left out. Their ID is the attribute
// k8s.cni.cncf.io/deviceID, or else resource.kubernetes.io/pciBusID. A device of which
// Client.Attributes knows nothing has no Resource, and driver/pool/device as its ID: its
// ResourceSlice may not have come yet.
//
// The kubelet reports a claim for the containers that name it, under resources.claims or by
// an extended resource, and not for a container that ends before the others start. It does
// not tell which devices are for admin access only: they count as the pod's.
//
// Every error names the pod and has CNI code 11.
func (c *Client) Devices(ctx context.Context, pod nad.Pod) ([][]device.Device, error) {
	limited, cancel := context.WithTimeout(ctx, cmp.Or(c.Timeout, defaultTimeout))
	defer cancel()
	containers, err := c.devices(limited, pod)
	if err != nil {
		return nil, coded.With(types.ErrTryAgainLater, fmt.Errorf("devices of pod %q: %w", pod, because(limited, err)))
	}
	return containers, nil
}

func (c *Client) devices(ctx context.Context, pod nad.Pod) ([][]device.Device, error) {
	if pod.Name == "" {
		return nil, nil
	}
	if _, err := os.Stat(c.socket()); errors.Is(err, fs.ErrNotExist) && !c.asked() {
		return devicesInCheckpoint(c.checkpoint(), pod.UID)
	}
	reported, err := c.ask(ctx, pod)
	if err != nil {
		return nil, err
	}
	return c.containers(ctx, reported)
}

// ask asks the kubelet about a pod.
func (c *Client) ask(ctx context.Context, pod nad.Pod) (*api.PodResources, error) {
	kubelet, err := c.kubelet()
	if err != nil {
		return nil, err
	}
	if !c.noGet.Load() {
		reply, err := kubelet.Get(ctx, &api.GetPodResourcesRequest{PodName: pod.Name, PodNamespace: pod.Namespace})
		if err == nil {
			return reply.GetPodResources(), nil
		}
		if code(err) == codes.Unimplemented || code(err) == codes.Unknown && says(err, "disabled") {
			c.noGet.Store(true) // kubelets before 1.36 may not have it, or have it switched off
		}
	}
	reply, err := c.pods.join(ctx, func(ctx context.Context) (*api.ListPodResourcesResponse, error) {
		return kubelet.List(ctx, &api.ListPodResourcesRequest{})
	})
	if err != nil {
		return nil, err
	}
	for _, r := range reply.GetPodResources() {
		if r.GetName() == pod.Name && r.GetNamespace() == pod.Namespace {
			return r, nil
		}
	}
	return nil, errUnknownPod
}

// Serves reports whether a device plugin of the node serves a resource, whether or not it has a
// device to give. Nobody can get a device of any other resource. Some only mark nodes: the
// controllers of bridge-marker and ovs-cni write "bridge.network.kubevirt.io/br1" into the
// status of the node.
//
// It asks the kubelet for the devices of the node (GetAllocatableResources), as Devices asks for
// all pods, and looks at the devices that are registered in the checkpoint: the kubelet does not
// list a resource whose devices are all unhealthy, or whose plugin has not come back after a
// restart. The resource is served if one of them has it. If one cannot be read, the other
// decides.
//
// If neither can be read, nobody knows, and Serves fails. Every error names the resource and has
// CNI code 11.
func (c *Client) Serves(ctx context.Context, resource string) (bool, error) {
	limited, cancel := context.WithTimeout(ctx, cmp.Or(c.Timeout, defaultTimeout))
	defer cancel()
	is, unread := registered(c.checkpoint(), resource)
	if is {
		return true, nil
	}
	is, unanswered := c.allocatable(limited, resource)
	if unread != nil && unanswered != nil {
		return false, coded.With(types.ErrTryAgainLater, fmt.Errorf("whether a device plugin serves %q is not known: %w; %w", resource, because(limited, unanswered), unread))
	}
	return is, nil
}

// allocatable reports whether the kubelet has devices of a resource, healthy ones at least.
func (c *Client) allocatable(ctx context.Context, resource string) (bool, error) {
	if _, err := os.Stat(c.socket()); errors.Is(err, fs.ErrNotExist) && !c.asked() {
		return false, fmt.Errorf("the kubelet has no socket: %w", err)
	}
	kubelet, err := c.kubelet()
	if err != nil {
		return false, err
	}
	reply, err := c.served.join(ctx, func(ctx context.Context) (*api.AllocatableResourcesResponse, error) {
		return kubelet.GetAllocatableResources(ctx, &api.AllocatableResourcesRequest{})
	})
	return slices.ContainsFunc(reply.GetDevices(), func(d *api.ContainerDevices) bool { return d.GetResourceName() == resource }), err
}
