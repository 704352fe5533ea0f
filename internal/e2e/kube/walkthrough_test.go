package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/internal/e2e/kube/server"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// clusterEnv is the kubeconfig of a cluster of one node with a kubelet, which has multinetd with the
// component and the key of the page. The tests then run against it, and no others can.
const clusterEnv = "METACNI_CLUSTER"

// TestWalkthrough follows examples/multinet/WALKTHROUGH.md as a reader does who has a cluster: it
// writes the files, runs the commands, and compares their outputs with the page. The daemon is a
// pod of the shipped DaemonSet, with the component and the key of the page. There is no kubelet: the
// test plays its part, unless it has a cluster.
func TestWalkthrough(t *testing.T) {
	t.Parallel()
	if config := os.Getenv(clusterEnv); config != "" {
		follow(t, config, os.Getenv("PATH"), func() {}, steadyAnywhere)
		return
	}
	n := newNode(t, reconciling(t), nil)
	n.rooted([]byte(`{"cniVersion":"1.0.0","name":"cbr0","plugins":[{"type":"bridge","bridge":"cbr0","isGateway":true,"ipam":{"type":"host-local","subnet":"10.244.0.0/24"}}]}`))
	n.runPod(n.DaemonPod(t, n.name))
	n.published()

	k := &kubelet{node: n, sandboxes: map[string]*sandbox{}}
	config := n.Kubeconfig(t, server.AdminToken)
	n.Kubectl(t, "", "config", "set-context", "--kubeconfig", config, "--current", "--namespace", n.namespace)
	follow(t, config, os.Getenv(programsEnv)+":"+os.Getenv("PATH"), k.sync, k.steady)
	k.end()
}

// follow follows the page with a kubeconfig and a PATH. It calls sync after each command, and steady
// for the page and the outputs before it compares them. Where a kubelet works at its own pace, it
// repeats the last command of a block until the output is that of the page.
func follow(t *testing.T, config, path string, sync func(), steady func(string) string) {
	t.Helper()
	page, err := os.ReadFile("../../../examples/multinet/WALKTHROUGH.md")
	nodetest.OK(t, err)
	_, text, _ := strings.Cut(string(page), "## Define the network\n") // what is before makes a cluster
	home := t.TempDir()
	sh := func(command string) string {
		cmd := exec.CommandContext(t.Context(), "sh", "-euc", command)
		cmd.Dir = home
		cmd.Env = []string{"KUBECONFIG=" + config, "HOME=" + home, "PATH=" + path}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s%v\n%s", command, err, out)
		}
		sync()
		return string(out)
	}
	before, last, command, compared := "", "", "", 0
	for _, block := range pageBlock.FindAllStringSubmatch(text, -1) {
		file, language, text := block[1], block[2], block[3]
		switch {
		case language == "sh":
			before, last = "", ""
			for command = range strings.Lines(text) {
				before, last = before+last, sh(command)
			}
		case language == "yaml" && file != "":
			nodetest.OK(t, os.WriteFile(filepath.Join(home, file), []byte(text), 0o600))
		default:
			if os.Getenv(clusterEnv) != "" {
				deadline := time.Now().Add(2 * time.Minute)
				eventually(t, func() bool {
					last = sh(command)
					return steady(before+last) == steady(text) || time.Now().After(deadline)
				})
			}
			nodetest.Equal(t, "output of "+command, steady(before+last), steady(text))
			compared++
		}
	}
	if compared < 4 {
		t.Errorf("the page has %d outputs", compared)
	}
}

// reconciling returns a server with the manifests, the component pods and the key reconcile.
func reconciling(t *testing.T) *server.Server {
	t.Helper()
	s, dir := newServer(t), t.TempDir()
	s.Deploy(t)
	config, err := os.ReadFile(server.Manifests("daemon/daemon-config.json"))
	nodetest.OK(t, err)
	config = bytes.Replace(config, []byte("{"), []byte(`{"reconcile": true, `), 1)
	nodetest.OK(t, errors.Join(server.Kustomize(dir, "pods"), os.WriteFile(dir+"/daemon-config.json", config, 0o600)))
	kustomization, err := os.ReadFile(dir + "/kustomization.yaml")
	if err == nil {
		merge := "configMapGenerator: [{name: multinetd, namespace: kube-system, behavior: merge, files: [daemon-config.json]}]\n"
		err = os.WriteFile(dir+"/kustomization.yaml", append(kustomization, merge...), 0o600)
	}
	nodetest.OK(t, err)
	s.Kubectl(t, "", "apply", "-k", dir)
	return s
}

// pageBlock matches a fenced block of a page: the name of its file, if there is one, its language
// and its text.
var pageBlock = regexp.MustCompile("(?s)(?:`([a-z.]+)`:\n\n)?```(\\w*)\n(.*?)```\n")

// A kubelet plays the scheduler, the kubelet and the runtime of a node for the pods that no
// node has yet.
type kubelet struct {
	*node

	sandboxes map[string]*sandbox // by the names of their pods
	ids       []string            // of all sandboxes that there have been
}

// sync makes one attempt to attach each pod that is not attached, unless the last attempt
// failed and the pod has not changed since. The daemon knows all definitions by then. If a pod that
// is attached has changed, sync waits until the daemon has attached what is new.
func (k *kubelet) sync() {
	k.t.Helper()
	definitions := strings.Count(k.Kubectl(k.t, "", "get", "nad", "-n", k.namespace, "-o", "name"), "/")
	eventually(k.t, func() bool {
		return len(glob(k.t, k.root+"/var/lib/cni/multinet.nad/"+k.namespace+"/*.conf")) == definitions
	})
	pods := k.Core(k.t, k.Admin()).Pods(k.namespace)
	list, err := pods.List(k.t.Context(), metav1.ListOptions{})
	nodetest.OK(k.t, err)
	for _, pod := range list.Items {
		s := k.sandboxes[pod.Name]
		switch {
		case s == nil && pod.Spec.NodeName != "": // not a pod of the page
			continue
		case s == nil:
			to := corev1.ObjectReference{Kind: "Node", Name: k.name}
			err := pods.Bind(k.t.Context(), &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod.Name}, Target: to}, metav1.CreateOptions{})
			nodetest.OK(k.t, err)
		case s.pod.Annotations[networksAnnotation] == pod.Annotations[networksAnnotation]:
			continue
		case s.Result != nil:
			eventually(k.t, func() bool {
				networks, _ := k.status(&pod)
				return len(networks) == 2+strings.Count(pod.Annotations[networksAnnotation], ",") && strings.Count(fmt.Sprint(k.events(&pod)), "AddedInterface") > 1
			})
			s.pod = &pod
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
	k.sandboxes[pod.Name], k.ids = s, append(k.ids, s.ID)
	told := len(k.events(pod))
	err := k.cni("ADD", s)
	eventually(k.t, func() bool { return len(k.events(pod)) > told })
	if err == nil {
		eventually(k.t, func() bool { networks, _ := k.status(pod); return len(networks) > 0 })
		ready := `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`
		k.Kubectl(k.t, "", "patch", "pod", pod.Name, "-n", pod.Namespace, "--subresource=status", "-p", ready)
		return
	}
	k.ok("DEL", s)
	now := metav1.Now()
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", pod.Name, now.UnixNano())},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Type:           corev1.EventTypeWarning, Reason: "FailedCreatePodSandBox", Source: corev1.EventSource{Component: "kubelet", Host: k.name},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Message: fmt.Sprintf("Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox %q: "+
			`plugin type=%q name=%q failed (add): %v`, s.ID, k.network["type"], k.network["name"], err),
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
	return steady(text)
}

// steady returns text without what differs from run to run, and with single spaces; JSON without
// line breaks.
func steady(text string) string {
	for _, s := range []struct{ expr, text string }{
		{`\b[0-9a-f]{12}\b`, "SANDBOX"},
		{`\b([0-9a-f]{2}:){5}[0-9a-f]{2}\b`, "MAC"},
		{`(?m)^\d+[sm]\d*s?\b`, "AGE"},
		{` +`, " "},
	} {
		text = regexp.MustCompile(s.expr).ReplaceAllString(text, s.text)
	}
	text = strings.TrimSpace(text)
	var value any
	if json.Unmarshal([]byte(text), &value) == nil {
		compact, _ := json.Marshal(value)
		return string(compact)
	}
	return text
}

// steadyAnywhere is steady for clusters of all kinds: it leaves out the cluster's own network, what
// the runtime adds to the text of a failure, and repetitions.
func steadyAnywhere(text string) string {
	text = steady(text)
	var networks []map[string]any
	if json.Unmarshal([]byte(text), &networks) == nil && len(networks) > 0 {
		rest, _ := json.Marshal(networks[1:])
		return fmt.Sprint(networks[0]["interface"], networks[0]["default"], string(rest))
	}
	text = regexp.MustCompile(`eth0 \[[^]]*\] from [^ ,]+`).ReplaceAllString(text, "eth0")
	text = regexp.MustCompile(`(FailedCreatePodSandBox \S+) .*failed \(add\): `).ReplaceAllString(text, "$1 ")
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n")
}

// The page can be compared with clusters whose runtimes and networks have other words, but not with
// one that says something else.
func TestPageIsComparedWithAnyCluster(t *testing.T) {
	t.Parallel()
	const failure = `plugin type="multinet-shim" name="multinet" failed (add): selected network "bleu": NAD default/bleu: does not exist`
	const page = "LAST SEEN TYPE REASON OBJECT MESSAGE\n2s Warning FailedCreatePodSandBox pod/shop Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox \"3f9c0e5b7a12\": " + failure
	const crio = "LAST SEEN   TYPE   REASON   OBJECT   MESSAGE\n%s   Warning   FailedCreatePodSandBox   pod/shop   Failed to create pod sandbox: rpc error: code = Unknown desc = failed to create pod network sandbox k8s_shop_default_1_0(5c5f): error adding pod default_shop to CNI network \"multinet\": " + failure
	for name, row := range map[string]struct {
		page, output string
		equal        bool
	}{
		"CRI-O":                  {page, fmt.Sprintf(crio, "14s"), true},
		"repeated":               {page, fmt.Sprintf(crio, "2m") + "\n" + strings.SplitN(fmt.Sprintf(crio, "3m10s"), "\n", 2)[1], true},
		"another text":           {page, strings.ReplaceAll(fmt.Sprintf(crio, "14s"), "bleu", "blue"), false},
		"no event":               {page, "LAST SEEN TYPE REASON OBJECT MESSAGE", false},
		"another primary":        {"1s Normal AddedInterface pod/web Add eth0 [10.244.0.2] from cbr0, net1 [192.168.10.2] from default/blue", "5s Normal AddedInterface pod/web Add eth0 [10.42.0.9 fd00::9] from kindnet, net1 [192.168.10.2] from default/blue", true},
		"another address":        {"1s Normal AddedInterface pod/web Add eth0 [10.244.0.2] from cbr0, net1 [192.168.10.2] from default/blue", "5s Normal AddedInterface pod/web Add eth0 [10.42.0.9] from kindnet, net1 [192.168.10.3] from default/blue", false},
		"another primary's JSON": {`[{"name": "cbr0", "interface": "eth0", "default": true, "mtu": 1500}, {"name": "default/blue"}]`, `[{"name":"kindnet","interface":"eth0","default":true,"ips":["10.1.1.1"]},{"name":"default/blue"}]`, true},
		"another network's JSON": {`[{"name": "cbr0", "interface": "eth0", "default": true}, {"name": "default/blue"}]`, `[{"name":"cbr0","interface":"eth0","default":true},{"name":"default/green"}]`, false},
	} {
		if got := steadyAnywhere(row.page) == steadyAnywhere(row.output); got != row.equal {
			t.Errorf("%s: %v\n%s\n%s", name, got, steadyAnywhere(row.page), steadyAnywhere(row.output))
		}
	}
}
