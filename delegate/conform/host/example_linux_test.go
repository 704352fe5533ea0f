package host_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/metacni/metacni/delegate/conform/host"
)

// The tests of a package run on a private host, with the program that they test.
func Example() { //nolint:testableexamples // it is a TestMain and a test
	main := func(m *testing.M) {
		os.Exit(host.Tests{Build: func(ctx context.Context, dir string) error {
			return exec.CommandContext(ctx, "go", "build", "-o", dir+"/", "example.com/mine").Run()
		}}.Main(m))
	}
	test := func(t *testing.T) {
		host.Need(t)
		path, err := host.NewNS("c1")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = host.RemoveNS(path) }()
		cmd := exec.CommandContext(t.Context(), filepath.Join(host.Programs(), "mine"))
		cmd.Env = append(os.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS="+path)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		fmt.Println(host.Interfaces(path))
	}
	_, _ = main, test
}
