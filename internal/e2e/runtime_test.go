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
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
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

// A head keeps the first megabyte of a plugin's output.
type head struct{ text []byte }

func (h *head) Write(p []byte) (int, error) {
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

// detaches are the ways a runtime can get a container detached.
var detaches = []string{"DEL", "DEL without a namespace", "GC", "ADD"}

// detach detaches p in one of the ways of detaches. After an ADD it calls DEL.
func (w *world) detach(how string, p *pod) {
	w.t.Helper()
	switch how {
	case "DEL without a namespace":
		w.ok("DEL", p, withoutNetNS)
	case "GC":
		w.ok("GC", p, valid())
	case "ADD":
		w.ok("ADD", p)
		w.ok("DEL", p)
	default:
		w.ok(how, p)
	}
}

// checks runs a CHECK, which must fail in version 0.3.1: the specification has
// CHECK from 0.4.0 on.
func (w *world) checks(version string, p *pod) {
	w.t.Helper()
	if version == "0.3.1" {
		w.fails(1, "CHECK", p, nil)
	} else {
		w.ok("CHECK", p)
	}
}

// start starts the plugin that p's configuration names, as containerd does.
func (w *world) start(command string, p *pod, extras ...extra) *running {
	w.t.Helper()
	conf := maps.Clone(p.conf)
	if p.annotations != nil {
		conf["runtimeConfig"] = object{"io.kubernetes.cri.pod-annotations": p.annotations}
	}
	if p.result != nil && (command == "DEL" || command == "CHECK") && conf["cniVersion"] != "0.3.1" {
		conf["prevResult"] = p.result
	}
	env := map[string]string{"CNI_COMMAND": command, "CNI_PATH": w.bin, "PATH": w.path}
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
	if err != nil {
		w.t.Fatal(err)
	}
	plugin := fmt.Sprint(p.conf["type"])
	if env["METACNI_STEPS"] != "" {
		plugin = filepath.Join(stepping, plugin)
	}
	return w.exec(built(plugin), env, stdin)
}

// exec starts an executable with exactly env and stdin.
func (w *world) exec(path string, env map[string]string, stdin []byte) *running {
	w.t.Helper()
	// A plugin that runs longer hangs. It is killed, and its test fails.
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	w.t.Cleanup(cancel)
	r := &running{cmd: exec.CommandContext(ctx, path), start: time.Now()}
	for _, k := range slices.Sorted(maps.Keys(env)) {
		r.cmd.Env = append(r.cmd.Env, k+"="+env[k])
	}
	r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr = bytes.NewReader(stdin), &r.stdout, &r.stderr
	r.cmd.WaitDelay = time.Second
	if err := r.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	return r
}

// wait returns the plugin's answer. It fails the test unless stdout is what the
// specification asks for: one JSON object, or nothing.
func (w *world) wait(r *running) answer {
	w.t.Helper()
	err := r.cmd.Wait()
	a := answer{stdout: r.stdout.text, stderr: string(r.stderr.text), took: time.Since(r.start)}
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		a.code = failed.ExitCode()
	} else if err != nil {
		w.t.Fatalf("%s: %v", r.cmd.Path, err)
	}
	for _, word := range []string{"panic: ", "fatal error: ", "DATA RACE"} {
		if strings.Contains(a.stderr, word) {
			w.t.Fatalf("%s: %s", r.cmd.Path, a.stderr)
		}
	}
	if a.code == -1 {
		return a // killed
	}
	if a.code != 0 {
		a.err = &types.Error{}
		if err := decodeOne(a.stdout, a.err); err != nil {
			w.t.Fatalf("exit status %d, and stdout is no error: %v: %q (stderr %q)", a.code, err, a.stdout, a.stderr)
		}
		if a.err.Code == 0 {
			w.t.Errorf("an error without a code: %s", a.stdout)
		}
	} else if len(bytes.TrimSpace(a.stdout)) > 0 {
		if err := decodeOne(a.stdout, &object{}); err != nil {
			w.t.Fatalf("stdout: %v: %q", err, a.stdout)
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
func (w *world) call(command string, p *pod, extras ...extra) answer {
	w.t.Helper()
	return w.wait(w.start(command, p, extras...))
}

// ok runs a plugin that must succeed. It keeps the result of an ADD in p.
func (w *world) ok(command string, p *pod, extras ...extra) answer {
	w.t.Helper()
	a := w.call(command, p, extras...)
	if a.code != 0 {
		w.t.Fatalf("%s %s: %s (stderr %q)", command, p.id, a.stdout, a.stderr)
	}
	if command == "ADD" {
		p.result = a.stdout
	} else if command != "VERSION" && len(bytes.TrimSpace(a.stdout)) > 0 {
		w.t.Errorf("%s %s: printed %q", command, p.id, a.stdout)
	}
	return a
}

// done waits for a plugin that must succeed.
func (w *world) done(r *running) {
	w.t.Helper()
	if a := w.wait(r); a.code != 0 {
		w.t.Errorf("%v: %s (stderr %q)", r.cmd.Env, a.stdout, a.stderr)
	}
}

// fails runs a plugin that must fail with code and an error text that contains
// each of words.
func (w *world) fails(code uint, command string, p *pod, words []string, extras ...extra) answer {
	w.t.Helper()
	a := w.call(command, p, extras...)
	w.failed(a, code, words...)
	return a
}

func (w *world) failed(a answer, code uint, words ...string) {
	w.t.Helper()
	if a.err == nil {
		w.t.Fatalf("exit status %d, want an error: %q (stderr %q)", a.code, a.stdout, a.stderr)
	}
	if a.err.Code != code {
		w.t.Errorf("code %d, want %d: %s", a.err.Code, code, a.stdout)
	}
	for _, word := range words {
		if !strings.Contains(a.err.Msg+" "+a.err.Details, word) {
			w.t.Errorf("the error does not say %q: %s", word, a.stdout)
		}
	}
}

// newPods returns n pods, each with a configuration of its own.
func (w *world) newPods(n int, conf func() object) []*pod {
	w.t.Helper()
	pods := make([]*pod, n)
	for i := range pods {
		pods[i] = w.pod(conf())
	}
	return pods
}

// all starts a command for every pod at the same time.
func (w *world) all(command string, pods []*pod, extras ...extra) []*running {
	w.t.Helper()
	rs := make([]*running, len(pods))
	for i, p := range pods {
		rs[i] = w.start(command, p, extras...)
	}
	return rs
}

// allOK runs a command, which must succeed, for every pod at the same time.
func (w *world) allOK(command string, pods []*pod, extras ...extra) {
	w.t.Helper()
	for i, r := range w.all(command, pods, extras...) {
		a := w.wait(r)
		if a.code != 0 {
			w.t.Errorf("%s %s: %s %s", command, pods[i].id, a.stdout, a.stderr)
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
	if err != nil {
		t.Fatal(err)
	}
	return r100
}

// lab runs the demo with the executables that the tests built.
func (w *world) lab() answer {
	w.t.Helper()
	r := &running{cmd: exec.CommandContext(w.t.Context(), built("lab"), "-bin", w.bin)}
	r.cmd.Env = []string{"PATH=" + w.path}
	r.cmd.Stdout, r.cmd.Stderr = &r.stdout, &r.stderr
	_ = r.cmd.Run()
	return answer{code: r.cmd.ProcessState.ExitCode(), stdout: r.stdout.text, stderr: string(r.stderr.text)}
}
