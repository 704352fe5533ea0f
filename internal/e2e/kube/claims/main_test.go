//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/metacni/metacni/examples/lab/host"
	"github.com/metacni/metacni/internal/e2e/kube/server"
)

func TestMain(m *testing.M) {
	runtime.LockOSThread()            // see host.Command
	if os.Getenv(programsEnv) != "" { // the private host of the demo
		main()
		return
	}
	if err := os.Chdir(".."); err != nil { // where the program runs as well
		fmt.Fprintln(os.Stderr, "claims:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// begin skips the test if it cannot run, and returns a directory for the demo that must be empty
// in the end.
func begin(t *testing.T) (dir string) {
	t.Helper()
	t.Parallel()
	_, err := server.Programs(t.Context())
	if err == nil {
		err = host.Command(t.Context(), "/bin/true").Run()
	}
	if err != nil {
		if os.Getenv("METACNI_E2E") == "require" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	dir = t.TempDir()
	t.Cleanup(func() {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	})
	return dir
}

// The demo succeeds, which it only does if everything is as it prints.
func TestDemo(t *testing.T) {
	dir := begin(t)
	var out strings.Builder
	if err := run(t.Context(), os.Environ(), dir, &out, t.Output()); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{
		"kind: ResourceClaim", "allowMultipleAllocations: true", "No plugin has run", "data0 ", "networkData:", "interfaceName: data0", "prepared claims: 0",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// A demo that is interrupted while its servers run fails and leaves nothing.
func TestDemoThatIsInterrupted(t *testing.T) {
	dir := begin(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := run(ctx, os.Environ(), dir, interrupter(cancel), t.Output()); err == nil {
		t.Error("no error")
	}
}

// An interrupter interrupts the demo with its first line.
type interrupter context.CancelFunc

func (i interrupter) Write(p []byte) (int, error) {
	i()
	return len(p), nil
}
