package kube

import (
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

// programsDir holds a go.mod that requires the programs.
const programsDir = "testdata/programs"

// buildPrograms returns the directory of etcd (server), kube-apiserver and kubectl. It
// builds them unless a cache of the user has them: in metacni-ci, for each toolchain and
// each go.mod and go.sum of programsDir. Of several processes one builds.
func buildPrograms(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	mod, err := os.ReadFile(filepath.Join(programsDir, "go.mod"))
	if err != nil {
		return "", err
	}
	sum, err := os.ReadFile(filepath.Join(programsDir, "go.sum"))
	if err != nil {
		return "", err
	}
	version := regexp.MustCompile(`k8s\.io/kubernetes (v\S+)`).FindSubmatch(mod)
	if version == nil {
		return "", errors.New(programsDir + "/go.mod does not require k8s.io/kubernetes")
	}
	key := sha256.Sum256(slices.Concat(mod, sum))
	parent := filepath.Join(cache, "metacni-ci", runtime.Version(), "kube")
	dir := filepath.Join(parent, fmt.Sprintf("%s-%x", version[1], key[:8]))
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	if err := flock.Wait(ctx, func() (bool, error) { return flock.Try(int(lock.Fd()), true) }); err != nil {
		return "", fmt.Errorf("wait for another process that builds: %w", err)
	}
	if _, err := os.Stat(dir); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	fmt.Fprintf(os.Stderr, "kube: building kube-apiserver %s, which takes a few minutes\n", version[1])
	work, err := os.MkdirTemp(parent, "build-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(work) }()
	cmd := exec.CommandContext(ctx, "go", "build", "-C", programsDir, "-trimpath", "-buildvcs=false",
		"-ldflags=-s -w -X k8s.io/component-base/version.gitVersion="+string(version[1]), "-o", work+"/", "tool")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build etcd, kube-apiserver and kubectl: %w\n%s", err, strings.TrimSpace(string(out)))
	}
	return dir, os.Rename(work, dir)
}

// buildNode builds into dir what runs on a node: the daemon, its shim, the operator's
// tool, and the plugins of networks.
func buildNode(ctx context.Context, dir string) error {
	const plugins = "github.com/containernetworking/plugins/plugins/"
	for _, b := range []struct {
		module   string
		packages []string
	}{
		{"../../..", []string{"./examples/multinet", "./examples/multinet-shim"}},
		{"../../../examples/multinetd", []string{"."}},
		{"..", []string{plugins + "main/bridge", plugins + "ipam/host-local"}}, // as its go.mod has them
	} {
		cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-C", b.module, "-buildvcs=false", "-o", dir + "/"}, b.packages...)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // static: some run in another root directory
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", strings.Join(b.packages, " "), err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}
