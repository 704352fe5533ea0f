//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	definitions = 1000            // in the cluster
	rest        = 3 * time.Second // in which a daemon has nothing to do, before its memory is measured
)

// A daemon is a multinetd: without Kubernetes, or with a policy for the status of pods.
type daemon struct {
	policy string
	dir    string
	cmd    *exec.Cmd
}

// daemons compares multinet with multinet-shim and multinetd, which have a resident plugin
// as well: one pod after another, and all pods of a node at once.
func (r *rig) daemons(ctx context.Context, w io.Writer) (err error) {
	a, err := r.startAPI(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.stop()) }()
	contenders := []contender{{"multinet", "multinet", func(kind string, n int) object { return object{"delegates": r.delegates(kind, n)} }}}
	var running []*daemon
	defer func() {
		for _, d := range running {
			err = errors.Join(err, d.stop())
		}
	}()
	for _, policy := range []string{"none", "async", "wait"} {
		d, err := r.startDaemon(ctx, a, policy)
		if err != nil {
			return err
		}
		running = append(running, d)
		contenders = append(contenders, contender{"daemon, " + policy, "multinet-shim", func(kind string, n int) object { return d.shim(r.delegates(kind, n)) }})
	}
	t := contest(contenders)
	member := func() (pod, error) { return r.member(a) }
	if err := r.compare(ctx, t, contenders, []string{noop, bridge, resident}, member); err != nil {
		return err
	}
	if err := t.print(w, "## Shim and daemon, ms\n\nnone: without Kubernetes; async, wait: in a cluster, by \"statusPolicy\". "+
		"In parentheses: ratio to multinet in the same round."); err != nil {
		return err
	}
	t = &table{text: 1, head: []string{"Kubernetes", "ADD, median, ms", "all, s", "peak, MB", "at rest, private, MB"}}
	for _, d := range running {
		row, err := r.crowd(ctx, a, d)
		if err != nil {
			return err
		}
		t.row(row...)
	}
	return t.print(w, fmt.Sprintf("## %d pods at once\n\nTwo networks that do nothing for each pod.", r.pods))
}

// crowd starts all pods at once, as after a reboot, and removes them.
func (r *rig) crowd(ctx context.Context, a *api, d *daemon) (row []string, err error) {
	defer func() { err = errors.Join(err, r.sweep()) }()
	stdin, err := r.conf("crowd", d.shim(r.delegates(noop, 2)))
	if err != nil {
		return nil, err
	}
	pods := make([]pod, r.pods)
	for i := range pods {
		if pods[i], err = r.member(a); err != nil {
			return nil, err
		}
	}
	each := func(command string) ([]float64, error) {
		took, errs := make([]float64, len(pods)), make([]error, len(pods))
		var running sync.WaitGroup
		for i, p := range pods {
			running.Go(func() {
				took[i], errs[i] = r.run(ctx, call{program: "multinet-shim", command: command, pod: p, stdin: stdin})
			})
		}
		running.Wait()
		return took, errors.Join(errs...)
	}
	start := time.Now()
	took, err := each("ADD")
	all := time.Since(start)
	if err == nil {
		err = pause(ctx, rest)
	}
	if err != nil {
		return nil, err
	}
	peak, err := d.memory("VmHWM")
	if err != nil {
		return nil, err
	}
	private, err := d.memory("RssAnon")
	if err != nil {
		return nil, err
	}
	_, err = each("DEL")
	return []string{d.policy, figure(median(took)), figure(all.Seconds()), peak, private}, err
}

// startDaemon starts a daemon in a directory of its own.
func (r *rig) startDaemon(ctx context.Context, a *api, policy string) (*daemon, error) {
	d := &daemon{policy: policy, dir: r.file(policy)}
	relay := filepath.Join(d.dir, "relay")
	if err := os.MkdirAll(relay, 0o700); err != nil {
		return nil, err
	}
	if err := os.Link(r.file("bin", resident), filepath.Join(relay, "10-"+resident)); err != nil {
		return nil, err
	}
	conf := object{
		"socketDir": d.dir, "queueDir": filepath.Join(d.dir, "queue"), "cniDir": filepath.Join(d.dir, "state"),
		"binDir": r.file("bin"), "confDir": r.file("net.d"), "relayDir": relay, "logLevel": "error",
	}
	if policy != "none" {
		maps.Copy(conf, object{"kubeconfig": filepath.Join(a.dir, "kubeconfig"), "nodeName": "n1", "statusPolicy": policy})
	}
	text, err := json.Marshal(conf)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(d.dir, "daemon.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, err
	}
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(d.dir, "notify"), Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	defer func() { _ = notify.Close() }()
	d.cmd = r.process(ctx, r.file("bin", "multinetd"), "--config", file)
	d.cmd.Env = append(d.cmd.Env, "NOTIFY_SOCKET="+notify.LocalAddr().String())
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	_ = notify.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := notify.Read(make([]byte, 64)); err != nil {
		return nil, errors.Join(fmt.Errorf("multinetd is not ready: %w", err), d.stop())
	}
	return d, pause(ctx, rest) // until the resident plugin and the cluster are known
}

// stop ends the daemon.
func (d *daemon) stop() error {
	return errors.Join(d.cmd.Process.Signal(syscall.SIGTERM), d.cmd.Wait())
}

// shim returns the keys of the shim that uses d.
func (d *daemon) shim(delegates []object) object {
	return object{
		"type": "multinet-shim", "daemonSocketDir": d.dir, "delQueueDir": filepath.Join(d.dir, "queue"), "delQueueWait": "0s", "delegates": delegates,
		"runtimeConfig": object{"io.kubernetes.cri.pod-annotations": object{"kubernetes.io/config.source": "api"}}, // selects nothing
	}
}

// memory returns a line of the daemon's /proc/PID/status, such as VmHWM, in MB.
func (d *daemon) memory(line string) (string, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(d.cmd.Process.Pid) + "/status")
	if err != nil {
		return "", err
	}
	_, after, _ := strings.Cut(string(text), line+":")
	kilobytes, err := strconv.ParseFloat(strings.Fields(after + " none")[0], 64)
	return figure(kilobytes * 1024 / 1e6), err
}

// An api is the process of a Kubernetes API server, ../kube/testdata/api.
type api struct {
	dir     string // of its kubeconfig
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers *bufio.Reader
}

// startAPI starts an API server with definitions.
func (r *rig) startAPI(ctx context.Context) (*api, error) {
	a := &api{dir: r.file("api")}
	if err := os.Mkdir(a.dir, 0o700); err != nil {
		return nil, err
	}
	a.cmd = r.process(ctx, r.file("bin", "api"), a.dir)
	var err error
	if a.in, err = a.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	a.answers = bufio.NewReader(out)
	if err := a.cmd.Start(); err != nil {
		return nil, err
	}
	for i := range definitions {
		if _, err := a.ask("definition", fmt.Sprintf("net-%d", i), `{"cniVersion":"1.0.0","type":"macvlan","master":"eth0","ipam":{"type":"dhcp"}}`); err != nil {
			return nil, errors.Join(err, a.stop())
		}
	}
	return a, nil
}

// ask sends a line and returns the answer.
func (a *api) ask(words ...string) (string, error) {
	if _, err := io.WriteString(a.in, strings.Join(words, " ")+"\n"); err != nil {
		return "", err
	}
	text, err := a.answers.ReadString('\n')
	return strings.TrimSuffix(text, "\n"), err
}

func (a *api) stop() error { return errors.Join(a.in.Close(), a.cmd.Wait()) }

// member returns a new pod that the cluster has too.
func (r *rig) member(a *api) (pod, error) {
	p, err := r.pod()
	if err != nil {
		return p, err
	}
	uid, err := a.ask("pod", p.id)
	p.args = "K8S_POD_NAMESPACE=bench;K8S_POD_NAME=" + p.id + ";K8S_POD_INFRA_CONTAINER_ID=" + p.id + ";K8S_POD_UID=" + uid
	return p, err
}

// process returns a command that ends with this process, whose main thread starts it.
func (r *rig) process(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env, cmd.Stderr = r.environ(call{}), r.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// pause waits for d, or fails if ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
