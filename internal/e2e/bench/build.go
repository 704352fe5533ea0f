//go:build linux

package main

import (
	"context"
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

// build puts the programs into work/bin as `go build` makes them, and into
// work/stripped as they would be released.
func build(ctx context.Context, work string) error {
	found, err := command(ctx, "", "list", "-m", "-f", "{{.Dir}}", "github.com/metacni/metacni")
	if err != nil {
		return err
	}
	root := strings.TrimSpace(string(found))
	e2e := filepath.Join(root, "internal", "e2e")
	kube, multinetd := filepath.Join(e2e, "kube"), filepath.Join(root, "examples", "multinetd") // modules
	for _, b := range []struct {
		dir, module string
		flags       []string
		packages    []string
	}{
		{"bin", root, nil, []string{"./examples/multinet", "./examples/multinet-shim", "./examples/resident"}},
		{"bin", multinetd, nil, []string{"."}},
		{"bin", kube, nil, []string{"./testdata/api"}},
		{"bin", e2e, nil, []string{own + "floor", own + "launch", own + "libcni", own + "noop", plugins + "main/bridge", plugins + "ipam/host-local"}},
		{"stripped", root, []string{"-trimpath", "-ldflags=-s -w"}, []string{"./examples/multinet", "./examples/multinet-shim"}},
		{"stripped", multinetd, []string{"-trimpath", "-ldflags=-s -w"}, []string{"."}},
		{"stripped", e2e, []string{"-trimpath", "-ldflags=-s -w"}, []string{own + "floor", own + "libcni", own + "noop"}},
	} {
		args := append([]string{"build", "-buildvcs=false", "-o", filepath.Join(work, b.dir) + "/"}, b.flags...)
		if _, err := command(ctx, b.module, append(args, b.packages...)...); err != nil {
			return err
		}
	}
	return install(filepath.Join(work, "bin"))
}

// install replaces each program in dir by a copy. The page cache holds a file
// that a linker wrote by mmap in single pages, and such a program takes a tenth
// longer to start.
func install(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		file := filepath.Join(dir, entry.Name())
		program, err := os.ReadFile(file)
		if err == nil {
			err = os.Remove(file)
		}
		if err == nil {
			err = os.WriteFile(file, program, 0o755) //nolint:gosec // programs are executable
		}
		if err != nil {
			return err
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

// size returns the size of a file in bytes.
func size(path string) (int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
