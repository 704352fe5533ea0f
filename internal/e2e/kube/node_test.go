package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/internal/e2e/kube/server"
	"github.com/metacni/metacni/internal/hosttest"
	"github.com/metacni/metacni/internal/test/process"
)

// object is a JSON object.
type object = map[string]any

const networksAnnotation = "k8s.v1.cni.cncf.io/networks"

// nodes counts the nodes, so that no two share an address or a name.
var nodes atomic.Int32

// A node is one node of a cluster, with multinetd as a process. Its daemon reaches the API
// server through a gate, with a token that is bound to the daemon's pod. Its networks are
// real bridges.
type node struct {
	*server.Server
	t         *testing.T
	number    int
	name      string
	namespace string // of the test, also of the daemon's pod and account
	dir       string
	gate      *gate
	daemonPod *corev1.Pod
	token     string                   // of the daemon's pod
	keys      object                   // of the daemon's file
	network   object                   // configuration that the runtime has
	root      string                   // root directory of the runtime; empty means the host's
	networks  string                   // the runtime's directory of networks in root
	plugins   string                   // its directory of plugins there
	configure func(text string) string // changes the file of the daemon's ConfigMap

	daemon *process.Process
	ids    atomic.Int32
}

// readyNode makes a node of the world whose daemon is ready, with the definition blue in its
// namespace. keys are added to the daemon's file.
func readyNode(t *testing.T, keys object) *node {
	t.Helper()
	n := newNode(t, world(t).Server, keys)
	n.define(n.namespace, "blue", 1)
	n.ready()
	return n
}

// newNode makes a node of the world, without starting its daemon. keys are added to the
// daemon's file.
func newNode(t *testing.T, s *server.Server, keys object) *node {
	t.Helper()
	hosttest.Need(t)
	n := &node{Server: s, t: t, number: int(nodes.Add(1)), namespace: s.Namespace(t)}
	n.name, n.dir = "node-of-"+n.namespace, fmt.Sprintf("/run/node%d", n.number) // short, for a socket
	for _, dir := range []string{"net.d", "leases", "next"} {
		if err := os.MkdirAll(n.file(dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s.Node(t, n.name)
	accounts := s.Core(t, s.Admin()).ServiceAccounts(n.namespace)
	if _, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "multinetd"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.grant("multinetd")
	n.gate = newGate(t, s)
	n.newToken()
	n.keys = object{
		"socketDir": n.file("d"), "queueDir": n.file("queue"), "cniDir": n.file("state"), "confDir": n.file("net.d"), "binDir": hosttest.Programs(),
		"nadDir": n.file("nads"), "kubeconfig": n.file("kubeconfig"), "nodeName": n.name, "logFormat": "json",
	}
	maps.Copy(n.keys, keys)
	n.network = object{
		"cniVersion": "1.1.0", "name": "multi", "type": "multinet-shim", "delegates": []object{n.bridge(0)},
		"capabilities":    object{"io.kubernetes.cri.pod-annotations": true},
		"daemonSocketDir": n.file("d"), "delQueueDir": n.file("queue"),
	}
	t.Cleanup(func() {
		n.kill()
		log, err := os.ReadFile(n.file("log"))
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		for _, word := range []string{"panic: ", `"msg":"panic"`, "fatal error: ", "DATA RACE"} {
			if strings.Contains(string(log), word) {
				t.Errorf("the daemon's log contains %q:\n%s", word, log)
			}
		}
		if t.Failed() {
			t.Logf("the daemon's log ends with:\n%s", log[max(0, len(log)-4<<10):])
		}
	})
	return n
}

// grant gives the daemon's account a ClusterRole.
func (n *node) grant(role string) {
	n.t.Helper()
	request(n.t, n.Admin(), http.MethodPost, bindings, fmt.Sprintf(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding",
		"metadata":{"name":"%s-%s"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%[2]q},
		"subjects":[{"kind":"ServiceAccount","name":"multinetd","namespace":%[1]q}]}`, n.namespace, role)).is(n.t, 201, "")
}

const bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"

// newToken creates the daemon's pod and gives the daemon a token that is bound to it.
func (n *node) newToken() {
	n.t.Helper()
	pod := server.PodOn(n.name, n.namespace, "")
	pod.GenerateName, pod.Spec.ServiceAccountName = "multinetd-", "multinetd"
	n.daemonPod = n.Pod(n.t, pod)
	n.token = n.Token(n.t, n.namespace, "multinetd", n.daemonPod)
	n.credentials(n.gate.Server, n.token)
}

// credentials has the daemon show a token to a server.
func (n *node) credentials(s *server.Server, token string) {
	n.t.Helper()
	file, err := s.WriteKubeconfig(n.file("next"), token)
	if err == nil {
		err = os.Rename(file, n.file("kubeconfig"))
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) file(elem ...string) string {
	return filepath.Join(append([]string{n.dir}, elem...)...)
}

// start starts the daemon and waits until it serves commands.
func (n *node) start() {
	n.t.Helper()
	text, err := json.Marshal(n.keys)
	if err == nil {
		err = os.WriteFile(n.file("daemon.json"), text, 0o600)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	cmd := exec.Command(bin("multinetd"), "--config", n.file("daemon.json"))
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "POD_NAMESPACE=" + n.namespace, "POD_NAME=" + n.daemonPod.Name, "POD_UID=" + string(n.daemonPod.UID)}
	n.startAs(cmd)
	n.until("/healthz")
}

// startAs starts the daemon with a command, from which each of confine takes rights.
func (n *node) startAs(cmd *exec.Cmd, confine ...func() error) {
	n.t.Helper()
	var err error
	if n.daemon, err = process.Start(n.file("log"), cmd, confine...); err != nil {
		n.t.Fatal(err)
	}
}

// ready starts the daemon and waits until it knows the definitions.
func (n *node) ready() {
	n.t.Helper()
	n.start()
	n.until("/readyz")
	eventually(n.t, func() bool {
		return n.metric(`multinetd_view_synced{resource="network-attachment-definitions"}`) == "1"
	})
}

// until waits until the daemon answers 200.
func (n *node) until(path string) {
	n.t.Helper()
	eventually(n.t, func() bool {
		select {
		case <-n.daemon.Done:
			n.t.Fatalf("the daemon has ended\n%s", n.daemon.LastLines())
		default:
		}
		return n.get(path).Code == http.StatusOK
	})
}

// kill kills the daemon, if there is one.
func (n *node) kill() { n.daemon.Kill() }

// stop ends the daemon as a service manager does.
func (n *node) stop() {
	n.t.Helper()
	if err := n.daemon.Signal(syscall.SIGTERM); err != nil {
		n.t.Fatal(err)
	}
	eventually(n.t, func() bool {
		select {
		case <-n.daemon.Done:
			return true
		default:
			return false
		}
	})
	if code := n.daemon.Cmd.ProcessState.ExitCode(); code != 0 {
		n.t.Errorf("the daemon ended with %v", n.daemon.Cmd.ProcessState)
	}
}

// get asks the daemon for a page. Without an answer the code is 0.
func (n *node) get(path string) answer {
	n.t.Helper()
	return n.ask(http.MethodGet, path, nil)
}

// ask sends a request to the daemon. Without an answer the code is 0.
func (n *node) ask(method, path string, body []byte) answer {
	n.t.Helper()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", n.socket())
	}}
	r, err := http.NewRequestWithContext(context.WithoutCancel(n.t.Context()), method, "http://daemon"+path, bytes.NewReader(body))
	if err != nil {
		n.t.Fatal(err)
	}
	a, err := transport.RoundTrip(r)
	if err != nil {
		return answer{}
	}
	defer func() { _ = a.Body.Close() }()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		return answer{}
	}
	return answer{a.StatusCode, string(text)}
}

func (n *node) socket() string { return n.file("d", "multus.sock") }

// metric returns the value of a metric with its labels.
func (n *node) metric(name string) string {
	n.t.Helper()
	for line := range strings.Lines(n.get("/metrics").Body) {
		if value, found := strings.CutPrefix(line, name+" "); found {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// bridge returns the configuration of the node's i'th bridge, which has an address range of
// its own.
func (n *node) bridge(i int) object {
	return object{
		"cniVersion": "1.0.0", "type": "bridge", "bridge": fmt.Sprintf("br%d-%d", n.number, i), "isGateway": true,
		"ipam": object{"type": "host-local", "subnet": fmt.Sprintf("10.%d.%d.0/24", n.number, i), "dataDir": n.file("leases")},
	}
}

// define creates or replaces the definition name, of the node's i'th bridge.
func (n *node) define(namespace, name string, i int) {
	n.t.Helper()
	n.defineIn(namespace, name, n.bridge(i))
}

// defineIn creates or replaces the definition name.
func (n *node) defineIn(namespace, name string, network object) {
	n.t.Helper()
	config, err := json.Marshal(network)
	if err != nil {
		n.t.Fatal(err)
	}
	path := nads + "namespaces/" + namespace + "/network-attachment-definitions"
	text := definition(namespace, name, string(config))
	if got := request(n.t, n.Admin(), http.MethodPost, path, text); got.Code != http.StatusConflict {
		got.is(n.t, http.StatusCreated, "")
		return
	}
	request(n.t, n.Admin(), http.MethodPatch, path+"/"+name, text).is(n.t, http.StatusOK, "")
}
