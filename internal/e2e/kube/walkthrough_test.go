package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/internal/e2e/kube/server"
)

// TestWalkthrough follows examples/multinetd/WALKTHROUGH.md as a reader does: it writes the
// files, runs the commands, and compares their outputs with the page. The daemon is a pod of the
// shipped DaemonSet.
func TestWalkthrough(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../examples/multinetd/WALKTHROUGH.md")
	if err != nil {
		t.Fatal(err)
	}
	n := newNode(t, world(t).Server, nil)
	n.rooted([]byte(`{"cniVersion":"1.0.0","name":"cbr0","plugins":[{"type":"bridge","bridge":"cbr0","isGateway":true,"ipam":{"type":"host-local","subnet":"10.244.0.0/24"}}]}`))
	n.runPod(n.DaemonPod(t, n.name))
	n.published()

	k := &kubelet{node: n, sandboxes: map[string]*sandbox{}}
	home, printed, compared := t.TempDir(), "", 0
	config := n.Kubeconfig(t, server.AdminToken)
	sh := func(script string) string {
		cmd := exec.CommandContext(t.Context(), "sh", "-euc", script)
		cmd.Dir = home
		cmd.Env = []string{"KUBECONFIG=" + config, "HOME=" + home, "PATH=" + os.Getenv(programsEnv) + ":" + os.Getenv("PATH")}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s%v\n%s", script, err, out)
		}
		return string(out)
	}
	sh("kubectl config set-context --current --namespace=" + n.namespace)
	for _, block := range pageBlock.FindAllStringSubmatch(string(page), -1) {
		file, language, text := block[1], block[2], block[3]
		switch {
		case language == "sh":
			printed = ""
			for command := range strings.Lines(text) {
				printed += sh(command)
				k.sync()
			}
		case language == "yaml" && file != "":
			if err := os.WriteFile(filepath.Join(home, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		case language == "json": // the page has line breaks in it
			same(t, "output of a command", decoded(t, k.steady(text)), decoded(t, k.steady(printed)))
			compared++
		default:
			same(t, "output of a command", k.steady(text), k.steady(printed))
			compared++
		}
	}
	if compared < 3 {
		t.Errorf("the page has %d outputs", compared)
	}
	k.end()
}

// pageBlock matches a fenced block of a page: the name of its file, if there is one, its language
// and its text.
var pageBlock = regexp.MustCompile("(?s)(?:`([a-z.]+)`:\n\n)?```(\\w*)\n(.*?)```\n")

// decoded returns the value of a JSON text.
func decoded(t *testing.T, text string) (value any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return value
}

// A kubelet plays the scheduler, the kubelet and the runtime of a node for the pods that no
// node has yet.
type kubelet struct {
	*node

	sandboxes map[string]*sandbox // by the names of their pods
	ids       []string            // of all sandboxes that there have been
}

// sync makes one attempt to attach each pod that is not attached, unless the last attempt
// failed and the pod has not changed since. The daemon knows all definitions by then.
func (k *kubelet) sync() {
	k.t.Helper()
	definitions := strings.Count(k.Kubectl(k.t, "", "get", "nad", "-n", k.namespace, "-o", "name"), "/")
	eventually(k.t, func() bool {
		return len(glob(k.t, k.root+"/var/lib/cni/multinet.nad/"+k.namespace+"/*.conf")) == definitions
	})
	pods := k.Core(k.t, k.Admin()).Pods(k.namespace)
	list, err := pods.List(k.t.Context(), metav1.ListOptions{})
	if err != nil {
		k.t.Fatal(err)
	}
	for _, pod := range list.Items {
		s := k.sandboxes[pod.Name]
		switch {
		case s == nil && pod.Spec.NodeName != "": // not a pod of the page
			continue
		case s == nil:
			to := corev1.ObjectReference{Kind: "Node", Name: k.name}
			err := pods.Bind(k.t.Context(), &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod.Name}, Target: to}, metav1.CreateOptions{})
			if err != nil {
				k.t.Fatal(err)
			}
		case s.result != nil || s.pod.Annotations[networksAnnotation] == pod.Annotations[networksAnnotation]:
			continue
		}
		k.attach(&pod)
	}
}

// attach makes one attempt to attach a pod in a new sandbox, waits until the daemon has told the
// API what became of it, and writes the kubelet's Event if it failed.
func (k *kubelet) attach(pod *corev1.Pod) {
	k.t.Helper()
	s := k.sandbox(pod)
	k.sandboxes[pod.Name], k.ids = s, append(k.ids, s.id)
	told := len(k.events(pod))
	err := k.cni("ADD", s)
	eventually(k.t, func() bool { return len(k.events(pod)) > told })
	failure := &cniError{}
	if !errors.As(err, &failure) {
		eventually(k.t, func() bool { networks, _ := k.status(pod); return len(networks) > 0 })
		return
	}
	k.ok("DEL", s)
	text := failure.Msg
	if failure.Details != "" {
		text += "; " + failure.Details // as the runtime prints it
	}
	now := metav1.Now()
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", pod.Name, now.UnixNano())},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Type:           corev1.EventTypeWarning, Reason: "FailedCreatePodSandBox", Source: corev1.EventSource{Component: "kubelet", Host: k.name},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Message: fmt.Sprintf("Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox %q: "+
			`plugin type=%q name=%q failed (add): %s`, s.id, k.network["type"], k.network["name"], text),
	}
	if _, err := k.Core(k.t, k.Admin()).Events(pod.Namespace).Create(k.t.Context(), event, metav1.CreateOptions{}); err != nil {
		k.t.Fatal(err)
	}
}

// end detaches all pods.
func (k *kubelet) end() {
	k.t.Helper()
	var all []*sandbox
	for _, s := range k.sandboxes {
		k.ok("DEL", s)
		all = append(all, s)
	}
	k.wantNothing(all...)
}

// steady returns text without what differs from run to run, and with single spaces.
func (k *kubelet) steady(text string) string {
	text = strings.ReplaceAll(text, k.namespace, "default")
	for _, id := range k.ids {
		text = regexp.MustCompile(`\b`+id+`\b`).ReplaceAllString(text, "SANDBOX")
	}
	for _, s := range []struct{ expr, text string }{
		{`\b[0-9a-f]{12}\b`, "SANDBOX"},
		{`\b([0-9a-f]{2}:){5}[0-9a-f]{2}\b`, "MAC"},
		{`(?m)^\d+[sm]\d*s?\b`, "AGE"},
		{` +`, " "},
	} {
		text = regexp.MustCompile(s.expr).ReplaceAllString(text, s.text)
	}
	return strings.TrimSpace(text)
}
