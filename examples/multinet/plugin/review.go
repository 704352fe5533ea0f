package plugin

import (
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/ifname"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// podInterface is the CNI_IFNAME that Kubernetes runtimes use.
const podInterface = "eth0"

// A Reviewer tells, before a container is to be attached, what an ADD would refuse: as much
// as can be known without the node and without the other objects of the cluster. It decides
// with the functions that an ADD uses. Goroutines may share it.
type Reviewer struct{ conf *config }

// NewReviewer returns a Reviewer for multinet's own configuration conf. It fails as an ADD
// does if conf cannot be decoded or a key is not valid.
func NewReviewer(conf []byte) (*Reviewer, error) {
	c, err := configOf(plugin.System{}, skel.CmdArgs{IfName: podInterface, StdinData: conf}, Cluster{})
	if err != nil {
		return nil, err
	}
	return &Reviewer{c}, nil
}

// Definition fails as the ADD of a pod that selects d does, because of what is written in
// d. A definition without spec.config is that of a file, which each node may have. In
// multusNamespace it may also be a network of the configuration, and then have the types
// that these may have.
func (r *Reviewer) Definition(d nad.Definition) error {
	err := r.definition(d, choice{use: nad.UseSelected, selection: netconf.Selection{Name: d.Name}})
	if err != nil {
		standing := choice{use: nad.UseCluster, name: d.Name}
		if ref, ok := r.conf.ref(standing); ok && ref == d.Ref {
			err = r.definition(d, standing)
		}
	}
	return err
}

// definition fails as the ADD of a pod that is attached to d because of ch does.
func (r *Reviewer) definition(d nad.Definition, ch choice) error {
	rules := r.conf.rules(ch)
	if strings.TrimSpace(d.Config) == "" && rules.ConfDir != nil {
		return d.Validate()
	}
	_, err := d.Network(rules)
	return err
}

// Pod fails as the ADD of a pod of the namespace with these annotations does, before it
// looks up a network: if an annotation cannot be used, or asks for what the pod may not
// have.
func (r *Reviewer) Pod(namespace string, annotations map[string]string) error {
	c := *r.conf
	c.pod = nad.Pod{Namespace: namespace}
	_, selected, err := c.asked(annotations)
	if err != nil {
		return err
	}
	names := []string{podInterface}
	for _, ch := range selected {
		names = append(names, ch.selection.Interface)
	}
	if _, err := (ifname.Scheme{Primary: podInterface}).Plan(names...); err != nil {
		return fmt.Errorf("annotation %s: %w", nad.NetworksAnnotation, err)
	}
	return nil
}

// Claims returns who may have which networks by a ResourceClaim, and which these may be: the
// same as for what pods select.
func (r *Reviewer) Claims() (nad.Policy, nad.Rules) {
	return r.conf.policy, r.conf.rules(choice{use: nad.UseClaimed})
}
