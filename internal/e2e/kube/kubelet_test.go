package kube

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/internal/test/process"
)

// rooted gives the node a root directory of its own, with the files of a node that has a
// primary network and plugins, but no shim. The runtime works there from now on, and what
// the other methods look at is there. Its directories of networks and plugins are those of most
// runtimes, unless n has others.
func (n *node) rooted(primary []byte) {
	n.t.Helper()
	n.root = n.file("root")
	for link, dir := range map[string]string{"state": "/var/lib/cni/multinet", "queue": "/var/lib/cni/multinet.queue", "d": "/run/multus", "leases": n.file("leases")} {
		nodetest.OK(n.t, errors.Join(os.RemoveAll(n.file(link)), os.Symlink(n.root+dir, n.file(link))))
	}
	n.networks, n.plugins = cmp.Or(n.networks, "/etc/cni/net.d"), cmp.Or(n.plugins, "/opt/cni/bin")
	n.write(primary, filepath.Join("root", n.networks, "10-primary.conflist"))
	for _, name := range []string{"bridge", "host-local"} {
		n.copy(bin(name), filepath.Join("root", n.plugins, name))
	}
	n.mount(n.root, n.root)
	if err := errors.Join(os.MkdirAll(n.root+"/run/netns", 0o755), os.MkdirAll(n.root+"/var/lib", 0o755), os.MkdirAll(n.root+"/etc", 0o755), unix.Mount("", n.root, "", unix.MS_SHARED, "")); err != nil {
		n.t.Fatal(err)
	}
	n.mount("/proc", n.root+"/proc")
	n.mount("/sys", n.root+"/sys")
}

// runPod runs a pod on the node, as the kubelet does: its init containers, and then its
// container as the daemon. Their image has multinetd, multinet-shim and multinet.
func (n *node) runPod(pod *corev1.Pod) {
	n.t.Helper()
	nodetest.OK(n.t, n.initialize(pod))
	n.runContainer(pod)
	n.until("/healthz")
}

// initialize runs the init containers of a pod.
func (n *node) initialize(pod *corev1.Pod) error {
	n.t.Helper()
	for _, c := range pod.Spec.InitContainers {
		cmd, confine := n.container(pod, c, "")
		p, err := process.Start(n.file(c.Name+".log"), cmd, confine)
		if err != nil {
			return err
		}
		if <-p.Done; !cmd.ProcessState.Success() {
			return fmt.Errorf("%v: %s", cmd.ProcessState, p.LastLines())
		}
	}
	return nil
}

// runContainer starts the container of a pod as the daemon. Each of more takes further rights.
func (n *node) runContainer(pod *corev1.Pod, more ...func() error) {
	n.t.Helper()
	token := ""
	if mounted := pod.Spec.AutomountServiceAccountToken; mounted != nil && *mounted {
		token = n.Token(n.t, pod.Namespace, pod.Spec.ServiceAccountName, pod)
	}
	cmd, confine := n.container(pod, pod.Spec.Containers[0], token)
	n.startAs(cmd, append(more, confine)...)
}

// container returns the command of a container, and what gives a thread its root directory
// and its rights. It has the mounts, and no others.
func (n *node) container(pod *corev1.Pod, c corev1.Container, token string) (*exec.Cmd, func() error) {
	n.t.Helper()
	volumes := map[string]corev1.Volume{}
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = v
	}
	root := n.file(c.Name)
	programs := []string{"multinetd", "multinet-shim", "multinet"}
	n.free(root, programs)
	n.mount(root, root)
	for _, name := range programs {
		n.copy(bin(name), filepath.Join(c.Name, name))
	}
	n.mount("/proc", root+"/proc")
	n.mount("/dev", root+"/dev")
	slices.SortStableFunc(c.VolumeMounts, func(a, b corev1.VolumeMount) int { // as runtimes do
		return strings.Count(a.MountPath, "/") - strings.Count(b.MountPath, "/")
	})
	readOnly := []string{root + "/proc/sys"} // not of what is mounted below
	for _, m := range c.VolumeMounts {
		at := filepath.Join(root, m.MountPath)
		switch v := volumes[m.Name]; {
		case v.HostPath != nil:
			of := filepath.Join(n.root, v.HostPath.Path)
			if real, err := filepath.EvalSymlinks(of); err == nil && !strings.HasPrefix(real+"/", n.root+"/") {
				n.t.Fatalf("%s leads out of the node: %s", of, real)
			}
			n.mount(of, at)
			if m.MountPropagation == nil {
				nodetest.OK(n.t, unix.Mount("", at, "", unix.MS_PRIVATE|unix.MS_REC, ""))
			}
		case v.ConfigMap != nil:
			config, err := n.Core(n.t, n.Admin()).ConfigMaps(pod.Namespace).Get(n.t.Context(), v.ConfigMap.Name, metav1.GetOptions{})
			nodetest.OK(n.t, err)
			n.mount(at, at)
			for name, text := range config.Data {
				if n.configure != nil {
					text = n.configure(text)
				}
				n.write([]byte(text), filepath.Join(c.Name, m.MountPath, name))
			}
		}
		if m.ReadOnly {
			readOnly = append(readOnly, at)
		}
	}
	host, port, _ := strings.Cut(strings.TrimPrefix(n.gate.URL, "https://"), ":")
	cmd := exec.CommandContext(n.t.Context(), c.Command[0], append(c.Command[1:], c.Args...)...)
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{}
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
	may := securityOf(pod, c)
	if may.readOnlyRoot {
		readOnly = append(readOnly, root)
	}
	n.bind(root+"/proc/sys", root+"/proc/sys")
	for _, dir := range readOnly {
		nodetest.OK(n.t, unix.MountSetattr(unix.AT_FDCWD, dir, 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}))
	}
	if may.user != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: may.user}
	}
	spaces := unix.CLONE_FS
	if !pod.Spec.HostPID {
		spaces |= unix.CLONE_NEWPID
	}
	if !pod.Spec.HostNetwork {
		spaces |= unix.CLONE_NEWNET
	}
	return cmd, func() error {
		return errors.Join(unix.Unshare(spaces), unix.Chroot(root), unix.Chdir("/"), may.confine())
	}
}

// probe executes a command in a running container.
func (n *node) probe(c corev1.Container, command []string) {
	n.t.Helper()
	cmd := exec.CommandContext(n.t.Context(), command[0], command[1:]...)
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Chroot: n.file(c.Name)}
	if out, err := cmd.CombinedOutput(); err != nil {
		n.t.Errorf("%q: %v: %s", command, err, out)
	}
}

// mount mounts a directory as another one, in which later mounts in the first are seen.
func (n *node) mount(from, to string) {
	n.t.Helper()
	nodetest.OK(n.t, errors.Join(os.MkdirAll(from, 0o755), os.MkdirAll(to, 0o755)))
	n.bind(from, to)
	if from != to {
		nodetest.OK(n.t, unix.Mount("", to, "", unix.MS_SLAVE|unix.MS_REC, ""))
	}
}

// bind mounts a file or a directory on another one.
func (n *node) bind(from, to string) {
	n.t.Helper()
	nodetest.OK(n.t, unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""))
	n.t.Cleanup(func() { _ = unix.Unmount(to, unix.MNT_DETACH) })
}

// write writes a file below the node's directory. No process that another test starts
// meanwhile inherits the open file: a program that is open for writing cannot be run.
func (n *node) write(text []byte, name string) {
	n.t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	nodetest.OK(n.t, errors.Join(os.MkdirAll(filepath.Dir(n.file(name)), 0o755), os.WriteFile(n.file(name), text, 0o755)))
}

// free removes copies of programs at the end of the test, when mounts that are made later have gone:
// they are in memory, and large.
func (n *node) free(dir string, names []string) {
	n.t.Cleanup(func() {
		for _, name := range names {
			_ = os.Remove(filepath.Join(dir, filepath.Base(name)))
		}
	})
}

func (n *node) copy(from, name string) {
	n.t.Helper()
	n.write(n.read(from), name)
}

func (n *node) read(file string) []byte {
	n.t.Helper()
	text, err := os.ReadFile(file)
	nodetest.OK(n.t, err)
	return text
}
