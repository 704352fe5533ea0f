package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// object is a JSON object.
type object = map[string]any

// A pod is one attachment as the runtime knows it.
type pod struct {
	id, netns, ifname string
	conf              object            // network configuration with name, version and type
	annotations       map[string]string // annotations of the Kubernetes pod
	result            json.RawMessage   // result of ADD
}

// selects sets the annotation with which p selects networks.
func (p *pod) selects(networks string) *pod {
	p.annotations = map[string]string{"k8s.v1.cni.cncf.io/networks": networks, "other": "annotation"}
	return p
}

// with adds the keys of more to conf.
func (n *node) with(conf, more object) object {
	maps.Copy(conf, more)
	return conf
}

// An answer is what a plugin returned.
type answer struct {
	code   int // exit status
	stdout []byte
	stderr string
	took   time.Duration
	err    *types.Error // the error object on stdout if the plugin failed
}

// A running plugin has been started and has received its configuration.
type running struct {
	cmd            *exec.Cmd
	start          time.Time
	stdout, stderr head
}

// A head keeps the first megabyte of a program's output. It can be read while it is
// written.
type head struct {
	mu   sync.Mutex
	text []byte
}

func (h *head) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return string(h.text)
}

func (h *head) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.text = append(h.text, p[:min(len(p), 1<<20-len(h.text))]...)
	return len(p), nil
}

// extra changes a request before it is sent.
type extra func(env map[string]string, conf object)

// withoutNetNS changes a DEL to the one that containerd sends when it removes a
// sandbox.
func withoutNetNS(env map[string]string, conf object) {
	env["CNI_NETNS"] = ""
	delete(conf, "prevResult")
}

// valid sets the runtime's list of valid attachments, for a GC.
func valid(pods ...*pod) extra {
	return func(_ map[string]string, conf object) {
		list := []object{}
		for _, p := range pods {
			list = append(list, object{"containerID": p.id, "ifname": p.ifname})
		}
		conf["cni.dev/valid-attachments"] = list
		conf["cni.dev/attachments"] = list
	}
}

// start starts the plugin that p's configuration names, as containerd does.
func (n *node) start(command string, p *pod, extras ...extra) *running {
	n.Helper()
	conf := maps.Clone(p.conf)
	if p.annotations != nil {
		conf["runtimeConfig"] = object{"io.kubernetes.cri.pod-annotations": p.annotations}
	}
	if p.result != nil && (command == "DEL" || command == "CHECK") && conf["cniVersion"] != "0.3.1" {
		conf["prevResult"] = p.result
	}
	env := map[string]string{"CNI_COMMAND": command, "CNI_PATH": n.bin, "PATH": n.path}
	if command != "GC" && command != "STATUS" && command != "VERSION" {
		args := []string{
			"IgnoreUnknown=1", "K8S_POD_NAMESPACE=default", "K8S_POD_NAME=" + p.id,
			"K8S_POD_INFRA_CONTAINER_ID=" + p.id, "K8S_POD_UID=4f8c",
		}
		rand.Shuffle(len(args), func(i, j int) { args[i], args[j] = args[j], args[i] })
		env["CNI_ARGS"] = strings.Join(args, ";")
		env["CNI_CONTAINERID"], env["CNI_NETNS"], env["CNI_IFNAME"] = p.id, p.netns, p.ifname
	}
	for _, x := range extras {
		x(env, conf)
	}
	stdin, err := json.Marshal(conf)
	nodetest.OK(n, err)
	plugin := filepath.Join(n.from, fmt.Sprint(p.conf["type"]))
	if env["METACNI_STEPS"] != "" {
		plugin = filepath.Join(stepping, plugin)
	}
	return n.exec(built(plugin), env, stdin)
}

// exec starts an executable with exactly env and stdin.
func (n *node) exec(path string, env map[string]string, stdin []byte, args ...string) *running {
	n.Helper()
	// A plugin that runs longer hangs. It is killed, and its test fails.
	ctx, cancel := context.WithTimeout(n.Context(), 5*time.Minute)
	n.Cleanup(cancel)
	r := &running{cmd: exec.CommandContext(ctx, path, args...), start: time.Now()}
	for _, k := range slices.Sorted(maps.Keys(env)) {
		r.cmd.Env = append(r.cmd.Env, k+"="+env[k])
	}
	r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr = bytes.NewReader(stdin), &r.stdout, &r.stderr
	r.cmd.WaitDelay = time.Second
	start := r.cmd.Start
	if n.scan {
		start = func() error { return startWithoutHandles(r.cmd) }
	}
	nodetest.OK(n, start())
	return r
}

// wait returns the plugin's answer. It fails the test unless stdout is what the
// specification asks for: one JSON object, or nothing.
func (n *node) wait(r *running) answer {
	n.Helper()
	err := r.cmd.Wait()
	a := answer{stdout: r.stdout.text, stderr: string(r.stderr.text), took: time.Since(r.start)}
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		a.code = failed.ExitCode()
	} else if err != nil {
		n.Fatalf("%s: %v", r.cmd.Path, err)
	}
	for _, word := range []string{"panic: ", "fatal error: ", "DATA RACE"} {
		if strings.Contains(a.stderr, word) {
			n.Fatalf("%s: %s", r.cmd.Path, a.stderr)
		}
	}
	if a.code == -1 {
		return a // killed
	}
	if a.code != 0 {
		a.err = &types.Error{}
		if err := decodeOne(a.stdout, a.err); err != nil {
			n.Fatalf("exit status %d, and stdout is no error: %v: %q (stderr %q)", a.code, err, a.stdout, a.stderr)
		}
		if a.err.Code == 0 {
			n.Errorf("an error without a code: %s", a.stdout)
		}
	} else if len(bytes.TrimSpace(a.stdout)) > 0 {
		if err := decodeOne(a.stdout, &object{}); err != nil {
			n.Fatalf("stdout: %v: %q", err, a.stdout)
		}
	}
	return a
}

// decodeOne decodes data, which must be exactly one JSON value.
func decodeOne(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON value")
	}
	return nil
}

// call runs a plugin and waits until it exits.
func (n *node) call(command string, p *pod, extras ...extra) answer {
	n.Helper()
	return n.wait(n.start(command, p, extras...))
}

// ok runs a plugin that must succeed. It keeps the result of an ADD in p.
func (n *node) ok(command string, p *pod, extras ...extra) answer {
	n.Helper()
	a := n.call(command, p, extras...)
	if a.code != 0 {
		n.Fatalf("%s %s: %s (stderr %q)", command, p.id, a.stdout, a.stderr)
	}
	if command == "ADD" {
		p.result = a.stdout
	} else if command != "VERSION" && len(bytes.TrimSpace(a.stdout)) > 0 {
		n.Errorf("%s %s: printed %q", command, p.id, a.stdout)
	}
	return a
}

// done waits for a plugin that must succeed.
func (n *node) done(r *running) {
	n.Helper()
	if a := n.wait(r); a.code != 0 {
		n.Errorf("%v: %s (stderr %q)", r.cmd.Env, a.stdout, a.stderr)
	}
}

// fails runs a plugin that must fail with code and an error text that contains
// each of words.
func (n *node) fails(code uint, command string, p *pod, words []string, extras ...extra) answer {
	n.Helper()
	a := n.call(command, p, extras...)
	n.failed(a, code, words...)
	return a
}

func (n *node) failed(a answer, code uint, words ...string) {
	n.Helper()
	if a.err == nil {
		n.Fatalf("exit status %d, want an error: %q (stderr %q)", a.code, a.stdout, a.stderr)
	}
	if a.err.Code != code {
		n.Errorf("code %d, want %d: %s", a.err.Code, code, a.stdout)
	}
	for _, word := range words {
		if !strings.Contains(a.err.Msg+" "+a.err.Details, word) {
			n.Errorf("the error does not say %q: %s", word, a.stdout)
		}
	}
}

// newPods returns n pods, each with a configuration of its own.
func (n *node) newPods(count int, conf func() object) []*pod {
	n.Helper()
	pods := make([]*pod, count)
	for i := range pods {
		pods[i] = n.pod(conf())
	}
	return pods
}

// all starts a command for every pod at the same time.
func (n *node) all(command string, pods []*pod, extras ...extra) []*running {
	n.Helper()
	rs := make([]*running, len(pods))
	for i, p := range pods {
		rs[i] = n.start(command, p, extras...)
	}
	return rs
}

// allOK runs a command, which must succeed, for every pod at the same time.
func (n *node) allOK(command string, pods []*pod, extras ...extra) {
	n.Helper()
	for i, r := range n.all(command, pods, extras...) {
		a := n.wait(r)
		if a.code != 0 {
			n.Errorf("%s %s: %s %s", command, pods[i].id, a.stdout, a.stderr)
		}
		if command == "ADD" {
			pods[i].result = a.stdout
		}
	}
}

// decode returns the result of p's ADD, which must have the version.
func decode(t testing.TB, p *pod, version string) *types100.Result {
	t.Helper()
	r, err := create.Create(version, p.result)
	if err != nil {
		t.Fatalf("result %s: %v", p.result, err)
	}
	var v struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(p.result, &v); err != nil || v.CNIVersion != version {
		t.Errorf("result of version %q, want %q", v.CNIVersion, version)
	}
	r100, err := types100.NewResultFromResult(r)
	nodetest.OK(t, err)
	return r100
}

// killed runs a command and kills its plugin, but not the plugins that it runs,
// once one of them hangs or waits for its gate.
func (n *node) killed(command string, p *pod) {
	n.Helper()
	r := n.start(command, p)
	n.ready()
	n.kill(r)
}

// kill kills a plugin, but not the plugins that it runs.
func (n *node) kill(r *running) {
	n.Helper()
	nodetest.OK(n, r.cmd.Process.Kill())
	_ = r.cmd.Wait() // killed
}

// waitsForLock waits until a plugin that cannot get the lock of its container
// has opened the state directory.
func (n *node) waitsForLock(r *running) {
	n.Helper()
	n.until("DEL waits for the lock", func() bool {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", r.cmd.Process.Pid))
		return slices.ContainsFunc(fds, func(fd string) bool {
			file, _ := os.Readlink(fd)
			return strings.HasPrefix(file, n.file("state"))
		})
	})
}

// A report is the output of one of multinet's operator commands.
type report struct{ stdout, stderr string }

// operate runs one of multinet's operator commands on the node's state directory, without
// a terminal. It must exit with the status code, or with any of 0 and 1 if code is -1.
func (n *node) operate(code int, words ...string) report {
	n.Helper()
	return n.operator(code, append(words, "--dir", n.file("state"))...)
}

// collect runs gc until done is true: the kernel may have a namespace for a while after the last
// who could use it.
func (n *node) collect(done func() bool, flags ...string) {
	n.Helper()
	for end := time.Now().Add(time.Minute); ; {
		n.operator(0, append([]string{"gc"}, flags...)...)
		if done() || time.Now().After(end) {
			return
		}
	}
}

func (n *node) operator(code int, words ...string) report {
	n.Helper()
	r := n.exec(built(filepath.Join(n.from, "multinet")), map[string]string{"PATH": n.path}, nil, words...)
	_ = r.cmd.Wait()
	if got := r.cmd.ProcessState.ExitCode(); got != code && (code >= 0 || got > 1) || strings.Contains(string(r.stderr.text), "panic: ") {
		n.Fatalf("multinet %s: exit status %d, want %d: %s%s", strings.Join(words, " "), got, code, r.stdout.text, r.stderr.text)
	}
	return report{string(r.stdout.text), string(r.stderr.text)}
}

// isRecord reports whether name, below a state directory, is p's record:
// CONTAINER@NETWORK@IFNAME.json.
func (p *pod) isRecord(name string) bool {
	return strings.HasPrefix(name, p.id+"@") && strings.HasSuffix(name, "@"+p.ifname+".json")
}

// state lists the files in the state directory, without the one with which a daemon that starts
// tries whether it can write.
func (n *node) state() []string {
	return slices.DeleteFunc(n.list(n.file("state")), func(name string) bool { return name == ".tmp-try" })
}

func (n *node) recordFile(p *pod, state string) string {
	n.Helper()
	names := n.list(n.file(state))
	return n.file(state, names[slices.IndexFunc(names, p.isRecord)])
}
