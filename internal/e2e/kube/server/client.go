package server

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

// As returns the configuration of a client that shows token.
func (s *Server) As(token string) *rest.Config {
	return &rest.Config{
		Host: s.URL, BearerToken: token, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAFile: s.CA},
	}
}

// Admin returns the configuration of a client that may do everything.
func (s *Server) Admin() *rest.Config { return s.As(AdminToken) }

// Core returns a client for the objects of the core group.
func (s *Server) Core(t testing.TB, c *rest.Config) *corev1client.CoreV1Client {
	t.Helper()
	client, err := corev1client.NewForConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// Token returns a token of a service account that is bound to a pod or to a node, as
// the kubelet requests it for a pod of that service account. With bound == nil it is
// bound to nothing.
func (s *Server) Token(t testing.TB, namespace, account string, bound metav1.Object) string {
	t.Helper()
	request := &authenticationv1.TokenRequest{}
	if bound != nil {
		ref := &authenticationv1.BoundObjectReference{
			APIVersion: "v1", Kind: "Pod", Name: bound.GetName(), UID: bound.GetUID(),
		}
		if _, ok := bound.(*corev1.Node); ok {
			ref.Kind = "Node"
		}
		request.Spec.BoundObjectRef = ref
	}
	got, err := s.Core(t, s.Admin()).ServiceAccounts(namespace).CreateToken(t.Context(), account, request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return got.Status.Token
}

// Kubeconfig returns a file for clients that show token.
func (s *Server) Kubeconfig(t testing.TB, token string) string {
	t.Helper()
	file, err := s.WriteKubeconfig(t.TempDir(), token)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// WriteKubeconfig writes the file of Kubeconfig to a directory.
func (s *Server) WriteKubeconfig(dir, token string) (string, error) {
	file := dir + "/kubeconfig"
	return file, os.WriteFile(file, []byte(strings.NewReplacer("URL", s.URL, "CA", s.CA, "TOKEN", token).Replace(`apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "URL", certificate-authority: "CA"}}]
users: [{name: test, user: {token: "TOKEN"}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
current-context: test
`)), 0o600)
}

// Kubectl runs kubectl as admin and returns what it prints. It fails the test if
// kubectl fails.
func (s *Server) Kubectl(t testing.TB, stdin string, args ...string) string {
	t.Helper()
	out, err := s.TryKubectl(t.Context(), t.TempDir(), stdin, args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// TryKubectl runs kubectl as admin with a home directory, and returns what it prints.
func (s *Server) TryKubectl(ctx context.Context, home, stdin string, args ...string) (string, error) {
	file, err := s.WriteKubeconfig(home, AdminToken)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, s.program("kubectl"), args...)
	cmd.Env = []string{"KUBECONFIG=" + file, "HOME=" + home}
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
