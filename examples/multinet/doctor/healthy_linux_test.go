package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// Nodes as people have them: nothing is to be done about them.
func TestHealthyNodesStayWithoutAFinding(t *testing.T) {
	t.Parallel()
	const (
		config = "etc/containerd/config.toml"
		three  = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\n"
		k3s    = "var/lib/rancher/k3s/agent/etc/"
		calico = `{"cniVersion":"0.3.1","name":"k8s-pod-network","plugins":[{"type":"calico","datastore_type":"kubernetes","ipam":{"type":"calico-ipam"},"kubernetes":{"kubeconfig":"/etc/cni/net.d/calico-kubeconfig"}},{"type":"portmap","snat":true,"capabilities":{"portMappings":true}}]}`
		cilium = `{"cniVersion":"0.3.1","name":"cilium","plugins":[{"type":"cilium-cni","enable-debug":false}]}`
		kind   = `{"cniVersion":"0.3.1","name":"kindnet","plugins":[{"type":"ptp","ipMasq":false,"ipam":{"type":"host-local","dataDir":"/run/cni-ipam-state","routes":[{"dst":"0.0.0.0/0"}],"ranges":[[{"subnet":"10.244.0.0/24"}]]},"mtu":1500},{"type":"portmap","capabilities":{"portMappings":true}}]}`
	)
	// network makes text the cluster network in a directory, and its plugins programs in another.
	network := func(n *node, dir, bin, text string) {
		n.remove("etc/cni/net.d/10-blue.conflist", "etc/cni/net.d/00-multinet.conflist")
		n.Write(dir+"/10-net.conflist", text)
		n.Write(dir+"/00-multinet.conflist", strings.Replace(published, blue, text, 1))
		for _, name := range []string{"multinet", "flannel", "calico", "calico-ipam", "cilium-cni", "portmap", "ptp", "bandwidth", "host-local", "loopback"} {
			n.Write(bin+"/"+name, "#!/bin/sh\n")
			nodetest.OK(n, os.Chmod(n.Path(bin, name), 0o755))
		}
		n.doctor.BinDir = "/" + bin
		n.doctor.Publisher.Dir, n.doctor.Publisher.Output = "/"+dir, "/"+dir+"/00-multinet"
	}
	of := func(dir, bin, text string) flaw { return func(n *node) { network(n, dir, bin, text) } }
	for name, edit := range map[string]flaw{
		"containerd 1.7": put(config, containerd+"max_conf_num = 1\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = \"runc\"\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\ncni_conf_dir = \"\"\ncni_max_conf_num = 0\n"),
		"containerd 1.7 that imports": all(put(config, "version = 2\nimports = ['/etc/containerd/conf.d/*.toml']\n"),
			put("etc/containerd/conf.d/nvidia.toml", "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia]\nruntime_type = \"io.containerd.runc.v2\"\n")),
		"containerd 2":                          put(config, three+"bin_dir = ''\nbin_dirs = ['/opt/cni/bin']\nconf_dir = '/etc/cni/net.d'\nmax_conf_num = 1\nuse_internal_loopback = false\n"),
		"containerd 2 that brings lo up itself": all(put(config, three+"use_internal_loopback = true\n"), gone("opt/cni/bin/loopback")),
		"containerd 2 that imports a file of version 2": all(put(config, "version = 3\nimports = ['/etc/containerd/conf.d/*.toml']\n"),
			put("etc/containerd/conf.d/old.toml", "version = 2\n"), gone("opt/cni/bin/loopback")),
		"CRI-O": all(gone("etc/containerd", "opt/cni/bin/loopback"),
			put("etc/crio/crio.conf.d/10-crio.conf", "[crio.network]\nnetwork_dir = \"/etc/cni/net.d/\"\nplugin_dirs = [\"/opt/cni/bin/\", \"/usr/libexec/cni/\"]\n")),
		"OpenShift": all(gone("etc/containerd"), of("etc/kubernetes/cni/net.d", "var/lib/cni/bin", cilium),
			put("etc/crio/crio.conf.d/00-default", "[crio.network]\nnetwork_dir = \"/etc/kubernetes/cni/net.d/\"\nplugin_dirs = [\"/var/lib/cni/bin\", \"/usr/libexec/cni\"]\n")),
		"k3s with flannel": all(gone("etc/containerd"), of(k3s+"cni/net.d", "var/lib/rancher/k3s/data/cni", flannel),
			put(k3s+"containerd/config.toml", three+"bin_dirs = [\"/var/lib/rancher/k3s/data/cni\"]\nconf_dir = \"/"+k3s+"cni/net.d\"\n"), put("run/flannel/subnet.env", "FLANNEL_NETWORK=10.42.0.0/16\n")),
		"RKE2 with calico": all(gone("etc/containerd"), of("etc/cni/net.d", "opt/cni/bin", calico), put("etc/cni/net.d/calico-kubeconfig", "apiVersion: v1\n"),
			put("var/lib/rancher/rke2/agent/etc/containerd/config.toml", "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\nenable_selinux = false\n")),
		"kind":   all(of("etc/cni/net.d", "opt/cni/bin", kind), put("run/cni-ipam-state/kindnet/10.244.0.2", "c1\r\neth0")),
		"cilium": of("etc/cni/net.d", "opt/cni/bin", cilium),
		"k3s beside docker": all(put(config, "disabled_plugins = [\"cri\"]\n"),
			put(k3s+"containerd/config.toml", three+"bin_dirs = [\"/opt/cni/bin\"]\nconf_dir = \"/etc/cni/net.d\"\n")),
		"podman beside": put("etc/cni/net.d/87-podman-bridge.conflist", `{"cniVersion":"0.4.0","name":"podman","plugins":[{"type":"bridge","bridge":"cni-podman0","ipam":{"type":"host-local","ranges":[[{"subnet":"10.88.0.0/16"}]]}}]}`),
		"a process without rights": func(n *node) {
			nodetest.OK(n, filepath.WalkDir(n.Dir, func(path string, e os.DirEntry, err error) error {
				if err != nil || !e.IsDir() || strings.HasPrefix(path, n.doctor.StateDir) {
					return err
				}
				return os.Chmod(path, 0o555) //nolint:gosec // who may only read
			}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			edit(n)
			t.Cleanup(func() { // so that it can be removed
				_ = filepath.WalkDir(n.Dir, func(path string, e os.DirEntry, _ error) error {
					if e != nil && e.IsDir() {
						return os.Chmod(path, 0o700) //nolint:gosec // a directory
					}
					return nil
				})
			})
			for _, f := range n.doctor.Check(t.Context()) {
				known := f.Check == "unknown" || f.Check == "cilium" && f.Verdict == Unknown || f.Check == "runtimes" && f.Verdict == Unknown
				if f.Verdict != OK && !known {
					t.Errorf("%+v", f)
				}
				if strings.Contains(f.Looked+f.Found+f.Todo, n.Dir) {
					t.Errorf("a path that the node does not have: %+v", f)
				}
			}
		})
	}
}

// Paths are those of the node in each text, and nothing else of a text changes.
func TestFindingsHaveThePathsOfTheNode(t *testing.T) {
	t.Parallel()
	n := Node{root: "/host"}
	n.say(Problem, "/host/var", "/srv/host/x and /host/y, in \"/host/z\" (/hosts/a, /host.d/b)", "chmod 700 /host/var")
	nodetest.Equal(t, "", n.findings, []Finding{{"", Problem, "/var", "/srv/host/x and /y, in \"/z\" (/hosts/a, /host.d/b)", "chmod 700 /var"}})
}
