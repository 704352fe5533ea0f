package kube

import (
	"encoding/json"
	"errors"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/metacni/metacni/netconf/nad"
)

// The resource of definitions.
const (
	definitionResource = "network-attachment-definitions"
	definitionKind     = "NetworkAttachmentDefinition"
)

var definitionVersion = schema.GroupVersion{Group: "k8s.cni.cncf.io", Version: "v1"} //nolint:gochecknoglobals // never written

// addDefinitions adds the types of definitions to a scheme.
func addDefinitions(scheme *runtime.Scheme) error {
	scheme.AddKnownTypeWithName(definitionVersion.WithKind(definitionKind), &definition{})
	scheme.AddKnownTypeWithName(definitionVersion.WithKind(definitionKind+"List"), &definitionList{})
	metav1.AddToGroupVersion(scheme, definitionVersion)
	return nil
}

// A definition is a NetworkAttachmentDefinition as the API server sends it. Decoding never
// fails, because one invalid definition must not prevent others of the same list or watch
// from being read: its error is a property of the definition.
type definition struct {
	metav1.TypeMeta
	metav1.ObjectMeta // what a watch needs: the names, the version, the annotation of a bookmark

	value nad.Definition
	err   error // why it cannot be used
}

// UnmarshalJSON reads what matters of an object.
func (d *definition) UnmarshalJSON(data []byte) error {
	*d = definition{}
	d.value, d.err = nad.Parse(data)
	d.Namespace, d.Name, d.ResourceVersion = d.value.Namespace, d.value.Name, d.value.Version
	if d.err == nil {
		return nil
	}
	var object metav1.PartialObjectMetadata // of a bookmark, or a definition that cannot be used
	_ = json.Unmarshal(data, &object)       // whatever can be read
	d.ObjectMeta = object.ObjectMeta
	if e, ok := errors.AsType[*nad.Error](d.err); ok && e.Ref == (nad.Ref{}) {
		d.err = &nad.Error{Ref: nad.Ref{Namespace: d.Namespace, Name: d.Name}, Err: e.Err}
	}
	return nil
}

// DeepCopyObject returns a copy.
func (d *definition) DeepCopyObject() runtime.Object {
	c := *d
	c.ObjectMeta = *d.DeepCopy()
	return &c
}

// A definitionList is a list of definitions.
type definitionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []definition `json:"items"`
}

// DeepCopyObject returns a copy.
func (l *definitionList) DeepCopyObject() runtime.Object {
	c := *l
	c.ListMeta, c.Items = *l.DeepCopy(), slices.Clone(l.Items)
	for i := range c.Items {
		c.Items[i].ObjectMeta = *c.Items[i].DeepCopy()
	}
	return &c
}
