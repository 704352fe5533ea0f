package runtimes

import (
	"context"
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/metacni/metacni/internal/test/process"
)

// daemonKeys are the keys of multinetd's file: it publishes its network to containerd.
func (n *node) daemonKeys(more object) object {
	keys := object{
		"socketDir": n.file("d"), "queueDir": n.file("queue"), "cniDir": n.file("state"), "binDir": os.Getenv(binEnv),
		"confDir": n.file("networks"), "nadDir": n.file("nads"), "logFormat": "json", "sweepInterval": "200ms",
		"multusConfigFile": "auto", "cniConfigDir": n.file("net.d"),
	}
	maps.Copy(keys, more)
	return keys
}

// startDaemon starts multinetd and waits until it is ready.
func (n *node) startDaemon(keys object) {
	n.t.Helper()
	n.writeJSON("daemon.json", keys)
	cmd := exec.Command(bin("multinetd"), "--config", n.file("daemon.json"))
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	var err error
	if n.daemon, err = process.Start(n.file("multinetd.log"), cmd); err != nil {
		n.t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", n.file("d", "multus.sock"))
	}}}
	eventually(n.t, func() bool {
		select {
		case <-n.daemon.Done:
			n.t.Fatalf("multinetd has ended\n%s", n.daemon.LastLines())
		default:
		}
		answer, err := client.Get("http://daemon/readyz")
		return err == nil && answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
	})
}

// killDaemon kills multinetd, if it runs.
func (n *node) killDaemon() { n.daemon.Kill() }

// tool runs one of multinet's operator commands, which must exit with a status. It returns
// what the command prints.
func (n *node) tool(status int, args ...string) string {
	n.t.Helper()
	cmd := exec.CommandContext(n.t.Context(), bin("multinet"), args...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	out, _ := cmd.CombinedOutput()
	if got := cmd.ProcessState.ExitCode(); got != status {
		n.t.Fatalf("multinet %s: exit status %d, want %d\n%s", strings.Join(args, " "), got, status, out)
	}
	return string(out)
}

// records lists container and interface of each record of the operator's list.
func (n *node) records() (all []string) {
	n.t.Helper()
	var records []struct{ Container, Interface, State string }
	if err := json.Unmarshal([]byte(n.tool(0, "list", "-o", "json", "--dir", n.file("state"))), &records); err != nil {
		n.t.Fatal(err)
	}
	for _, r := range records {
		all = append(all, r.Container+" "+r.Interface+" "+r.State)
	}
	return all
}

// waitForNetwork waits until containerd has loaded the network of a name.
func (n *node) waitForNetwork(name string) {
	n.t.Helper()
	eventually(n.t, func() bool {
		got, err := n.Status(n.t.Context(), &cri.StatusRequest{Verbose: true})
		if err != nil {
			n.t.Fatal(err)
		}
		var loaded struct {
			Networks []struct{ Config struct{ Name string } }
		}
		if err := json.Unmarshal([]byte(got.GetInfo()["cniconfig"]), &loaded); err != nil {
			n.t.Fatal(err)
		}
		last := len(loaded.Networks) - 1
		return last >= 0 && loaded.Networks[last].Config.Name == name
	})
}

func bin(name string) string { return filepath.Join(os.Getenv(binEnv), name) }
