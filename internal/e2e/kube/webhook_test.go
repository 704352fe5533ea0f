package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/delegate/conform/host"
	"github.com/metacni/metacni/internal/e2e/kube/server"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/internal/test/process"
)

// A webhookWorld is a server with the component webhook, and the program that serves it
// at the address of its Service.
type webhookWorld struct {
	*server.Server
	address string // of the Service
	dir     string // of the certificate and the configuration
	program string
	args    []string
	mounts  int // of the certificate
	running *process.Process
}

func newWebhookWorld(t *testing.T) *webhookWorld {
	t.Helper()
	host.Need(t)
	w := &webhookWorld{Server: newServer(t), dir: t.TempDir(), program: filepath.Join(host.Programs(), "multinetd")}
	w.Deploy(t)
	w.DeployWith(t, "webhook")
	core := w.Core(t, w.Admin())
	service, err := core.Services("kube-system").Get(t.Context(), "multinetd-webhook", metav1.GetOptions{})
	nodetest.OK(t, err)
	w.address = service.Spec.ClusterIP
	address(t, w.address)
	w.certify(t)
	nodetest.OK(t, os.WriteFile(w.dir+"/daemon-config.json", []byte(`{"chrootDir":"/host","namespaceIsolation":true,"allowedTypes":{"nad":["macvlan"]}}`), 0o600))
	w.args = w.command(t, strings.NewReplacer("/etc/multinetd-webhook", w.dir, "/etc/multinetd", w.dir, "=:8443", "="+w.address+":443", "=:8080", "="+w.address+":8080"))
	t.Cleanup(func() { w.running.Kill() })
	return w
}

// address gives the host an address, as kube-proxy would do for a Service.
func address(t *testing.T, ip string) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	nodetest.OK(t, err)
	nodetest.OK(t, netlink.AddrReplace(lo, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(ip), Mask: net.CIDRMask(32, 32)}}))
}

// certify makes a certificate as the README says, and puts its Secret where the pods of the
// Deployment have it.
func (w *webhookWorld) certify(t *testing.T) {
	t.Helper()
	readme, err := os.ReadFile(server.Manifests("README.md"))
	nodetest.OK(t, err)
	_, script, found := strings.Cut(string(readme), "By hand:\n\n```sh\n")
	script, _, ended := strings.Cut(script, "```\n")
	if !found || !ended {
		t.Fatal("the README says nothing about a certificate")
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-euc", script)
	cmd.Dir = t.TempDir()
	cmd.Env = []string{"KUBECONFIG=" + w.Kubeconfig(t, server.AdminToken), "HOME=" + cmd.Dir, "PATH=" + os.Getenv(programsEnv) + ":" + os.Getenv("PATH")}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	secret, err := w.Core(t, w.Admin()).Secrets("kube-system").Get(t.Context(), "multinetd-webhook", metav1.GetOptions{})
	nodetest.OK(t, err)
	w.mount(t, secret.Data)
}

// mount puts files into the directory of the certificate as the kubelet does: a symbolic link
// leads to all of them, and is replaced.
func (w *webhookWorld) mount(t *testing.T, files map[string][]byte) {
	t.Helper()
	w.mounts++
	dir := filepath.Join(w.dir, fmt.Sprintf("..data_%d", w.mounts))
	nodetest.OK(t, os.Mkdir(dir, 0o700))
	for name, data := range files {
		nodetest.OK(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
		link := filepath.Join(w.dir, name)
		if err := os.Symlink("..data/"+name, link); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
	}
	temporary := filepath.Join(w.dir, "..data_tmp")
	nodetest.OK(t, errors.Join(os.Symlink(filepath.Base(dir), temporary), os.Rename(temporary, filepath.Join(w.dir, "..data"))))
}

// command returns the arguments of the Deployment's container, whose volumes exist.
func (w *webhookWorld) command(t *testing.T, here *strings.Replacer) (args []string) {
	t.Helper()
	var d appsv1.Deployment
	err := w.Core(t, w.Admin()).RESTClient().Get().AbsPath("/apis/apps/v1/namespaces/kube-system/deployments/multinetd-webhook").Do(t.Context()).Into(&d)
	nodetest.OK(t, err)
	config := d.Spec.Template.Spec.Volumes[0].ConfigMap.Name
	if _, err := w.Core(t, w.Admin()).ConfigMaps("kube-system").Get(t.Context(), config, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	for _, arg := range d.Spec.Template.Spec.Containers[0].Command[1:] {
		args = append(args, here.Replace(arg))
	}
	return args
}

// start starts the webhook and waits until the API server asks it.
func (w *webhookWorld) start(t *testing.T) {
	t.Helper()
	var err error
	if w.running, err = process.Start(w.Path("webhook.log"), exec.Command(w.program, w.args...)); err != nil {
		t.Fatal(err)
	}
	w.untilAsked(t)
}

// untilAsked waits until the API server asks the webhook.
func (w *webhookWorld) untilAsked(t *testing.T) {
	t.Helper()
	namespace := w.Namespace(t)
	eventually(t, func() bool {
		_, err := w.apply(t, definition(namespace, "bad", "{"), "--dry-run=server")
		return err != nil
	})
}

// apply applies objects as a person does.
func (w *webhookWorld) apply(t *testing.T, objects string, args ...string) (string, error) {
	t.Helper()
	return w.TryKubectl(t.Context(), t.TempDir(), objects, append([]string{"apply", "-f", "-"}, args...)...)
}

// networks returns a pod that selects networks.
func networks(namespace, name, annotation string) string {
	pod := server.PodOn("", namespace, name)
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	pod.Annotations = map[string]string{"k8s.v1.cni.cncf.io/networks": annotation}
	text, err := json.Marshal(pod)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// The API server asks the webhook, which has a certificate as the README says.
func TestWebhook(t *testing.T) {
	t.Parallel()
	w := newWebhookWorld(t)
	w.start(t)
	t.Run("refuses what an ADD refuses", w.testRefusals)
	t.Run("is asked about few pods", w.testFewRequests)
	t.Run("is away", w.testAway)
	t.Run("gets another certificate", w.testCertificate)
}

// What would fail an ADD is refused with the ADD's text when it is written. Everything else
// is accepted.
func (w *webhookWorld) testRefusals(t *testing.T) {
	ns := w.Namespace(t)
	for name, tt := range map[string]struct{ object, says, denies string }{
		"a definition":               {definition(ns, "good", `{"type":"macvlan"}`), "good created", ""},
		"a definition without spec":  {`{"apiVersion":"k8s.cni.cncf.io/v1","kind":"NetworkAttachmentDefinition","metadata":{"namespace":"kube-system","name":"` + ns + `"}}`, "Warning: without spec.config", ""},
		"such a one of a user":       {`{"apiVersion":"k8s.cni.cncf.io/v1","kind":"NetworkAttachmentDefinition","metadata":{"namespace":"` + ns + `","name":"bad"}}`, "", "namespaceIsolation keeps pods from the files of the node"},
		"broken JSON":                {definition(ns, "bad", `{"type":`), "", `admission webhook "definitions.multinetd.metacni.io" denied the request: NAD ` + ns + `/bad: spec.config: cannot decode`},
		"a type that is a path":      {definition(ns, "bad", `{"type":"../x"}`), "", "a path, want the name of an executable"},
		"a type that is not allowed": {definition(ns, "bad", `{"type":"host-device"}`), "", `"host-device" is not one of allowedTypes`},
		"multinet itself":            {definition(ns, "bad", `{"type":"multinet-shim"}`), "", "is the meta-plugin itself, or one in its place"},
		"a pod":                      {networks(ns, "good", "good,default/other"), "good created", ""},
		"a broken selection":         {networks(ns, "bad", "[{"), "", `admission webhook "pods.multinetd.metacni.io" denied the request: annotation k8s.v1.cni.cncf.io/networks: cannot decode`},
		"another namespace":          {networks(ns, "bad", "kube-system/x"), "", "namespaceIsolation keeps pods of namespace"},
		"a pod of the system":        {networks("kube-system", "bad", "[{"), "bad created", ""},
		"an empty selection":         {networks(ns, "empty", ""), "empty created", ""},
	} {
		out, err := w.apply(t, tt.object)
		if (err != nil) != (tt.denies != "") || !strings.Contains(out, tt.says) || !strings.Contains(out, tt.denies) {
			t.Errorf("%s: %v, %s", name, err, out)
		}
	}
	generated := strings.Replace(definition(ns, "", `{"type":"macvlan"}`), `"name":""`, `"generateName":"x-"`, 1)
	if out, err := w.TryKubectl(t.Context(), t.TempDir(), generated, "create", "-f", "-"); err != nil {
		t.Errorf("a generated name: %v, %s", err, out)
	}
	for config, code := range map[string]int{`{"type":"macvlan"}`: http.StatusCreated, `{`: http.StatusUnprocessableEntity} { // in the namespace of the path
		text, err := json.Marshal(map[string]any{
			"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
			"metadata": map[string]string{"name": "plain"}, "spec": map[string]string{"config": config},
		})
		nodetest.OK(t, err)
		got := request(t, w.Admin(), http.MethodPost, "/apis/k8s.cni.cncf.io/v1/namespaces/"+ns+"/network-attachment-definitions", string(text))
		got.is(t, code, map[bool]string{true: "", false: "NAD " + ns + "/plain: spec.config"}[code == http.StatusCreated])
	}
	if out, err := w.TryKubectl(t.Context(), t.TempDir(), "", "annotate", "pod", "-n", ns, "good", "--overwrite", "k8s.v1.cni.cncf.io/networks=b/x"); err == nil || !strings.Contains(out, "namespaceIsolation") {
		t.Errorf("an annotation of a pod that runs: %v, %s", err, out)
	}
}

// The API server asks about pods that select networks, and about nothing else that happens to
// pods.
func (w *webhookWorld) testFewRequests(t *testing.T) {
	ns := w.Namespace(t)
	if out, err := w.apply(t, networks(ns, "one", "blue")); err != nil {
		t.Fatalf("%v, %s", err, out)
	}
	before := w.asked(t)
	for _, pod := range []*corev1.Pod{server.PodOn("", ns, "other"), server.PodOn("", "kube-system", "other")} {
		pod.Annotations = map[string]string{"other": "x"}
		w.Pod(t, pod)
	}
	one := server.PodOn("", ns, "one")
	request(t, w.Admin(), http.MethodPatch, statusPath(one), `{"metadata":{"annotations":{"`+statusAnnotation+`":"[]"}}}`).is(t, http.StatusOK, "")
	w.DeletePod(t, one)
	if now := w.asked(t); now != before || before == 0 {
		t.Errorf("asked %d times about pods, and then %d times more", before, now-before)
	}
}

// asked returns how often the API server has asked about pods.
func (w *webhookWorld) asked(t *testing.T) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+w.address+":8080/metrics", nil)
	nodetest.OK(t, err)
	resp, err := http.DefaultClient.Do(req)
	nodetest.OK(t, err)
	text, err := io.ReadAll(resp.Body)
	nodetest.OK(t, errors.Join(err, resp.Body.Close()))
	sum := 0
	for _, found := range regexp.MustCompile(`(?m)^multinetd_webhook_requests_total\{.*resource="pods".*\} (\d+)$`).FindAllSubmatch(text, -1) {
		n, err := strconv.Atoi(string(found[1]))
		nodetest.OK(t, err)
		sum += n
	}
	return sum
}

// While the webhook is away everything is accepted. Later what is wrong already can be
// changed and deleted, but not to something else that is wrong.
func (w *webhookWorld) testAway(t *testing.T) {
	ns := w.Namespace(t)
	if out, err := w.apply(t, definition(ns, "good", `{"type":"macvlan"}`)); err != nil {
		t.Fatalf("%v, %s", err, out)
	}
	w.running.Kill()
	for _, object := range []string{definition(ns, "late", `{"type":`), networks(ns, "late", "[{"), networks(ns, "wrong", "[{"), definition(ns, "good", `{"type":5}`)} {
		if out, err := w.apply(t, object); err != nil {
			t.Errorf("while the webhook is away: %v, %s", err, out)
		}
	}
	w.start(t)
	for _, args := range [][]string{ // of what is wrong already
		{"label", "nad", "-n", ns, "late", "x=y"},
		{"label", "pod", "-n", ns, "late", "x=y"},
		{"delete", "nad", "-n", ns, "late"},
		{"delete", "pod", "-n", ns, "late", "--grace-period=0", "--force"},
	} {
		if out, err := w.TryKubectl(t.Context(), t.TempDir(), "", args...); err != nil || args[0] == "label" && !strings.Contains(out, "Warning: ") {
			t.Errorf("kubectl %q: %v, %s", args, err, out)
		}
	}
	requestAs(t, w.Admin(), http.MethodPatch, "/api/v1/namespaces/"+ns+"/pods/wrong/ephemeralcontainers", "application/strategic-merge-patch+json",
		`{"spec":{"ephemeralContainers":[{"name":"debug","image":"none"}]}}`).is(t, http.StatusOK, "debug")
	if out, err := w.apply(t, definition(ns, "good", `{"type":6}`)); err == nil {
		t.Errorf("from bad to bad: %s", out)
	}
	if out, err := w.apply(t, definition(ns, "good", `{"type":"macvlan"}`)); err != nil {
		t.Errorf("mended: %v, %s", err, out)
	}
}

// The certificate may be replaced while the webhook runs, as the README says. Applying the
// manifests again keeps the API server's trust in it.
func (w *webhookWorld) testCertificate(t *testing.T) {
	w.certify(t)
	w.untilAsked(t)
	w.DeployWith(t, "webhook")
	if out, err := w.apply(t, definition(w.Namespace(t), "bad", "{"), "--dry-run=server"); err == nil {
		t.Errorf("accepted: %s", out)
	}
	log, err := os.ReadFile(w.Path("webhook.log"))
	if err != nil || strings.Count(string(log), "certificate replaced") != 1 {
		t.Errorf("%v, log:\n%s", err, log)
	}
}

// The pods of the webhook can do nothing but answer, and one of them is always there.
func TestWebhookPodsHaveNoPower(t *testing.T) {
	t.Parallel()
	s := cluster(t)
	got := s.Kubectl(t, "", "create", "--dry-run=client", "-o", "json", "-f", server.Manifests("webhook/deployment.yaml"))
	decoder := json.NewDecoder(strings.NewReader(got))
	var d appsv1.Deployment
	var budget policyv1.PodDisruptionBudget
	nodetest.OK(t, errors.Join(decoder.Decode(&d), decoder.Decode(&budget)))
	pod := d.Spec.Template.Spec
	if token := pod.AutomountServiceAccountToken; token == nil || *token || pod.HostNetwork || pod.HostPID {
		t.Errorf("token %v, hostNetwork %v, hostPID %v", token, pod.HostNetwork, pod.HostPID)
	}
	c := pod.Containers[0]
	as, in := c.SecurityContext, pod.SecurityContext
	if *as.AllowPrivilegeEscalation || !*as.ReadOnlyRootFilesystem || !slices.Contains(as.Capabilities.Drop, "ALL") || len(as.Capabilities.Add) > 0 ||
		as.Privileged != nil || !*in.RunAsNonRoot || *in.RunAsUser == 0 || in.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("%+v\n%+v", as, in)
	}
	if c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero() || c.LivenessProbe == nil || c.ReadinessProbe == nil || c.Lifecycle.PreStop.Sleep.Seconds == 0 {
		t.Errorf("%+v", c)
	}
	if *d.Spec.Replicas < 2 || len(pod.TopologySpreadConstraints) != 1 || budget.Spec.MaxUnavailable.IntValue() >= int(*d.Spec.Replicas) ||
		!maps.Equal(budget.Spec.Selector.MatchLabels, d.Spec.Template.Labels) {
		t.Errorf("%d replicas, %+v, %+v", *d.Spec.Replicas, pod.TopologySpreadConstraints, budget.Spec)
	}
}
