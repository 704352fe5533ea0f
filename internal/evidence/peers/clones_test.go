package peers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	npwg "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// Modules of others, and the versions that are compared, as in internal/evidence/matrix.
const (
	multus, multusVersion   = "gopkg.in/k8snetworkplumbingwg/multus-cni.v4", "v4.3.0"
	flannel, flannelVersion = "github.com/flannel-io/cni-plugin", "092e6d26e43c"
)

// build builds a package of another module, from the clone that METACNI_CLONES has for it:
// MODULE=DIRECTORY, separated by spaces. files are more files of it.
func build(t *testing.T, module, version, pkg string, files map[string]string) (path string) {
	t.Helper()
	var clone string
	for field := range strings.FieldsSeq(os.Getenv("METACNI_CLONES")) {
		if m, dir, _ := strings.Cut(field, "="); m == module {
			clone = dir
		}
	}
	if clone == "" {
		t.Skipf("METACNI_CLONES has no %s", module)
	}
	dir := t.TempDir()
	do := func(name string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=", "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
	}
	do("sh", "-c", `git --git-dir="$0" archive "$1" | tar -x`, clone, version)
	for name, text := range files {
		nodetest.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		nodetest.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	path = filepath.Join(t.TempDir(), "peer")
	args := []string{"build", "-trimpath", "-buildvcs=false", "-o", path}
	if _, err := os.Stat(filepath.Join(dir, "vendor")); err != nil {
		args = append(args, "-mod=mod")
	}
	do("go", append(args, pkg)...)
	return path
}

// reader is a program that reads annotations as Multus does.
const reader = `package main

import (
	"encoding/json"
	"io"
	"os"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"` + multus + `/pkg/k8sclient"
	"` + multus + `/pkg/logging"
)

type answer struct {
	Elements any
	Error    string
}

func read(text string) (a answer) {
	defer func() {
		if recover() != nil {
			a = answer{Error: "panic"}
		}
	}()
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Annotations: map[string]string{"k8s.v1.cni.cncf.io/networks": text}}}
	list, err := k8sclient.GetPodNetwork(pod)
	if _, none := err.(*k8sclient.NoK8sNetworkError); none {
		return a
	}
	if err != nil {
		return answer{Error: err.Error()}
	}
	return answer{Elements: list}
}

func main() {
	logging.SetLogStderr(false)
	var texts [][]byte
	data, err := io.ReadAll(os.Stdin)
	if err == nil {
		err = json.Unmarshal(data, &texts)
	}
	var answers []answer
	for _, text := range texts {
		answers = append(answers, read(string(text)))
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(answers)
	}
	if err != nil {
		panic(err)
	}
}
`

// Each difference to Multus is one to NPWG's client too.
func TestAnAnnotationMeansTheSameToMultus(t *testing.T) {
	t.Parallel()
	program := build(t, multus, multusVersion, "./cmd/reader", map[string]string{"cmd/reader/main.go": reader})
	g := generator{rand.New(rand.NewPCG(1, 2))}
	texts := make([][]byte, 8000)
	for i := range texts {
		texts[i] = []byte(strings.ReplaceAll(g.annotation(), `pam-claim-reference"`, `pam-claim"`)) // which Multus does not know
	}
	stdin, err := json.Marshal(texts)
	nodetest.OK(t, err)
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.Output()
	nodetest.OK(t, err)
	var answers []struct {
		Elements []npwg.NetworkSelectionElement
		Error    string
	}
	nodetest.OK(t, json.Unmarshal(out, &answers))
	nodetest.Equal(t, "answers", len(answers), len(texts))
	var met rows
	read := 0
	for i, a := range answers {
		theirs := reading{elements: a.Elements}
		if a.Error == errPanic.Error() {
			theirs.err = errPanic
		} else if a.Error != "" {
			theirs.err = errors.New(a.Error)
		}
		if compareReadings(t, &met, "Multus", string(texts[i]), theirs) {
			read++
		}
	}
	t.Logf("%d of %d annotations are read by both; %v", read, len(texts), met.met)
}

// Flannel's plugin and ours, with the same configuration and the same subnet.env, hand the same to
// the plugin that they delegate to.
func TestADelegateReceivesTheSameFromFlannel(t *testing.T) {
	t.Parallel()
	theirs := build(t, flannel, flannelVersion, ".", nil)
	ours := filepath.Join(t.TempDir(), "ours")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", ours, "./examples/flannel")
	cmd.Dir = "../../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	bin := t.TempDir()
	for _, name := range []string{"bridge", "ptp", "host-local"} { // prints nothing of its own, keeps what it receives
		script := "#!/bin/sh\ncat >\"$RECEIVED\"\necho '{\"cniVersion\":\"0.3.1\",\"ips\":[{\"version\":\"4\",\"address\":\"10.244.1.7/24\"}]}'\n"
		nodetest.OK(t, os.WriteFile(filepath.Join(bin, name), []byte(script), 0o700))
	}
	g := generator{rand.New(rand.NewPCG(9, 10))}
	const all = 200
	same := 0
	for i := range all {
		conf, env := g.flannel()
		dir := t.TempDir()
		nodetest.OK(t, os.WriteFile(filepath.Join(dir, "subnet.env"), []byte(env), 0o600))
		conf = strings.ReplaceAll(conf, "{dir}", dir)
		received := func(program string) (string, error) {
			received := filepath.Join(dir, filepath.Base(program)+".stdin")
			cmd := exec.CommandContext(t.Context(), program)
			cmd.Env = []string{"CNI_COMMAND=ADD", fmt.Sprint("CNI_CONTAINERID=c", i), fmt.Sprintf("CNI_NETNS=/proc/%d/ns/net", os.Getpid()), "CNI_NETNS_OVERRIDE=true", "RECEIVED=" + received, "CNI_IFNAME=metacnipeer0", "CNI_PATH=" + bin, "PATH=" + os.Getenv("PATH")}
			cmd.Stdin = strings.NewReader(conf)
			var stdout bytes.Buffer
			cmd.Stdout = &stdout
			if err := cmd.Run(); err != nil {
				return "", fmt.Errorf("%w: %s", err, stdout.String())
			}
			text, err := os.ReadFile(received)
			return string(text), err
		}
		a, theirErr := received(theirs)
		b, ourErr := received(ours)
		if (theirErr == nil) != (ourErr == nil) {
			t.Errorf("%s\n%s: flannel %v, ours %v", conf, env, theirErr, ourErr)
			continue
		}
		if theirErr == nil {
			same++
			if d := cmp.Diff(delegated(t, a), delegated(t, b)); d != "" {
				t.Errorf("%s\n%s (-flannel +metacni):\n%s", conf, env, d)
			}
		}
	}
	if same < all/2 {
		t.Errorf("%d of %d configurations are delegated", same, all)
	}
}

// delegated is what a plugin received.
func delegated(t *testing.T, text string) (keys map[string]any) {
	t.Helper()
	nodetest.OK(t, json.Unmarshal([]byte(text), &keys))
	return keys
}

// flannel returns a configuration of flannel's plugin, and a subnet.env.
func (g generator) flannel() (conf, env string) {
	keys := [][2]string{{"name", `"pods"`}, {"type", `"flannel"`}, {"subnetFile", `"{dir}/subnet.env"`}, {"dataDir", `"{dir}/state"`}, {"cniVersion", g.pick([]string{`"0.3.1"`, `"0.4.0"`, `"1.0.0"`}, nil)}}
	var delegate [][2]string
	for _, kv := range [][2]string{
		{"type", g.pick([]string{`"bridge"`, `"ptp"`}, []string{"7"})},
		{"mtu", "9000"},
		{"ipMasq", "true"},
		{"isGateway", "false"},
		{"hairpinMode", "true"},
		{"x", g.pick([]string{"null", `{"a":[1,"<&>"]}`}, nil)},
		{"name", ""},
		{"ipam", ""},
	} {
		if kv[1] == "" {
			if g.oneIn(40) {
				delegate = append(delegate, [2]string{kv[0], g.pick([]string{`"a"`, "{}"}, nil)})
			}
		} else if g.oneIn(2) {
			delegate = append(delegate, kv)
		}
	}
	if !g.oneIn(5) {
		keys = append(keys, [2]string{"delegate", g.object(delegate)})
	}
	if g.oneIn(3) {
		keys = append(keys, [2]string{"runtimeConfig", g.pick([]string{`{}`, `{"portMappings":[]}`, `{"mac":"02:00:00:00:00:01"}`}, nil)})
	}
	if g.oneIn(3) {
		keys = append(keys, [2]string{"ipam", g.pick([]string{`{}`, `{"type":"host-local"}`, `{"routes":[{"dst":"0.0.0.0/0"}]}`, `{"dataDir":"/d"}`}, nil)})
	}
	if g.oneIn(6) {
		keys = append(keys, [2]string{"capabilities", `{"portMappings":true}`})
	}
	subnet := netip.MustParsePrefix(g.pick([]string{"10.244.1.1/24", "10.244.9.1/25"}, nil))
	lines := []string{"FLANNEL_NETWORK=" + g.pick([]string{"10.244.0.0/16", "10.244.0.0/16,10.0.0.0/8", "10.244.0.0/16,10.244.0.0/16"}, []string{"x"}), "FLANNEL_SUBNET=" + subnet.String(), "FLANNEL_MTU=" + g.pick([]string{"1450"}, []string{"", "-1"}), "FLANNEL_IPMASQ=" + g.pick([]string{"true", "false"}, nil)}
	if g.oneIn(3) {
		lines = append(lines, "FLANNEL_IPV6_NETWORK=fd00:10::/48", "FLANNEL_IPV6_SUBNET=fd00:10:0:1::1/64")
	}
	if g.oneIn(20) {
		lines = lines[1:]
	}
	return g.object(keys), strings.Join(lines, "\n") + "\n"
}
