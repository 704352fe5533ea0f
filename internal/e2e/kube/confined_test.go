package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	bpf "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/metacni/metacni/delegate/conform/host"
	"github.com/metacni/metacni/delegate/kube/dra/dratest"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/e2e/kube/server"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/internal/test/process"
)

// A confined is a node with a distribution, on which multinetd has the rights of its manifest.
// Its networks use all plugins that need rights of their own.
type confined struct {
	*node
	daemonPod *corev1.Pod
	failures  []string // of commands
}

// logging is a plugin that writes a log where those of Calico and others do.
const logging = `#!/bin/sh
mkdir -p /var/log/calico && echo "$CNI_COMMAND $(sed -n 's/^NoNewPrivs:\t//p' /proc/self/status)" >>/var/log/calico/cni.log || exit 1
[ "$CNI_COMMAND" != ADD ] || echo '{"cniVersion":"1.1.0"}'
`

// newConfined makes a node whose iptables are those of tables, nft or legacy.
func newConfined(t *testing.T, s *server.Server, tables string) *confined {
	t.Helper()
	needConfined(t)
	n := &confined{node: newNode(t, s, nil)}
	bridge := n.bridge(0)
	bridge["isDefaultGateway"], bridge["ipMasq"] = true, true
	primary, err := json.Marshal(object{"cniVersion": "1.1.0", "name": "primary", "plugins": []object{
		bridge,
		{"type": "portmap", "capabilities": object{"portMappings": true}},
		{"type": "firewall"},
		{"type": "tuning", "mtu": 1400, "sysctl": object{"net.ipv4.conf.IFNAME.arp_filter": "1", "net.core.somaxconn": "500"}},
		{"type": "bandwidth", "ingressRate": 1 << 20, "ingressBurst": 1 << 20, "egressRate": 1 << 20, "egressBurst": 1 << 20},
	}})
	nodetest.OK(t, err)
	n.free(n.file("root/opt/cni/bin"), append([]string{"multinet-shim"}, confinedPlugins...))
	n.rooted(primary)
	for _, name := range confinedPlugins {
		n.copy(bin(filepath.Base(name)), "root/opt/cni/bin/"+filepath.Base(name))
	}
	n.write([]byte(logging), "root/opt/cni/bin/logging")
	n.mount("/usr", n.root+"/usr")
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		if link, err := os.Readlink("/" + dir); err == nil {
			err = os.Symlink(link, n.root+"/"+dir)
			nodetest.OK(t, err)
		}
	}
	n.write(nil, "root/etc/alternatives/.keep")
	for _, name := range []string{"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"} {
		nodetest.OK(t, os.Symlink("/usr/sbin/xtables-"+tables+"-multi", n.root+"/etc/alternatives/"+name))
	}
	nodetest.OK(t, os.Symlink("../run", n.root+"/var/run"))
	n.mount("/dev", n.root+"/dev")
	for _, dir := range []string{"/var/log", "/opt/cni/bin"} {
		nodetest.OK(t, os.MkdirAll(n.root+dir, 0o755))
	}
	const lock = "/run/xtables.lock" // of all nodes, which share the rules of this host
	if file, err := os.OpenFile(lock, os.O_CREATE|os.O_RDONLY, 0o600); err != nil || file.Close() != nil {
		t.Fatal(err)
	}
	n.write(nil, "root"+lock)
	n.bind(lock, n.root+lock)
	card := fmt.Sprintf("card%d", n.host.ID)
	if _, err := host.AddCard(card); err != nil {
		t.Fatal(err)
	}
	ipam := func(i int) any {
		return object{"type": "host-local", "subnet": fmt.Sprintf("10.%d.%d.0/24", n.host.ID, i)} // in /var/lib/cni
	}
	n.defineIn(n.namespace, "macvlan", object{"cniVersion": "1.0.0", "type": "macvlan", "master": card, "ipam": ipam(1)})
	n.defineIn(n.namespace, "ptp", object{"cniVersion": "1.0.0", "type": "ptp", "ipMasq": true, "ipam": ipam(2)})
	n.defineIn(n.namespace, "routed", object{"cniVersion": "1.0.0", "name": "routed", "plugins": []any{n.bridge(3), object{"type": "sbr"}}})
	n.defineIn(n.namespace, "logged", object{"cniVersion": "1.1.0", "type": "logging"})
	n.daemonPod = n.DaemonPod(t, n.name)
	n.configure = func(text string) string { return strings.Replace(text, "{", `{"sweepInterval":"200ms",`, 1) }
	return n
}

// needConfined skips the test, or fails it if it is required, where root has a part of the users
// or there is no iptables of Debian's.
func needConfined(t *testing.T) {
	t.Helper()
	users, err := os.ReadFile("/proc/self/uid_map")
	for _, kind := range []string{"nft", "legacy"} {
		if err == nil {
			_, err = os.Stat("/usr/sbin/xtables-" + kind + "-multi")
		}
	}
	if err == nil && !strings.Contains(string(users), "4294967295") {
		err = errors.New("needs root")
	}
	switch {
	case err == nil:
	case os.Getenv("METACNI_E2E") == "require":
		t.Fatal(err)
	default:
		t.Skip(err)
	}
}

// confinedPlugins are the plugins of a confined node.
var confinedPlugins = []string{
	"main/bridge", "main/macvlan", "main/ptp", "ipam/host-local", "meta/portmap", "meta/firewall", "meta/tuning", "meta/bandwidth", "meta/sbr",
}

// do runs a command, and notes how it fails.
func (n *confined) do(command string, s *sandbox, valid ...*sandbox) {
	if err := n.cni(command, s, valid...); err != nil {
		n.failures = append(n.failures, command+": "+err.Error())
	}
}

// life attaches pods to all networks and detaches them, in every way that there is. A sweep
// has to detach one of them.
func (n *confined) life() []*sandbox {
	n.t.Helper()
	port := object{"portMappings": []object{{"hostPort": 20000 + n.host.ID, "containerPort": 80, "protocol": "tcp"}}}
	s, plain, stale, lost := n.pod("all", "macvlan,ptp,logged"), n.pod("plain", ""), n.pod("stale", "routed"), n.pod("lost", "ptp")
	s.more = port
	n.inProcess(plain)
	all := []*sandbox{s, plain, stale, lost}
	n.do("STATUS", s)
	for _, p := range all {
		n.do("ADD", p)
	}
	if n.failures != nil {
		return nil
	}
	n.plug(s, "ADD")
	n.do("CHECK", s)
	n.plug(s, "DEL")
	n.do("GC", s, s, plain, lost)
	n.lose(lost)
	n.do("DEL", s)
	n.do("DEL", plain)
	return []*sandbox{s, plain, stale}
}

// lose removes the network namespace of a pod.
func (n *confined) lose(s *sandbox) {
	n.t.Helper()
	nodetest.OK(n.t, errors.Join(unix.Unmount(n.root+s.NetNS, unix.MNT_DETACH), os.Remove(n.root+s.NetNS), host.RemoveNS(s.NetNS)))
}

// plug attaches one more network to a running pod, or detaches it.
func (n *confined) plug(s *sandbox, command string) {
	n.t.Helper()
	network, err := json.Marshal(object{
		"cniVersion": "1.0.0", "name": "plugged", "type": "macvlan", "master": fmt.Sprintf("card%d", n.host.ID),
		"ipam": object{"type": "host-local", "subnet": fmt.Sprintf("10.%d.9.0/24", n.host.ID)},
	})
	nodetest.OK(n.t, err)
	body, err := json.Marshal(wire.Request{Config: network, Env: map[string]string{
		"CNI_COMMAND": command, "CNI_CONTAINERID": s.ID, "CNI_NETNS": s.NetNS, "CNI_IFNAME": "hot0", "CNI_PATH": "/opt/cni/bin",
	}})
	nodetest.OK(n.t, err)
	if got := n.ask("POST", wire.PathAttach, body); got.Code != 200 {
		n.failures = append(n.failures, "hot-plug "+command+": "+got.Body)
	}
}

// inProcess gives a pod the network namespace of a process, as cri-dockerd does. The process
// is not root's, as that of the pause image is not.
func (n *confined) inProcess(s *sandbox) {
	n.t.Helper()
	pause := exec.Command("sleep", "infinity")
	pause.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Credential: &syscall.Credential{Uid: 65535, Gid: 65535}}
	nodetest.OK(n.t, pause.Start())
	n.t.Cleanup(func() { _, _ = pause.Process.Kill(), pause.Wait() })
	s.NetNS = fmt.Sprintf("/proc/%d/ns/net", pause.Process.Pid)
}

// said is all that the node says: how the daemon has failed, and the commands.
func (n *confined) said() string {
	log, _ := os.ReadFile(n.file("log"))
	return strings.Join(n.failures, "\n") + "\n" + n.get("/readyz").Body + "\n" + string(log)
}

// rows returns the rows of the tables of RIGHTS.md below a heading: each right, and what is
// said without it.
func rows(t *testing.T, heading string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(server.Manifests("RIGHTS.md"))
	nodetest.OK(t, err)
	_, below, _ := strings.Cut(string(text), heading+"\n")
	below, _, _ = strings.Cut(below, "\n## ")
	all := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|.*\\|.*`([^`]+)`[^`]*\\|$").FindAllStringSubmatch(below, -1) {
		all[row[1]] = row[2]
	}
	return all
}

// without returns what takes each right from the pod of a confined node.
func (n *confined) without() map[string]func() {
	pod := n.daemonPod
	c, init := &pod.Spec.Containers[0], &pod.Spec.InitContainers[0]
	all := map[string]func(){
		"runAsUser: 0":                       func() { pod.Spec.SecurityContext.RunAsUser = new(int64(65534)) },
		"hostNetwork: true":                  func() { pod.Spec.HostNetwork = false },
		"hostPID: true":                      func() { pod.Spec.HostPID = false },
		"automountServiceAccountToken: true": func() { pod.Spec.AutomountServiceAccountToken = new(false) },
		"HostToContainer": func() {
			for i := range c.VolumeMounts {
				c.VolumeMounts[i].MountPropagation = nil
			}
		},
		"appArmorProfile: Unconfined": func() { c.SecurityContext.AppArmorProfile = nil },
		"install-shim DAC_OVERRIDE":   func() { init.SecurityContext.Capabilities.Add = nil },
		"install-shim /opt/cni/bin":   func() { init.VolumeMounts = nil },
	}
	for _, name := range c.SecurityContext.Capabilities.Add {
		all[string(name)] = func() {
			c.SecurityContext.Capabilities.Add = slices.DeleteFunc(c.SecurityContext.Capabilities.Add, func(c corev1.Capability) bool { return c == name })
		}
	}
	for _, mount := range c.VolumeMounts {
		all[mount.MountPath] = func() {
			c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == mount.MountPath })
		}
	}
	return all
}

// The daemon does all that it does for pods with the rights of its manifest, with real plugins
// and both kinds of iptables. Another daemon takes over.
func TestDaemonWorksWithItsRights(t *testing.T) {
	t.Parallel()
	for _, tables := range []string{"nft", "legacy"} {
		t.Run(tables, func(t *testing.T) {
			t.Parallel()
			n := newConfined(t, world(t).Server, tables)
			nodetest.OK(t, n.initialize(n.daemonPod))
			n.runContainer(n.daemonPod)
			n.until("/readyz")
			n.published()
			kept := n.pod("kept", "macvlan")
			n.do("ADD", kept)

			previous := n.daemon
			n.daemonPod.Spec.Containers[0].Name = "successor"
			n.runContainer(n.daemonPod)
			nodetest.OK(t, previous.Signal(syscall.SIGTERM))
			<-previous.Done
			n.until("/readyz")

			n.do("CHECK", kept)
			n.do("DEL", kept)
			all := n.life()
			if n.failures != nil {
				t.Fatalf("%s\n%s", strings.Join(n.failures, "\n"), n.said())
			}
			eventually(t, func() bool { return len(n.leases()) == 0 }) // after the sweep
			n.wantNothing(append(all, kept)...)
			for line := range strings.Lines(string(n.read(n.root + "/var/log/calico/cni.log"))) {
				if !strings.HasSuffix(line, " 1\n") {
					t.Errorf("a plugin may gain privileges: %s", line)
				}
			}
			for _, file := range []string{"/multinetd", "/host/etc/passwd", "/host/opt/cni/bin/bridge", "/etc/multinetd/daemon-config.json"} {
				if err := os.WriteFile(n.file("successor")+file, nil, 0o600); !errors.Is(err, syscall.EROFS) {
					t.Errorf("%s can be written: %v", file, err)
				}
			}
			n.stop()
		})
	}
}

// broken is a plugin that fails until it is mended.
const broken = "#!/bin/sh\n[ ! -e /run/broken ]\n"

// The DaemonSet of multinet without a daemon installs it, publishes its network and sweeps, with
// the rights of its manifest: also an ADD whose undo has failed, in a network namespace that is
// still there.
func TestSweepsWorkWithTheirRights(t *testing.T) {
	t.Parallel()
	n := newConfined(t, world(t).Server, "legacy")
	text, err := os.ReadFile("../../../examples/multinet/deploy/multinet.yaml")
	var set appsv1.DaemonSet
	nodetest.OK(t, err)
	nodetest.OK(t, yaml.Unmarshal(text, &set))
	pod := n.PodOf(t, &set, n.name)
	c := &pod.Spec.Containers[0]
	c.Command = append(c.Command, "--sweep-interval=200ms")
	n.write([]byte(broken), "root/opt/cni/bin/broken")
	n.write(nil, "root/run/broken")
	list, err := json.Marshal(object{"cniVersion": "1.1.0", "name": "list", "plugins": []object{n.bridge(3), {"type": "broken"}}})
	nodetest.OK(t, err)
	n.write(list, "root/etc/cni/multinet/net.d/list.conflist")
	n.runContainer(pod)
	n.published()

	lost, leftover := n.pod("lost", ""), n.pod("leftover", "")
	n.do("ADD", lost)
	n.lose(lost)
	n.network["defaultNetworks"] = []string{"list"}
	if err := n.cni("ADD", leftover); err == nil || n.failures != nil {
		t.Fatal(err, n.failures)
	}
	eventually(t, func() bool { return strings.Contains(n.said(), "stale attachment cannot be removed") })
	nodetest.OK(t, os.Remove(n.root+"/run/broken"))
	eventually(t, func() bool { return len(n.leases())+len(glob(t, n.file("state/*.json"))) == 0 })
	n.wantNothing(leftover)
}

// With its rights and the components for devices and ResourceClaims, the daemon has the sockets
// of a DRA driver, which the kubelet finds.
func TestDriverWorksWithItsRights(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.Deploy(t)
	dir := t.TempDir()
	nodetest.OK(t, server.Kustomize(dir, "dra"))
	text, err := os.ReadFile(dir + "/kustomization.yaml")
	if err == nil {
		all := regexp.MustCompile(`components: \[(.*)/dra\]`).ReplaceAllString(string(text), "components: [$1/dra, $1/devices]")
		err = os.WriteFile(dir+"/kustomization.yaml", []byte(all), 0o600)
	}
	nodetest.OK(t, err)
	s.Kubectl(t, "", "apply", "-k", dir)
	n := newConfined(t, s, "nft")
	config, err := os.ReadFile(server.Manifests("dra/examples/daemon-config.json"))
	nodetest.OK(t, err)
	n.configure = func(string) string {
		return strings.Replace(string(config), `"dra": {`, `"dra": {"metadata": true,`, 1)
	}
	n.runPod(n.daemonPod)
	n.until("/readyz")
	eventually(t, func() bool {
		k, err := dratest.Register(t.Context(), n.root+"/var/lib/kubelet/plugins_registry/"+claimDriver+"-reg.sock", n.root)
		return err == nil && k.Close() == nil
	})
	for _, file := range []string{"/run/k8s.cni.cncf.io/x", "/run/cdi/x"} { // of devices and for the runtime
		if err := errors.Join(os.MkdirAll(filepath.Dir(n.file("multinetd/host"+file)), 0o755), os.WriteFile(n.file("multinetd/host"+file), nil, 0o600)); err != nil {
			t.Error(err)
		}
	}
	socket := "/var/lib/kubelet/pod-resources/kubelet.sock"
	nodetest.OK(t, os.MkdirAll(filepath.Dir(n.root+socket), 0o755))
	kubelet, err := net.Listen("unix", n.root+socket)
	nodetest.OK(t, err)
	defer func() { _ = kubelet.Close() }()
	if c, err := net.Dial("unix", n.file("multinetd/host"+socket)); err != nil || c.Close() != nil { // which is read-only
		t.Error(err)
	}
	n.published()
	p := n.pod("p", "macvlan")
	n.do("ADD", p)
	n.do("DEL", p)
	nodetest.Equal(t, "failures", n.failures, nil)
}

// Each right of the daemon has a row in RIGHTS.md, and without it there is the failure that
// the row names.
func TestDaemonNeedsEachOfItsRights(t *testing.T) {
	t.Parallel()
	needConfined(t)
	s := world(t).Server
	table := rows(t, "## On the node")
	names := func(all iter.Seq[string]) []string { return slices.Sorted(all) }
	nodetest.Equal(t, "rights with a row", names(maps.Keys(table)), names(maps.Keys((&confined{daemonPod: s.DaemonPod(t, "of-"+s.Namespace(t))}).without())))
	for name, want := range table {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := hasLandlock(); strings.HasPrefix(name, "appArmor") && err != nil {
				t.Skipf("needs Landlock in place of AppArmor: %v", err)
			}
			n := newConfined(t, s, "legacy")
			n.without()[name]()
			if strings.HasSuffix(name, "DAC_OVERRIDE") { // as Kubespray makes it
				nodetest.OK(t, os.Chown(n.root+"/opt/cni/bin", 997, 0))
			}
			if err := n.initialize(n.daemonPod); err != nil {
				n.failures = append(n.failures, err.Error())
			} else {
				n.runContainer(n.daemonPod)
				eventually(t, func() bool {
					select {
					case <-n.daemon.Done:
						return true
					default:
					}
					return strings.Contains(n.said(), want) || n.get("/readyz").Code == 200
				})
				if n.get("/readyz").Code == 200 {
					n.published()
					n.life()
				}
				if name == "DAC_READ_SEARCH" { // the sweep says it
					eventually(t, func() bool { return len(n.leases()) == 0 })
				}
			}
			if said := n.said(); !strings.Contains(said, want) {
				t.Errorf("not said: %s\n%s", want, said)
			}
		})
	}
}

// Each rule of the daemon's role has a row in RIGHTS.md, and without it there is the failure
// that the row names.
func TestDaemonNeedsEachOfItsRightsInTheCluster(t *testing.T) {
	t.Parallel()
	s := world(t).Server
	table := rows(t, "## In the cluster")
	const roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
	var shipped rbacv1.ClusterRole
	nodetest.OK(t, json.Unmarshal([]byte(request(t, s.Admin(), http.MethodGet, roles+"/multinetd", "").Body), &shipped))
	nodetest.Equal(t, "rules with a row", len(table), len(shipped.Rules))
	for i, rule := range shipped.Rules {
		name := strings.Join(rule.Verbs, ", ") + " " + strings.Join(rule.Resources, ", ")
		want, found := table[name]
		if !found {
			t.Errorf("no row for %q in %q", name, table)
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := &confined{node: newNode(t, s, nil)}
			request(t, s.Admin(), http.MethodDelete, bindings+"/"+n.namespace+"-multinetd", "").is(t, 200, "")
			role, err := json.Marshal(rbacv1.ClusterRole{
				TypeMeta: shipped.TypeMeta, ObjectMeta: metav1.ObjectMeta{Name: n.namespace}, Rules: slices.Delete(slices.Clone(shipped.Rules), i, i+1),
			})
			nodetest.OK(t, err)
			request(t, s.Admin(), http.MethodPost, roles, string(role)).is(t, 201, "")
			n.grant(n.namespace)
			n.define(n.namespace, "blue", 1)
			n.start()
			n.do("ADD", n.pod("p", "blue"))
			eventually(t, func() bool { return strings.Contains(n.said(), want) })
		})
	}
}

// The daemon proves that a container is dead: with its rights at once where the kernel says so,
// and else after two sweeps. Without these rights it keeps the record, and says once why: in its
// log, in a metric and in doctor.
func TestDaemonProvesDeathWithItsRights(t *testing.T) {
	t.Parallel()
	const sees, twice = "", "it is not known whether containers live" // for a moment
	for name, row := range map[string]struct {
		without string // a right of RIGHTS.md
		scan    bool   // before Linux 6.18
		why     string // that it is not known whether the container lives
		stays   bool
	}{
		"the kernel says so":                           {why: sees},
		"the kernel says so, and AppArmor":             {without: "appArmorProfile: Unconfined", why: sees},
		"the kernel says so, and no sight of others":   {without: "SYS_PTRACE", why: sees},
		"two sweeps without the right to the kernel's": {without: "DAC_READ_SEARCH", why: twice},
		"two sweeps":                         {scan: true, why: twice},
		"two sweeps, and AppArmor":           {without: "appArmorProfile: Unconfined", scan: true, why: "permission denied", stays: true},
		"two sweeps, and no sight of others": {without: "SYS_PTRACE", scan: true, why: "CAP_SYS_PTRACE", stays: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newConfined(t, world(t).Server, "nft")
			if err := hasLandlock(); strings.HasPrefix(row.without, "appArmor") && err != nil {
				t.Skipf("needs Landlock in place of AppArmor: %v", err)
			}
			if err := hasHandles(); row.why == sees && err != nil {
				t.Skipf("needs Linux 6.18: %v", err)
			}
			var before []func() error
			if row.scan {
				before = append(before, withoutHandles)
			}
			if row.without != "" {
				n.without()[row.without]()
			}
			nodetest.OK(t, n.initialize(n.daemonPod))
			n.runContainer(n.daemonPod, before...)
			n.until("/readyz")
			n.published()
			s := n.pod("lost", "")
			n.do("ADD", s)
			n.lose(s)
			const unknown = "multinetd_attachments_unknown"
			if !row.stays {
				eventually(t, func() bool { return len(n.leases()) == 0 && n.metric(unknown) == "0" })
				n.wantNothing()
			} else {
				eventually(t, func() bool { return n.metric(unknown) == "1" })
				if said := n.doctor(before...); !strings.Contains(said, "cannot prove that a container is dead") || !strings.Contains(said, row.why) {
					t.Errorf("doctor: %s", said)
				}
				nodetest.Equal(t, "leases", len(n.leases()), 1)
			}
			log := string(n.read(n.file("log")))
			if got := strings.Count(log, "it is not known whether containers live"); (got > 0) != (row.why != sees) || row.stays && got != 1 || !strings.Contains(log, row.why) {
				t.Errorf("said %d times", got)
			}
			nodetest.Equal(t, "failures", n.failures, nil)
		})
	}
}

// doctor returns what multinetd's doctor says in a container like the daemon's.
func (n *confined) doctor(before ...func() error) string {
	n.t.Helper()
	c := n.daemonPod.Spec.Containers[0]
	c.Name, c.Command = "doctor", []string{"/multinetd", "doctor", "--config", "/etc/multinetd/daemon-config.json"}
	cmd, confine := n.container(n.daemonPod, c, "")
	p, err := process.Start(n.file("doctor.log"), cmd, append(before, confine)...)
	nodetest.OK(n.t, err)
	<-p.Done
	return string(n.read(n.file("doctor.log")))
}

// hasLandlock says why the kernel has no Landlock.
func hasLandlock() error {
	const version = 1 // LANDLOCK_CREATE_RULESET_VERSION
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, version); errno != 0 {
		return errno
	}
	return nil
}

// hasHandles says why the kernel has no file handles of namespaces.
func hasHandles() error {
	_, _, err := unix.NameToHandleAt(unix.AT_FDCWD, "/proc/self/ns/net", unix.AT_SYMLINK_FOLLOW)
	return err
}

// A security is the rights of a container.
type security struct {
	user         uint32
	capabilities []string // with CAP_; all if privileged
	privileged   bool
	noNewPrivs   bool
	seccomp      bool // RuntimeDefault
	appArmor     bool // RuntimeDefault, which is also the default
	readOnlyRoot bool
}

// securityOf returns the rights of a container of a pod, as the kubelet and a runtime read it.
func securityOf(pod *corev1.Pod, c corev1.Container) (may security) {
	of, all := c.SecurityContext, pod.Spec.SecurityContext
	if of == nil {
		of = &corev1.SecurityContext{}
	}
	if all == nil {
		all = &corev1.PodSecurityContext{}
	}
	set := func(flag *bool) bool { return flag != nil && *flag }
	profile := all.SeccompProfile
	if of.SeccompProfile != nil {
		profile = of.SeccompProfile
	}
	may = security{
		privileged: set(of.Privileged), noNewPrivs: of.AllowPrivilegeEscalation != nil && !*of.AllowPrivilegeEscalation,
		seccomp: profile != nil && profile.Type == corev1.SeccompProfileTypeRuntimeDefault, readOnlyRoot: set(of.ReadOnlyRootFilesystem),
	}
	armor := all.AppArmorProfile
	if of.AppArmorProfile != nil {
		armor = of.AppArmorProfile
	}
	may.appArmor = !may.privileged && (armor == nil || armor.Type == corev1.AppArmorProfileTypeRuntimeDefault)
	if user := all.RunAsUser; user != nil {
		may.user = uint32(*user)
	}
	changed := of.Capabilities
	if changed == nil {
		changed = &corev1.Capabilities{}
	}
	if !slices.Contains(changed.Drop, "ALL") {
		for name := range strings.FieldsSeq("CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP NET_BIND_SERVICE SYS_CHROOT KILL AUDIT_WRITE") {
			may.capabilities = append(may.capabilities, "CAP_"+name)
		}
	}
	for _, name := range changed.Add {
		may.capabilities = append(may.capabilities, "CAP_"+string(name))
	}
	return may
}

// capabilities are the names of all that a DaemonSet of the tests has, in the kernel's order.
var capabilities = strings.Fields(`CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
	NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT
	SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE
	MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE`)

// confine takes from this thread what the container may not do. A program that it starts has
// the capabilities of its bounding set, because root starts it.
func (may security) confine() error {
	if !may.privileged {
		for i, name := range capabilities {
			if slices.Contains(may.capabilities, "CAP_"+name) {
				continue
			}
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(i), 0, 0, 0); err != nil {
				return fmt.Errorf("drop CAP_%s: %w", name, err)
			}
		}
	}
	if may.seccomp {
		filter, err := may.filter()
		if err == nil {
			err = bpf.LoadFilter(filter)
		}
		if err != nil {
			return fmt.Errorf("seccomp: %w", err)
		}
	}
	if may.appArmor {
		if err := seeOnlyOwn(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return fmt.Errorf("landlock: %w", err)
		}
	}
	if may.noNewPrivs {
		return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	return nil
}

// filter returns the filter of a container with RuntimeDefault: the profile of Docker, which
// containerd and CRI-O have as well.
func (may security) filter() (bpf.Filter, error) {
	profile, err := seccomp.GetDefaultProfile(&specs.Spec{
		Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: may.capabilities}}, Linux: &specs.Linux{},
	})
	if err != nil {
		return bpf.Filter{}, err
	}
	own, err := arch.GetInfo("")
	if err != nil {
		return bpf.Filter{}, err
	}
	operations := map[specs.LinuxSeccompOperator]bpf.Operation{
		specs.OpEqualTo: bpf.Equal, specs.OpNotEqual: bpf.NotEqual, specs.OpLessThan: bpf.LessThan,
		specs.OpLessEqual: bpf.LessOrEqual, specs.OpGreaterThan: bpf.GreaterThan, specs.OpGreaterEqual: bpf.GreaterOrEqual,
		specs.OpMaskedEqual: bpf.BitsNotSet, // all are compared with 0
	}
	// A group is complete for the system calls that it has.
	always := map[bpf.Action][]string{}
	var some []bpf.NameWithConditions
	for _, rule := range profile.Syscalls {
		action := bpf.ActionAllow
		if rule.Action == specs.ActErrno {
			action = bpf.ActionErrno | bpf.Action(*rule.ErrnoRet)
		} else if rule.Action != specs.ActAllow {
			return bpf.Filter{}, fmt.Errorf("an action that these tests do not know: %s", rule.Action)
		}
		var conditions bpf.ArgumentConditions
		for _, arg := range rule.Args {
			operation, known := operations[arg.Op]
			if !known || action != bpf.ActionAllow || arg.Op == specs.OpMaskedEqual && arg.ValueTwo != 0 {
				return bpf.Filter{}, fmt.Errorf("a condition that these tests do not know: %s", arg.Op)
			}
			conditions = append(conditions, bpf.Condition{Argument: uint32(arg.Index), Operation: operation, Value: arg.Value})
		}
		for _, name := range rule.Names {
			switch _, known := own.SyscallNames[name]; {
			case !known: // another architecture has it
			case conditions != nil:
				some = append(some, bpf.NameWithConditions{Name: name, Conditions: conditions})
			case !slices.Contains(always[action], name):
				always[action] = append(always[action], name)
			}
		}
	}
	policy := bpf.Policy{DefaultAction: bpf.ActionErrno}
	for action, names := range always {
		policy.Syscalls = append(policy.Syscalls, bpf.SyscallGroup{Names: names, Action: action})
	}
	policy.Syscalls = append(policy.Syscalls, bpf.SyscallGroup{NamesWithCondtions: some, Action: bpf.ActionAllow})
	return bpf.Filter{Policy: policy}, nil
}

// withoutHandles takes from this thread what the kernel has since Linux 6.18: it gives no file
// handles of namespaces.
func withoutHandles() error {
	return bpf.LoadFilter(bpf.Filter{Policy: bpf.Policy{DefaultAction: bpf.ActionAllow, Syscalls: []bpf.SyscallGroup{
		{Names: []string{"open_by_handle_at"}, Action: bpf.ActionErrno | bpf.Action(unix.ENOSYS)},
	}}})
}

// seeOnlyOwn takes from this thread and its children the sight of all other processes: their
// links and descriptors in /proc. AppArmor's profile for containers does that, see "ptrace" there,
// and so does Landlock, which more kernels have.
func seeOnlyOwn() error {
	rules := unix.LandlockRulesetAttr{Access_fs: unix.LANDLOCK_ACCESS_FS_MAKE_CHAR} // it has to refuse something
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&rules)), unsafe.Sizeof(rules.Access_fs), 0)
	if errno != 0 {
		return errno
	}
	defer func() { _ = unix.Close(int(fd)) }()
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return errno
	}
	return nil
}
