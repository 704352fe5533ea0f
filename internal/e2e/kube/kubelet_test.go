package kube

import (
	"cmp"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// rooted gives the node a root directory of its own, with the files of a node that has a
// primary network and plugins, but no shim. The runtime works there from now on, and what
// the other methods look at is there.
func (n *node) rooted(primary []byte) {
	n.t.Helper()
	n.root = n.file("root")
	for link, dir := range map[string]string{"state": "/var/lib/cni/multinet", "queue": "/var/lib/cni/multinet.queue", "d": "/run/multus", "leases": n.file("leases")} {
		if err := errors.Join(os.RemoveAll(n.file(link)), os.Symlink(n.root+dir, n.file(link))); err != nil {
			n.t.Fatal(err)
		}
	}
	n.write(primary, "root/etc/cni/net.d/10-primary.conflist")
	for _, name := range []string{"bridge", "host-local"} {
		n.copy(bin(name), "root/opt/cni/bin/"+name)
	}
	n.mount(n.root, n.root)
	if err := errors.Join(os.MkdirAll(n.root+"/run/netns", 0o755), os.MkdirAll(n.root+"/var/lib", 0o755), unix.Mount("", n.root, "", unix.MS_SHARED, "")); err != nil {
		n.t.Fatal(err)
	}
	n.mount("/proc", n.root+"/proc")
}

// runPod runs a pod on the node, as the kubelet does: its init containers, and then its
// container as the daemon. Their image has multinetd and multinet-shim.
func (n *node) runPod(pod *corev1.Pod) {
	n.t.Helper()
	token := ""
	if mounted := pod.Spec.AutomountServiceAccountToken; mounted != nil && *mounted {
		token = n.Token(n.t, pod.Namespace, pod.Spec.ServiceAccountName, pod)
	}
	for _, c := range pod.Spec.InitContainers {
		cmd := n.container(pod, c, "")
		if out, err := cmd.CombinedOutput(); err != nil {
			n.t.Fatalf("%s: %v\n%s", c.Name, err, out)
		}
	}
	n.startAs(n.container(pod, pod.Spec.Containers[0], token))
}

// container returns the command of a container in its root directory.
func (n *node) container(pod *corev1.Pod, c corev1.Container, token string) *exec.Cmd {
	n.t.Helper()
	volumes := map[string]corev1.Volume{}
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = v
	}
	for _, name := range []string{"multinetd", "multinet-shim"} {
		n.copy(bin(name), filepath.Join(c.Name, name))
	}
	n.mount("/proc", n.file(c.Name, "proc"))
	for _, m := range c.VolumeMounts {
		switch v := volumes[m.Name]; {
		case v.HostPath != nil:
			n.mount(filepath.Join(n.root, v.HostPath.Path), n.file(c.Name, m.MountPath))
		case v.ConfigMap != nil:
			config, err := n.Core(n.t, n.Admin()).ConfigMaps(pod.Namespace).Get(n.t.Context(), v.ConfigMap.Name, metav1.GetOptions{})
			if err != nil {
				n.t.Fatal(err)
			}
			for name, text := range config.Data {
				n.write([]byte(text), filepath.Join(c.Name, m.MountPath, name))
			}
		}
	}
	host, port, _ := strings.Cut(strings.TrimPrefix(n.gate.URL, "https://"), ":")
	cmd := exec.CommandContext(n.t.Context(), c.Command[0], append(c.Command[1:], c.Args...)...)
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Chroot: n.file(c.Name)}
	cmd.Env = []string{"KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port}
	if token != "" {
		const account = "var/run/secrets/kubernetes.io/serviceaccount"
		n.write([]byte(token), filepath.Join(c.Name, account, "token"))
		n.copy(n.gate.CA, filepath.Join(c.Name, account, "ca.crt"))
	}
	fields := map[string]string{"spec.nodeName": pod.Spec.NodeName, "metadata.namespace": pod.Namespace, "metadata.name": pod.Name}
	for _, e := range c.Env {
		value := e.Value
		if e.ValueFrom != nil {
			value = cmp.Or(fields[e.ValueFrom.FieldRef.FieldPath], "unknown")
		}
		cmd.Env = append(cmd.Env, e.Name+"="+value)
	}
	return cmd
}

// probe fails the test if a container is not as it should be.
func (n *node) probe(get *corev1.HTTPGetAction) {
	n.t.Helper()
	c := &rest.Config{Host: "http://" + net.JoinHostPort(get.Host, get.Port.String())}
	request(n.t, c, http.MethodGet, get.Path, "").is(n.t, http.StatusOK, "")
}

// mount mounts a directory as another one, in which later mounts in the first are seen.
func (n *node) mount(from, to string) {
	n.t.Helper()
	if err := errors.Join(os.MkdirAll(from, 0o755), os.MkdirAll(to, 0o755)); err != nil {
		n.t.Fatal(err)
	}
	n.bind(from, to)
	if from != to {
		if err := unix.Mount("", to, "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
			n.t.Fatal(err)
		}
	}
}

// bind mounts a file or a directory on another one.
func (n *node) bind(from, to string) {
	n.t.Helper()
	if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = unix.Unmount(to, unix.MNT_DETACH) })
}

// write writes a file below the node's directory. No process that another test starts
// meanwhile inherits the open file: a program that is open for writing cannot be run.
func (n *node) write(text []byte, name string) {
	n.t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := errors.Join(os.MkdirAll(filepath.Dir(n.file(name)), 0o755), os.WriteFile(n.file(name), text, 0o755)); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) copy(from, name string) {
	n.t.Helper()
	n.write(n.read(from), name)
}

func (n *node) read(file string) []byte {
	n.t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		n.t.Fatal(err)
	}
	return text
}
