package plugin

import (
	"context"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/device"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
)

// A Cluster is what multinet asks about the Kubernetes cluster that it runs in, and
// tells about it. Each function may be nil. The zero Cluster asks nothing: definitions
// are files in nadDir, and the runtime passes on the annotations of pods.
//
// CHECK and DEL use the record and call none of the functions. GC and STATUS call
// Definition only, for networks that the configuration names, and do without an answer.
// Goroutines may share a Cluster if its functions allow it. Each must return soon after
// its ctx has ended.
type Cluster struct {
	// Definition returns the definition r, which a container is to be attached to for
	// the reason use. It fails with [netconf.ErrNotFound] only if r certainly does not
	// exist. A name in the configuration ([nad.UseCluster], [nad.UseDefault]) is then that of
	// a file of the node: such a name need not be waited for. Any other error ends the
	// ADD, with the CNI code of the error. Nil means files in nadDir.
	Definition func(ctx context.Context, r nad.Ref, use nad.Use) (nad.Definition, error)

	// Annotations returns all annotations of the pod p, which has a namespace and a
	// name. It is called in an ADD for which the runtime passes none. An error ends
	// the ADD. If Annotations is nil such pods select nothing.
	Annotations func(ctx context.Context, p nad.Pod) (map[string]string, error)

	// Confirmed returns the annotations of the running pod p for [Reconcile], if they are
	// certainly newer than everything that the pod is attached to. Annotations may return
	// older ones, by which nothing is detached. If Confirmed is nil, those of Annotations
	// are new enough.
	Confirmed func(ctx context.Context, p nad.Pod) (map[string]string, error)

	// Devices returns the devices that the kubelet has allocated to each container of the
	// pod p. It is called once at most in an ADD, and only if the definition of a network
	// names a resource. An error ends the ADD. If Devices is nil, containers have none.
	Devices func(ctx context.Context, p nad.Pod) ([][]device.Device, error)

	// Serves reports whether a device plugin of the node serves a resource. It is called in an
	// ADD for a network that names a resource of which the pod has no device: the pod needs
	// none of a resource that only marks nodes, such as bridge.network.kubevirt.io/br1. An
	// error ends the ADD. If Serves is nil, all resources count as served.
	Serves func(ctx context.Context, resource string) (bool, error)

	// Claims returns the networks that the pod p is to be attached to because of its
	// ResourceClaims, in order. It is called once in an ADD of a pod with a namespace and
	// a UID. An error ends the ADD, with the CNI code of the error. If Claims is nil, pods
	// have no claims.
	Claims func(ctx context.Context, p nad.Pod) ([]Claimed, error)

	// Warn is told of what has gone wrong in the ADD of the pod p, which goes on all the
	// same: a device information file cannot be written. If Warn is nil the text goes
	// to stderr.
	Warn func(ctx context.Context, p nad.Pod, err error)

	// Planned is called in the ADD of the pod p when the plan is recorded, before the first
	// plugin runs. An error ends the ADD. Nil asks nobody.
	Planned func(ctx context.Context, p nad.Pod, plan []delegate.Attachment) error

	// Attached is called in the ADD of the pod p, when everything in added is attached
	// and the record k says so, and before the result is printed.
	// [lifecycle.Manager.Container] returns the record. An error undoes the ADD, and is
	// its error.
	Attached func(ctx context.Context, k scratch.Key, p nad.Pod, added []delegate.Attached) error
}

// A Claimed is a network that a ResourceClaim asks for. Either Definition or Network is set.
// Its plugins may have the types that pods may select. The ADD fails with code 7 if the pod
// may not have the network, if another network has the interface, or if Claim is there twice.
type Claimed struct {
	Claim      nad.Claim       // is recorded
	IfName     string          // empty means that multinet chooses the name
	Definition nad.Ref         // with the namespace
	Network    netconf.Network // as it is in the claim; may lack the name and the version
}
