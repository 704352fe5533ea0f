package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// The code of MIGRATION.md, which TestMigrationPage compares with this file.

func ported() plugin.Plugin {
	p := flannel()
	p.Add = addWithFile
	return p
}

func addWithFile(ctx context.Context, c *plugin.Call) error {
	n, err := network(c)
	if err != nil {
		return err
	}
	conf, err := n.Request(0, netconf.Request{}) // what the delegate receives on stdin
	if err != nil {
		return err
	}
	a := c.Attachment(n)
	a.Files = []string{filepath.Join(c.Manager.Dir, c.ContainerID)} // removed with the attachment
	return c.Add(ctx, lifecycle.Transaction{
		Plan:   lifecycle.Plan(a),
		Report: func(context.Context, []delegate.Attached) error { return scratch.WriteFile(a.Files[0], conf) },
	})
}

// The Go code in MIGRATION.md is in this file, so that it compiles.
func TestMigrationPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("MIGRATION.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("port_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(page), "```go\n")[1:]
	if len(blocks) != 1 {
		t.Errorf("%d blocks of Go", len(blocks))
	}
	for _, block := range blocks {
		code, _, _ := strings.Cut(block, "```")
		if !strings.Contains(string(source), "\n"+code) {
			t.Errorf("not in port_test.go:\n%s", code)
		}
	}
}

// The state file is what flannel's own plugin writes, so that it can remove what
// the ported plugin has attached.
func TestPortedPluginKeepsItsStateFile(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0", subnetEnv)
	h.plugin = ported()
	file := filepath.Join(h.state(), "c1")
	h.mustRun(t, "ADD", "")
	written, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var want, got any
	if err := errors.Join(json.Unmarshal([]byte(h.stdin()), &want), json.Unmarshal(written, &got)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stdin of the delegate and the file (-stdin +file):\n%s", diff)
	}
	h.mustRun(t, "DEL", "")
	if exists(file) {
		t.Error("DEL leaves the file")
	}
	h.clean()

	// As flannel's own plugin does it.
	h.mustRun(t, "ADD", "")
	if written, err = os.ReadFile(file); err != nil {
		t.Fatal(err)
	}
	args := invoke.Args{Command: "DEL", ContainerID: "c1", NetNS: filepath.Join(h.Dir, "netns"), IfName: "eth0", Path: "/opt/a"}
	if _, err := h.Exec.ExecPlugin(t.Context(), "/opt/a/bridge", written, args.AsEnv()); err != nil || len(h.Exec.Live()) > 0 {
		t.Errorf("left: %q, %v", h.Exec.Live(), err)
	}
}
