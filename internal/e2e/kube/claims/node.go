//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/metacni/metacni/examples/lab/host"
	"github.com/metacni/metacni/internal/e2e/kube/program"
	"github.com/metacni/metacni/internal/e2e/kube/server"
)

const (
	nodeName = "node-a"
	nodeDir  = "/run/node" // on the private host; sockets need a short path
	podID    = "sandbox1"
)

// machine are the objects of the node and of the daemon's pod.
const machine = `
{apiVersion: v1, kind: Node, metadata: {name: node-a}}
---
apiVersion: v1
kind: Pod
metadata: {name: multinetd, namespace: kube-system}
spec: {nodeName: node-a, serviceAccountName: multinetd, containers: [{name: multinetd, image: none}]}
`

// A node has multinetd with the account and the rights of its manifests, and one pod.
type node struct {
	server *server.Server
	bin    string
	netns  string // of the pod
	daemon *program.Process
	result json.RawMessage // of the ADD
}

// newNode deploys multinetd's manifests, makes a node and starts multinetd on it.
func newNode(ctx context.Context, s *server.Server) (*node, error) {
	n := &node{server: s, bin: filepath.Join(os.TempDir(), "bin")}
	for _, dir := range []string{"kustomize", "net.d", "plugins_registry", "home"} {
		if err := os.MkdirAll(n.file(dir), 0o700); err != nil {
			return nil, err
		}
	}
	deploy, err := os.MkdirTemp("", "deploy-")
	if err != nil {
		return nil, err
	}
	crd := server.Manifests + "/crd.yaml"
	err = server.Kustomize(deploy, "dra")
	for _, args := range [][]string{
		{"apply", "-f", crd}, {"wait", "--for=condition=Established", "--timeout=60s", "-f", crd}, {"apply", "-k", deploy}, {"create", "-f", "-"},
	} {
		if err == nil {
			err = n.kubectl(ctx, machine, args...)
		}
	}
	if err != nil {
		return nil, err
	}
	token, err := s.TryKubectl(ctx, n.file("home"), "", "create", "token", "-n", "kube-system", "multinetd", "--bound-object-kind=Pod", "--bound-object-name=multinetd")
	if err != nil {
		return nil, errors.New(token)
	}
	kubeconfig, err := s.WriteKubeconfig(nodeDir, strings.TrimSpace(token))
	if err != nil {
		return nil, err
	}
	if n.netns, err = host.NewNS(podID); err != nil {
		return nil, err
	}
	err = writeJSON(n.file("daemon.json"), map[string]any{
		"socketDir": n.file("d"), "queueDir": n.file("queue"), "cniDir": n.file("state"), "confDir": n.file("net.d"), "nadDir": n.file("nads"),
		"binDir": n.bin, "kubeconfig": kubeconfig, "nodeName": nodeName, "kubeletDir": nodeDir,
		"dra": map[string]any{"driver": driver, "networks": []any{map[string]any{"device": "storage", "network": "default/storage"}}},
	})
	if err != nil {
		return nil, err
	}
	n.daemon, err = program.Start(n.file("log"), exec.CommandContext(ctx, filepath.Join(n.bin, "multinetd"), "--config", n.file("daemon.json")))
	return n, err
}

// close ends the daemon. The namespaces end with the process, and the files with the private
// host.
func (n *node) close() { n.daemon.Kill() }

func (n *node) file(elem ...string) string {
	return filepath.Join(append([]string{nodeDir}, elem...)...)
}

// kubectl does what a person does.
func (n *node) kubectl(ctx context.Context, stdin string, args ...string) error {
	if out, err := n.server.TryKubectl(ctx, n.file("home"), stdin, args...); err != nil {
		return fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// cni runs a command for the pod, as a container runtime does.
func (n *node) cni(ctx context.Context, command string, pod *corev1.Pod) error {
	conf := map[string]any{
		"cniVersion": "1.1.0", "name": "multi", "type": "multinet-shim", "daemonSocketDir": n.file("d"), "delQueueDir": n.file("queue"),
		"delegates": []any{map[string]any{
			"cniVersion": "1.1.0", "name": "cluster", "type": "bridge", "bridge": "cluster0", "isGateway": true,
			"ipam": map[string]any{"type": "host-local", "subnet": "10.1.0.0/24"},
		}},
	}
	if n.result != nil {
		conf["prevResult"] = n.result
	}
	stdin, err := json.Marshal(conf)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(n.bin, "multinet-shim"))
	cmd.Env = []string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + podID, "CNI_NETNS=" + n.netns, "CNI_IFNAME=eth0", "CNI_PATH=" + n.bin,
		fmt.Sprintf("CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;K8S_POD_INFRA_CONTAINER_ID=%s;K8S_POD_UID=%s", pod.Namespace, pod.Name, podID, pod.UID),
	}
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", command, err, out)
	}
	n.result = out
	return nil
}

// left lists what is left of the pod and its claim.
func (n *node) left(claim string) (map[string][]string, error) {
	all := map[string][]string{}
	interfaces, err := host.Interfaces(n.netns)
	if err != nil {
		return nil, err
	}
	for _, i := range interfaces {
		if i.Name != "lo" {
			all["interfaces"] = append(all["interfaces"], i.Name)
		}
	}
	for _, dir := range []string{nodeDir, "/var/lib/cni"} {
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			name := entry.Name()
			if _, err := netip.ParseAddr(name); err == nil {
				all["addresses"] = append(all["addresses"], name)
			}
			if strings.Contains(path, podID) {
				all["records"] = append(all["records"], name)
			}
			if strings.Contains(name, claim) {
				all["prepared claims"] = append(all["prepared claims"], name)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}
