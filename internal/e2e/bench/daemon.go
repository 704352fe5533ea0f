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
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/metacni/metacni/delegate/thick/wire"
)

// patience limits how long daemons may take for anything.
const patience = time.Minute

// An api is the process of a Kubernetes API server, ../kube/testdata/api.
type api struct {
	dir     string // of its kubeconfig
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers *bufio.Reader
}

// startAPI starts an API server.
func (r *rig) startAPI(ctx context.Context) (*api, error) {
	a := &api{dir: r.file("api")}
	if err := os.Mkdir(a.dir, 0o700); err != nil {
		return nil, err
	}
	a.cmd = r.process(ctx, r.file("bin", "api"), a.dir)
	a.cmd.Stderr = r.stderr
	var err error
	if a.in, err = a.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	a.answers = bufio.NewReader(out)
	return a, a.cmd.Start()
}

// ask sends a line and returns the answer.
func (a *api) ask(words ...string) (string, error) {
	if _, err := io.WriteString(a.in, strings.Join(words, " ")+"\n"); err != nil {
		return "", err
	}
	text, err := a.answers.ReadString('\n')
	return strings.TrimSuffix(text, "\n"), err
}

// requests returns the number of requests so far, by verb and resource.
func (a *api) requests() (count map[string]int, err error) {
	text, err := a.ask("requests")
	if err == nil {
		err = json.Unmarshal([]byte(text), &count)
	}
	return count, err
}

func (a *api) stop() error { return errors.Join(a.in.Close(), a.cmd.Wait()) }

// A daemon is a multinetd.
type daemon struct {
	dir string
	cmd *exec.Cmd
}

// startDaemon starts a daemon with keys in a directory of its own, and returns how long
// that took until it was ready. program is "bin" or "stripped".
func (r *rig) startDaemon(ctx context.Context, program, name string, keys object) (d *daemon, ready time.Duration, err error) {
	d = &daemon{dir: r.file(name)}
	if err := os.Mkdir(d.dir, 0o700); err != nil {
		return nil, 0, err
	}
	conf := object{
		"socketDir": d.dir, "queueDir": d.file("queue"), "cniDir": d.file("state"),
		"binDir": r.file("bin"), "confDir": r.file("net.d"),
	}
	maps.Copy(conf, keys)
	text, err := json.Marshal(conf)
	if err != nil {
		return nil, 0, err
	}
	if err := os.WriteFile(d.file("daemon.json"), text, 0o600); err != nil {
		return nil, 0, err
	}
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: d.file("notify"), Net: "unixgram"})
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = notify.Close() }()
	log, err := os.Create(d.file("log"))
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = log.Close() }()
	d.cmd = r.process(ctx, r.file(program, "multinetd"), "--config", d.file("daemon.json"))
	d.cmd.Env = append(d.cmd.Env, "NOTIFY_SOCKET="+d.file("notify"))
	d.cmd.Stderr = log
	start := time.Now()
	if err := d.cmd.Start(); err != nil {
		return nil, 0, err
	}
	_ = notify.SetReadDeadline(start.Add(patience))
	told := make([]byte, 64)
	n, err := notify.Read(told)
	ready = time.Since(start)
	if err != nil || string(told[:n]) != "READY=1" {
		said, _ := os.ReadFile(log.Name())
		return nil, 0, errors.Join(fmt.Errorf("multinetd is not ready: %q, %w\n%s", told[:n], err, said), d.stop())
	}
	return d, ready, nil
}

func (d *daemon) file(name string) string { return filepath.Join(d.dir, name) }

// stop ends the daemon, if d is not nil.
func (d *daemon) stop() error {
	if d == nil {
		return nil
	}
	return errors.Join(d.cmd.Process.Signal(syscall.SIGTERM), d.cmd.Wait(), os.RemoveAll(d.dir))
}

// process returns a command that ends with this process.
func (r *rig) process(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = r.environ(call{})
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// shim returns the path of a configuration of the shim, with more keys, that uses d.
func (r *rig) shim(d *daemon, name string, keys object) (string, error) {
	all := object{"type": "multinet-shim", "daemonSocketDir": d.dir, "delQueueDir": d.file("queue"), "delQueueWait": "0s"}
	maps.Copy(all, keys)
	return r.conf(filepath.Base(d.dir)+"-"+name+".json", all)
}

// metric returns the sum of the series of d whose names begin with prefix.
func (d *daemon) metric(ctx context.Context, prefix string) (sum float64, err error) {
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", d.file(wire.SocketName))
	}}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://daemon/metrics", nil)
	if err != nil {
		return 0, err
	}
	answer, err := c.Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	for line := range strings.Lines(string(text)) {
		if series, value, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasPrefix(series, prefix) {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return 0, err
			}
			sum += v
		}
	}
	return sum, err
}

// memory returns a line of the daemon's /proc/PID/status, such as VmRSS, in bytes.
func (d *daemon) memory(line string) (float64, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(d.cmd.Process.Pid) + "/status")
	if err != nil {
		return 0, err
	}
	_, after, _ := strings.Cut(string(text), line+":")
	kilobytes, err := strconv.ParseFloat(strings.Fields(after + " none")[0], 64)
	return kilobytes * 1024, err
}

// until waits until done. It fails if that does not happen.
func until(ctx context.Context, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("it does not happen that %s", what))
	defer cancel()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
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
