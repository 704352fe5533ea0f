package kubetest

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"time"
)

// firstVersion is the resource version of an empty server. Older ones are too old for watches.
const firstVersion = 100

type key struct{ resource, namespace, name string }

// A store has the objects and all their changes. The mutex of its Server protects it.
type store struct {
	objects   map[key]*object
	history   []change // never shortened
	version   int64    // of the last change
	forgotten int64    // older versions are too old for watches
}

// A change is an entry of the history.
type change struct {
	version  int64
	resource string
	old, new *object // old is nil after a creation, new after a deletion
}

func newStore() store {
	return store{objects: map[key]*object{}, version: firstVersion, forgotten: firstVersion}
}

// put stores o with a new version, in place of the object of its name. The store owns o from
// then on.
func (s *store) put(k kind, o *object) {
	at := key{k.resource, o.meta.Namespace, o.meta.Name}
	old := s.objects[at]
	if old != nil && o.meta.UID != "" && o.meta.UID != old.meta.UID {
		s.remove(k, at)
		old = nil
	}
	s.version++
	o.born = s.version
	if old != nil {
		o.born, o.meta.UID, o.meta.CreationTimestamp = old.born, old.meta.UID, old.meta.CreationTimestamp
	}
	o.meta.UID = cmp.Or(o.meta.UID, rand.Text())
	o.meta.CreationTimestamp = cmp.Or(o.meta.CreationTimestamp, now())
	o.other["kind"], o.other["apiVersion"] = mustMarshal(k.name), mustMarshal(k.group)
	o.meta.ResourceVersion = strconv.FormatInt(s.version, 10)
	s.objects[at] = o
	s.history = append(s.history, change{s.version, k.resource, old, o})
}

func now() string { return time.Now().UTC().Format(time.RFC3339) }

// remove deletes the object, if there is one. As from a real server there is one change more
// for a pod on a node: it gets a deletionTimestamp first.
func (s *store) remove(k kind, at key) {
	old := s.objects[at]
	if old == nil {
		return
	}
	if k.name == "Pod" && old.field("spec.nodeName") != "" {
		old = old.with(func(m *metadata) { m.DeletionTimestamp, m.DeletionGracePeriodSeconds = now(), new(int64) })
		s.put(k, old)
	}
	s.version++
	delete(s.objects, at)
	s.history = append(s.history, change{version: s.version, resource: k.resource, old: old})
}

// list returns the matching objects, in the order of their creation.
func (s *store) list(resource string, match func(*object) bool) []*object {
	var found []*object
	for at, o := range s.objects {
		if at.resource == resource && match(o) {
			found = append(found, o)
		}
	}
	slices.SortFunc(found, func(a, b *object) int { return cmp.Compare(a.born, b.born) })
	return found
}

// Put creates the object or replaces it, including its status, and returns it as it is stored.
// T is a struct that is named like the kind, such as corev1.Pod, or a pointer to one, or
// [Definition].
//
// An object without UID keeps the UID of the existing object, or gets a new one. If the UID is
// not that of the existing object, this is deleted first. Put ignores the resource version.
func Put[T any](s *Server, o T) T {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.change()
	made := mustRead[*object](mustMarshal(o))
	s.put(kindOf[T](), made)
	return mustRead[T](made.text())
}

// Edit replaces an object that exists, as [Put] does. No client changes it in between.
func Edit[T any](s *Server, namespace, name string, edit func(*T)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.change()
	k := kindOf[T]()
	o := mustRead[*T](s.objects[key{k.resource, namespace, name}].text())
	edit(o)
	s.put(k, mustRead[*object](mustMarshal(o)))
}

// Get returns a copy of the object, nil if there is none.
func Get[T any](s *Server, namespace, name string) *T {
	s.mu.Lock()
	o := s.objects[key{kindOf[T]().resource, namespace, name}]
	s.mu.Unlock()
	if o == nil {
		return nil
	}
	return mustRead[*T](o.text())
}

// List returns copies of all objects of the kind, in the order of their creation.
func List[T any](s *Server) []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []T
	for _, o := range s.list(kindOf[T]().resource, func(*object) bool { return true }) {
		all = append(all, mustRead[T](o.text()))
	}
	return all
}

// Delete deletes the object, if there is one. If it is a pod on a node, watches see two events:
// the pod gets a deletionTimestamp, then it is deleted.
func Delete[T any](s *Server, namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := kindOf[T]()
	s.remove(k, key{k.resource, namespace, name})
	s.change()
}

// Backup returns a function that makes the objects and their versions what they were at the
// call of Backup, as when the database of an API server is replaced by an older copy: versions
// are given a second time. It breaks off the open watches. As from a real server, a watch from a
// version that is not there yet gets nothing until a later one is.
func (s *Server) Backup() (restore func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	objects, version, changes := maps.Clone(s.objects), s.version, len(s.history)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.objects, s.version, s.history = maps.Clone(objects), version, slices.Clone(s.history[:changes])
		s.forgotten = min(s.forgotten, version)
		s.watches = nil
		s.change()
	}
}

// kindOf returns the kind that a Go type is named like.
func kindOf[T any]() kind {
	t := reflect.TypeFor[T]()
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	name := t.Name()
	if t == reflect.TypeFor[Definition]() {
		name = definitionKind
	}
	all := kinds()
	i := slices.IndexFunc(all, func(k kind) bool { return k.name == name })
	if i < 0 {
		panic(fmt.Sprintf("kubetest: no objects of the type %s", name))
	}
	return all[i]
}
