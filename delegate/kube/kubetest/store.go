package kubetest

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/watch"
)

// firstVersion is the resource version of an empty server. Older ones are too old for
// watches.
const firstVersion = 100

// An object is what clients read and write. Objects in the store are replaced, never changed.
type object interface {
	runtime.Object
	metav1.Object
}

// A resource is a kind of objects that the server has.
type resource struct {
	schema.GroupVersionResource
	kind string
	make func() object
}

func resources() []resource {
	return []resource{
		{corev1.SchemeGroupVersion.WithResource("pods"), "Pod", func() object { return new(corev1.Pod) }},
		{corev1.SchemeGroupVersion.WithResource("nodes"), "Node", func() object { return new(corev1.Node) }},
		{eventsv1.SchemeGroupVersion.WithResource("events"), "Event", func() object { return new(eventsv1.Event) }},
		{resourcev1.SchemeGroupVersion.WithResource("resourceclaims"), "ResourceClaim", func() object { return new(resourcev1.ResourceClaim) }},
		{resourcev1.SchemeGroupVersion.WithResource("resourceslices"), "ResourceSlice", func() object { return new(resourcev1.ResourceSlice) }},
		{
			schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"},
			"NetworkAttachmentDefinition", func() object { return &unstructured.Unstructured{Object: map[string]any{}} },
		},
	}
}

func resourceOf(name string) resource {
	all := resources()
	return all[slices.IndexFunc(all, func(r resource) bool { return r.Resource == name })]
}

func (r resource) gvk() schema.GroupVersionKind { return r.GroupVersion().WithKind(r.kind) }

// typed reports whether the resource is built in, not that of a CRD.
func (r resource) typed() bool { return r.Group != "k8s.cni.cncf.io" }

// fields returns the fields for field selectors; of a nil object it has the keys.
func (r resource) fields(o object) fields.Set {
	set := fields.Set{"metadata.name": "", "metadata.namespace": ""}
	if o != nil {
		set = fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace()}
	}
	switch r.Resource {
	case "pods":
		p, ok := o.(*corev1.Pod)
		if !ok {
			p = new(corev1.Pod)
		}
		set["spec.nodeName"] = p.Spec.NodeName
	case "resourceslices":
		delete(set, "metadata.namespace")
		l, ok := o.(*resourcev1.ResourceSlice)
		if !ok {
			l = new(resourcev1.ResourceSlice)
		}
		node := l.Spec.NodeName
		if node == nil {
			node = new(string)
		}
		set[resourcev1.ResourceSliceSelectorNodeName] = *node
		set[resourcev1.ResourceSliceSelectorDriver] = l.Spec.Driver
	}
	return set
}

type key struct{ resource, namespace, name string }

// A store has the objects and all their changes. The mutex of its Server protects it.
type store struct {
	objects   map[key]object
	history   []change // never shortened
	version   int64    // of the last change
	forgotten int64    // older versions are too old for watches
}

// A change is an entry of the history.
type change struct {
	version  int64
	resource string
	old, new object // old is nil after a creation, new after a deletion
}

func newStore() store {
	return store{objects: map[key]object{}, version: firstVersion, forgotten: firstVersion}
}

// put stores o with a new version, in place of the object of its name. The store owns o
// from then on.
func (s *store) put(r resource, o object) {
	k := key{r.Resource, o.GetNamespace(), o.GetName()}
	old := s.objects[k]
	if old != nil && o.GetUID() != "" && o.GetUID() != old.GetUID() {
		s.remove(k)
		old = nil
	}
	switch {
	case old != nil:
		o.SetUID(old.GetUID())
		o.SetCreationTimestamp(old.GetCreationTimestamp())
	default:
		o.SetUID(cmp.Or(o.GetUID(), uuid.NewUUID()))
		if t := o.GetCreationTimestamp(); t.IsZero() {
			o.SetCreationTimestamp(metav1.Now().Rfc3339Copy())
		}
	}
	o.GetObjectKind().SetGroupVersionKind(r.gvk())
	s.version++
	o.SetResourceVersion(strconv.FormatInt(s.version, 10))
	s.objects[k] = o
	s.history = append(s.history, change{s.version, r.Resource, old, o})
}

// remove deletes the object, if there is one. As from a real server there is one change
// more for a pod on a node: it gets a deletionTimestamp first.
func (s *store) remove(k key) {
	old := s.objects[k]
	if old == nil {
		return
	}
	if p, ok := old.(*corev1.Pod); ok && p.Spec.NodeName != "" {
		p = p.DeepCopy()
		now := metav1.Now().Rfc3339Copy()
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, new(int64)
		s.put(resourceOf("pods"), p)
		old = p
	}
	s.version++
	delete(s.objects, k)
	s.history = append(s.history, change{version: s.version, resource: k.resource, old: old})
}

// list returns the matching objects, sorted by namespace and name.
func (s *store) list(match func(object) bool, resource string) []object {
	var found []object
	for k, o := range s.objects {
		if k.resource == resource && match(o) {
			found = append(found, o)
		}
	}
	slices.SortFunc(found, func(a, b object) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return found
}

// event returns the event for watches of the matching objects, if there is one.
func (c change) event(match func(object) bool) (watch.Event, bool) {
	was, is := c.old != nil && match(c.old), c.new != nil && match(c.new)
	switch {
	case was && is:
		return watch.Event{Type: watch.Modified, Object: c.new}, true
	case is:
		return watch.Event{Type: watch.Added, Object: c.new}, true
	case was: // the old object with the version of the change
		o := c.old.DeepCopyObject()
		if m, err := meta.Accessor(o); err == nil {
			m.SetResourceVersion(strconv.FormatInt(c.version, 10))
		}
		return watch.Event{Type: watch.Deleted, Object: o}, true
	}
	return watch.Event{}, false
}

// SetPod creates the pod or replaces it, including its status, and returns a copy of the
// stored pod. A pod without UID keeps the UID of the existing pod, or gets a new one. If
// the UID is not that of the existing pod, the existing pod is deleted first. SetPod
// ignores the resource version of p.
func (s *Server) SetPod(p *corev1.Pod) *corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.change()
	p = normal(p)
	s.put(resourceOf("pods"), p)
	return p.DeepCopy()
}

// normal returns a copy with the precision of JSON: times have whole seconds.
func normal(p *corev1.Pod) *corev1.Pod {
	n := new(corev1.Pod)
	data, err := json.Marshal(p)
	if err == nil {
		err = json.Unmarshal(data, n)
	}
	if err != nil {
		panic("kubetest: " + err.Error()) // a pod is always JSON
	}
	return n
}

// Pod returns a copy of the pod, nil if there is none.
func (s *Server) Pod(namespace, name string) *corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.objects[key{"pods", namespace, name}].(*corev1.Pod)
	if !ok {
		return nil
	}
	return p.DeepCopy()
}

// DeletePod deletes the pod, if there is one. If it is on a node, watches see two events:
// the pod gets a deletionTimestamp, then it is deleted.
func (s *Server) DeletePod(namespace, name string) { s.delete("pods", namespace, name) }

// Events returns copies of the events in the order of their creation.
func (s *Server) Events() []eventsv1.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []eventsv1.Event
	seen := map[types.UID]bool{}
	for _, c := range s.history {
		if c.resource != "events" || c.new == nil || seen[c.new.GetUID()] {
			continue
		}
		seen[c.new.GetUID()] = true
		o := s.objects[key{"events", c.new.GetNamespace(), c.new.GetName()}]
		if e, ok := o.(*eventsv1.Event); ok && e.UID == c.new.GetUID() {
			all = append(all, *e.DeepCopy())
		}
	}
	return all
}

// SetNode creates the node or replaces it, including its status. Like SetPod it ignores the
// resource version.
func (s *Server) SetNode(n *corev1.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.change()
	s.put(resourceOf("nodes"), n.DeepCopy())
}

// Node returns a copy of the node, nil if there is none.
func (s *Server) Node(name string) *corev1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, ok := s.objects[key{"nodes", "", name}].(*corev1.Node)
	if !ok {
		return nil
	}
	return n.DeepCopy()
}

// SetResourceSlice creates the ResourceSlice or replaces it.
func (s *Server) SetResourceSlice(l *resourcev1.ResourceSlice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.change()
	s.put(resourceOf("resourceslices"), l.DeepCopy())
}

// A Definition is a NetworkAttachmentDefinition.
type Definition struct {
	Namespace, Name string
	UID             string // empty: that of the existing definition, or a new one
	Version         string // the resource version; SetDefinition ignores it
	Annotations     map[string]string
	Config          string // spec.config; empty: the object has no spec
}

// SetDefinition creates the definition or replaces it, and returns it with its UID and
// version. If the UID is not that of the existing definition, that one is deleted first.
func (s *Server) SetDefinition(d Definition) Definition {
	r := resourceOf("network-attachment-definitions")
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetNamespace(d.Namespace)
	u.SetName(d.Name)
	u.SetUID(types.UID(d.UID))
	u.SetAnnotations(d.Annotations)
	if d.Config != "" {
		u.Object["spec"] = map[string]any{"config": d.Config}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.change()
	s.put(r, u)
	d.UID, d.Version, d.Annotations = string(u.GetUID()), u.GetResourceVersion(), maps.Clone(d.Annotations)
	return d
}

// DeleteDefinition deletes the definition, if there is one.
func (s *Server) DeleteDefinition(namespace, name string) {
	s.delete("network-attachment-definitions", namespace, name)
}

func (s *Server) delete(resource, namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.change()
	s.remove(key{resource, namespace, name})
}
