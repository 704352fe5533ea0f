package kube

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/delegate/conform/host"
	"github.com/metacni/metacni/internal/e2e/kube/server"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/internal/test/process"
)

// A pod gets the network of its annotation, and its status and one Event tell so. All
// that the API server is asked for is to write these two. DEL asks for nothing.
func TestPodCostsOnePatchAndOneEvent(t *testing.T) {
	t.Parallel()
	n := readyNode(t, nil)
	s := n.pod("one", "blue")
	n.ok("ADD", s)
	if !n.right(s, "multi", n.namespace+"/blue") { // the ADD has waited for it
		names, interfaces := n.status(s.pod)
		t.Errorf("status %q %q, but the pod has %q", names, interfaces, n.attached(s))
	}
	eventually(t, func() bool { return len(n.events(s.pod)) > 0 })
	for _, command := range []string{"CHECK", "STATUS", "DEL", "DEL"} {
		n.ok(command, s)
	}
	n.ok("GC", s)
	n.wantNothing(s)
	n.stop()
	nodetest.Equal(t, "requests", n.gate.made(""), []string{
		"PATCH " + statusPath(s.pod),
		"POST /apis/events.k8s.io/v1/namespaces/" + n.namespace + "/events",
	})
	nodetest.Equal(t, "Events", n.events(s.pod), []string{"AddedInterface"})
}

// events lists the reasons of the Events on a pod.
func (n *node) events(pod *corev1.Pod) (reasons []string) {
	n.t.Helper()
	got := request(n.t, n.Admin(), http.MethodGet, "/apis/events.k8s.io/v1/namespaces/"+pod.Namespace+"/events", "")
	var list eventsv1.EventList
	if err := json.Unmarshal([]byte(got.Body), &list); err != nil {
		n.t.Fatal(got, err)
	}
	for _, e := range list.Items {
		if e.Regarding.Name == pod.Name && e.Regarding.UID == pod.UID {
			reasons = append(reasons, e.Reason)
		}
	}
	return reasons
}

// The daemon cannot write the status of a pod on another node: the policy refuses it. The
// pod is attached nevertheless, and an Event on the daemon's pod tells what is wrong.
func TestStatusOfAPodOnAnotherNodeIsNeverWritten(t *testing.T) {
	t.Parallel()
	n := newNode(t, world(t).Server, nil)
	n.ready()
	s := n.sandbox(n.Pod(t, server.PodOn(otherNode, n.namespace, "elsewhere")))
	n.ok("ADD", s)
	eventually(t, func() bool { return len(n.events(n.daemonPod)) > 0 })
	nodetest.Equal(t, "Events on the daemon's pod", n.events(n.daemonPod), []string{"StatusNotWritten"})
	if names, _ := n.status(s.pod); names != nil {
		t.Errorf("status: %q", names)
	}
	n.ok("DEL", s)
	n.wantNothing(s)
}

// definition returns a NetworkAttachmentDefinition as JSON.
func definition(namespace, name, config string) string {
	text, err := json.Marshal(map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
		"metadata": map[string]any{"namespace": namespace, "name": name},
		"spec":     map[string]any{"config": config},
	})
	if err != nil {
		panic(err)
	}
	return string(text)
}

// The API server accepts every definition whose config is a string, whatever that says:
// what is wrong with it shows when a pod selects it.
func TestDefinitionsThatTheServerAccepts(t *testing.T) {
	t.Parallel()
	w := world(t)
	namespace := w.Namespace(t)
	path := nads + "namespaces/" + namespace + "/network-attachment-definitions"
	for name, tt := range map[string]struct {
		metadata, rest string // of the object, as JSON
		code           int
		text           string // in the answer
	}{
		"no spec":                  {``, ``, 201, ""},
		"empty spec":               {``, `"spec":{}`, 201, `"spec":{}`},
		"no spec by null":          {``, `"spec":null`, 201, ""},
		"no config by null":        {``, `"spec":{"config":null}`, 201, `"spec":{}`},
		"empty config":             {``, `"spec":{"config":""}`, 201, `"config":""`},
		"not JSON":                 {``, `"spec":{"config":"{"}`, 201, `"config":"{"`},
		"a null in the text":       {``, `"spec":{"config":"\u0000"}`, 201, `"config":"\u0000"`},
		"a large number":           {``, `"spec":{"config":"{\"vni\":12345678901234567890, \"b\":1.0, \"a\":[ ]}"}`, 201, `{\"vni\":12345678901234567890, \"b\":1.0, \"a\":[ ]}`},
		"another key is dropped":   {``, `"spec":{"config":"{}","other":1},"more":2`, 201, `"spec":{"config":"{}"}`},
		"a megabyte":               {``, `"spec":{"config":"` + strings.Repeat("x", 1<<20) + `"}`, 201, ""},
		"a name of a domain":       {`"name":"a.b-c.d",`, ``, 201, ""},
		"config is an object":      {``, `"spec":{"config":{}}`, 422, "spec.config"},
		"config is a number":       {``, `"spec":{"config":1}`, 422, "spec.config"},
		"spec is a string":         {``, `"spec":"{}"`, 422, "spec"},
		"more than etcd takes":     {``, `"spec":{"config":"` + strings.Repeat("x", 7<<18) + `"}`, 500, "too large"},
		"sixteen megabytes":        {``, `"spec":{"config":"` + strings.Repeat("x", 16<<20) + `"}`, 413, "too large"},
		"a name with a slash":      {`"name":"a/b",`, ``, 422, "metadata.name"},
		"a name of capitals":       {`"name":"Green",`, ``, 422, "metadata.name"},
		"a name with ..":           {`"name":"..",`, ``, 422, "metadata.name"},
		"an annotation of numbers": {`"annotations":{"k8s.v1.cni.cncf.io/resourceName":1},`, ``, 400, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body := `{"apiVersion":"k8s.cni.cncf.io/v1","kind":"NetworkAttachmentDefinition","metadata":{` + tt.metadata + `"generateName":"test-"}`
			if tt.rest != "" {
				body += "," + tt.rest
			}
			got := request(t, w.Admin(), http.MethodPost, path, body+"}")
			got.is(t, tt.code, tt.text)
			if strings.Contains(got.Body, `"more"`) || strings.Contains(got.Body, `"other"`) {
				t.Errorf("unknown keys: %s", got.Body)
			}
		})
	}
}

func TestShortNamesOfDefinitions(t *testing.T) {
	t.Parallel()
	w := world(t)
	namespace := w.Namespace(t)
	w.Kubectl(t, definition(namespace, "green", "{}"), "create", "-f", "-")
	for _, name := range []string{"nad", "net-attach-def", "network-attachment-definition"} {
		if got := w.Kubectl(t, "", "get", name, "-n", namespace, "-o", "name"); !strings.HasSuffix(got, "/green\n") {
			t.Errorf("get %s: %q", name, got)
		}
	}
}

// A sandbox is what the runtime has of a pod.
type sandbox struct {
	process.Pod
	pod    *corev1.Pod
	untold bool   // the runtime passes no annotations
	more   object // of runtimeConfig
}

// pod creates a pod on the node, and a sandbox for it. It selects networks, or none.
func (n *node) pod(name, networks string) *sandbox {
	n.t.Helper()
	pod := server.PodOn(n.name, n.namespace, name)
	if networks != "" {
		pod.Annotations = map[string]string{networksAnnotation: networks}
	}
	return n.sandbox(n.Pod(n.t, pod))
}

// sandbox makes a sandbox for a pod.
func (n *node) sandbox(pod *corev1.Pod) *sandbox {
	n.t.Helper()
	s := &sandbox{Pod: *n.host.Pod(nil), pod: pod}
	s.Namespace, s.Name, s.UID = pod.Namespace, pod.Name, string(pod.UID)
	if n.root != "" {
		n.write(nil, "root"+s.NetNS)
		n.bind(s.NetNS, n.root+s.NetNS)
	}
	return s
}

// cni runs a command as the runtime does. valid are the sandboxes that a GC leaves. An error
// is the plugin's.
func (n *node) cni(command string, s *sandbox, valid ...*sandbox) error {
	n.t.Helper()
	conf := maps.Clone(n.network)
	if !s.untold {
		annotations := map[string]string{"kubernetes.io/config.source": "api"}
		maps.Copy(annotations, s.pod.Annotations)
		args := object{"io.kubernetes.cri.pod-annotations": annotations}
		maps.Copy(args, s.more)
		conf["runtimeConfig"] = args
	}
	plugins := n.plugins
	if n.root == "" {
		plugins = host.Programs()
	}
	env := n.host.Env(command, &s.Pod)
	env["CNI_PATH"] = plugins
	if command == "GC" {
		all := []object{}
		for _, v := range valid {
			all = append(all, object{"containerID": v.ID, "ifname": "eth0"})
		}
		conf["cni.dev/valid-attachments"] = all
	} else if command != "ADD" && command != "STATUS" && s.Result != nil {
		conf["prevResult"] = s.Result
	}
	stdin, err := json.Marshal(conf)
	nodetest.OK(n.t, err)
	a := n.host.Wait(n.host.Exec(filepath.Join(plugins, n.network["type"].(string)), env, stdin))
	if a.Code != 0 {
		return cmp.Or(a.Err, &types.Error{Msg: "killed"})
	}
	if command == "ADD" {
		s.Result = a.Stdout
	}
	return nil
}

// ok runs a command that must succeed.
func (n *node) ok(command string, s *sandbox, valid ...*sandbox) {
	n.t.Helper()
	if err := n.cni(command, s, valid...); err != nil {
		n.t.Errorf("%s of %s: %v", command, s.pod.Name, err)
	}
}

// fails runs a command that must fail with a code and a text.
func (n *node) fails(command string, s *sandbox, code uint, text string) {
	n.t.Helper()
	e := &types.Error{}
	if err := n.cni(command, s); !errors.As(err, &e) || e.Code != code || !strings.Contains(err.Error(), text) {
		n.t.Errorf("%s of %s: %v, want code %d and %q", command, s.pod.Name, err, code, text)
	}
}

// attached lists the interfaces of a sandbox with their addresses.
func (n *node) attached(s *sandbox) (all []string) {
	n.t.Helper()
	interfaces, err := host.Interfaces(s.NetNS)
	nodetest.OK(n.t, err)
	for _, i := range interfaces {
		if i.Name != "lo" {
			addresses := make([]string, 0, 1)
			for _, a := range i.Addresses {
				addresses = append(addresses, a.Addr().String())
			}
			all = append(all, fmt.Sprint(i.Name, addresses, i.MAC))
		}
	}
	slices.Sort(all)
	return all
}

// status returns the status that a pod has in the API: network, interface, addresses and
// MAC of each entry.
func (n *node) status(pod *corev1.Pod) (networks, interfaces []string) {
	n.t.Helper()
	got, err := n.Core(n.t, n.Admin()).Pods(pod.Namespace).Get(n.t.Context(), pod.Name, metav1.GetOptions{})
	nodetest.OK(n.t, err)
	var list []struct {
		Name, Interface, Mac string
		IPs                  []string
		Default              bool
	}
	text := got.Annotations[statusAnnotation]
	if text == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		n.t.Fatalf("%s: %v", text, err)
	}
	for i, entry := range list {
		if entry.Default != (i == 0) {
			n.t.Errorf("default: %s", text)
		}
		networks = append(networks, entry.Name)
		interfaces = append(interfaces, fmt.Sprint(entry.Interface, entry.IPs, entry.Mac))
	}
	return networks, interfaces
}

// right reports whether the status of a pod says what its sandbox has, with networks.
func (n *node) right(s *sandbox, networks ...string) bool {
	n.t.Helper()
	names, interfaces := n.status(s.pod)
	return slices.Equal(networks, names) && slices.Equal(n.attached(s), interfaces)
}

// wantRight waits until the status of a pod says what its sandbox has.
func (n *node) wantRight(s *sandbox, networks ...string) {
	n.t.Helper()
	if len(n.attached(s)) != len(networks) {
		n.t.Errorf("%s has %q, want %d interfaces", s.pod.Name, n.attached(s), len(networks))
	}
	eventually(n.t, func() bool { return n.right(s, networks...) })
}

// wantNothing fails unless nothing is left of sandboxes, and of all others.
func (n *node) wantNothing(all ...*sandbox) {
	n.t.Helper()
	for _, s := range all {
		nodetest.Equal(n.t, "interfaces of "+s.pod.Name, n.attached(s), nil)
	}
	nodetest.Equal(n.t, "records", glob(n.t, n.file("state/*/*")), nil)
	nodetest.Equal(n.t, "queued DELs", glob(n.t, n.file("queue/*")), nil)
	nodetest.Equal(n.t, "leases", n.leases(), nil)
}

// leases lists the addresses that are reserved.
func (n *node) leases() []string {
	n.t.Helper()
	return slices.DeleteFunc(glob(n.t, n.file("leases/*/*")), func(file string) bool {
		return net.ParseIP(filepath.Base(file)) == nil
	})
}

// glob lists files, without those whose names begin with a dot.
func glob(t testing.TB, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	nodetest.OK(t, err)
	return slices.DeleteFunc(files, func(file string) bool { return strings.HasPrefix(filepath.Base(file), ".") })
}

func bin(name string) string { return filepath.Join(host.Programs(), name) }
