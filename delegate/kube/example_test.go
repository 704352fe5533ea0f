package kube_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	kubetest "github.com/metacni/metacni/internal/test/kube"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// cluster starts what the examples have in place of a cluster, with its kubeconfig in a directory.
func cluster() (server *kubetest.Server, dir, kubeconfig string) {
	server = kubetest.NewServer(scheme.Codecs.UniversalDeserializer().Decode)
	dir, err := os.MkdirTemp("", "kube")
	if err == nil {
		kubeconfig, err = server.Kubeconfig(dir)
	}
	if err != nil {
		panic(err)
	}
	return server, dir, kubeconfig
}

// A daemon that asks a cluster for the definition of a network.
func Example() {
	server, dir, kubeconfig := cluster()
	defer func() { server.Close(); _ = os.RemoveAll(dir) }()
	kubetest.Put(server, kubetest.Definition{Namespace: "default", Name: "storage", Config: `{"type":"macvlan"}`})

	view, err := kube.Open(context.Background(), kube.Config{Kubeconfig: kubeconfig})
	if err != nil {
		fmt.Println(err) // a configuration that can never work
		return
	}
	defer view.Close()

	definition, err := view.Definition(context.Background(), nad.Ref{Namespace: "default", Name: "storage"})
	if err != nil {
		fmt.Println(err) // status.Code(err) is 7 if there is none, and 11 if that cannot be known
		return
	}
	network, err := definition.Network(nad.Rules{CNIVersion: "1.1.0"})
	fmt.Println(network.Name(), network.Plugins()[0].Type(), err)
	// Output: storage macvlan <nil>
}

// A meta-plugin whose daemon writes the network-status of pods. ADD waits for it, as the
// policy of the writer says; DEL makes the writer forget the container.
func withStatus(writer *kube.StatusWriter, stateDir string) plugin.Plugin {
	return plugin.Plugin{
		StateDir: stateDir,
		Add: func(ctx context.Context, c *plugin.Call) error {
			conf, err := plugin.Config[struct{ Delegates []netconf.Network }](c)
			if err != nil {
				return err
			}
			attachments, err := c.Attachments(conf.Delegates...)
			if err != nil {
				return err
			}
			return c.Add(ctx, lifecycle.Transaction{
				Plan:   c.Plan(attachments...),
				Report: func(ctx context.Context, _ []delegate.Attached) error { return writer.Wait(ctx, podOf(c)) },
			})
		},
		Del: func(ctx context.Context, c *plugin.Call) error {
			defer writer.Changed(podOf(c))
			return c.Del(ctx)
		},
	}
}

// podOf returns the pod of the container that a command is for.
func podOf(c *plugin.Call) nad.Pod {
	p := nad.PodOf(c.Args)
	p.Container = c.ContainerID
	return p
}

// recorded returns what the records in stateDir say about a container.
func recorded(stateDir string) func(context.Context, nad.Pod) (kube.Status, error) {
	records := &lifecycle.Manager{Dir: stateDir}
	return func(ctx context.Context, pod nad.Pod) (s kube.Status, err error) {
		all, err := records.Container(ctx, pod.Container)
		if err != nil || len(all) == 0 || !all[0].State.Attached() {
			return s, err
		}
		s.Created = all[0].Created
		s.Annotation, s.Trimmed = status.Annotation(all[0].Networks(nil))
		return s, nil
	}
}

// A plugin that writes the network-status of pods.
func Example_networkStatus() {
	server, dir, kubeconfig := cluster()
	defer func() { server.Close(); _ = os.RemoveAll(dir) }()
	kubetest.Put(server, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "web", UID: "u1"}})

	view, err := kube.Open(context.Background(), kube.Config{Kubeconfig: kubeconfig})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer view.Close()
	stateDir := filepath.Join(dir, "records")
	writer := view.NewStatusWriter(kube.StatusConfig{Desired: recorded(stateDir), Policy: kube.StatusRequire, Timeout: time.Minute})
	go writer.Run(context.Background()) // until view is closed
	mine := withStatus(writer, stateDir)

	exec := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{"macvlan": delegatetest.Result(&types100.Result{
		Interfaces: []*types100.Interface{{Name: "eth0", Sandbox: "/run/netns/c1"}},
	})}}
	out := delegatetest.RunPlugin(context.Background(), mine.Execute, exec, delegatetest.Invocation{
		Command: "ADD", ContainerID: "c1", NetNS: "/run/netns/c1", IfName: "eth0", Path: "/opt/cni/bin",
		Args:  "K8S_POD_NAMESPACE=blue;K8S_POD_NAME=web;K8S_POD_UID=u1",
		Stdin: []byte(`{"cniVersion":"1.1.0","name":"multi","type":"mine","delegates":[{"name":"storage","type":"macvlan"}]}`),
	})
	fmt.Println(out.Status, kubetest.Get[corev1.Pod](server, "blue", "web").Annotations[status.NetworkStatusAnnotation])
	// Output: 0 [{"name":"storage","interface":"eth0","default":true}]
}
