package runtimes

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A cnitool is a machine with cnitool, and one network namespace.
type cnitool struct {
	*machine
	netns string
}

func newCnitool(t *testing.T) *cnitool {
	t.Helper()
	needs(t, missing)
	c := &cnitool{newMachine(t), "/run/netns/blue"}
	c.ok(nil, "ip", "netns", "add", "blue")
	return c
}

// do runs a command of cnitool.
func (c *cnitool) do(command string) report {
	c.t.Helper()
	return c.run([]string{
		"NETCONFPATH=" + c.file("net.d"), "CNI_PATH=" + c.file("bin"),
		`CAP_ARGS={"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}`,
	}, c.file("bin", "cnitool"), command, "multi", c.netns)
}

// succeeds runs a command that must succeed, and returns what it prints.
func (c *cnitool) succeeds(command string) string {
	c.t.Helper()
	r := c.do(command)
	if r.code != 0 || r.stderr != "" {
		c.t.Fatalf("%s: exit status %d: %s%s", command, r.code, r.stdout, r.stderr)
	}
	return r.stdout
}

// fails runs a command that must fail with a text.
func (c *cnitool) fails(command, want string) {
	c.t.Helper()
	if r := c.do(command); r.code != 1 || strings.TrimSpace(r.stderr) != want || r.stdout != "" {
		c.t.Errorf("%s: exit status %d: %s%s\nwant 1: %s", command, r.code, r.stdout, r.stderr, want)
	}
}

// TestCnitool: every command of cnitool works with multinet, and with the shim and the
// daemon; the texts of errors are ours.
func TestCnitool(t *testing.T) {
	for typ, keys := range map[string]object{
		"multinet":      {},
		"multinet-shim": {"type": "multinet-shim", "daemonSocketDir": "/run/multus", "delPolicy": "fail", "delQueueWait": "0s"},
	} {
		t.Run(typ, func(t *testing.T) {
			c := newCnitool(t)
			c.script("refuse", `ADD) echo '{"cniVersion":"1.0.0","code":101,"msg":"no free device","details":"all in use"}'; exit 1 ;;
STATUS) echo '{"cniVersion":"1.1.0","code":51,"msg":"few devices"}'; exit 1 ;;`)
			c.multinet("1.1.0", keys, several()...)
			if typ == "multinet-shim" {
				c.fails("status", "STATUS over /run/multus/multus.sock: the daemon is not running: connect: no such file or directory")
				c.startDaemon()
			}
			id := "cnitool-df26705e2e4ffd095eb1" // of the path of the namespace

			same(t, "printed by status", "", c.succeeds("status"))
			var result struct {
				CNIVersion string
				IPs        []struct{ Address string }
			}
			if err := json.Unmarshal([]byte(c.succeeds("add")), &result); err != nil {
				t.Fatal(err)
			}
			if result.CNIVersion != "1.1.0" || len(result.IPs) != 1 || result.IPs[0].Address != "10.77.0.2/24" {
				t.Errorf("result %+v", result)
			}
			same(t, "interfaces", []string{"eth0 10.77.0.2", "net1 10.77.1.2", "net2 10.77.2.2"}, interfaces(t, c.path(c.netns)))
			if all := strings.Join(c.rules(), "\n"); !strings.Contains(all, "--dport 8080 -j DNAT --to-destination 10.77.0.2:80") {
				t.Errorf("rules:\n%s", all)
			}
			c.fails("add", `plugin type="`+typ+`" failed (add): ADD `+id+` eth0: already added, DEL must come first`)
			c.succeeds("check")
			c.ok(nil, "ip", "-n", "blue", "link", "delete", "net1")
			c.fails("check", `CHECK `+id+` eth0: network "second" (net1): plugin "bridge": Interface name net1 not found`)
			c.succeeds("del")
			c.succeeds("del")
			c.wantNothing(c.netns)
			c.fails("check", "CHECK "+id+" eth0: not added, or not completely")

			// cnitool first deletes what is in its cache, and then sends no list.
			c.succeeds("add")
			c.fails("gc", `failed to GC plugin `+typ+`: GC network "multi": no list of valid attachments, nothing was deleted: `+
				`GC needs "cni.dev/valid-attachments", which container runtimes send and cnitool does not`)
			c.wantNothing(c.netns)

			c.multinet("1.1.0", keys, append(several(), object{"name": "fourth", "type": "refuse"})...)
			c.fails("status", `STATUS network "fourth": plugin "refuse": few devices`)
			c.fails("add", `plugin type="`+typ+`" failed (add): ADD `+id+` eth0: network "fourth" (net3): plugin "refuse": no free device; all in use`)
			c.wantNothing(c.netns)
		})
	}
}

// startDaemon starts multinetd on the machine and waits until it is ready.
func (c *cnitool) startDaemon() *exec.Cmd {
	c.t.Helper()
	c.write("daemon.json", `{"socketDir":"/run/multus","queueDir":"`+c.file("queue")+`","cniDir":"`+c.file("state")+`"}`)
	cmd := exec.Command(filepath.Join(c.file("bin"), "multinetd"), "--config", c.file("daemon.json"))
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	var log strings.Builder
	cmd.Stderr = &log
	if err := c.start(cmd); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if c.t.Failed() {
			c.t.Log(log.String())
		}
	})
	eventually(c.t, func() bool { return c.do("status").code == 0 })
	return cmd
}
