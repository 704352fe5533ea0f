//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const (
	own     = "github.com/metacni/metacni/internal/e2e/bench/testdata/"
	plugins = "github.com/containernetworking/plugins/plugins/"
)

// peer parses NAME=PATH.
func (o *options) peer(s string) error {
	name, path, _ := strings.Cut(s, "=")
	if name == "" || name != filepath.Base(name) || path == "" {
		return errors.New("want NAME=PATH")
	}
	path, err := filepath.Abs(path)
	o.peers[name] = path
	return err
}

// build puts the programs into work/bin as they are released, and links to the peers.
func build(ctx context.Context, work string, peers map[string]string) error {
	found, err := command(ctx, "", "list", "-m", "-f", "{{.Dir}}", "github.com/metacni/metacni")
	if err != nil {
		return err
	}
	root := strings.TrimSpace(string(found))
	e2e := filepath.Join(root, "internal", "e2e")
	for _, b := range []struct {
		module   string
		packages []string
	}{
		{root, []string{"./examples/multinet", "./examples/multinet-shim", "./examples/resident"}},
		{filepath.Join(root, "examples", "multinetd"), []string{"."}},
		{filepath.Join(e2e, "kube"), []string{"./testdata/api"}},
		{e2e, []string{own + "floor", own + "libcni", own + "noop", plugins + "main/bridge", plugins + "ipam/host-local"}},
	} {
		args := []string{"build", "-buildvcs=false", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(work, "bin") + "/"}
		if _, err := command(ctx, b.module, append(args, b.packages...)...); err != nil {
			return err
		}
	}
	for name, path := range peers {
		if err := os.Symlink(path, filepath.Join(work, "bin", name)); err != nil {
			return fmt.Errorf("-peer %s: %w", name, err)
		}
	}
	return nil
}

// command runs the go command in dir.
func command(ctx context.Context, dir string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, said.String())
	}
	return out, nil
}
