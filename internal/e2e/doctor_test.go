package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// TestDoctorSaysWhatIsWrong runs multinet doctor on a node with real plugins and pods, which is
// healthy and then is not.
func TestDoctorSaysWhatIsWrong(t *testing.T) {
	n := newLiveNode(t)
	n.network("blue", n.with(n.bridge(1), object{"cniVersion": "1.0.0"}))
	n.write(n.primary(), "cni", "10-primary.conflist")
	before := n.startPod("")
	n.install()
	pod, dies := n.startPod("blue"), n.startPod("")
	wrong := func() []string {
		t.Helper()
		return n.wrong(n.operator(-1, slices.Concat([]string{"doctor", "-o", "json", "--dir", n.file("state")}, n.places())...))
	}
	nodetest.Equal(t, "on a healthy node", wrong(), nil)
	dies.dies()
	nodetest.OK(t, os.Remove(n.recordFile(before.pod, "state")))
	n.network("blue", object{"cniVersion": "1.0.0", "type": "absent"})
	want := []string{
		`plugins problem plugin "absent": not found in ` + n.bin,
		"records problem records of containers that are dead, or half attached, 1: " + dies.id,
		"cache problem containers of the cluster network without a record, 1: " + before.id,
	}
	got := wrong()
	for end := time.Now().Add(time.Minute); !slices.Equal(got, want) && time.Now().Before(end); got = wrong() {
		continue // the kernel is still removing the interfaces of the dead
	}
	nodetest.Equal(t, "on a node that is not", got, want)
	n.operator(0, "gc", "--dir", n.file("state"), "--bin-dir", n.bin)
	n.operator(0, "adopt", "--dir", n.file("state"), "--conf-dir", n.file("cni"), "--cache-dir", n.file("cache"), "--multus-dir", n.file("multus"))
	nodetest.OK(t, os.Remove(n.file("cache", "results", "multinet-"+dies.id+"-eth0")))
	nodetest.Equal(t, "after what it says to do", wrong(), want[:1])
	pod.check()

	// A cluster network with a program that nobody can run.
	n.uninstall(0, "--detach")
	program := filepath.Join(n.bin, "doctor-"+before.id)
	nodetest.OK(t, os.WriteFile(program, nil, 0o600))
	defer func() { nodetest.OK(t, os.Remove(program)) }()
	n.write(object{"cniVersion": "1.0.0", "name": "new", "type": filepath.Base(program)}, "cni", "05-new.conf")
	said := n.operator(1, slices.Concat([]string{"install"}, n.places(), []string{"--multus-dir", n.file("multus"), "--cni-dir", n.file("state")})...)
	if !strings.Contains(said.stderr, program+" is not a file that can be executed: install it first, chmod +x, ") || n.first().Name != "new" {
		t.Errorf("installed: %s", said.stderr)
	}
}

// wrong returns the findings of a doctor that are not ok, except about runtimes: the machine of
// the test may have one.
func (n *node) wrong(r report) (all []string) {
	n.Helper()
	var findings []struct{ Check, Verdict, Looked, Found string }
	nodetest.OK(n, json.Unmarshal([]byte(r.stdout), &findings))
	for _, f := range findings {
		if f.Check != "runtimes" && f.Verdict != "ok" {
			all = append(all, f.Check+" "+f.Verdict+" "+f.Found)
		}
	}
	return all
}

// TestDoctorAsksTheDaemon runs multinetd doctor while the daemon runs and while it does not.
func TestDoctorAsksTheDaemon(t *testing.T) {
	n := newNode(t)
	nodetest.OK(t, os.Mkdir(n.file("cni"), 0o700))
	n.write(n.with(n.chain(0, n.bridge(0)), object{"cniVersion": "1.0.0"}), "cni", "10-primary.conflist")
	d := n.daemon(daemonConf{keys: object{"multusConfigFile": "auto", "cniConfigDir": n.file("cni"), "cniCacheDir": n.file("cache"), "binDir": n.bin}})
	wrong := func() []string {
		t.Helper()
		r := n.exec(built("multinetd"), map[string]string{"PATH": n.path}, nil, "doctor", "-o", "json", "--config", n.file("daemon.json"))
		_ = r.cmd.Wait()
		return n.wrong(report{string(r.stdout.text), string(r.stderr.text)})
	}
	nodetest.Equal(t, "while it runs", wrong(), nil)
	d.kill()
	nodetest.Equal(t, "afterwards", wrong(), []string{"daemon problem no daemon answers on " + n.socket() + ": connect: connection refused"})
}
