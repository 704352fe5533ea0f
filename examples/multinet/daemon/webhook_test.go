package daemon

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	nodetest "github.com/metacni/metacni/internal/test/node"

	admissionv1 "k8s.io/api/admission/v1"
)

// certify writes a certificate for 127.0.0.1 and its key to dir.
func certify(t *testing.T, dir string) (roots *x509.CertPool, args []string) {
	t.Helper()
	server := httptest.NewTLSServer(nil) // has such a certificate
	server.Close()
	secret, err := x509.MarshalPKCS8PrivateKey(server.TLS.Certificates[0].PrivateKey)
	nodetest.OK(t, err)
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for file, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: server.Certificate().Raw}, keyFile: {Type: "PRIVATE KEY", Bytes: secret},
	} {
		nodetest.OK(t, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
	}
	roots = x509.NewCertPool()
	roots.AddCert(server.Certificate())
	return roots, []string{"--cert", certFile, "--key", keyFile}
}

// A desk is a running webhook.
type desk struct {
	client http.Client
	url    string
	log    *nodetest.Log
}

// newDesk starts a webhook with the daemons' file, and more arguments.
func newDesk(t *testing.T, file string, more ...string) *desk {
	t.Helper()
	dir := t.TempDir()
	roots, args := certify(t, dir)
	nodetest.OK(t, os.WriteFile(dir+"/daemon.json", []byte(file), 0o600))
	d := &desk{log: &nodetest.Log{}}
	d.client.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true}
	ctx, cancel := context.WithCancel(t.Context())
	listening, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		args := slices.Concat([]string{"webhook", "--address", "127.0.0.1:0", "--config", dir + "/daemon.json"}, args, more)
		ended <- run(ctx, args, "/absent", nil, io.Discard, io.MultiWriter(d.log, listeningLine(listening)))
	}()
	select {
	case line := <-listening:
		var said struct{ Msg, Address string }
		if err := json.Unmarshal([]byte(line), &said); err != nil || said.Msg != "listening" {
			t.Fatalf("%s: %v", line, err)
		}
		d.url = "https://" + said.Address
	case err := <-ended:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		d.client.CloseIdleConnections()
		nodetest.Code(t, <-ended, 0)
	})
	return d
}

// listeningLine gets the line of a log that has the address.
type listeningLine chan string

func (l listeningLine) Write(p []byte) (int, error) {
	if strings.Contains(string(p), `"listening"`) {
		l <- string(p)
	}
	return len(p), nil
}

// ask returns the answer about a new object in a namespace.
func (d *desk) ask(t *testing.T, namespace, kind, object string) *admissionv1.AdmissionResponse {
	t.Helper()
	resp, err := d.client.Post(d.url+"/validate", "application/json", strings.NewReader(fmt.Sprintf(
		`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u1","operation":"CREATE","namespace":%q,"kind":%s,"object":%s}}`,
		namespace, kind, object)))
	nodetest.OK(t, err)
	defer func() { _ = resp.Body.Close() }()
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(resp.Body).Decode(&review); err != nil || review.Response == nil {
		t.Fatalf("%d: %v", resp.StatusCode, err)
	}
	return review.Response
}

func (d *desk) definition(t *testing.T, config string) *admissionv1.AdmissionResponse {
	t.Helper()
	return d.ask(t, "ns", `{"group":"k8s.cni.cncf.io","version":"v1","kind":"NetworkAttachmentDefinition"}`,
		fmt.Sprintf(`{"metadata":{"namespace":"ns","name":"blue"},"spec":{"config":%q}}`, config))
}

func (d *desk) pod(t *testing.T, namespace, networks string) *admissionv1.AdmissionResponse {
	t.Helper()
	return d.ask(t, namespace, `{"version":"v1","kind":"Pod"}`,
		fmt.Sprintf(`{"metadata":{"annotations":{"k8s.v1.cni.cncf.io/networks":%q}}}`, networks))
}

// The webhook decides by the configuration of the daemons, which is for nodes: it has no
// directory of these.
func TestWebhookDecidesByTheConfigurationOfTheDaemons(t *testing.T) {
	t.Parallel()
	d := newDesk(t, `{"chrootDir":"/host/that/is/absent","multusConfigFile":"auto","kubeconfig":"/absent","logFormat":"json",
		"namespaceIsolation":true,"globalNamespaces":"shared","allowedTypes":{"nad":["macvlan"]}}`)
	for config, denied := range map[string]string{
		`{"type":"macvlan"}`:                    "",
		``:                                      "namespaceIsolation keeps pods from the files of the node",
		`{"type":"bridge"}`:                     `"bridge" is not one of allowedTypes`,
		`{"type":"multinet-shim"}`:              "is the meta-plugin itself, or one in its place",
		`{"type":"macvlan","password":"hunter2`: "NAD ns/blue: spec.config: cannot decode",
	} {
		got := d.definition(t, config)
		if got.UID != "u1" || got.Allowed != (denied == "") || !got.Allowed && !strings.Contains(got.Result.Message, denied) {
			t.Errorf("definition %s: %+v %v", config, got, got.Result)
		}
	}
	if got := newDesk(t, `{"logFormat":"json"}`).definition(t, ""); !got.Allowed || len(got.Warnings) != 1 {
		t.Errorf("no config, without isolation: %+v", got)
	}
	for networks, denied := range map[string]string{
		"blue":       "",
		"shared/red": "",
		"other/red":  `selected network "red": NAD other/red: not allowed: namespaceIsolation`,
		"[{":         "annotation k8s.v1.cni.cncf.io/networks: cannot decode",
		"a@x,b@x":    "annotation k8s.v1.cni.cncf.io/networks: ",
	} {
		if got := d.pod(t, "ns", networks); got.Allowed != (denied == "") || !got.Allowed && !strings.Contains(got.Result.Message, denied) {
			t.Errorf("networks %s: %+v %v", networks, got, got.Result)
		}
	}
	if got := d.pod(t, "other", "other/red"); !got.Allowed {
		t.Errorf("a network of the pod's namespace: %v", got.Result)
	}
	if log := d.log.String(); strings.Contains(log, "hunter2") || strings.Count(log, `"msg":"denied"`) != 7 {
		t.Errorf("log:\n%s", log)
	}
}

// Requests are counted by what they are about, and the expiry of the certificate is there to
// be watched. The metrics address of the daemons is not that of the webhook.
func TestWebhookHasMetrics(t *testing.T) {
	t.Parallel()
	d := newDesk(t, `{"logFormat":"json","metricsAddress":"192.0.2.1:1"}`, "--metrics-address", "127.0.0.1:0")
	for _, config := range []string{`{"type":"macvlan"}`, `{"type":"macvlan"}`, ``, `{}`} {
		d.definition(t, config)
	}
	d.pod(t, "ns", "[{")
	d.ask(t, "ns", `{"version":"v1","kind":"ConfigMap"}`, "null")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.url+"/validate", strings.NewReader("{"))
	nodetest.OK(t, err)
	if resp, err := d.client.Do(req); err != nil || resp.Body.Close() != nil || resp.StatusCode != http.StatusUnsupportedMediaType {
		t.Fatal(resp, err)
	}
	for len(linesOf(t, d.log, "serving metrics")) == 0 {
		runtime.Gosched()
	}
	req, err = http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+linesOf(t, d.log, "serving metrics")[0]["address"].(string)+"/metrics", nil)
	nodetest.OK(t, err)
	resp, err := http.DefaultClient.Do(req)
	nodetest.OK(t, err)
	text, err := io.ReadAll(resp.Body)
	nodetest.OK(t, errors.Join(err, resp.Body.Close()))
	got := series(t, string(text))
	wantSeries(t, got, map[string]float64{
		`multinetd_webhook_requests_total{operation="CREATE",outcome="allowed",resource="network-attachment-definitions"}`: 2,
		`multinetd_webhook_requests_total{operation="CREATE",outcome="warned",resource="network-attachment-definitions"}`:  1,
		`multinetd_webhook_requests_total{operation="CREATE",outcome="denied",resource="network-attachment-definitions"}`:  1,
		`multinetd_webhook_requests_total{operation="CREATE",outcome="denied",resource="pods"}`:                            1,
		`multinetd_webhook_requests_total{operation="CREATE",outcome="allowed",resource="other"}`:                          1,
		`multinetd_webhook_requests_total{operation="other",outcome="failed",resource="other"}`:                            1,
		`multinetd_webhook_duration_seconds_count{resource="network-attachment-definitions"}`:                              4,
	})
	if expires := time.Unix(int64(got["multinetd_webhook_certificate_expiration_timestamp_seconds"]), 0); time.Until(expires) <= 0 {
		t.Errorf("the certificate expires at %v", expires)
	}
}
