package main

import (
	"bytes"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate/conform"
	"github.com/metacni/metacni/examples/internal/programtest"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// The tests here run multinet as a process, as a runtime does. Tests with real
// namespaces are in internal/e2e.

func TestMain(m *testing.M) { programtest.Main(m, "multinet", main) }

// conf is a configuration with a fake delegate, in which an ADD may be slow.
func conf(h *programtest.Host, version, fake string) string {
	return fmt.Sprintf(`{"cniVersion":%q,"name":"multi","type":"multinet","cniDir":%q,"slowAfter":"-1s","delegates":[{"type":"fake","dir":%q%s}]}`,
		version, h.State, h.Dir, fake)
}

func TestProcess(t *testing.T) {
	t.Parallel()
	programtest.Test(t, conf)
}

// Every execution of a plugin has the privileges of its type: those of all commands and the
// undo of an ADD. A mistake does not hinder a DEL.
func TestPrivilegesOfDelegates(t *testing.T) {
	t.Parallel()
	const on = `,"on":{"ADD":"privileges","CHECK":"privileges","DEL":"privileges","GC":"privileges","STATUS":"privileges"}`
	for value, want := range map[string]string{`"noNew"`: " noNew", `{"*":"keep","fake":"noNew"}`: " noNew", `{"*":"noNew","fake":"keep"}`: ""} {
		t.Run(value, func(t *testing.T) {
			t.Parallel()
			h := programtest.NewHost(t)
			chosen := strings.Replace(conf(h, "1.1.0", on), "{", `{"delegatePrivileges":`+value+`,`, 1)
			undone := strings.Replace(chosen, `]}`, `,{"type":"fake","name":"fails","dir":"`+h.Dir+`","on":{"ADD":"fail"}}]}`, 1)
			h.Run("STATUS", chosen)
			h.Run("ADD", undone)
			for _, command := range []string{"ADD", "CHECK", "DEL", "ADD"} {
				if stdout, stderr, code := h.Run(command, chosen); code != 0 {
					t.Errorf("%s: %s%s", command, stdout, stderr)
				}
			}
			h.Run("GC", strings.Replace(chosen, "{", `{"cni.dev/valid-attachments":[],`, 1))
			for _, call := range h.Calls() {
				if fake, _, _ := strings.Cut(call, " net1"); fake == call && call != strings.TrimSuffix(call, " noNew")+want {
					t.Errorf("%q, want it to end with %q: %q", call, want, h.Calls())
				}
			}
			nodetest.Equal(t, "there are all calls", len(h.Calls()) >= 9, true)
		})
	}
	h := programtest.NewHost(t)
	h.Run("ADD", conf(h, "1.1.0", ""))
	if stdout, _, code := h.Run("DEL", strings.Replace(conf(h, "1.1.0", ""), "{", `{"delegatePrivileges":"none",`, 1)); code != 0 {
		t.Errorf("DEL: %s", stdout)
	}
	h.Run("ADD", conf(h, "1.1.0", on))
	h.Restarted("state")
	gc := h.Command("", "")
	gc.Args = append(gc.Args, "gc", "--dir", h.State, "--bin-dir", h.Path("bin"), "--delegate-privileges", "noNew")
	out, err := gc.CombinedOutput()
	nodetest.OK(t, err)
	nodetest.Equal(t, "the last call of gc: "+string(out), h.Calls()[len(h.Calls())-1], "DEL eth0 noNew")
}

// The operator's tool is the same executable.
func TestToolProcess(t *testing.T) {
	t.Parallel()
	h := programtest.NewHost(t)
	if _, stderr, code := h.Run("ADD", conf(h, "1.0.0", "")); code != 0 {
		t.Fatal(stderr)
	}
	for _, tt := range []struct {
		args      []string
		out, errs string // regular expressions
		code      int
	}{
		{[]string{"list", "--dir", h.State}, `c1 .* added +alive `, `^$`, 0},
		{[]string{"list", "-o", "json", "--dir", h.State}, `"life": "alive",\s+"why": "its network namespace is at its path"`, `^$`, 0},
		{[]string{"--version"}, `^multinet \S+\n$`, `^$`, 0},
		{[]string{"burn"}, `^$`, `usage: multinet`, 1},
	} {
		cmd := h.Command("", "")
		cmd.Args = append(cmd.Args, tt.args...)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		_ = cmd.Run() // its status is what counts
		out, errs := regexp.MustCompile(tt.out), regexp.MustCompile(tt.errs)
		if code := cmd.ProcessState.ExitCode(); code != tt.code || !out.Match(stdout.Bytes()) || !errs.Match(stderr.Bytes()) {
			t.Errorf("%q: status %d, %s, %s", tt.args, code, &stdout, &stderr)
		}
	}
}

// Multinet, and the short plugin of the example, pass the conformance checks.
func TestConform(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		run       conform.Program
		conf      string // with the directories of records and of networks
		delegates []string
	}{
		"multinet": {
			multinet.New(multinet.Cluster{}).Execute,
			`{"type":"multinet","cniDir":%q,"confDir":%q,"binDir":"/absent","delegates":[
				{"type":"bridge"}, {"name":"storage","plugins":[{"type":"macvlan"},{"type":"tuning"}]}]}`,
			[]string{"bridge", "macvlan", "tuning"},
		},
		"short": {
			short.Execute,
			`{"type":"multinet","dataDir":%q,"confDir":%q,"networks":[{"name":"pods"},{"name":"storage"}]}`,
			[]string{"bridge", "tuning", "sriov"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conform.Test(t, tt.run, conform.Config{Strict: true, Delegates: tt.delegates, Stdin: func(dir string) string {
				n := nodetest.Node{TB: t, Dir: dir}
				n.Write("a.conflist", `{"cniVersion":"1.1.0","name":"pods","plugins":[{"type":"bridge"},{"type":"tuning"}]}`)
				n.Write("b.conflist", `{"cniVersion":"1.1.0","name":"storage","plugins":[{"type":"sriov"}]}`)
				return fmt.Sprintf(tt.conf, filepath.Join(dir, "state"), dir)
			}})
		})
	}
}
