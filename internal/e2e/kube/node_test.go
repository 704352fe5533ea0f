package kube

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/metacni/metacni/delegate/conform/host"
	"github.com/metacni/metacni/internal/e2e/kube/server"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/internal/test/process"
)

type object = process.Object

const networksAnnotation = "k8s.v1.cni.cncf.io/networks"

// A node is one node of a cluster, with multinetd as a process. Its daemon reaches the API
// server through a gate, with a token that is bound to the daemon's pod. Its networks are
// real bridges.
type node struct {
	*server.Server
	t         *testing.T
	host      *process.Node
	name      string
	namespace string // of the test, also of the daemon's pod and account
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
	n := &node{Server: s, t: t, host: process.NewNode(t, "/run"), namespace: s.Namespace(t)}
	n.name = "node-of-" + n.namespace
	n.host.Mkdir("leases", "next")
	n.host.Begin = func(cmd *exec.Cmd) error {
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: n.root}
		return cmd.Start()
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
		"socketDir": n.file("d"), "queueDir": n.file("queue"), "cniDir": n.file("state"), "confDir": n.file("net.d"), "binDir": host.Programs(),
		"nadDir": n.file("nads"), "kubeconfig": n.file("kubeconfig"), "nodeName": n.name, "logFormat": "json",
	}
	maps.Copy(n.keys, keys)
	n.network = object{
		"cniVersion": "1.1.0", "name": "multi", "type": "multinet-shim", "delegates": []object{n.bridge(0)},
		"capabilities":    object{"io.kubernetes.cri.pod-annotations": true},
		"daemonSocketDir": n.file("d"), "delQueueDir": n.file("queue"),
	}
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
	nodetest.OK(n.t, err)
	nodetest.OK(n.t, os.Rename(file, n.file("kubeconfig")))
}

func (n *node) file(elem ...string) string {
	return n.host.File(elem...)
}

// start starts the daemon and waits until it serves commands.
func (n *node) start() {
	n.t.Helper()
	n.host.Write(n.keys, "daemon.json")
	cmd := exec.Command(bin("multinetd"), "--config", n.file("daemon.json"))
	cmd.Env = []string{"PATH=" + process.Path, "POD_NAMESPACE=" + n.namespace, "POD_NAME=" + n.daemonPod.Name, "POD_UID=" + string(n.daemonPod.UID)}
	n.startAs(cmd)
	n.until("/healthz")
}

// startAs starts the daemon with a command, from which each of confine takes rights.
func (n *node) startAs(cmd *exec.Cmd, confine ...func() error) {
	n.t.Helper()
	n.daemon = n.host.Serve(n.file("log"), cmd, confine...)
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
	n.host.Await(n.daemon, n.socket(), path)
}

// kill kills the daemon, if there is one.
func (n *node) kill() { n.daemon.Kill() }

// stop ends the daemon as a service manager does.
func (n *node) stop() {
	n.t.Helper()
	nodetest.OK(n.t, n.daemon.Signal(syscall.SIGTERM))
	n.host.Until("the daemon ends", n.daemon.Over)
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
	r, err := process.Ask(context.WithoutCancel(n.t.Context()), n.socket(), method, path, body)
	if err != nil {
		return answer{}
	}
	return answer{r.Status, string(r.Body)}
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
	conf := n.host.Bridge(i)
	conf["cniVersion"], conf["ipam"].(object)["dataDir"] = "1.0.0", n.file("leases")
	return conf
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
	nodetest.OK(n.t, err)
	path := nads + "namespaces/" + namespace + "/network-attachment-definitions"
	text := definition(namespace, name, string(config))
	if got := request(n.t, n.Admin(), http.MethodPost, path, text); got.Code != http.StatusConflict {
		got.is(n.t, http.StatusCreated, "")
		return
	}
	request(n.t, n.Admin(), http.MethodPatch, path+"/"+name, text).is(n.t, http.StatusOK, "")
}

// A gate stands between one client and the API server: it notes the requests of the
// client, and can keep some of them.
type gate struct {
	*server.Server // as the client sees it, with the address and the certificate of the gate

	forward http.Handler

	mu       sync.Mutex
	requests []*noted
	kept     string        // the method of the requests that do not arrive
	healed   chan struct{} // closed when they fail
}

// A noted request is one that has arrived at a gate.
type noted struct {
	text  string // method and path
	again bool   // it was not answered, or the answer is to try again: the client makes one more
}

// newGate opens a gate to s.
func newGate(t testing.TB, s *server.Server) *gate {
	t.Helper()
	to, err := url.Parse(s.URL)
	nodetest.OK(t, err)
	transport, err := rest.TransportFor(s.As(""))
	nodetest.OK(t, err)
	seen := *s
	g := &gate{Server: &seen, healed: make(chan struct{}), forward: &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: transport, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}}
	front := httptest.NewUnstartedServer(g)
	front.Config.ErrorLog = log.New(io.Discard, "", 0)
	front.StartTLS()
	t.Cleanup(func() {
		g.heal()
		front.CloseClientConnections() // watches do not end by themselves
		front.Close()
	})
	g.URL, g.CA = front.URL, t.TempDir()+"/ca.crt"
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: front.Certificate().Raw})
	nodetest.OK(t, os.WriteFile(g.CA, text, 0o600))
	return g
}

// keep keeps all later requests of a method from the API server, until heal.
func (g *gate) keep(method string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.kept = method
}

// heal lets all requests pass. Those that were kept fail.
func (g *gate) heal() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.kept = ""
	close(g.healed)
	g.healed = make(chan struct{})
}

// ServeHTTP forwards a request.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := &noted{text: r.Method + " " + r.URL.Path}
	g.mu.Lock()
	keep, healed := g.kept == r.Method, g.healed
	g.requests = append(g.requests, n)
	g.mu.Unlock()
	if keep {
		select {
		case <-healed:
		case <-r.Context().Done():
		}
		panic(http.ErrAbortHandler)
	}
	a := &forwarded{ResponseWriter: w}
	defer func() { // also when the API server does not answer, which is a panic
		g.mu.Lock()
		defer g.mu.Unlock()
		busy := a.status == 0 || a.status == http.StatusTooManyRequests || a.status >= http.StatusInternalServerError
		n.again = busy && r.Context().Err() == nil // else it is the client that has given up
	}()
	g.forward.ServeHTTP(a, r)
}

// A forwarded answer knows its status, which is 0 before there is one.
type forwarded struct {
	http.ResponseWriter

	status int
}

func (a *forwarded) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap is for [http.ResponseController].
func (a *forwarded) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// made returns the requests of the client that contain text, apart from watches and lists of
// definitions, and from those that a busy API server made the client repeat.
func (g *gate) made(text string) []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []string
	for _, n := range g.requests {
		if !n.again && n.text != "GET "+nads+"network-attachment-definitions" && strings.Contains(n.text, text) {
			all = append(all, n.text)
		}
	}
	return all
}
