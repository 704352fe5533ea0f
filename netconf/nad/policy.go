package nad

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/metacni/metacni/internal/kubename"
	"github.com/metacni/metacni/netconf"
)

// A Use is why a pod is attached to a network. Its value can be recorded.
type Use string

// The uses of a network.
const (
	// UseSelected is for networks in [NetworksAnnotation].
	UseSelected Use = "selected"

	// UsePodDefault is for the network in [DefaultNetworkAnnotation].
	UsePodDefault Use = "pod-default"

	// UseCluster is for the clusterNetwork, or the first delegate, of the
	// configuration. Every pod has it.
	UseCluster Use = "cluster"

	// UseDefault is for the defaultNetworks, or the other delegates, of the
	// configuration. The pods of system namespaces do not have them.
	UseDefault Use = "default"

	// UseAttached is for one more network of a running container, which was asked for by a
	// request and not by the pod. A [Policy] treats it as UseSelected.
	UseAttached Use = "attached"

	// UseClaimed is for a network that a ResourceClaim of the pod asks for. A [Policy] treats
	// it as UseSelected.
	UseClaimed Use = "claimed"
)

// A Policy says which pods are attached to which networks. The zero Policy has the
// defaults of Multus. Goroutines may share a Policy that none of them changes.
type Policy struct {
	// Namespace is that of the definitions which the configuration, and
	// [DefaultNetworkAnnotation], name without one. Empty means "kube-system".
	Namespace string

	// SystemNamespaces are those whose pods get no [UseDefault] networks. Nil
	// means "kube-system".
	SystemNamespaces []string

	// Isolation keeps pods to the definitions of their own namespace and of
	// GlobalNamespaces, whatever they use them for. To keep them from files of the node
	// too, use [Rules] without a ConfDir.
	Isolation bool

	// GlobalNamespaces are those whose definitions all pods may use. Nil means
	// "default". See [ParseNamespaces].
	GlobalNamespaces []string

	// NoPodDefault forbids [DefaultNetworkAnnotation].
	NoPodDefault bool
}

// ParseNamespaces parses a list of namespaces separated by commas, as in the key
// globalNamespaces. Blanks around them are ignored, and so are empty names: "," is a list of
// no namespaces. The result is nil for an empty string alone. A namespace that is not a DNS label
// is [netconf.ErrInvalid].
func ParseNamespaces(list string) ([]string, error) {
	if list == "" {
		return nil, nil
	}
	all := []string{}
	for namespace := range strings.SplitSeq(list, ",") {
		namespace = strings.TrimSpace(namespace)
		if namespace == "" {
			continue
		}
		if !kubename.IsNamespace(namespace) {
			return nil, &Error{Err: invalid("", fmt.Sprintf("%q is not a DNS label", namespace))}
		}
		all = append(all, namespace)
	}
	return all, nil
}

// or returns namespaces, or else the one.
func or(namespaces []string, one string) []string {
	if namespaces == nil {
		return []string{one}
	}
	return namespaces
}

// Ref returns the definition that s names for a pod of the given namespace. Where s
// has no namespace it is the pod's for [UseSelected], [UseAttached] and [UseClaimed], and p.Namespace for all
// other uses. Ref fails as [Ref.Validate] does.
func (p Policy) Ref(podNamespace string, s netconf.Selection, use Use) (Ref, error) {
	r := Ref{Namespace: s.Namespace, Name: s.Name}
	switch {
	case r.Namespace != "":
	case use == UseSelected || use == UseAttached || use == UseClaimed:
		r.Namespace = podNamespace
	default:
		r.Namespace = cmp.Or(p.Namespace, "kube-system")
	}
	return r, r.Validate()
}

// Decide reports whether a pod of the given namespace is attached to the definition r.
// It fails with [ErrForbidden] where the pod asks for a definition that it may not use,
// and for a Use that is none of the constants. Ask before the definition is looked up,
// so that a pod does not learn what exists in other namespaces.
//
// What the configuration names is not checked: for [UseCluster] and [UseDefault] r may
// be zero, such as for a network in a file. Decide reports false, without an error, only
// for the Default networks of a pod in a system namespace: leave them out.
//
// A pod without a namespace is a container outside of Kubernetes.
//
// Decide is a pure function of p and its arguments.
func (p Policy) Decide(podNamespace string, r Ref, use Use) (attach bool, err error) {
	switch use {
	case UseCluster:
		return true, nil
	case UseDefault:
		return !slices.Contains(or(p.SystemNamespaces, "kube-system"), podNamespace), nil
	case UsePodDefault:
		if p.NoPodDefault {
			return false, forbidden(r, "pods may not choose their default network (podDefaultNetwork): select it in "+NetworksAnnotation)
		}
	case UseSelected, UseAttached, UseClaimed:
	default:
		return false, forbidden(r, fmt.Sprintf("%q is no use of a network", use))
	}
	if err := r.Validate(); err != nil {
		return false, err
	}
	if p.Isolation && r.Namespace != podNamespace && !slices.Contains(or(p.GlobalNamespaces, "default"), r.Namespace) {
		return false, forbidden(r, fmt.Sprintf(
			"namespaceIsolation keeps pods of namespace %q from definitions of namespace %q: define the network in the pod's namespace, or in one of globalNamespaces",
			podNamespace, r.Namespace))
	}
	return true, nil
}

// forbidden is the error of a use of r that is not allowed.
func forbidden(r Ref, why string) error {
	if r.Validate() != nil {
		r = Ref{}
	}
	return &Error{Ref: r, Err: fmt.Errorf("%w: %s", ErrForbidden, why)}
}
