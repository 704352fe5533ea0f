//go:build linux

package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/metacni/metacni/delegate/kube/dra/dratest"
	"github.com/metacni/metacni/examples/lab/host"
	"github.com/metacni/metacni/internal/e2e/kube/played"
	"github.com/metacni/metacni/internal/e2e/kube/server"
)

const driver = "multinetd.metacni.io"

// objects are what the users of a cluster write.
//
//go:embed objects.yaml
var objects string

// A teller tells the story. It fails if something is not as it prints.
type teller struct {
	out     io.Writer
	node    *node
	api     kubernetes.Interface
	pod     *corev1.Pod
	claim   *resourcev1.ResourceClaim
	kubelet *dratest.Kubelet
}

func story(ctx context.Context, out io.Writer, programs string) error {
	begun := time.Now()
	s, err := server.Open(programs) //nolint:contextcheck // the server outlives ctx
	if err != nil {
		return err
	}
	defer s.Close()
	api, err := played.Client(s.Admin())
	if err != nil {
		return err
	}
	version, err := api.Discovery().ServerVersion()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "kube-apiserver %s and etcd run on a private host, which is gone when the demo ends.\n", version.GitVersion)
	n, err := newNode(ctx, s)
	if err != nil {
		return err
	}
	defer n.close()
	t := &teller{out: out, node: n, api: api}
	defer t.close()
	for _, step := range []func(context.Context) error{t.publish, t.prepare, t.add, t.status, t.release} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("%w\n%s", err, n.daemon.LastLines())
		}
	}
	fmt.Fprintf(out, "\nThat took %.1f s.\n", time.Since(begun).Seconds())
	return nil
}

func (t *teller) close() {
	if t.kubelet != nil {
		_ = t.kubelet.Close()
	}
}

// title prints the title of a step.
func (t *teller) title(format string, args ...any) { fmt.Fprintf(t.out, "\n"+format+"\n\n", args...) }

// show prints lines with an indent.
func (t *teller) show(text string) {
	for line := range strings.Lines(strings.TrimSpace(text)) {
		fmt.Fprintf(t.out, "    %s", line)
	}
	fmt.Fprintln(t.out)
}

func (t *teller) publish(ctx context.Context) error {
	t.title("1. A network, a DeviceClass, a ResourceClaim for the network, and a pod with the claim:")
	_, claim, _ := strings.Cut(objects, "kind: ResourceClaim\n")
	claim, _, _ = strings.Cut(claim, "---\n")
	t.show("kind: ResourceClaim\n" + claim)
	if err := t.node.kubectl(ctx, objects, "create", "-f", "-"); err != nil {
		return err
	}
	t.title("2. multinetd publishes that node-a has the network. Its ResourceSlice:")
	var devices []resourcev1.Device
	err := until(ctx, func() (err error) {
		if devices, err = t.scheduler().Devices(ctx, nodeName); err == nil && len(devices) != 1 {
			err = fmt.Errorf("%d devices are published, want 1", len(devices))
		}
		return err
	})
	if err != nil {
		return err
	}
	text, err := yaml.Marshal(devices)
	t.show(string(text))
	return err
}

func (t *teller) scheduler() played.Scheduler { return played.Scheduler{Client: t.api, Driver: driver} }

func (t *teller) prepare(ctx context.Context) (err error) {
	if t.pod, err = t.api.CoreV1().Pods("default").Get(ctx, "web", metav1.GetOptions{}); err != nil {
		return err
	}
	if t.claim, err = t.api.ResourceV1().ResourceClaims("default").Get(ctx, "disk", metav1.GetOptions{}); err != nil {
		return err
	}
	if t.claim, err = t.scheduler().Allocate(ctx, t.claim, nodeName, []string{"storage"}, t.pod); err != nil {
		return err
	}
	t.title("3. The scheduler allocates the device to the claim, and reserves the claim for the pod.\n" +
		"   The kubelet has multinetd prepare it:")
	if err := until(ctx, func() (err error) {
		t.kubelet, err = dratest.Register(ctx, t.node.file("plugins_registry", driver+"-reg.sock"), "/")
		return err
	}); err != nil {
		return err
	}
	begun := time.Now()
	if err := played.Prepare(ctx, t.kubelet, t.claim); err != nil {
		return err
	}
	t.show(fmt.Sprintf("NodePrepareResources default/disk: %s. No plugin has run.", took(begun)))
	return nil
}

func (t *teller) add(ctx context.Context) error {
	begun := time.Now()
	if err := t.node.cni(ctx, "ADD", t.pod); err != nil {
		return err
	}
	t.title("4. The runtime runs one ADD, in %s: the cluster network and the claim's. The pod has", took(begun))
	interfaces, err := host.Interfaces(t.node.netns)
	if err != nil {
		return err
	}
	found := false
	for _, i := range interfaces {
		if i.Name == "lo" {
			continue
		}
		found = found || i.Name == "data0" && len(i.Addresses) == 1
		t.show(fmt.Sprintf("%-6s %-17s %v", i.Name, i.MAC, i.Addresses))
	}
	if !found {
		return errors.New("there is no data0")
	}
	return nil
}

func (t *teller) status(ctx context.Context) error {
	t.title("5. multinetd writes what the pod has into the claim's status.devices:")
	devices, err := t.written(ctx, metav1.ConditionTrue)
	if err != nil {
		return err
	}
	if data := devices[0].NetworkData; data == nil || data.InterfaceName != "data0" {
		return fmt.Errorf("the status is of %+v", data)
	}
	text, err := yaml.Marshal(devices)
	t.show(string(text))
	return err
}

// written waits until the claim's device has the condition Ready with this status.
func (t *teller) written(ctx context.Context, ready metav1.ConditionStatus) (devices []resourcev1.AllocatedDeviceStatus, err error) {
	return devices, until(ctx, func() error {
		claim, err := t.api.ResourceV1().ResourceClaims("default").Get(ctx, "disk", metav1.GetOptions{})
		if err != nil {
			return err
		}
		devices = claim.Status.Devices
		if len(devices) != 1 || len(devices[0].Conditions) != 1 || devices[0].Conditions[0].Status != ready {
			return fmt.Errorf("the status of the claim is %+v", devices)
		}
		return nil
	})
}

func (t *teller) release(ctx context.Context) error {
	t.title("6. The pod ends: the runtime runs DEL, and the kubelet has the claim released. Left are")
	if err := t.node.cni(ctx, "DEL", t.pod); err != nil {
		return err
	}
	if _, err := t.written(ctx, metav1.ConditionFalse); err != nil {
		return err
	}
	if err := t.kubelet.Unprepare(ctx, t.claim); err != nil {
		return err
	}
	left, err := t.node.left(string(t.claim.UID))
	if err != nil {
		return err
	}
	for _, what := range []string{"interfaces", "addresses", "records", "prepared claims"} {
		t.show(fmt.Sprintf("%-16s %d %s", what+":", len(left[what]), strings.Join(left[what], " ")))
		if len(left[what]) > 0 {
			return errors.New("something is left")
		}
	}
	return nil
}

func took(begun time.Time) string { return fmt.Sprintf("%d ms", time.Since(begun).Milliseconds()) }

// until repeats an attempt until it succeeds, for up to 30 seconds.
func until(ctx context.Context, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	pause := time.NewTicker(50 * time.Millisecond)
	defer pause.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return err
		}
	}
}

// writeJSON writes a file.
func writeJSON(file string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}
