//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/examples/lab/host"
	"github.com/metacni/metacni/status"
)

// story runs the demo on the private host. It fails if something is not as it prints.
func story(ctx context.Context, std stdio, bin, who string) error {
	out := std.out
	if err := host.Setup(); err != nil {
		return fmt.Errorf("no private host: %w", err)
	}
	dir, err := os.MkdirTemp("/run", "lab-")
	if err != nil {
		return err
	}
	c, err := newCluster(dir, bin, std)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "A private host, %s, on Linux %s. It is gone when the lab ends.\n", who, kernel())
	wanted := "storage,fast@fast0"
	if c.macvlan != nil {
		fmt.Fprintf(out, "%v: the network fast is left out.\n", c.macvlan)
		wanted = "storage"
	}

	pod, err := c.pod("lab1", wanted)
	if err != nil {
		return err
	}
	attached, err := attach(ctx, out, c, pod, wanted)
	if err != nil {
		return err
	}
	if err := ping(ctx, out, pod); err != nil {
		return err
	}
	if err := fail(ctx, out, c); err != nil {
		return err
	}
	return detach(ctx, out, c, attached)
}

func attach(ctx context.Context, out io.Writer, c *cluster, pod delegate.Attachment, wanted string) (delegate.Attached, error) {
	fmt.Fprintf(out, "\n1. ADD lab1 eth0: its pod is annotated %s: %s\n\n", networks, wanted)
	start := time.Now()
	attached, err := c.runtime.Add(ctx, pod)
	if err != nil {
		return attached, err
	}
	took := time.Since(start)
	if err := table(out, pod.NetNS); err != nil {
		return attached, err
	}
	fmt.Fprintf(out, "\n   attached in %d ms; `multinet status lab1` says:\n\n", took.Milliseconds())
	// The runtime receives only the result of the first network.
	text, err := exec.CommandContext(ctx, filepath.Join(c.bin, "multinet"), "status", pod.ContainerID).Output()
	if err != nil {
		return attached, fmt.Errorf("multinet status %s: %w", pod.ContainerID, err)
	}
	_, err = fmt.Fprintf(out, "    %s\n", bytes.ReplaceAll(bytes.TrimSpace(text), []byte("\n"), []byte("\n    ")))
	return attached, err
}

func ping(ctx context.Context, out io.Writer, pod delegate.Attachment) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	reply, err := host.Ping(ctx, pod.NetNS, netip.MustParseAddr("10.244.1.1"))
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\n2. PING from lab1: the gateway %s answers after %d µs\n", reply.From, reply.Took.Microseconds())
	return nil
}

// fail attaches a second container, whose last network cannot work.
func fail(ctx context.Context, out io.Writer, c *cluster) error {
	const wanted = "storage,broken"
	fmt.Fprintf(out, "\n3. ADD lab2 eth0, annotated %s: the last network's parent interface does not exist\n\n", wanted)
	before, err := look("")
	if err != nil {
		return err
	}
	pod, err := c.pod("lab2", wanted)
	if err != nil {
		return err
	}
	_, err = c.runtime.Add(ctx, pod)
	if err == nil {
		return errors.New("lab2 has been attached")
	}
	fmt.Fprintf(out, "    CNI code %d: %s\n\n   What was attached has been detached again. What is left is lab1's:\n\n", status.Code(err), err)
	after, err := look(pod.NetNS)
	if err != nil {
		return err
	}
	after.print(out, "lab2")
	if len(after.interfaces) > 0 || len(after.host) != len(before.host) || mentions(after, "lab2") {
		return errors.New("something of lab2 is left")
	}
	return host.RemoveNS(pod.NetNS)
}

// detach does what containerd does: a DEL when it stops the pod, and a second DEL
// without namespace and result when it removes the pod.
func detach(ctx context.Context, out io.Writer, c *cluster, a delegate.Attached) error {
	fmt.Fprintf(out, "\n4. DEL lab1, and DEL again without its namespace, as containerd does\n\n")
	if err := c.runtime.Del(ctx, a); err != nil {
		return err
	}
	left, err := look(a.NetNS)
	if err != nil {
		return err
	}
	if err := host.RemoveNS(a.NetNS); err != nil {
		return err
	}
	again := a
	again.NetNS, again.Result = "", nil
	if err := c.runtime.Del(ctx, again); err != nil {
		return err
	}
	left.print(out, "lab1")
	if n := len(left.interfaces) + len(left.host) + len(left.leases) + len(left.records); n > 0 {
		return fmt.Errorf("%d things are left", n)
	}
	fmt.Fprintln(out, "\nNothing is left.")
	return nil
}

// mentions reports whether a lease or a record is of container.
func mentions(r remains, container string) bool {
	return strings.Contains(strings.Join(append(r.leases, r.records...), "\n"), container)
}

func kernel() string {
	var u unix.Utsname
	_ = unix.Uname(&u)
	return unix.ByteSliceToString(u.Release[:])
}
