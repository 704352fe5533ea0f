package kube

import (
	"context"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/metacni/metacni/internal/kubetest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf/nad"
)

const config = `{"cniVersion":"1.1.0","name":"storage","type":"bridge"}`

func newServer(t *testing.T) *kubetest.Server {
	t.Helper()
	s := kubetest.NewServer(scheme.Codecs.UniversalDeserializer().Decode)
	t.Cleanup(s.Close)
	return s
}

// open opens a View of the server.
func open(t *testing.T, s *kubetest.Server, c Config) *View {
	t.Helper()
	file, err := s.Kubeconfig(t.TempDir())
	nodetest.OK(t, err)
	c.Kubeconfig = file
	return openConfig(t, c)
}

// synced opens a View of the server, and waits until it has synced.
func synced(t *testing.T, s *kubetest.Server, c Config) *View {
	t.Helper()
	v := open(t, s, c)
	awaitSync(t, v)
	return v
}

func openConfig(t *testing.T, c Config) *View {
	t.Helper()
	v, err := Open(t.Context(), c)
	nodetest.OK(t, err)
	t.Cleanup(v.Close)
	return v
}

// awaitSync waits until everything that v watches has been complete.
func awaitSync(t *testing.T, v *View) {
	t.Helper()
	synced := v.definitions.store.awaitSync(t.Context())
	if v.pods != nil && v.pods.watched.Load() {
		synced = synced && v.pods.store.awaitSync(t.Context())
	}
	if !synced {
		t.Fatal("not synced")
	}
}

// until waits until do does true. It looks again after each change of the store.
func until[T any](t *testing.T, p *part[T], do func() bool) {
	t.Helper()
	for {
		next := p.store.next()
		if do() {
			return
		}
		<-next
	}
}

// briefly returns a context for what never comes.
func briefly(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	t.Cleanup(cancel)
	return ctx
}

// has wants a View to have a definition.
func has(t *testing.T, v *View, want nad.Definition) {
	t.Helper()
	got, err := v.Definition(t.Context(), want.Ref)
	nodetest.OK(t, err)
	nodetest.Equal(t, "definition", got, want)
}

// loaded wants a mirror to have a definition.
func loaded(t *testing.T, dir string, want nad.Definition) {
	t.Helper()
	got, err := nad.Load(os.DirFS(dir), want.Ref)
	nodetest.OK(t, err)
	nodetest.Equal(t, "definition in the mirror", got, want)
}

// unknown wants the error of a look-up that cannot be answered now.
func unknown(t *testing.T, err error) {
	t.Helper()
	nodetest.Is(t, err, ErrNotSynced)
	nodetest.Code(t, err, 11)
}

func keyOf(r nad.Ref) types.NamespacedName { return types.NamespacedName(r) }

func ref(namespace, name string) nad.Ref { return nad.Ref{Namespace: namespace, Name: name} }

func storage(s *kubetest.Server) nad.Definition {
	d := kubetest.Put(s, kubetest.Definition{
		Namespace: "blue", Name: "storage", Config: config,
		Annotations: map[string]string{nad.ResourceAnnotation: "intel.com/sriov", "other": "x"},
	})
	return nad.Definition{Ref: ref("blue", "storage"), UID: d.UID, Version: d.Version, Config: config, Resource: "intel.com/sriov"}
}

func pod(uid string, edit func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "web", UID: types.UID(uid)},
		Spec:       corev1.PodSpec{NodeName: "node1", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	if edit != nil {
		edit(p)
	}
	return p
}
