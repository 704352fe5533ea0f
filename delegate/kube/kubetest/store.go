package kubetest

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/watch"
)

// firstVersion is the resource version of an empty server. As with a real one, versions
// from before are forgotten.
const firstVersion = 100

// An object is a pod, an event or a definition. Those in the store are never changed,
// only replaced.
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
		{eventsv1.SchemeGroupVersion.WithResource("events"), "Event", func() object { return new(eventsv1.Event) }},
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

// typed reports whether the resource is one of Kubernetes itself, not of a CRD.
func (r resource) typed() bool { return r.Group != "k8s.cni.cncf.io" }

// fields returns what field selectors can ask of an object.
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
		set["spec.restartPolicy"] = string(p.Spec.RestartPolicy)
		set["spec.schedulerName"] = p.Spec.SchedulerName
		set["spec.serviceAccountName"] = p.Spec.ServiceAccountName
		set["spec.hostNetwork"] = strconv.FormatBool(p.Spec.HostNetwork)
		set["status.phase"] = string(p.Status.Phase)
		set["status.podIP"] = p.Status.PodIP
		set["status.nominatedNodeName"] = p.Status.NominatedNodeName
	case "events":
		e, ok := o.(*eventsv1.Event)
		if !ok {
			e = new(eventsv1.Event)
		}
		set["reason"] = e.Reason
		set["type"] = e.Type
		set["reportingController"] = e.ReportingController
	}
	return set
}

type key struct{ resource, namespace, name string }

// A store has the objects and everything that has happened to them. It is protected by
// the mutex of its Server.
type store struct {
	objects   map[key]object
	history   []change // never shortened
	version   int64    // of the last change
	forgotten int64    // no watch begins at a version before this one
}

// A change is an entry of the history. A bookmark has no resource.
type change struct {
	version  int64
	resource string
	old, new object // nil: did not exist, or does not exist any more
}

func newStore() store {
	return store{objects: map[key]object{}, version: firstVersion, forgotten: firstVersion}
}

// put makes o the object of its name, with a new version. It belongs to the store from
// then on.
func (s *store) put(r resource, o object) object {
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
	return o
}

// remove deletes the object, if there is one. A pod on a node is seen to be deleted
// before it is gone.
func (s *store) remove(k key) {
	old := s.objects[k]
	if old == nil {
		return
	}
	if p, ok := old.(*corev1.Pod); ok && p.Spec.NodeName != "" {
		p = p.DeepCopy()
		now := metav1.Now().Rfc3339Copy()
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, new(int64)
		old = s.put(resourceOf("pods"), p)
	}
	s.version++
	delete(s.objects, k)
	s.history = append(s.history, change{version: s.version, resource: k.resource, old: old})
}

// list returns the objects that match, by namespace and name.
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

// event returns what a watch of the matching objects hears of the change, if anything.
func (c change) event(match func(object) bool) (watch.EventType, object) {
	was, is := c.old != nil && match(c.old), c.new != nil && match(c.new)
	switch {
	case was && is:
		return watch.Modified, c.new
	case is:
		return watch.Added, c.new
	case was: // the last object that matched, at the version of the change
		o, _ := c.old.DeepCopyObject().(object)
		o.SetResourceVersion(strconv.FormatInt(c.version, 10))
		return watch.Deleted, o
	}
	return "", nil
}

// SetPod creates the pod or replaces all of it, status included, and returns it as it is
// stored. A UID, if it has none, is that of the pod that it replaces or a new one. A pod
// with another UID replaces the old one as it happens in a cluster: the old one is
// deleted first. The resource version of p does not matter.
func (s *Server) SetPod(p *corev1.Pod) *corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.change()
	p, _ = s.put(resourceOf("pods"), normal(p)).DeepCopyObject().(*corev1.Pod)
	return p
}

// normal returns a copy as it comes over the wire, with times to the second.
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

// DeletePod deletes the pod at once. It does nothing if there is none.
func (s *Server) DeletePod(namespace, name string) { s.delete("pods", namespace, name) }

// Events returns copies of the events, the oldest first.
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

// A Definition is a NetworkAttachmentDefinition.
type Definition struct {
	Namespace, Name string
	UID             string // empty: that of the definition it replaces, or a new one
	Version         string // its resource version; does not matter to SetDefinition
	Annotations     map[string]string
	Config          string // spec.config; empty: the object has no spec
}

// SetDefinition creates the definition or replaces it, and returns it with its UID and
// version. One with another UID replaces the old one as it happens in a cluster: the old
// one is deleted first.
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
	o := s.put(r, u)
	d.UID, d.Version, d.Annotations = string(o.GetUID()), o.GetResourceVersion(), maps.Clone(d.Annotations)
	return d
}

// DeleteDefinition deletes the definition. It does nothing if there is none.
func (s *Server) DeleteDefinition(namespace, name string) {
	s.delete("network-attachment-definitions", namespace, name)
}

func (s *Server) delete(resource, namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.change()
	s.remove(key{resource, namespace, name})
}
