package main

import (
	"bytes"
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
	"github.com/metacni/metacni/delegate/delegatetest"
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
	edits := []netconf.Edit{netconf.Set("name", n.Name())}
	if version := ""; c.Value("cniVersion", &version) == nil && version != "" { // flannel's own adds none
		edits = append(edits, netconf.Set("cniVersion", n.CNIVersion()))
	}
	conf, err := n.Plugins()[0].Edit(edits...)
	if err != nil {
		return err
	}
	text, err := conf.MarshalJSON()
	if err != nil {
		return err
	}
	a := c.Attachment(n)
	a.Files = []string{filepath.Join(c.Manager.Dir, c.ContainerID)} // removed with the attachment
	return c.Add(ctx, lifecycle.Transaction{
		Plan:    lifecycle.Plan(a),
		Prepare: func(context.Context, []delegate.Attachment) error { return scratch.WriteFile(a.Files[0], text) },
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
	for _, version := range []string{"1.0.0", ""} {
		h := newHost(t, version, subnetEnv)
		h.plugin = ported()
		file := filepath.Join(h.state(), "c1")
		var during []byte // what a crash of the delegate would leave
		bridge := h.Exec.Plugins["bridge"]
		h.Exec.Plugins["bridge"] = func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
			if c.Command == "ADD" {
				during, _ = os.ReadFile(file)
			}
			return bridge(ctx, c)
		}
		h.mustRun(t, "ADD", "")
		written, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var want, got map[string]any
		if err := errors.Join(json.Unmarshal([]byte(h.stdin()), &want), json.Unmarshal(written, &got)); err != nil {
			t.Fatal(err)
		}
		if version == "" {
			delete(want, "cniVersion") // which flannel's own plugin adds nowhere
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("stdin of the delegate and the file (-stdin +file):\n%s", diff)
		}
		if !bytes.Equal(during, written) {
			t.Errorf("the delegate runs beside %q, and not %q", during, written)
		}
		h.mustRun(t, "DEL", "")
		if exists(file) {
			t.Error("DEL leaves the file")
		}
		h.clean()
	}

	h := newHost(t, "1.0.0", subnetEnv)
	h.plugin = ported()
	file := filepath.Join(h.state(), "c1")

	// As flannel's own plugin does it.
	h.mustRun(t, "ADD", "")
	written, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	args := invoke.Args{Command: "DEL", ContainerID: "c1", NetNS: filepath.Join(h.Dir, "netns"), IfName: "eth0", Path: "/opt/a"}
	if _, err := h.Exec.ExecPlugin(t.Context(), "/opt/a/bridge", written, args.AsEnv()); err != nil || len(h.Exec.Live()) > 0 {
		t.Errorf("left: %q, %v", h.Exec.Live(), err)
	}
}
