package multinet

import (
	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// PodOf returns the pod of a recorded container, as the runtime named it in the ADD.
func PodOf(r lifecycle.Record) nad.Pod {
	var p nad.Pod
	if len(r.Attached) > 0 {
		p = nad.PodOf(r.Attached[0].Args)
	}
	p.Container = r.Key.ContainerID
	return p
}

// NetworkStatusPath is the page on the daemon's socket with the annotation network-status that
// the API has of a pod. The query has its namespace, name and uid.
const NetworkStatusPath = "/network-status"

// NetworkStatus returns the elements of the pod's annotation network-status that r is the
// source of, see [lifecycle.Record.Status]. Networks have the names that people know them by,
// see [nad.Origin.NetworkName].
func NetworkStatus(r lifecycle.Record) []status.Network {
	return r.Status(func(a delegate.Attached) string {
		return nad.ParseOrigin(a.Origin).NetworkName(a.Network.Name())
	})
}
