//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
)

// build builds multinet and the reference plugins into dir. The reference
// plugins are tools of the module of the end-to-end tests, so that they are no
// dependencies of programs that import the SDK.
func build(ctx context.Context, dir string, stderr io.Writer) error {
	find := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/metacni/metacni")
	find.Stderr = stderr
	found, err := find.Output()
	if err != nil {
		return fmt.Errorf("find the module: %w", err)
	}
	root := strings.TrimSpace(string(found))
	const plugins = "github.com/containernetworking/plugins/plugins/"
	for _, b := range []struct {
		module   string
		packages []string
	}{
		{root, []string{"./examples/multinet"}},
		{filepath.Join(root, "internal", "e2e"), []string{
			plugins + "main/bridge", plugins + "main/macvlan", plugins + "meta/tuning", plugins + "ipam/host-local",
		}},
	} {
		args := append([]string{"build", "-buildvcs=false", "-o", dir + "/"}, b.packages...)
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir, cmd.Stderr = b.module, stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("build %s: %w", strings.Join(b.packages, " "), err)
		}
	}
	return nil
}
