package status

import (
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/rawjson"
)

// NetworkStatusAnnotation is the annotation of a pod that holds the [Network] of each of
// its interfaces, see [Annotation].
const NetworkStatusAnnotation = "k8s.v1.cni.cncf.io/network-status"

// maxAnnotation is the size in bytes above which Annotation leaves out what it can. All
// annotations of an object together may have 256 KiB.
const maxAnnotation = 64 << 10

// Annotation returns the value of [NetworkStatusAnnotation]: networks as a JSON list,
// without white space. The list is empty for none.
//
// If the text is larger than 64 KiB, the DNS of all networks is left out. If that is not
// enough, DeviceInfo is left out as well. trimmed reports whether either has been. What is
// left may still be larger. networks is not changed.
func Annotation(networks []Network) (text string, trimmed bool) {
	networks = append([]Network{}, networks...)
	text = compact(networks)
	for _, trim := range []func(*Network){
		func(n *Network) { n.DNS = types.DNS{} },
		func(n *Network) { n.DeviceInfo = nil },
	} {
		if len(text) <= maxAnnotation {
			break
		}
		for i := range networks {
			trim(&networks[i])
		}
		text, trimmed = compact(networks), true
	}
	return text, trimmed
}

// compact returns the JSON of networks.
func compact(networks []Network) string {
	text, _ := rawjson.Marshal(networks) // a Network has nothing that has no JSON
	return string(text)
}
