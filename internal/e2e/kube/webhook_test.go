package kube

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A webhookWorld is a server with the component webhook, and the program that serves it
// at the address of its Service.
type webhookWorld struct {
	*Server
	program string
	args    []string
	running *process
}

func newWebhookWorld(t *testing.T) *webhookWorld {
	t.Helper()
	needPrograms(t)
	if noHost != "" {
		t.Skip(noHost)
	}
	w := &webhookWorld{Server: NewServer(t)}
	w.Deploy(t)
	w.deployWith(t, "webhook")
	dir := t.TempDir()
	w.program = filepath.Join(dir, "multinetd")
	build := exec.CommandContext(t.Context(), "go", "build", "-C", "../../../examples/multinetd", "-o", w.program, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	core := w.Core(t, w.Admin())
	service, err := core.Services("kube-system").Get(t.Context(), "multinetd-webhook", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	address(t, service.Spec.ClusterIP)
	w.certify(t, dir)
	if err := os.WriteFile(dir+"/daemon-config.json", []byte(`{"chrootDir":"/host","namespaceIsolation":true,"allowedTypes":{"nad":["macvlan"]}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	w.args = w.command(t, strings.NewReplacer("/etc/multinetd-webhook", dir, "/etc/multinetd", dir, "=:8443", "="+service.Spec.ClusterIP+":443"))
	t.Cleanup(func() { w.running.kill() })
	return w
}

// address gives the host an address, as kube-proxy would do for a Service.
func address(t *testing.T, ip string) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.AddrReplace(lo, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(ip), Mask: net.CIDRMask(32, 32)}})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// certify writes a certificate for the Service to dir, and tells the API server whom to
// trust.
func (w *webhookWorld) certify(t *testing.T, dir string) {
	t.Helper()
	if err := writeKey(dir + "/tls.key"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(dir + "/tls.key")
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"multinetd-webhook.kube-system.svc"},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(dir+"/tls.crt", cert, 0o600); err != nil {
		t.Fatal(err)
	}
	bundle, err := json.Marshal(cert) // base64, as bytes are
	if err != nil {
		t.Fatal(err)
	}
	w.Kubectl(t, "", "patch", "validatingwebhookconfiguration", "multinetd", "--type=json", "-p", fmt.Sprintf(
		`[{"op":"add","path":"/webhooks/0/clientConfig/caBundle","value":%s},{"op":"add","path":"/webhooks/1/clientConfig/caBundle","value":%s}]`, bundle, bundle))
}

// command returns the arguments of the Deployment's container, whose volumes exist.
func (w *webhookWorld) command(t *testing.T, here *strings.Replacer) (args []string) {
	t.Helper()
	var d appsv1.Deployment
	err := w.Core(t, w.Admin()).RESTClient().Get().AbsPath("/apis/apps/v1/namespaces/kube-system/deployments/multinetd-webhook").Do(t.Context()).Into(&d)
	if err != nil {
		t.Fatal(err)
	}
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
	if w.running, err = start(w.path("webhook.log"), w.program, w.args...); err != nil {
		t.Fatal(err)
	}
	namespace := w.Namespace(t)
	eventually(t, func() bool {
		_, err := w.apply(t, definition(namespace, "bad", "{"), "--dry-run=server")
		return err != nil
	})
}

// apply applies objects as a person does.
func (w *webhookWorld) apply(t *testing.T, objects string, args ...string) (string, error) {
	t.Helper()
	return w.kubectl(t.Context(), t.TempDir(), objects, append([]string{"apply", "-f", "-"}, args...)...)
}

// networks returns a pod that selects networks.
func networks(namespace, name, annotation string) string {
	pod := podOn("", namespace, name)
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	pod.Annotations = map[string]string{"k8s.v1.cni.cncf.io/networks": annotation}
	text, err := json.Marshal(pod)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// What would fail an ADD is refused with the ADD's text when it is written. Everything else
// is accepted, and everything at all while the webhook is away.
func TestWebhookRefusesWhatAnADDRefuses(t *testing.T) {
	t.Parallel()
	w := newWebhookWorld(t)
	w.start(t)
	ns := w.Namespace(t)
	for name, tt := range map[string]struct{ object, says, denies string }{
		"a definition":               {definition(ns, "good", `{"type":"macvlan"}`), "good created", ""},
		"a definition without spec":  {`{"apiVersion":"k8s.cni.cncf.io/v1","kind":"NetworkAttachmentDefinition","metadata":{"namespace":"` + ns + `","name":"file"}}`, "Warning: without spec.config", ""},
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
	if out, err := w.kubectl(t.Context(), t.TempDir(), generated, "create", "-f", "-"); err != nil {
		t.Errorf("a generated name: %v, %s", err, out)
	}
	if out, err := w.kubectl(t.Context(), t.TempDir(), "", "annotate", "pod", "-n", ns, "good", "--overwrite", "k8s.v1.cni.cncf.io/networks=b/x"); err == nil || !strings.Contains(out, "namespaceIsolation") {
		t.Errorf("an annotation of a pod that runs: %v, %s", err, out)
	}

	w.running.kill()
	for _, object := range []string{definition(ns, "late", `{"type":`), networks(ns, "late", "[{"), definition(ns, "good", `{"type":5}`)} {
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
		if out, err := w.kubectl(t.Context(), t.TempDir(), "", args...); err != nil || args[0] == "label" && !strings.Contains(out, "Warning: ") {
			t.Errorf("kubectl %q: %v, %s", args, err, out)
		}
	}
	if out, err := w.apply(t, definition(ns, "good", `{"type":6}`)); err == nil {
		t.Errorf("from bad to bad: %s", out)
	}
	if out, err := w.apply(t, definition(ns, "good", `{"type":"macvlan"}`)); err != nil {
		t.Errorf("mended: %v, %s", err, out)
	}
}
