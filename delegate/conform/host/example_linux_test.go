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
func ExampleTests() { //nolint:testableexamples // it is a TestMain
	tests := host.Tests{Build: func(ctx context.Context, dir string) error {
		return exec.CommandContext(ctx, "go", "build", "-o", dir+"/", "example.com/mine").Run()
	}}
	_ = func(m *testing.M) { os.Exit(tests.Main(m)) }
}

// Such a test makes a container, and attaches it with the program.
func ExampleNewNS() { //nolint:testableexamples // it needs a private host
	path, err := host.NewNS("c1")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = host.RemoveNS(path) }()
	cmd := exec.Command(filepath.Join(host.Programs(), "mine"))
	cmd.Env = append(os.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS="+path)
	out, err := cmd.CombinedOutput()
	fmt.Println(string(out), err)
	fmt.Println(host.Interfaces(path))
}
