package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/metacni/metacni/delegate/conform/host"
	"github.com/metacni/metacni/internal/e2e/kube/server"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/internal/test/process"
)

const (
	// daemonNode has the daemon's pod, and otherNode has none.
	daemonNode = "node-a"
	otherNode  = "node-b"

	statusAnnotation = "k8s.v1.cni.cncf.io/network-status"
)

// newServer starts a server that ends with the test; most tests share one with cluster.
func newServer(t testing.TB) *server.Server {
	t.Helper()
	needPrograms(t)
	s, err := server.Open(os.Getenv(programsEnv))
	nodetest.OK(t, err)
	t.Cleanup(s.Close)
	return s
}

// needPrograms skips the test if there are no programs, or fails it if they are
// required.
func needPrograms(t testing.TB) {
	t.Helper()
	if os.Getenv(programsEnv) == "" {
		host.Need(t)
	}
}

// shared is the server of [cluster].
var shared struct {
	sync.Once
	*server.Server
	err error
}

// cluster returns the server that all tests share, which they must not stop.
func cluster(t testing.TB) *server.Server {
	t.Helper()
	needPrograms(t)
	shared.Do(func() { shared.Server, shared.err = server.Open(os.Getenv(programsEnv)) })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.Server
}

// A World is the shared server with multinetd's manifests applied, two nodes, and the
// daemon's pod on the first of them.
type World struct {
	*server.Server
	Daemon      *corev1.Pod
	DaemonToken string
}

var sharedWorld struct {
	sync.Once
	ok    bool
	World World
}

// world returns the world that all tests share.
func world(t *testing.T) World {
	t.Helper()
	s := cluster(t)
	sharedWorld.Do(func() {
		s.Deploy(t)
		s.Node(t, daemonNode)
		s.Node(t, otherNode)
		pod := s.DaemonPod(t, daemonNode)
		token := s.Token(t, pod.Namespace, pod.Spec.ServiceAccountName, pod)
		waitForPolicy(t, s, pod, token)
		sharedWorld.World, sharedWorld.ok = World{s, pod, token}, true
	})
	if !sharedWorld.ok {
		t.Fatal("another test could not make the world")
	}
	return sharedWorld.World
}

// An answer is what the API server says to a request.
type answer struct {
	Code int
	Body string
}

// is fails the test unless the answer has the code and its body the text.
func (a answer) is(t testing.TB, code int, text string) {
	t.Helper()
	if a.Code != code || !strings.Contains(a.Body, text) {
		t.Errorf("got %d %.500s\nwant %d %s", a.Code, a.Body, code, text)
	}
}

// request sends one request to the API server. The body of a PATCH is a merge patch.
func request(t testing.TB, c *rest.Config, verb, path, body string) answer {
	t.Helper()
	contentType := "application/json"
	if verb == http.MethodPatch {
		contentType = string(types.MergePatchType)
	}
	return requestAs(t, c, verb, path, contentType, body)
}

// requestAs is request with the type of the body.
func requestAs(t testing.TB, c *rest.Config, verb, path, contentType, body string) answer {
	t.Helper()
	client, err := rest.HTTPClientFor(c)
	nodetest.OK(t, err)
	req, err := http.NewRequestWithContext(t.Context(), verb, c.Host+path, strings.NewReader(body))
	nodetest.OK(t, err)
	req.Header.Set("Content-Type", contentType)
	resp, err := client.Do(req)
	nodetest.OK(t, err)
	defer func() { _ = resp.Body.Close() }()
	got, err := io.ReadAll(resp.Body)
	nodetest.OK(t, err)
	return answer{resp.StatusCode, string(got)}
}

// statusPath returns the path of a pod's status.
func statusPath(pod *corev1.Pod) string {
	return "/api/v1/namespaces/" + pod.Namespace + "/pods/" + pod.Name + "/status"
}

// waitForPolicy waits until the API server enforces multinetd's policy.
func waitForPolicy(t testing.TB, s *server.Server, pod *corev1.Pod, token string) {
	t.Helper()
	n := 0
	eventually(t, func() bool {
		n++ // until there is a policy, each of them changes the pod
		patch := fmt.Sprintf(`{"metadata":{"annotations":{"unwanted":"%d"}}}`, n)
		got := request(t, s.As(token), http.MethodPatch, statusPath(pod), patch)
		return got.Code == http.StatusUnprocessableEntity
	})
}

// eventually asks until the answer is yes. It fails the test after three minutes: the daemon
// pauses for up to 30 seconds between two attempts.
func eventually(t testing.TB, ask func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	pause := time.NewTicker(50 * time.Millisecond)
	defer pause.Stop()
	for !ask() {
		select {
		case <-pause.C:
		case <-ctx.Done():
			t.Fatal("not after three minutes")
		}
	}
}

// kube-apiserver passes the tests that package kubetest, the server of all other tests, passes.
func TestServerKeepsTheContractOfKubetest(t *testing.T) {
	t.Parallel()
	w := world(t)
	ca, err := os.ReadFile(w.CA)
	nodetest.OK(t, err)
	endpoint, err := json.Marshal(map[string]any{"URL": w.URL, "Token": server.AdminToken, "CA": ca})
	nodetest.OK(t, err)
	cmd := exec.CommandContext(t.Context(), "go", "test", "-C", "../../..", "-count=1", "-run", "^TestContract", "./internal/test/kube")
	cmd.Env = append(os.Environ(), "GOWORK=off", "METACNI_CONTRACT="+string(endpoint))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// programsEnv is the directory of the server's programs. It is not set if there are none.
const programsEnv = "METACNI_E2E_PROGRAMS"

func TestMain(m *testing.M) {
	if os.Getenv(clusterEnv) != "" {
		os.Exit(m.Run())
	}
	code := host.Tests{
		Needs: func(ctx context.Context) error {
			dir, err := server.Programs(ctx)
			if err != nil {
				return err
			}
			return os.Setenv(programsEnv, dir)
		},
		Build: func(ctx context.Context, bin string) error {
			return process.BuildNode(ctx, bin, slices.Clone(confinedPlugins)...)
		},
	}.Main(m)
	if shared.Server != nil {
		shared.Close()
	}
	os.Exit(code)
}
