package kubetest

import (
	"encoding/json"
	"maps"
	"strings"
)

// A kind is a kind of objects that the server has.
type kind struct {
	name     string
	group    string // with the version
	resource string // the name in paths
}

func kinds() []kind {
	return []kind{
		{"Pod", "v1", "pods"},
		{"Node", "v1", "nodes"},
		{"Event", "events.k8s.io/v1", "events"},
		{"ResourceClaim", "resource.k8s.io/v1", "resourceclaims"},
		{"ResourceSlice", "resource.k8s.io/v1", "resourceslices"},
		{definitionKind, "k8s.cni.cncf.io/v1", "network-attachment-definitions"},
	}
}

const definitionKind = "NetworkAttachmentDefinition"

// An object is an object in the store, which replaces objects and never changes them.
type object struct {
	born  int64 // the version with which it was created
	meta  metadata
	other map[string]json.RawMessage // the other keys, with their bytes as they came
}

// metadata are the keys of metadata that the server keeps.
type metadata struct {
	Name                       string            `json:"name,omitempty"`
	GenerateName               string            `json:"generateName,omitempty"`
	Namespace                  string            `json:"namespace,omitempty"`
	UID                        string            `json:"uid,omitempty"`
	ResourceVersion            string            `json:"resourceVersion,omitempty"`
	Generation                 int64             `json:"generation,omitempty"`
	CreationTimestamp          string            `json:"creationTimestamp,omitempty"`
	DeletionTimestamp          string            `json:"deletionTimestamp,omitempty"`
	DeletionGracePeriodSeconds *int64            `json:"deletionGracePeriodSeconds,omitempty"`
	Labels                     map[string]string `json:"labels,omitempty"`
	Annotations                map[string]string `json:"annotations,omitempty"`
	OwnerReferences            json.RawMessage   `json:"ownerReferences,omitempty"`
	Finalizers                 json.RawMessage   `json:"finalizers,omitempty"`
}

func newObject(kind, group string, meta metadata) *object {
	return &object{meta: meta, other: map[string]json.RawMessage{"kind": mustMarshal(kind), "apiVersion": mustMarshal(group)}}
}

// UnmarshalJSON reads an object.
func (o *object) UnmarshalJSON(text []byte) error {
	*o = object{}
	if err := json.Unmarshal(text, &o.other); err != nil {
		return err
	}
	meta := o.other["metadata"]
	delete(o.other, "metadata")
	if meta == nil {
		return nil
	}
	return json.Unmarshal(meta, &o.meta)
}

// MarshalJSON writes the object.
func (o *object) MarshalJSON() ([]byte, error) {
	all := maps.Clone(o.other)
	all["metadata"] = mustMarshal(o.meta)
	return json.Marshal(all)
}

// text returns the JSON of the object.
func (o *object) text() []byte { return mustMarshal(o) }

// with returns a copy with other metadata.
func (o *object) with(edit func(*metadata)) *object {
	c := &object{o.born, o.meta, maps.Clone(o.other)}
	edit(&c.meta)
	return c
}

// field returns the field of the object for a selector: its name, or one of its spec.
func (o *object) field(name string) string {
	if name == "metadata.name" {
		return o.meta.Name
	}
	var spec map[string]any
	_ = json.Unmarshal(o.other["spec"], &spec) // without a spec there is no value
	value, _ := spec[strings.TrimPrefix(name, "spec.")].(string)
	return value
}

// mustMarshal returns the JSON of what comes from JSON, or from a test.
func mustMarshal(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic("kubetest: " + err.Error())
	}
	return text
}

// mustRead reads JSON of the kind of T.
func mustRead[T any](text []byte) (v T) {
	if err := json.Unmarshal(text, &v); err != nil {
		panic("kubetest: " + err.Error())
	}
	return v
}

// A Definition is a NetworkAttachmentDefinition.
type Definition struct {
	Namespace, Name string
	UID             string
	Version         string // the resource version
	Annotations     map[string]string
	Config          string // spec.config; empty: the object has no spec
}

// MarshalJSON returns the object in the API.
func (d Definition) MarshalJSON() ([]byte, error) {
	o := object{other: make(map[string]json.RawMessage), meta: metadata{
		Namespace: d.Namespace, Name: d.Name, UID: d.UID, ResourceVersion: d.Version, Annotations: d.Annotations,
	}}
	if d.Config != "" {
		o.other["spec"] = mustMarshal(map[string]string{"config": d.Config})
	}
	return o.MarshalJSON()
}

// UnmarshalJSON reads the object in the API.
func (d *Definition) UnmarshalJSON(text []byte) error {
	var o struct {
		Metadata metadata
		Spec     struct{ Config string }
	}
	err := json.Unmarshal(text, &o)
	m := o.Metadata
	*d = Definition{m.Namespace, m.Name, m.UID, m.ResourceVersion, m.Annotations, o.Spec.Config}
	return err
}
