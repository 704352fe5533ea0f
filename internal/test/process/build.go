// Package process builds the programs of servers and runtimes that tests run, and runs
// them.
package process

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/metacni/metacni/internal/flock"
)

// Tools are programs of other modules, which a go.mod has as tools.
type Tools struct {
	Dir    string // directory of the go.mod
	Name   string // of the directory in the cache
	Module string // whose version is in the name of the directory

	// Builds are the environment and the arguments of each go build. In the arguments,
	// VERSION is the version of Module.
	Builds []Build
}

// A Build is the environment and the arguments of a go build.
type Build struct {
	Env  []string
	Args []string
}

// Build returns the directory of the programs. It builds them unless a cache of the user
// has them: in metacni-ci, for each toolchain, go.mod and go.sum. Of several processes one
// builds.
func (t Tools) Build(ctx context.Context) (string, error) {
	cache, cacheErr := os.UserCacheDir()
	mod, modErr := os.ReadFile(filepath.Join(t.Dir, "go.mod"))
	sum, sumErr := os.ReadFile(filepath.Join(t.Dir, "go.sum"))
	if err := errors.Join(cacheErr, modErr, sumErr); err != nil {
		return "", err
	}
	version := regexp.MustCompile(`\s` + regexp.QuoteMeta(t.Module) + ` (v\S+)`).FindSubmatch(mod)
	if version == nil {
		return "", fmt.Errorf("%s/go.mod does not require %s", t.Dir, t.Module)
	}
	key := sha256.Sum256(slices.Concat(mod, sum))
	parent := filepath.Join(cache, "metacni-ci", runtime.Version(), t.Name)
	dir := filepath.Join(parent, fmt.Sprintf("%s-%x", version[1], key[:8]))
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	if err := flock.Wait(ctx, 0, func() (bool, error) { return flock.Try(int(lock.Fd()), true) }); err != nil {
		return "", fmt.Errorf("wait for another process that builds: %w", err)
	}
	if _, err := os.Stat(dir); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	fmt.Fprintf(os.Stderr, "building %s %s, which takes a few minutes\n", t.Module, version[1])
	work, err := os.MkdirTemp(parent, "build-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(work) }()
	for _, b := range t.Builds {
		for i, arg := range b.Args {
			b.Args[i] = strings.ReplaceAll(arg, "VERSION", string(version[1]))
		}
		if err := b.Run(ctx, t.Dir, work); err != nil {
			return "", err
		}
	}
	return dir, os.Rename(work, dir)
}

// Run builds packages of the module in a directory into the directory bin.
func (b Build) Run(ctx context.Context, module, bin string) error {
	cmd := exec.CommandContext(ctx, "go", slices.Concat([]string{"build", "-C", module, "-trimpath", "-buildvcs=false", "-o", bin + "/"}, b.Args)...)
	cmd.Env = slices.Concat(os.Environ(), []string{"GOWORK=off"}, b.Env)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", strings.Join(b.Args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Root returns the directory of the SDK's module, which is above the working directory.
func Root() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		text, missing := os.ReadFile(filepath.Join(dir, "go.mod"))
		if missing == nil && bytes.HasPrefix(text, []byte("module github.com/metacni/metacni\n")) {
			break
		}
		if dir == filepath.Dir(dir) {
			err = errors.New("the working directory is not in the SDK's module")
		}
		dir = filepath.Dir(dir)
	}
	return dir, err
}

// BuildNode builds into the directory bin what runs on a node: the daemon, its shim, the
// operator's tool, and plugins of networks, whose paths begin with main, ipam or meta.
func BuildNode(ctx context.Context, bin string, plugins ...string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	for i, p := range plugins {
		plugins[i] = "github.com/containernetworking/plugins/plugins/" + p
	}
	static := []string{"CGO_ENABLED=0"} // some run in another root directory
	for module, packages := range map[string][]string{
		root + "/examples/multinet": {"./cmd/multinet", "./cmd/multinet-shim", "./cmd/multinetd"},
		root + "/internal/e2e":      plugins, // as its go.mod has them
	} {
		if err := (Build{static, packages}).Run(ctx, module, bin); err != nil {
			return err
		}
	}
	return nil
}
