package host_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"

	"github.com/metacni/metacni/delegate/conform/host"
)

// What a command leaves on a host, without a trace on the machine.
func Example() { //nolint:testableexamples // not every machine has namespaces
	h, err := host.New(nil, nil)
	if errors.Is(err, errors.ErrUnsupported) {
		fmt.Println("it needs root, or user namespaces")
		return
	}
	defer func() { _ = h.Close() }()
	before, _ := h.State(context.Background())
	cmd := exec.Command("sh", "-c", "echo 10.1.0.2 >/var/lib/cni/lease")
	if err := h.Start(cmd); err == nil {
		err = cmd.Wait()
		after, _ := h.State(context.Background())
		fmt.Println(err, after.Since(before))
	}
}
