package nad

import "strings"

// A Pod is the pod of a container. The zero Pod is a container outside of Kubernetes.
type Pod struct {
	Namespace string
	Name      string
	UID       string // a static pod's differs from that of its object, see [PodOf]
	Container string // ID of the pod's sandbox
}

// PodOf returns the pod that a runtime names in CNI_ARGS. Its fields are the values of
// K8S_POD_NAMESPACE, K8S_POD_NAME, K8S_POD_UID and K8S_POD_INFRA_CONTAINER_ID. They are
// not checked, and are empty where the runtime gives none. If it gives one twice the
// last counts. PodOf ignores everything else in cniArgs.
//
// The UID is the kubelet's. For a static pod that is not the UID of the object in the API,
// but the value of the object's annotation kubernetes.io/config.mirror.
func PodOf(cniArgs string) Pod {
	var p Pod
	for arg := range strings.SplitSeq(cniArgs, ";") {
		switch key, value, _ := strings.Cut(arg, "="); key {
		case "K8S_POD_NAMESPACE":
			p.Namespace = value
		case "K8S_POD_NAME":
			p.Name = value
		case "K8S_POD_UID":
			p.UID = value
		case "K8S_POD_INFRA_CONTAINER_ID":
			p.Container = value
		}
	}
	return p
}

// Valid reports whether Kubernetes could have a pod of this namespace and name. Neither is
// ever a path then.
func (p Pod) Valid() bool { return Ref{Namespace: p.Namespace, Name: p.Name}.Validate() == nil }

// String returns "namespace/name", or "" if p has neither.
func (p Pod) String() string {
	if p.Namespace == "" && p.Name == "" {
		return ""
	}
	return p.Namespace + "/" + p.Name
}
