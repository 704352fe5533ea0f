// Package nad reads NetworkAttachmentDefinitions (NADs), the Kubernetes objects that
// define secondary networks, without a Kubernetes client.
//
// A [Ref] names a definition, a [Policy] says whether a pod may use it, and
// [Definition.Network] makes a network of it:
//
//	ref, err := policy.Ref(podNamespace, selection, nad.UseSelected)
//	attach, err := policy.Decide(podNamespace, ref, nad.UseSelected) // before any look-up
//	definition, err := nad.Load(os.DirFS(nadDir), ref)            // or from a cache
//	network, err := definition.Network(rules)
//
// A definition is written by users and run as root. So nothing in it is a path, no
// error quotes its values, and bad input of any kind is an error with a CNI code. Every
// error is an [*Error].
package nad

import (
	"errors"
	"fmt"
	"strings"

	"github.com/metacni/metacni/internal/kubename"
	"github.com/metacni/metacni/netconf"
)

// The annotations of pods and definitions.
const (
	// NetworksAnnotation selects the networks of a pod, see
	// [netconf.ParseSelection].
	NetworksAnnotation = "k8s.v1.cni.cncf.io/networks"

	// DefaultNetworkAnnotation replaces the primary network of a pod, see
	// [ParseDefaultNetwork].
	DefaultNetworkAnnotation = "v1.multus-cni.io/default-network"

	// ResourceAnnotation of a definition is the resource whose devices its
	// attachments need, see [Definition.Resource].
	ResourceAnnotation = "k8s.v1.cni.cncf.io/resourceName"

	// SourceAnnotation of a pod is where the kubelet has it from, see
	// [Origin.PodSource].
	SourceAnnotation = "kubernetes.io/config.source"
)

// A Ref names a definition.
type Ref struct {
	Namespace string // a DNS label
	Name      string // a DNS subdomain
}

// ParseRef parses "name" or "namespace/name". The namespace of the first form is the
// given one. ParseRef fails as [Ref.Validate] does.
func ParseRef(s, namespace string) (Ref, error) {
	r := Ref{Namespace: namespace, Name: s}
	if before, after, ok := strings.Cut(s, "/"); ok {
		r = Ref{Namespace: before, Name: after}
	}
	return r, r.Validate()
}

// String returns "namespace/name", or "" for the zero Ref.
func (r Ref) String() string {
	if r == (Ref{}) {
		return ""
	}
	return r.Namespace + "/" + r.Name
}

// Validate fails with [netconf.ErrInvalid] unless Kubernetes could have an object of
// this namespace and name. Neither is ever a path then, and the name is also a CNI
// network name.
func (r Ref) Validate() error {
	key, value, want := "namespace", r.Namespace, "a DNS label"
	if kubename.IsNamespace(r.Namespace) {
		key, value, want = "name", r.Name, "a DNS subdomain"
		if kubename.IsObject(r.Name) {
			return nil
		}
	}
	why := fmt.Errorf("%q is not %s: lower-case letters, digits and inner hyphens", value, want)
	if value == "" {
		why = errors.New("missing")
	}
	return &Error{Err: &netconf.Error{Kind: netconf.ErrInvalid, Network: r.Name, Key: key, Err: why}}
}

// ParseDefaultNetwork parses the annotation v1.multus-cni.io/default-network: one
// selection, in either syntax of [netconf.ParseSelection], that replaces the primary
// network of a pod. It returns nil where nothing is selected.
//
// It fails as ParseSelection does, and with [netconf.ErrInvalid] where there is more
// than one selection, or an interface that is not ifName, the CNI_IFNAME of the runtime:
// the runtime looks for its own name in the result.
func ParseDefaultNetwork(annotation, ifName string) (*netconf.Selection, error) {
	fail := func(err error) error {
		return &Error{Err: fmt.Errorf("annotation %s: %w", DefaultNetworkAnnotation, err)}
	}
	selections, err := netconf.ParseSelection(annotation)
	switch {
	case err != nil:
		return nil, fail(err)
	case len(selections) == 0:
		return nil, nil //nolint:nilnil // nothing is selected
	case len(selections) > 1:
		return nil, fail(invalid("[1]", "a pod has one default network, select one"))
	}
	s := selections[0]
	if s.Interface != "" && s.Interface != ifName {
		why := fmt.Sprintf("%q, but the runtime has named the interface %q: leave it out", s.Interface, ifName)
		return nil, fail(invalid("[0].interface", why))
	}
	return &s, nil
}
