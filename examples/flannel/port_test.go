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

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
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
	nodetest.OK(t, err)
	source, err := os.ReadFile("port_test.go")
	nodetest.OK(t, err)
	blocks := strings.Split(string(page), "```go\n")[1:]
	nodetest.Equal(t, "blocks of Go", len(blocks), 1)
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
		h.Plugin = ported()
		var during string // what a crash of the delegate would leave
		h.On("ADD bridge", func(context.Context, delegatetest.Invocation) error { during = h.Read("state/c1"); return nil })
		h.mustRun("ADD", "")
		written := h.Read("state/c1")
		var want, got map[string]any
		nodetest.OK(t, errors.Join(json.Unmarshal([]byte(h.stdin()), &want), json.Unmarshal([]byte(written), &got)))
		if version == "" {
			delete(want, "cniVersion") // which flannel's own plugin adds nowhere
		}
		nodetest.Equal(t, "file", got, want)
		nodetest.Equal(t, "file during the ADD", during, written)
		h.mustRun("DEL", "")
		nodetest.Equal(t, "the file is there", exists(h.Path("state/c1")), false)
		h.clean()

		h.mustRun("ADD", "") // and a DEL as flannel's own plugin does it
		args := invoke.Args{Command: "DEL", ContainerID: "c1", NetNS: h.Path("netns"), IfName: "eth0", Path: "/opt/a"}
		_, err := h.Exec.ExecPlugin(t.Context(), "/opt/a/bridge", []byte(h.Read("state/c1")), args.AsEnv())
		nodetest.OK(t, err)
		nodetest.Equal(t, "left", h.Exec.Live(), nil)
	}
}
