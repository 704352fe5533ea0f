package life

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/examples/multinet/multinet"
)

// daemon kills multinetd, if it runs, and starts it. From now on the runtime has a shim at eth1.
func (n *node) daemon([]string) error {
	n.stopDaemon()
	n.thick = true
	err := errors.Join(n.write(n.secondNetwork(), "cni", "50-mnb.conflist"), n.write(object{
		"socketDir": n.file("d"), "queueDir": n.file("queue"), "cniDir": n.file("state"), "sweepInterval": "0s",
	}, "daemon.json"))
	if err != nil {
		return err
	}
	cmd := exec.Command(filepath.Join(n.bin, "multinetd"), "--config", n.file("daemon.json"))
	cmd.Env, cmd.Stdout, cmd.Stderr = []string{"PATH=" + path}, os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	n.multinetd, n.keepers[cmd.Process.Pid] = cmd, true
	return n.untilReady()
}

func (n *node) stopDaemon() {
	if n.multinetd != nil {
		_ = n.multinetd.Process.Kill()
		_ = n.multinetd.Wait()
		delete(n.keepers, n.multinetd.Process.Pid)
		n.multinetd = nil
	}
}

// untilReady waits until the daemon takes an ADD.
func (n *node) untilReady() error {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", n.file("d", multinet.SocketName))
	}}}
	for end := time.Now().Add(10 * time.Minute); ; <-time.After(2 * time.Millisecond) {
		r, err := client.Get("http://multinetd" + wire.PathReady)
		if err == nil {
			_ = r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(r.Status)
		}
		if time.Now().After(end) {
			return fmt.Errorf("multinetd does not begin: %w", err)
		}
	}
}
