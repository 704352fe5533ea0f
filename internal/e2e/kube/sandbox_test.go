package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/examples/lab/host"
	"github.com/metacni/metacni/internal/e2e/kube/server"
	"github.com/metacni/metacni/internal/hosttest"
)

// A sandbox is what the runtime has of a pod.
type sandbox struct {
	pod       *corev1.Pod
	uid       string // that the runtime has of the pod
	id, netns string
	untold    bool   // the runtime passes no annotations
	more      object // of runtimeConfig
	result    json.RawMessage
}

// pod creates a pod on the node, and a sandbox for it. It selects networks, or none.
func (n *node) pod(name, networks string) *sandbox {
	n.t.Helper()
	pod := server.PodOn(n.name, n.namespace, name)
	if networks != "" {
		pod.Annotations = map[string]string{networksAnnotation: networks}
	}
	return n.sandbox(n.Pod(n.t, pod))
}

// sandbox makes a sandbox for a pod.
func (n *node) sandbox(pod *corev1.Pod) *sandbox {
	n.t.Helper()
	s := &sandbox{pod: pod, uid: string(pod.UID), id: fmt.Sprintf("n%dc%d", n.number, n.ids.Add(1))}
	var err error
	if s.netns, err = host.NewNS(s.id); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = host.RemoveNS(s.netns) })
	if n.root != "" {
		n.write(nil, "root"+s.netns)
		n.bind(s.netns, n.root+s.netns)
	}
	return s
}

// cni runs a command as the runtime does. valid are the sandboxes that a GC leaves. An error
// is the plugin's.
func (n *node) cni(command string, s *sandbox, valid ...*sandbox) error {
	n.t.Helper()
	conf := maps.Clone(n.network)
	if !s.untold {
		annotations := map[string]string{"kubernetes.io/config.source": "api"}
		maps.Copy(annotations, s.pod.Annotations)
		args := object{"io.kubernetes.cri.pod-annotations": annotations}
		maps.Copy(args, s.more)
		conf["runtimeConfig"] = args
	}
	plugins := n.plugins
	if n.root == "" {
		plugins = hosttest.Programs()
	}
	env := []string{"CNI_COMMAND=" + command, "CNI_PATH=" + plugins}
	switch command {
	case "STATUS":
	case "GC":
		all := []object{}
		for _, v := range valid {
			all = append(all, object{"containerID": v.id, "ifname": "eth0"})
		}
		conf["cni.dev/valid-attachments"] = all
	default:
		if command != "ADD" && s.result != nil {
			conf["prevResult"] = s.result
		}
		env = append(env, "CNI_CONTAINERID="+s.id, "CNI_NETNS="+s.netns, "CNI_IFNAME=eth0", fmt.Sprintf(
			"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;K8S_POD_INFRA_CONTAINER_ID=%s;K8S_POD_UID=%s",
			s.pod.Namespace, s.pod.Name, s.id, s.uid))
	}
	stdin, err := json.Marshal(conf)
	if err != nil {
		n.t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(context.WithoutCancel(n.t.Context()), filepath.Join(plugins, n.network["type"].(string)))
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: n.root}
	cmd.Env, cmd.Stdin, cmd.Stderr = env, bytes.NewReader(stdin), &stderr
	stdout, err := cmd.Output()
	if err == nil {
		if command == "ADD" {
			s.result = stdout
		}
		return nil
	}
	failure := &cniError{}
	if e := json.Unmarshal(stdout, failure); e != nil {
		n.t.Errorf("%s: %v, %v: %q %q", command, err, e, stdout, stderr.String())
	}
	return failure
}

// A cniError is the error of a plugin.
type cniError struct {
	Code         uint
	Msg, Details string
}

func (e *cniError) Error() string { return fmt.Sprintf("code %d: %s: %s", e.Code, e.Msg, e.Details) }

// ok runs a command that must succeed.
func (n *node) ok(command string, s *sandbox, valid ...*sandbox) {
	n.t.Helper()
	if err := n.cni(command, s, valid...); err != nil {
		n.t.Errorf("%s of %s: %v", command, s.pod.Name, err)
	}
}

// fails runs a command that must fail with a code and a text.
func (n *node) fails(command string, s *sandbox, code uint, text string) {
	n.t.Helper()
	e := &cniError{}
	if err := n.cni(command, s); !errors.As(err, &e) || e.Code != code || !strings.Contains(err.Error(), text) {
		n.t.Errorf("%s of %s: %v, want code %d and %q", command, s.pod.Name, err, code, text)
	}
}

// attached lists the interfaces of a sandbox with their addresses.
func (n *node) attached(s *sandbox) (all []string) {
	n.t.Helper()
	interfaces, err := host.Interfaces(s.netns)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, i := range interfaces {
		if i.Name != "lo" {
			addresses := make([]string, 0, 1)
			for _, a := range i.Addresses {
				addresses = append(addresses, a.Addr().String())
			}
			all = append(all, fmt.Sprint(i.Name, addresses, i.MAC))
		}
	}
	slices.Sort(all)
	return all
}

// status returns the status that a pod has in the API: network, interface, addresses and
// MAC of each entry.
func (n *node) status(pod *corev1.Pod) (networks, interfaces []string) {
	n.t.Helper()
	got, err := n.Core(n.t, n.Admin()).Pods(pod.Namespace).Get(n.t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	var list []struct {
		Name, Interface, Mac string
		IPs                  []string
		Default              bool
	}
	text := got.Annotations[statusAnnotation]
	if text == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		n.t.Fatalf("%s: %v", text, err)
	}
	for i, entry := range list {
		if entry.Default != (i == 0) {
			n.t.Errorf("default: %s", text)
		}
		networks = append(networks, entry.Name)
		interfaces = append(interfaces, fmt.Sprint(entry.Interface, entry.IPs, entry.Mac))
	}
	return networks, interfaces
}

// right reports whether the status of a pod says what its sandbox has, with networks.
func (n *node) right(s *sandbox, networks ...string) bool {
	n.t.Helper()
	names, interfaces := n.status(s.pod)
	return slices.Equal(networks, names) && slices.Equal(n.attached(s), interfaces)
}

// wantRight waits until the status of a pod says what its sandbox has.
func (n *node) wantRight(s *sandbox, networks ...string) {
	n.t.Helper()
	if len(n.attached(s)) != len(networks) {
		n.t.Errorf("%s has %q, want %d interfaces", s.pod.Name, n.attached(s), len(networks))
	}
	eventually(n.t, func() bool { return n.right(s, networks...) })
}

// wantNothing fails unless nothing is left of sandboxes, and of all others.
func (n *node) wantNothing(all ...*sandbox) {
	n.t.Helper()
	for _, s := range all {
		same(n.t, "interfaces of "+s.pod.Name, nil, n.attached(s))
	}
	same(n.t, "records", nil, glob(n.t, n.file("state/*/*")))
	same(n.t, "queued DELs", nil, glob(n.t, n.file("queue/*")))
	same(n.t, "leases", nil, n.leases())
}

// leases lists the addresses that are reserved.
func (n *node) leases() []string {
	n.t.Helper()
	return slices.DeleteFunc(glob(n.t, n.file("leases/*/*")), func(file string) bool {
		return net.ParseIP(filepath.Base(file)) == nil
	})
}

// glob lists files, without those whose names begin with a dot.
func glob(t testing.TB, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(files, func(file string) bool { return strings.HasPrefix(filepath.Base(file), ".") })
}

// same fails the test unless want and got are equal. Nil and empty slices are.
func same[T any](t testing.TB, what string, want, got T) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func bin(name string) string { return filepath.Join(hosttest.Programs(), name) }
