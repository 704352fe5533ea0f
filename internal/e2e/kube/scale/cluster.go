//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/metacni/metacni/internal/e2e/kube/server"
	"github.com/metacni/metacni/netconf/nad"
)

const (
	namespace = "scale" // of definitions
	workers   = 32      // requests of the administrator at once

	// The daemon's account in the manifests, and the manifests as this program sees them
	// in internal/e2e/kube.
	daemonNamespace = "kube-system"
	daemon          = "multinetd"
	manifests       = "../../../examples/multinetd/deploy"

	definitionsPath = "/apis/k8s.cni.cncf.io/v1/namespaces/" + namespace + "/network-attachment-definitions"
)

// A cluster is an API server with definitions, nodes and pods.
type cluster struct {
	*server.Server
	dir  string // of kubeconfigs and mirrors
	wire *wire
	core *corev1client.CoreV1Client // the administrator's, in protobuf
	http *http.Client               // the same
}

// newCluster starts an API server with multinetd's manifests. The caller closes it.
func newCluster(ctx context.Context) (c *cluster, err error) {
	programs, err := server.Programs(ctx)
	if err != nil {
		return nil, err
	}
	c = &cluster{}
	if c.Server, err = server.Open(programs); err != nil { //nolint:contextcheck // it has a limit of its own
		return nil, err
	}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	c.dir = c.Path("nodes")
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		return nil, err
	}
	if err := c.connect(); err != nil {
		return nil, err
	}
	return c, c.deploy(ctx)
}

// connect makes the administrator's clients.
func (c *cluster) connect() error {
	u, err := url.Parse(c.URL)
	if err != nil {
		return err
	}
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	if err != nil {
		return err
	}
	if c.wire, err = newWire(uint16(port)); err != nil {
		return err
	}
	config := c.Admin()
	config.Dial = c.wire.dial
	config.ContentType = runtime.ContentTypeProtobuf
	config.WarningHandlerWithContext = rest.NoWarnings{}
	if c.http, err = rest.HTTPClientFor(config); err != nil {
		return err
	}
	c.core, err = corev1client.NewForConfigAndClient(config, c.http)
	return err
}

// deploy applies multinetd's manifests, with the right to watch pods.
func (c *cluster) deploy(ctx context.Context) error {
	deploy, err := filepath.Abs(manifests)
	if err != nil {
		return err
	}
	if deploy, err = filepath.Rel(c.dir, deploy); err != nil { // Kustomize refuses absolute paths
		return err
	}
	text := fmt.Appendf(nil, "resources: [%s]\ncomponents: [%s/pods]\n", deploy, deploy)
	if err := os.WriteFile(filepath.Join(c.dir, "kustomization.yaml"), text, 0o600); err != nil {
		return err
	}
	crd := manifests + "/crd.yaml"
	for _, args := range [][]string{
		{"apply", "-f", crd},
		{"wait", "--for=condition=Established", "--timeout=60s", "-f", crd},
		{"apply", "-k", c.dir},
		{"create", "namespace", namespace},
	} {
		if out, err := c.TryKubectl(ctx, c.dir, "", args...); err != nil {
			return fmt.Errorf("kubectl %v: %w\n%s", args, err, out)
		}
	}
	return nil
}

// define creates n definitions and returns the bytes of one in JSON.
func (c *cluster) define(ctx context.Context, n int) (size int, err error) {
	err = parallel(ctx, n, func(ctx context.Context, i int) error {
		body, err := json.Marshal(map[string]any{
			"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
			"metadata": map[string]any{
				"name": definition(i).Name, "labels": map[string]string{"app.kubernetes.io/managed-by": "networks"},
				"annotations": map[string]string{nad.ResourceAnnotation: "example.com/vf"},
			},
			"spec": map[string]string{"config": configOf(i, 0)},
		})
		if err != nil {
			return err
		}
		answer, err := c.core.RESTClient().Post().AbsPath(definitionsPath).
			SetHeader("Content-Type", "application/json").SetHeader("Accept", "application/json").Body(body).DoRaw(ctx)
		if i == 0 {
			size = len(answer)
		}
		return err
	})
	return size, err
}

// definition returns the name of a definition.
func definition(i int) nad.Ref {
	return nad.Ref{Namespace: namespace, Name: fmt.Sprintf("network-%d", i)}
}

// configOf returns the configuration of a definition after a change.
func configOf(i, change int) string {
	return fmt.Sprintf(`{"cniVersion":"1.1.0","name":"network-%d","plugins":[{"type":"macvlan","master":"bond0.%d","mode":"bridge","mtu":%d,`+
		`"ipam":{"type":"whereabouts","range":"10.%d.%d.0/24","exclude":["10.%d.%d.0/30"],"gateway":"10.%d.%d.1",`+
		`"routes":[{"dst":"10.0.0.0/8"}]}},{"type":"tuning","sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"}}]}`,
		i, i, 1400+change, i/250, i%250, i/250, i%250, i/250, i%250)
}

// change changes a definition and returns its new version.
func (c *cluster) change(ctx context.Context, i, change int) (version string, err error) {
	body, err := json.Marshal(map[string]any{"spec": map[string]string{"config": configOf(i, change)}})
	if err != nil {
		return "", err
	}
	answer, err := c.core.RESTClient().Patch(types.MergePatchType).AbsPath(definitionsPath, definition(i).Name).
		SetHeader("Accept", "application/json").Body(body).DoRaw(ctx)
	if err != nil {
		return "", err
	}
	var changed metav1.PartialObjectMetadata
	err = json.Unmarshal(answer, &changed)
	return changed.ResourceVersion, err
}

// touch changes a label of a pod and returns its new version.
func (c *cluster) touch(ctx context.Context, p nad.Pod, change int) (version string, err error) {
	body := fmt.Appendf(nil, `{"metadata":{"labels":{"change":"%d"}}}`, change)
	changed, err := c.core.Pods(p.Namespace).Patch(ctx, p.Name, types.MergePatchType, body, metav1.PatchOptions{})
	if err != nil {
		return "", err
	}
	return changed.ResourceVersion, nil
}

// join creates n nodes and the kubeconfigs of their daemons.
func (c *cluster) join(ctx context.Context, n int) ([]*node, error) {
	nodes := make([]*node, n)
	err := parallel(ctx, n, func(ctx context.Context, i int) error {
		made, err := c.core.Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i)}}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		token, err := c.core.ServiceAccounts(daemonNamespace).CreateToken(ctx, daemon, &authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{
				APIVersion: "v1", Kind: "Node", Name: made.Name, UID: made.UID,
			}},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		dir := filepath.Join(c.dir, made.Name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		file, err := c.WriteKubeconfig(dir, token.Status.Token)
		nodes[i] = &node{name: made.Name, kubeconfig: file}
		return err
	})
	return nodes, err
}

// fill creates the pods of nodes, in several namespaces, and returns their number and the
// bytes of one in protobuf.
func (c *cluster) fill(ctx context.Context, nodes []*node, pods func(node int) int, namespaces int) (n, size int, err error) {
	err = parallel(ctx, namespaces, func(ctx context.Context, i int) error {
		_, err := c.core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: team(i)}}, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	type place struct {
		node *node
		i    int // of the pod on it
	}
	var places []place
	for k, node := range nodes {
		node.pods = make([]nad.Pod, pods(k))
		for i := range node.pods {
			places = append(places, place{node, i})
		}
	}
	err = parallel(ctx, len(places), func(ctx context.Context, n int) error {
		at := places[n]
		made, err := c.core.Pods(team(at.i%namespaces)).Create(ctx, podOn(at.node.name, at.i), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		at.node.pods[at.i] = nad.Pod{Namespace: made.Namespace, Name: made.Name, UID: string(made.UID), Container: fmt.Sprintf("%064x", n)}
		if n == 0 {
			size = made.Size()
		}
		return nil
	})
	return len(places), size, err
}

// team returns the name of a namespace with pods.
func team(i int) string { return fmt.Sprintf("team-%d", i) }

// parallel calls do with 0 to n-1, in several goroutines, until one call fails.
func parallel(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int)
	var running sync.WaitGroup
	for range min(n, workers) {
		running.Go(func() {
			for i := range next {
				if err := do(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := range n {
		select {
		case next <- i:
		case <-ctx.Done():
		}
	}
	close(next)
	running.Wait()
	return context.Cause(ctx)
}

// metrics asks the API server for its metrics.
func (c *cluster) metrics(ctx context.Context) (metrics, error) {
	text, err := c.core.RESTClient().Get().AbsPath("/metrics").SetHeader("Accept", "text/plain").DoRaw(ctx)
	return parseMetrics(text), err
}
