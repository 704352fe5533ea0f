//go:build linux

// Lab attaches network namespaces to networks through multinet, with real plugins, on a
// private host that ends with it. Run it with `make demo` or `go run ./examples/lab`. It
// needs Go, and root or user namespaces.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/metacni/metacni/delegate/conform/host"
)

// inside is set in the environment of the lab on the private host. Its value says who
// started it.
const inside = "METACNI_LAB_INSIDE"

func main() {
	// Namespaces belong to threads: keep the one of the first thread.
	runtime.LockOSThread()
	bin := flag.String("bin", "", "directory of built plugins; empty to build them")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()

	if err := run(ctx, *bin); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, bin string) error {
	if who, ok := os.LookupEnv(inside); ok {
		return story(ctx, stdio{out: os.Stdout, err: os.Stderr, env: os.Environ()}, bin, who)
	}
	if bin == "" {
		dir, err := os.MkdirTemp("", "metacni-lab-")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		fmt.Println("Building multinet and the reference plugins (the first time takes a minute) ...")
		if err := build(ctx, dir, os.Stderr); err != nil {
			return err
		}
		bin = dir
	}

	who := "as root"
	if uid := os.Getuid(); uid != 0 {
		who = fmt.Sprintf("as user %d, who is root in there", uid)
	}
	lab := host.Command(ctx, "/proc/self/exe", "-bin", bin)
	lab.Env = append(os.Environ(), inside+"="+who)
	lab.Stdout, lab.Stderr = os.Stdout, os.Stderr
	lab.Cancel = func() error { return lab.Process.Signal(syscall.SIGTERM) }
	lab.WaitDelay = 30 * time.Second
	err := lab.Run()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		return errors.New("the demo has failed, see above")
	}
	if err != nil {
		return fmt.Errorf("cannot make a private host, which needs root or a kernel with user namespaces for ordinary users: %w", err)
	}
	return nil
}

// build builds multinet and the reference plugins into dir. The reference
// plugins are tools of the module of the end-to-end tests, so that they are no
// dependencies of programs that import the SDK.
func build(ctx context.Context, dir string, stderr io.Writer) error {
	found, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/metacni/metacni").Output()
	if err != nil {
		return fmt.Errorf("find the module: %w", err)
	}
	root := strings.TrimSpace(string(found))
	const plugins = "github.com/containernetworking/plugins/plugins/"
	for module, packages := range map[string][]string{
		filepath.Join(root, "examples", "multinet"): {"./cmd/multinet"},
		filepath.Join(root, "internal", "e2e"): {
			plugins + "main/bridge", plugins + "main/macvlan", plugins + "meta/tuning", plugins + "ipam/host-local",
		},
	} {
		args := append([]string{"build", "-buildvcs=false", "-o", dir + "/"}, packages...)
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir, cmd.Stderr = module, stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("build %s: %w", strings.Join(packages, " "), err)
		}
	}
	return nil
}
