package scale

import (
	"context"
	"fmt"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/internal/e2e/kube/server"
	"github.com/metacni/metacni/netconf/nad"
)

const (
	namespace       = "scale" // of definitions
	daemon          = "multinetd"
	definitionsPath = "/apis/k8s.cni.cncf.io/v1/namespaces/" + namespace + "/network-attachment-definitions"
)

// A cluster is an API server with definitions, and with nodes that have pods. It counts the
// requests of the nodes.
type cluster struct {
	*server.Server
	t       *testing.T
	core    *corev1client.CoreV1Client // the administrator's
	nodes   []*node
	changes int // of definitions and pods, so far
	run     int // number of the status of each pod

	mu       sync.Mutex
	requests map[kube.Request]int
}

// newCluster starts an API server with multinetd's manifests, and with what the flags say.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	s, err := server.Open(programs(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	config := s.Admin()
	config.QPS, config.WarningHandlerWithContext = -1, rest.NoWarnings{}
	c := &cluster{Server: s, t: t, core: s.Core(t, config), nodes: make([]*node, *views), requests: map[kube.Request]int{}}
	s.Kubectl(t, "", "apply", "-f", server.Manifests("crd.yaml"))
	s.Kubectl(t, "", "wait", "--for=condition=Established", "--timeout=60s", "-f", server.Manifests("crd.yaml"))
	s.DeployWith(t, "pods")
	s.Kubectl(t, "", "create", "namespace", namespace)
	c.parallel(*definitions, func(ctx context.Context, i int) error {
		body := fmt.Appendf(nil, `{"apiVersion":"k8s.cni.cncf.io/v1","kind":"NetworkAttachmentDefinition","metadata":{"name":%q},"spec":{"config":%q}}`,
			definition(i).Name, configOf(i, 0))
		return c.core.RESTClient().Post().AbsPath(definitionsPath).SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
	})
	c.parallel(*views, c.join)
	return c
}

// join creates a node with its pods, and the kubeconfig of its daemon.
func (c *cluster) join(ctx context.Context, i int) error {
	made, err := c.core.Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i)}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	token, err := c.core.ServiceAccounts("kube-system").CreateToken(ctx, daemon, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{
			APIVersion: "v1", Kind: "Node", Name: made.Name, UID: made.UID,
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	n := &node{cluster: c, name: made.Name}
	if n.kubeconfig, err = c.WriteKubeconfig(c.t.TempDir(), token.Status.Token); err != nil {
		return err
	}
	for k := range *pods {
		p, err := c.core.Pods(namespace).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("%s-%d", n.name, k), Annotations: map[string]string{nad.NetworksAnnotation: definition(0).String()},
			},
			Spec: corev1.PodSpec{NodeName: n.name, Containers: []corev1.Container{{Name: "c", Image: "image"}}},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		n.pods = append(n.pods, nad.Pod{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Container: string(p.UID)})
	}
	c.nodes[i] = n
	return nil
}

// definition returns the name of a definition.
func definition(i int) nad.Ref {
	return nad.Ref{Namespace: namespace, Name: fmt.Sprintf("network-%d", i)}
}

// configOf returns the configuration of a definition after a change.
func configOf(i, change int) string {
	return fmt.Sprintf(`{"cniVersion":"1.1.0","name":"network-%d","type":"macvlan","master":"bond0.%d","mtu":%d,"ipam":{"type":"dhcp"}}`, i, i, 1400+change)
}

// spread changes n definitions, and waits after each until all nodes have it: an API server
// ends the watch of a client that is some ten changes behind.
func (c *cluster) spread(n int) {
	c.t.Helper()
	c.changes++
	ctx := c.t.Context()
	for i := range n {
		body := fmt.Appendf(nil, `{"spec":{"config":%q}}`, configOf(i, c.changes))
		var changed metav1.PartialObjectMetadata
		err := c.core.RESTClient().Patch(types.MergePatchType).AbsPath(definitionsPath, definition(i).Name).
			SetHeader("Accept", "application/json").Body(body).Do(ctx).Into(&changed)
		if err == nil {
			err = awaitAll(ctx, c.nodes, func(n *node) bool {
				d, err := n.view.KnownDefinition(ctx, definition(i))
				return err == nil && d.Version == changed.ResourceVersion
			})
		}
		if err != nil {
			c.t.Fatal(err)
		}
	}
}

// touch changes a pod of each node and waits until the node has the change.
func (c *cluster) touch() {
	c.t.Helper()
	c.changes++
	c.parallel(len(c.nodes), func(ctx context.Context, i int) error {
		p := c.nodes[i].pods[0]
		changed, err := c.core.Pods(p.Namespace).Patch(ctx, p.Name, types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"labels":{"change":"%d"}}}`, c.changes), metav1.PatchOptions{})
		if err != nil {
			return err
		}
		return awaitAll(ctx, c.nodes[i:i+1], func(n *node) bool {
			known, ok := n.view.KnownPod(p)
			return ok && known.Version == changed.ResourceVersion
		})
	})
}

// parallel calls do with 0 to n-1, up to 32 at a time. All must succeed.
func (c *cluster) parallel(n int, do func(ctx context.Context, i int) error) {
	c.t.Helper()
	places := make(chan struct{}, 32)
	errs := make([]error, n)
	var running sync.WaitGroup
	for i := range n {
		places <- struct{}{}
		running.Go(func() {
			errs[i] = do(c.t.Context(), i)
			<-places
		})
	}
	running.Wait()
	for _, err := range errs {
		if err != nil {
			c.t.Fatal(err)
		}
	}
}

// made returns the requests that the nodes have made since the last call.
func (c *cluster) made() map[kube.Request]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	made := c.requests
	c.requests = map[kube.Request]int{}
	return made
}

// note is the observer of the nodes.
func (c *cluster) note(r kube.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests[r]++
}
